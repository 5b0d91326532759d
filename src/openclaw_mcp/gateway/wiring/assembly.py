"""The caretaker of the whole gateway: config, store, rooms and doors put together, and put together again."""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from ...config.file import ConfigFile
from ...config.rpc_methods import ConfigRoom
from ...config.text import MASK, redacted
from ...config.views import completions_offered, database, media_settings, roster_of
from ...core.agents import Roster
from ...core.model import Json
from ...core.ports import Guard
from ...core.rpc import Room
from ...net.orphan_reaper import Watchman
from ...net.state_dir import audit_key
from ...store.cron_jobs import CronJobs
from ...tools.audit_writer import Ledger
from ..channels.channel_types import KINDS
from ..cron.cron_tool import CronTool
from ..cron.permissions import Reach
from ..cron.rpc_methods import CronRoom
from ..rpc.attach import Attach
from ..sessions import keys
from .channels import Mail, mailing
from .chat_completions import Completions
from .cli_runtimes import cli_runtimes
from .gateway import Gateway
from .model_runtimes import model_runtimes
from .nodes import StoreShelf, machine_room
from .restart import Restart
from .runs import Memory, remembering
from .status_report import Report
from .tools import Equipment

if TYPE_CHECKING:
    # For the types alone: a gateway by itself has no proxy to load.
    from ...proxy.state import House

logger = logging.getLogger(__name__)

EXPECTED_MS: Final = 1500  # milliseconds a restart is said to take


class Plan(Struct, frozen=True, kw_only=True):
    """What stays the same from one start to the next."""

    folder: Path
    token: str
    hosts: frozenset[str] = frozenset()
    beyond: bool = False
    """Whether other machines reach it."""
    apps: "House | None" = None
    """The app proxy, when it lives in this process too."""
    again: bool = False
    """Whether this start is a restart."""


async def serve(plan: Plan, listener: socket.socket, *, ready: Callable[[], None] | None = None) -> bool:
    """Serve until told to stop. True: a restart was asked for.

    Raises StoreDamaged, ConfigInvalid or StateBroken before anything is served.
    """
    async with assembled(plan, own_address(listener)) as whole:
        return await _until_done(whole, listener, ready)


class Whole(Struct, frozen=True, kw_only=True):
    """The gateway with every room in it."""

    gateway: Gateway
    restart: Restart
    report: Report


@asynccontextmanager
async def assembled(plan: Plan, address: str) -> AsyncIterator[Whole]:
    """Every room open and offered; `address` is where programs of this machine reach the gateway."""
    ledger, shelf = Ledger(), StoreShelf(plan.folder / "pairing.json")
    key = await asyncio.to_thread(audit_key, plan.folder)
    gateway = Gateway(
        plan.folder, plan.token, hosts=plan.hosts, beyond=plan.beyond, shelf=shelf, audit=ledger.write, digest_key=key
    )
    config = ConfigRoom(await asyncio.to_thread(ConfigFile, plan.folder), gateway.publish)
    roster = _following(config)
    async with AsyncExitStack() as stack:
        equipment = await stack.enter_async_context(Equipment(gateway, config, ledger, roster=roster, apps=plan.apps))
        models = await stack.enter_async_context(model_runtimes(plan.folder, lambda: config.current.config, roster))
        clis = await stack.enter_async_context(
            cli_runtimes(plan.folder, roster, url=address, grants=gateway.grants, menu=gateway.grants.menu)
        )
        memory = await stack.enter_async_context(
            remembering(
                database(plan.folder, config.current.config), gateway.publish, roster=roster, tools=gateway.tools,
                runtimes={**models, **clis}, act=equipment.act, around=equipment.around,
                media=lambda: media_settings(config.current.config),
            )
        )  # fmt: skip
        config.history, shelf.book = memory.config_history, memory.devices
        await stack.enter_async_context(config)
        stalls = await stack.enter_async_context(
            machine_room(gateway, memory.nodes, config=lambda: config.current.config)
        )
        config.changed.listen(lambda _: stalls.look_at_all())
        mail = await stack.enter_async_context(
            mailing(
                memory, gateway.publish, config=config, roster=roster, folder=plan.folder, judge=gateway.rules.refusal,
                token=plan.token, kinds=KINDS,
            )
        )  # fmt: skip
        equipment.deliver_by(mail.mailroom)
        watchman = Watchman()
        stack.push_async_callback(asyncio.to_thread, watchman.close)
        cron = _clock(memory, mail, gateway, config, roster, watchman)
        cron.reach = Reach(
            helpers=equipment.helpers, see=equipment.check_sight, send=mail.check_sending, judge=gateway.rules.refusal
        )
        restart = Restart(memory.runs, lambda: config.current, lambda: memory.runs.idle, again=plan.again)
        config.changed.listen(restart.config_changed)
        report = Report(memory, roster)
        await report.count()
        completions = Completions(
            memory.runs, roster=roster, bears_token=gateway.bears_token,
            offered=lambda: completions_offered(config.current.config),
        )  # fmt: skip
        attach = Attach(
            gateway.grants, url=address, key=lambda key: _session_of(key, roster()), acting=equipment.acting
        )  # fmt: skip
        rooms: tuple[Room, ...] = (config, restart, report, completions, attach, *mail.rooms, cron)
        for room in rooms:
            gateway.add(room)
        gateway.registry.add("message", mail.tool)
        gateway.registry.add("cron", CronTool(cron, memory.sessions))
        await stack.enter_async_context(cron)
        yield Whole(gateway=gateway, restart=restart, report=report)


def _session_of(key: str, roster: Roster) -> str:
    """The whole key of a session of ours. Raises Fault."""
    whole = keys.canonical(key, roster)
    roster.card(keys.parts(whole)[0])
    return whole


def _following(config: ConfigRoom) -> Callable[[], Roster]:
    """The agents as the config has them now, read anew when it has changed."""
    rosters: dict[str, Roster] = {}

    def roster() -> Roster:
        current = config.current
        if current.hash not in rosters:
            rosters.clear()
            rosters[current.hash] = roster_of(current.config)
        return rosters[current.hash]

    return roster


def _clock(
    memory: Memory, mail: Mail, gateway: Gateway, config: ConfigRoom, roster: Callable[[], Roster], guard: Guard
) -> CronRoom:
    def settings() -> Json:
        found: Json = config.current.config.get("cron", {})
        return found

    room = CronRoom(
        CronJobs(memory.store), memory.runs, memory.sessions, gateway.publish, path=memory.store.where,
        roster=roster, config=settings, mailroom=mail.mailroom, guard=guard,
    )  # fmt: skip
    room.hide = lambda part: redacted(part, MASK)
    return room


async def _until_done(whole: Whole, listener: socket.socket, ready: Callable[[], None] | None) -> bool:
    serving = asyncio.ensure_future(whole.gateway.serve(listener, ready=ready))
    asked, counting = asyncio.ensure_future(whole.restart.due()), asyncio.ensure_future(whole.report.keep_counting())
    try:
        await asyncio.wait({serving, asked}, return_when=asyncio.FIRST_COMPLETED)
        if serving.done():
            await serving
            return False
        logger.info("restarting in place")
        whole.gateway.intercom.shut("gateway restarting", restart_expected_ms=EXPECTED_MS)
        return True
    finally:
        for task in (serving, asked, counting):
            task.cancel()
        await asyncio.gather(serving, asked, counting, return_exceptions=True)


def own_address(listener: socket.socket) -> str:
    """Where programs on this machine reach the gateway."""
    host, port = listener.getsockname()[:2]
    near = {"0.0.0.0": "127.0.0.1", "::": "[::1]", "::1": "[::1]"}.get(host, host)
    return f"ws://{near}:{port}"
