"""The caretaker of the whole gateway: config, store, rooms and doors put together, and put together again."""

import asyncio
import logging
import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from .cli_runtimes import cli_runtimes
from .completions import Completions
from .config.file import ConfigFile, Snapshot
from .config.room import Change, ConfigRoom
from .core.books import SessionBook
from .core.model import Json
from .core.ports import AgentRuntime, Runner
from .core.records import RunNews, RunOver, SessionQuery, now_ms
from .core.roster import AgentCard, Roster
from .core.rpc import ADMIN, READ, Fault, Method, Room, RpcCall
from .cron.room import CronRoom
from .cron.tool import CronTool
from .equipment import Equipment
from .gateway import Gateway
from .mailing import mailing
from .memory import Memory, remembering
from .rpc.attach import Attach
from .sessions import keys
from .state import audit_key
from .store.cron import CronJobs
from .store.store import DATABASE
from .tools.ledger import Ledger

if TYPE_CHECKING:
    # For the types alone: a gateway by itself has no proxy to load.
    from .proxy.house import House

logger = logging.getLogger(__name__)

RESTART_DELAY: Final = 0.5  # seconds: the answer to the request must reach its caller first
RESTART_PATIENCE: Final = 30.0  # seconds a restart waits for runs to end
RESTART_COOLDOWN: Final = 30.0  # seconds between two restarts: a loop of them would be worse than a late one
EXPECTED_MS: Final = 1500
COUNT_AT_MOST: Final = 1.0  # seconds between two looks at the sessions for `health`

NO_HEARTBEAT: Final = {
    "enabled": False, "every": "disabled", "everyMs": None, "prompt": "", "target": "none", "ackMaxChars": 0,
}  # fmt: skip


def database(folder: Path, config: Json) -> str:
    """$OPENCLAW_STORE_URL, else the config's `store.url`, else SQLite in the state directory."""
    chosen = os.environ.get("OPENCLAW_STORE_URL") or config.get("store", {}).get("url")
    return chosen or str(folder / DATABASE)


def roster_of(config: Json) -> Roster:
    """The agents the config names; one called `main`, which is the demo, when it names none."""
    agents = config.get("agents", {})
    defaults = agents.get("defaults", {})
    cards = tuple(_card(entry, defaults) for entry in agents.get("list", [])) or (_card({"id": "main"}, defaults),)
    chosen = next((entry["id"] for entry in agents.get("list", []) if entry.get("default")), cards[0].id)
    return Roster(agents=cards, default_id=chosen, main_key=config.get("session", {}).get("mainKey", "main"))


def own_address(listener: socket.socket) -> str:
    """Where programs on this machine reach the gateway."""
    host, port = listener.getsockname()[:2]
    near = {"0.0.0.0": "127.0.0.1", "::": "[::1]", "::1": "[::1]"}.get(host, host)
    return f"ws://{near}:{port}"


def _offered(config: Json) -> bool:
    endpoints = config.get("gateway", {}).get("http", {}).get("endpoints", {})
    return bool(endpoints.get("chatCompletions", {}).get("enabled", True))


def _card(entry: Json, defaults: Json) -> AgentCard:
    model = entry.get("model", defaults.get("model"))
    return AgentCard(
        id=entry["id"],
        name=entry.get("name"),
        runtime=str(entry.get("runtime") or defaults.get("runtime") or "demo"),
        model=model.get("primary") if isinstance(model, dict) else model,
        workspace=entry.get("workspace", defaults.get("workspace")),
        settings={**defaults, **entry},
    )


class Plan(Struct, frozen=True, kw_only=True):
    """What stays the same from one start to the next."""

    folder: Path
    token: str
    hosts: frozenset[str] = frozenset()
    runtimes: Mapping[str, AgentRuntime] = {}
    apps: "House | None" = None
    """The app proxy, when it lives in this process too."""
    again: bool = False
    """Whether this start is a restart."""


async def serve(plan: Plan, listener: socket.socket, *, ready: Callable[[], None] | None = None) -> bool:
    """Serve until told to stop. True: a restart was asked for.

    Raises StoreDamaged, ConfigInvalid or StateBroken before anything is served.
    """
    ledger = Ledger()
    key = await asyncio.to_thread(audit_key, plan.folder)
    gateway = Gateway(plan.folder, plan.token, hosts=plan.hosts, audit=ledger.write, digest_key=key)
    config = ConfigRoom(await asyncio.to_thread(ConfigFile, plan.folder), gateway.publish)
    rosters: dict[str, Roster] = {}

    def roster() -> Roster:
        current = config.current
        if current.hash not in rosters:
            rosters.clear()
            rosters[current.hash] = roster_of(current.config)
        return rosters[current.hash]

    async with AsyncExitStack() as stack:
        where = database(plan.folder, config.current.config)
        equipment = await stack.enter_async_context(Equipment(gateway, config, ledger, roster=roster, apps=plan.apps))
        url = own_address(listener)
        clis = cli_runtimes(plan.folder, roster, url=url, grants=gateway.grants, menu=gateway.grants.menu)
        runtimes = {**await stack.enter_async_context(clis), **plan.runtimes}
        memory = await stack.enter_async_context(
            remembering(
                where, gateway.publish, roster=roster, runtimes=runtimes, tools=gateway.tools,
                act=equipment.act, around=equipment.around,
            )
        )  # fmt: skip
        config.history = memory.config_history
        await stack.enter_async_context(config)
        restart = Restart(memory.runs, lambda: config.current, lambda: memory.runs.idle, again=plan.again)
        config.changed.listen(restart.config_changed)
        report = Report(memory, roster)
        await report.count()
        completions = Completions(
            memory.runs, roster=roster, bears_token=gateway.bears_token, offered=lambda: _offered(config.current.config)
        )
        attach = Attach(gateway.grants, url=url, key=lambda key: keys.canonical(key, roster()))
        mail = await stack.enter_async_context(
            mailing(memory, gateway.publish, config=config, roster=roster, folder=plan.folder)
        )
        gateway.registry.add("message", mail.tool)
        if equipment.letters is not None:
            equipment.letters.mailroom = mail.mailroom
        cron = CronRoom(
            CronJobs(memory.store), memory.runs, memory.sessions, gateway.publish, path=memory.store.where,
            roster=roster, config=lambda: config.current.config.get("cron", {}),
            mailroom=mail.mailroom,
        )  # fmt: skip
        gateway.registry.add("cron", CronTool(cron, memory.sessions))
        rooms: tuple[Room, ...] = (config, restart, report, completions, attach, cron, *mail.rooms)
        for room in rooms:
            gateway.add(room)
        await stack.enter_async_context(cron)
        return await _until_done(gateway, listener, restart, report, ready)


async def _until_done(
    gateway: Gateway, listener: socket.socket, restart: "Restart", report: "Report", ready: Callable[[], None] | None
) -> bool:
    serving = asyncio.ensure_future(gateway.serve(listener, ready=ready))
    asked, counting = asyncio.ensure_future(restart.due()), asyncio.ensure_future(report.keep_counting())
    try:
        await asyncio.wait({serving, asked}, return_when=asyncio.FIRST_COMPLETED)
        if serving.done():
            await serving
            return False
        logger.info("restarting in place")
        gateway.intercom.shut("gateway restarting", restart_expected_ms=EXPECTED_MS)
        return True
    finally:
        for task in (serving, asked, counting):
            task.cancel()
        await asyncio.gather(serving, asked, counting, return_exceptions=True)


class Restart:
    """`gateway.restart.*`: the same process begins anew, with the config as it is then."""

    def __init__(
        self, runner: Runner, config: Callable[[], Snapshot], idle: Callable[[], bool], *, again: bool = False
    ) -> None:
        self._config = config
        self._idle = idle
        self._asked = asyncio.Event()
        self._quiet = asyncio.Event()
        self._not_before = time.monotonic() + (RESTART_COOLDOWN if again else 0.0)
        runner.news.listen(self._heard)

    def methods(self) -> Sequence[Method]:
        return (
            Method("gateway.restart.preflight", READ, self._preflight),
            Method("gateway.restart.request", ADMIN, self._request),
        )

    def _heard(self, news: RunNews) -> None:
        if isinstance(news, RunOver):
            self._quiet.set()

    def config_changed(self, change: Change) -> None:
        mode = change.after.config.get("gateway", {}).get("reload", {}).get("mode", "hybrid")
        if change.reload == "restart" and mode in ("hybrid", "restart") and self._allowed():
            self._asked.set()

    def _allowed(self) -> bool:
        return bool(self._config().config.get("commands", {}).get("restart", True))

    async def due(self) -> None:
        """Return when it is time."""
        await self._asked.wait()
        await asyncio.sleep(max(RESTART_DELAY, self._not_before - time.monotonic()))
        try:
            async with asyncio.timeout(RESTART_PATIENCE):
                while not self._idle():
                    self._quiet.clear()
                    await self._quiet.wait()
        except TimeoutError:
            logger.warning("runs still go after %g s; restarting all the same", RESTART_PATIENCE)

    async def _preflight(self, call: RpcCall) -> Json:
        blockers = [] if self._idle() else [{"kind": "runs", "message": "runs are going; a restart waits for them"}]
        summary = "nothing is going" if self._idle() else "runs are going"
        return {"safe": self._idle(), "counts": {"runs": len(blockers)}, "blockers": blockers, "summary": summary}

    async def _request(self, call: RpcCall) -> Json:
        if not self._allowed():
            raise Fault("restarts are switched off in the config (commands.restart)", kind="FORBIDDEN")
        preflight = await self._preflight(call)
        self._asked.set()
        reason = call.params.get("reason")
        how = {"ok": True, "pid": os.getpid(), "signal": None, "mode": "emit", "delayMs": int(RESTART_DELAY * 1000)}
        how["reason"] = reason if isinstance(reason, str) else "gateway.restart.safe"
        return {"ok": True, "status": "scheduled", "preflight": preflight, "restart": how}


class Report:
    """What `health` and `status` say of sessions and agents, from a recent count."""

    def __init__(self, memory: Memory, roster: Callable[[], Roster]) -> None:
        self._sessions: SessionBook = memory.sessions
        self._path = memory.store.where
        self._roster = roster
        self._dirty = asyncio.Event()
        self._seen: Json = {"path": self._path, "count": 0, "recent": []}
        self._by_agent: dict[str, Json] = {}
        memory.runs.news.listen(self._heard)

    def methods(self) -> Sequence[Method]:
        return ()

    def _heard(self, news: RunNews) -> None:
        if isinstance(news, RunOver):
            self._dirty.set()

    async def count(self) -> None:
        self._seen = await self._counted(None)
        self._by_agent = {card.id: await self._counted(card.id) for card in self._roster().agents}

    async def _counted(self, agent_id: str | None) -> Json:
        page = await self._sessions.page(SessionQuery(limit=5, agent_id=agent_id))
        recent = [{"key": s.key, "updatedAt": s.updated_at, "age": now_ms() - s.updated_at} for s in page.sessions]
        return {"path": self._path, "count": page.total, "recent": recent}

    async def keep_counting(self) -> None:
        while True:
            await self._dirty.wait()
            self._dirty.clear()
            await self.count()
            await asyncio.sleep(COUNT_AT_MOST)

    def health(self) -> Json:
        roster = self._roster()
        nothing: Json = {"path": self._path, "count": 0, "recent": []}
        agents = [
            {
                "agentId": card.id,
                "isDefault": card.id == roster.default_id,
                "heartbeat": NO_HEARTBEAT,
                "sessions": self._by_agent.get(card.id, nothing),
            }
            for card in roster.agents
        ]
        return {"defaultAgentId": roster.default_id, "agents": agents, "sessions": self._seen}

    def status(self) -> Json:
        seen = {name: self._seen[name] for name in ("count", "recent")}
        by_agent = [{"agentId": name, **counted} for name, counted in self._by_agent.items()]
        return {"sessions": {"paths": [self._path], "defaults": {}, "byAgent": by_agent, **seen}}
