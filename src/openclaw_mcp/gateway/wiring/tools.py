"""The caretaker of what agents may use: rule book, guests' tools, sub-agents, audit, put on the gateway's desk."""

import asyncio
import hashlib
import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final, Self

import msgspec

from ...config.rpc_methods import Change, ConfigRoom
from ...core import session_keys
from ...core.agents import Roster
from ...core.channel import Mailroom
from ...core.errors import BadRequest
from ...core.model import Caller, Grant, Json, ToolCall, ToolResult, ToolSpec
from ...core.providers import MODEL_RUNTIMES
from ...core.rpc import Fault, Room
from ...core.session_target import Place, began_in, by_session
from ...core.sessions import Claim, Session
from ...mcp.client.server import Server
from ...mcp.client.server_pool import Roster as Servers
from ...store.subagents import Subagents
from ...tools import policy_rules
from ...tools.audit_writer import Ledger
from ...tools.subject import listed_group
from ...tools.tool_names import known
from ..agents.models.settings import catalogue, choose
from ..agents.subagents import settings
from ..agents.subagents.agent_messages import Letters
from ..agents.subagents.rpc_methods import DelegationRoom
from ..agents.subagents.session_visibility import Sight
from ..agents.subagents.subagents import Family
from ..agents.subagents.task_methods import TaskRoom
from ..agents.subagents.tools import HouseTools
from .gateway import Gateway
from .runs import Memory, caller_of

if TYPE_CHECKING:
    # For the types alone: a gateway by itself has no proxy to load.
    from ...proxy.engine.app_session import Guest
    from ...proxy.state import House

logger = logging.getLogger(__name__)

HOUSE: Final = "gateway"
"""The source of the gateway's own tools."""
MOST_LENT: Final = 1024  # tools that apps may lend to one session


class Equipment:
    """`async with` it before the store is opened and until it is closed; `around` goes around the runs."""

    def __init__(
        self,
        gateway: Gateway,
        config: ConfigRoom,
        ledger: Ledger,
        *,
        roster: Callable[[], Roster],
        apps: "House | None" = None,
    ) -> None:
        self._gateway = gateway
        self._config = config
        self._ledger = ledger
        self._roster = roster
        self._servers = _Servers(gateway)
        self._apps = _Apps(gateway, apps, roster)
        self._memory: Memory | None = None
        self._letters: Letters | None = None
        self._sight: Sight | None = None
        gateway.registry.add(HOUSE, HouseTools(gateway.ask, main=lambda: session_keys.canonical("main", roster())))
        gateway.tool_methods.as_agent = self._as_agent
        gateway.tool_methods.session_of = self._session_of
        gateway.tool_methods.acting = gateway.door.acting = self.acting

    def deliver_by(self, mailroom: Mailroom) -> None:
        """From now on, what agents send each other and what sub-agents bring back reaches people through it."""
        if self._letters is not None:
            self._letters.mailroom = mailroom

    async def __aenter__(self) -> Self:
        self._adopt(self._config.current.config)
        await self._servers.open(_servers_in(self._config.current.config))
        self._quiet = self._config.changed.listen(self._changed)
        self._apps.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._quiet()
        self._apps.close()
        await self._servers.aclose()

    @asynccontextmanager
    async def around(self, memory: Memory) -> AsyncIterator[None]:
        """Everything that must be there before the first run begins, and stay until the last has ended."""
        self._memory = memory
        roster, read = self._roster, self._settings
        book = Subagents(memory.store)
        sight = Sight(memory.sessions, book, memory.runs, settings=read, roster=roster)
        self._sight = sight
        who = (book, memory.sessions, memory.runs, self._gateway.publish)
        async with (
            self._ledger.keep(memory.audit),
            Letters(memory.sessions, memory.runs, settings=read, roster=roster) as letters,
            Family(*who, settings=read, roster=roster, mailroom=lambda: letters.mailroom) as family,
        ):
            self._letters = letters
            delegation = DelegationRoom(family, letters, sight, settings=read, roster=roster, unusable=self._unusable)
            guarded: Sequence[Room] = [sight.over(delegation.over(room)) for room in memory.rooms]
            for room in (*guarded, delegation, TaskRoom(family, book, sight), self._ledger):
                self._gateway.add(room)
            yield

    def helpers(self, agent: str) -> tuple[str, ...]:
        """The agents besides itself that this one may set to work; `*` = any."""
        return self._settings().helpers(agent)

    async def check_sight(self, caller: Caller, key: str) -> None:
        """Raises Fault unless `caller` may see the session `key`."""
        assert self._sight is not None
        await self._sight.check(caller, key)

    async def act(self, claim: Claim) -> Caller:
        """As whom a run's agent calls tools."""
        return await self._caller(claim.session, claim.run.options)

    async def _caller(self, session: Session, options: Json) -> Caller:
        if session.spawned_by is not None and self._memory is not None:
            began = await began_in(session.spawned_by, self._memory.sessions)
            session = msgspec.structs.replace(session, spawned_by=began)
        everybody = self._config.current.config.get("tools", {}).get("apps", {}).get("sessions") == "all"
        apps = self._apps.lent_to(session.key, everybody=everybody)
        return caller_of(session, options, book=self._gateway.rules.book, apps=apps)

    def _session_of(self, key: str | None, agent: str | None) -> str | None:
        if key is None and agent is None:
            return None
        roster = self._roster()
        key = session_keys.canonical(key or "main", roster, agent_id=agent)
        roster.card(session_keys.parts(key)[0])
        return key

    async def _as_agent(self, key: str | None, agent: str | None) -> Caller:
        """The agent of a session as its owner's run would act; for `tools.effective`."""
        assert self._memory is not None
        roster = self._roster()
        key = session_keys.canonical(key or "main", roster, agent_id=agent)
        session = await self._memory.sessions.get(key)
        if session is None:
            roster.card(session_keys.parts(key)[0])
            session = _not_begun(key, roster)
        return await self._caller(session, {"grant": {"owner": True}})

    async def acting(self, caller: Caller, place: Place) -> Caller:
        """Somebody who acts in a session: with its own rights, under that session's rules about tools."""
        roster, book = self._roster(), self._gateway.rules.book
        try:
            key = session_keys.canonical(place.session, roster)
        except Fault:  # no key of ours: it is judged by what it says
            return await by_session(caller, place)
        session = await self._memory.sessions.get(key) if self._memory is not None else None
        grant = Grant(
            channel=place.channel or None,
            account=place.account or None,
            to=place.to or None,
            thread=place.thread or None,
            group=listed_group(book, channel=place.channel, account=place.account, to=place.to),
            owner=caller.owner,
        )
        found = await self._caller(session or _not_begun(key, roster), {"grant": msgspec.to_builtins(grant)})
        return msgspec.structs.replace(caller, session=key, acting=found.grant)

    def _unusable(self, agent: str, model: str) -> str | None:
        """Why an agent can't work with a model. The demo and the CLIs are not asked: they have names of their own."""
        runtime = next((card.runtime for card in self._roster().agents if card.id == agent), None)
        if runtime not in MODEL_RUNTIMES:
            return None
        try:
            choose(model, catalogue(self._config.current.config), namesake=runtime)
        except BadRequest as exc:
            return str(exc)
        return None

    def _settings(self) -> settings.Settings:
        return settings.read(self._config.current.config)

    def _adopt(self, config: Json) -> None:
        book = policy_rules.from_config(config)
        if book.problem is not None:
            logger.error("no tool is allowed to anybody: %s", book.problem)
        self._gateway.tools.main = book.default_agent
        self._gateway.adopt(book)

    def _changed(self, change: Change) -> None:
        self._adopt(change.after.config)
        before, after = _servers_in(change.before.config), _servers_in(change.after.config)
        if before != after:
            self._servers.change(after)


def _not_begun(key: str, roster: Roster) -> Session:
    """A session of that key as it would be before its first message."""
    return Session(
        key=key, agent_id=session_keys.parts(key)[0], session_id="", epoch=0, revision="", created_at=0, updated_at=0,
        classification=session_keys.classification(key, roster),
    )  # fmt: skip


def _servers_in(config: Json) -> Json:
    servers = config.get("mcp", {}).get("servers", {})
    return servers if isinstance(servers, dict) else {}


class _Servers:
    """The MCP servers of the config as sources of the registry; none is started here."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._roster = Servers({})
        self._there: dict[str, Server] = {}
        self._changing: asyncio.Task[None] | None = None
        self._wanted: Json = {}

    async def open(self, servers: Json) -> None:
        await self._roster.change(servers)
        self._gateway.tools.roster = self._roster
        self._show()

    def change(self, servers: Json) -> None:
        """Go over to these, one change after the other; only the last counts."""
        self._wanted = servers
        if self._changing is None or self._changing.done():
            self._changing = asyncio.get_running_loop().create_task(self._change())

    async def _change(self) -> None:
        done: Json | None = None
        while done is not self._wanted:
            done = self._wanted
            await self._roster.change(done)
            self._show()

    def _show(self) -> None:
        for name, fault in self._roster.faults.items():
            logger.warning("MCP server %s can't be used: %s", name, fault)
        now, registry = self._roster.sources(), self._gateway.registry
        for name, server in list(self._there.items()):
            if now.get(name) is not server:
                registry.remove(name)
                del self._there[name]
        for name, server in now.items():
            if name not in self._there:
                registry.add(name, server)
                self._there[name] = server

    async def aclose(self) -> None:
        if self._changing is not None:
            await asyncio.wait((self._changing,))
        await self._roster.aclose()


class _Apps:
    """Sessions of the app proxy, when it lives in this process: each is lent to the conversation it names.

    One is looked at when its app has come, and then for that conversation alone.
    """

    def __init__(self, gateway: Gateway, house: "House | None", roster: Callable[[], Roster]) -> None:
        self._gateway = gateway
        self._house = house
        self._roster = roster
        self._there: dict[str, tuple[Guest, str | None]] = {}
        self._by_session: defaultdict[str | None, dict[str, Guest]] = defaultdict(dict)
        self._sorted_by: Roster | None = None
        self._quiet: list[Callable[[], None]] = []

    def open(self) -> None:
        if self._house is None:
            return
        self._quiet = [self._house.came.listen(self._came), self._house.went.listen(self._went)]
        for guest in self._house.engine.guests.values():
            if guest.bridge is not None:
                self._came(guest)

    def close(self) -> None:
        for quiet in self._quiet:
            quiet()

    def _came(self, guest: "Guest") -> None:
        name = _app_name(guest)
        before = self._there.get(name)
        if before is not None:
            if before[0] is guest:
                return
            self._went(guest)
        said = msgspec.json.decode(guest.session.about)
        chat = said.get("chat_id") or said.get("chatId")
        self._there[name] = (guest, chat if isinstance(chat, str) else None)
        self._sort()[_session_of(self._there[name][1], self._roster())][name] = guest
        self._gateway.registry.add(name, _Lent(guest))

    def _went(self, guest: "Guest") -> None:
        name = _app_name(guest)
        there = self._there.pop(name, None)
        if there is not None:
            sorted_in, session = self._sort(), _session_of(there[1], self._roster())
            sorted_in[session].pop(name, None)
            if not sorted_in[session]:
                del sorted_in[session]
            self._gateway.registry.remove(name)

    def lent_to(self, session: str, *, everybody: bool) -> list[str]:
        """The apps whose tools this session has: those that came first, up to MOST_LENT tools."""
        names, tools = [], 0
        for name in self._there if everybody else self._sort().get(session, {}):
            count = max(1, len(self._there[name][0].specs()))
            if tools + count > MOST_LENT:
                break
            tools += count
            names.append(name)
        return names

    def _sort(self) -> "defaultdict[str | None, dict[str, Guest]]":
        """The apps by the session their conversation is; sorted anew when the config gives sessions other names."""
        roster = self._roster()
        if self._sorted_by is not roster:
            self._sorted_by = roster
            self._by_session.clear()
            for name, (guest, chat) in self._there.items():
                self._by_session[_session_of(chat, roster)][name] = guest
        return self._by_session


def _session_of(chat: str | None, roster: Roster) -> str | None:
    """The session that the name an app has for its conversation means; None: no session of ours."""
    if not chat:
        return None
    try:
        return session_keys.canonical(chat, roster)
    except Fault:
        return None


def _app_name(guest: "Guest") -> str:
    """Not the session's id, which is a key to it: names stand in the audit."""
    return f"app/{hashlib.sha256(guest.session.id.encode()).hexdigest()[:12]}"


class _Lent:
    """An app's tools without those that bear the name of one of the house's own."""

    def __init__(self, guest: "Guest") -> None:
        self._guest = guest
        self.changed = guest.changed

    def specs(self) -> Sequence[ToolSpec]:
        return [spec for spec in self._guest.specs() if not known(spec.name)]

    async def call(self, call: ToolCall) -> ToolResult:
        return await self._guest.call(call)
