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
from ...config.locations import store_location
from ...config.redaction import MASK, redact_secrets
from ...config.roster import roster_from_config
from ...config.rpc_methods import ConfigService
from ...core import session_keys as keys
from ...core.agents import AgentRoster
from ...core.ports import ProcessGuard
from ...core.rpc import RpcModule
from ...net.orphan_reaper import OrphanReaper
from ...net.state_dir import audit_key
from ...store.cron_jobs import SqlCronJobRepository
from ...tools.audit_writer import AuditQueue
from ..channels.channel_types import CHANNEL_FACTORIES
from ..cron.cron_tool import CronTool
from ..cron.permissions import JobPermissions
from ..cron.rpc_methods import CronMethods
from ..rpc.attach import AttachMethods
from .channels import ChannelServices, open_channels
from .chat_completions import ChatCompletionsApi
from .cli_runtimes import cli_runtimes
from .gateway import GatewayServer
from .model_runtimes import model_runtimes
from .nodes import DatabasePairingStorage, open_nodes
from .restart import InPlaceRestart
from .runs import StoreServices, open_store_services
from .status_report import StatusReport
from .tools import AgentTools

if TYPE_CHECKING:
    # For the types alone: a gateway by itself has no proxy to load.
    from ...proxy.state import ProxyState

logger = logging.getLogger(__name__)

RESTART_EXPECTED_MS: Final = 1500  # milliseconds a restart is said to take


class GatewayOptions(Struct, frozen=True, kw_only=True):
    """What stays the same from one start to the next."""

    folder: Path
    token: str
    hosts: frozenset[str] = frozenset()
    accepts_remote: bool = False
    """Whether other machines reach it."""
    proxy_state: "ProxyState | None" = None
    """The app proxy, when it lives in this process too."""
    is_restart: bool = False
    """Whether this start is a restart."""


async def serve(options: GatewayOptions, listener: socket.socket, *, ready: Callable[[], None] | None = None) -> bool:
    """Serve until told to stop. True: a restart was asked for.

    Raises StoreDamaged, ConfigInvalid or StateBroken before anything is served.
    """
    async with assemble_gateway(options, local_address(listener)) as whole:
        return await _serve_until_done(whole, listener, ready)


class AssembledGateway(Struct, frozen=True, kw_only=True):
    """The gateway with every room in it."""

    gateway: GatewayServer
    restart: InPlaceRestart
    report: StatusReport


@asynccontextmanager
async def assemble_gateway(options: GatewayOptions, address: str) -> AsyncIterator[AssembledGateway]:
    """Every room open and offered; `address` is where programs of this machine reach the gateway."""
    ledger, shelf = AuditQueue(), DatabasePairingStorage(options.folder / "pairing.json")
    key = await asyncio.to_thread(audit_key, options.folder)
    gateway = GatewayServer(
        options.folder,
        options.token,
        hosts=options.hosts,
        accepts_remote=options.accepts_remote,
        pairing_store=shelf,
        audit=ledger.write,
        digest_key=key,
    )
    config = ConfigService(await asyncio.to_thread(ConfigFile, options.folder), gateway.publish)
    roster = _make_roster_reader(config)
    async with AsyncExitStack() as stack:
        equipment = await stack.enter_async_context(
            AgentTools(gateway, config, ledger, roster=roster, proxy_state=options.proxy_state)
        )
        models = await stack.enter_async_context(model_runtimes(options.folder, lambda: config.current.config, roster))
        clis = await stack.enter_async_context(
            cli_runtimes(
                options.folder, roster, url=address, grants=gateway.grants, allowed_tools=gateway.grants.list_tools
            )
        )
        memory = await stack.enter_async_context(
            open_store_services(
                store_location(options.folder, config.current.config),
                gateway.publish,
                roster=roster,
                tools=gateway.tools,
                runtimes={**models, **clis},
                make_caller=equipment.make_run_caller,
                run_scope=equipment.run_scope,
                media_settings=lambda: config.current.config.media,
            )
        )
        config.history, shelf.repository = memory.config_history, memory.devices
        await stack.enter_async_context(config)
        stalls = await stack.enter_async_context(
            open_nodes(gateway, memory.nodes, config=lambda: config.current.config)
        )
        config.changed.connect(lambda _: stalls.refresh_all())
        mail = await stack.enter_async_context(
            open_channels(
                memory,
                gateway.publish,
                config=config,
                roster=roster,
                folder=options.folder,
                tool_refusal=gateway.policy.refusal_reason,
                token=options.token,
                factories=CHANNEL_FACTORIES,
            )
        )
        equipment.connect_channels(mail.channels)
        watchman = OrphanReaper()
        stack.push_async_callback(asyncio.to_thread, watchman.close)
        permissions = JobPermissions(
            spawnable_agents=equipment.spawnable_agents,
            check_session=equipment.check_visibility,
            check_address=mail.authorize_send,
            tool_refusal=gateway.policy.refusal_reason,
        )
        cron = _build_cron(memory, mail, gateway, config, roster, guard=watchman, permissions=permissions)
        restart = InPlaceRestart(
            memory.runs, lambda: config.current, lambda: memory.runs.is_idle, is_restart=options.is_restart
        )
        config.changed.connect(restart.on_config_change)
        report = StatusReport(memory, roster)
        await report.refresh()
        completions = ChatCompletionsApi(
            memory.runs,
            roster=roster,
            has_token=gateway.has_token,
            is_enabled=lambda: config.current.config.gateway.http.endpoints.chat_completions.enabled,
        )
        attach = AttachMethods(
            gateway.grants,
            url=address,
            normalize_key=lambda key: _resolve_session_key(key, roster()),
            bind_session=equipment.act_in_session,
        )
        rooms: tuple[RpcModule, ...] = (config, restart, report, completions, attach, *mail.rpc_modules, cron)
        for room in rooms:
            gateway.add_module(room)
        gateway.registry.add("message", mail.tool)
        gateway.registry.add("cron", CronTool(cron, memory.sessions))
        await stack.enter_async_context(cron)
        yield AssembledGateway(gateway=gateway, restart=restart, report=report)


def _resolve_session_key(key: str, roster: AgentRoster) -> str:
    """The whole key of a session of ours. Raises Fault."""
    whole = keys.normalize_key(key, roster)
    roster.get_agent(keys.split_key(whole)[0])
    return whole


def _make_roster_reader(config: ConfigService) -> Callable[[], AgentRoster]:
    """The agents as the config has them now, read anew when it has changed."""
    rosters: dict[str, AgentRoster] = {}

    def roster() -> AgentRoster:
        current = config.current
        if current.hash not in rosters:
            rosters.clear()
            rosters[current.hash] = roster_from_config(current.config)
        return rosters[current.hash]

    return roster


def _build_cron(
    services: StoreServices,
    channels: ChannelServices,
    gateway: GatewayServer,
    config: ConfigService,
    roster: Callable[[], AgentRoster],
    *,
    guard: ProcessGuard,
    permissions: JobPermissions,
) -> CronMethods:
    return CronMethods(
        SqlCronJobRepository(services.store),
        services.runs,
        services.sessions,
        gateway.publish,
        store_path=services.store.location,
        roster=roster,
        settings=lambda: config.current.config.cron,
        channels=channels.channels,
        permissions=permissions,
        redact=lambda part: redact_secrets(part, MASK),
        guard=guard,
    )


async def _serve_until_done(
    assembled: AssembledGateway, listener: socket.socket, ready: Callable[[], None] | None
) -> bool:
    serving = asyncio.ensure_future(assembled.gateway.serve(listener, ready=ready))
    asked, counting = (
        asyncio.ensure_future(assembled.restart.wait_until_due()),
        asyncio.ensure_future(assembled.report.refresh_on_change()),
    )
    try:
        await asyncio.wait({serving, asked}, return_when=asyncio.FIRST_COMPLETED)
        if serving.done():
            await serving
            return False
        logger.info("restarting in place")
        assembled.gateway.rpc_server.shut_down("gateway restarting", restart_expected_ms=RESTART_EXPECTED_MS)
        return True
    finally:
        for task in (serving, asked, counting):
            task.cancel()
        await asyncio.gather(serving, asked, counting, return_exceptions=True)


def local_address(listener: socket.socket) -> str:
    """Where programs on this machine reach the gateway."""
    host, port = listener.getsockname()[:2]
    near = {"0.0.0.0": "127.0.0.1", "::": "[::1]", "::1": "[::1]"}.get(host, host)
    return f"ws://{near}:{port}"
