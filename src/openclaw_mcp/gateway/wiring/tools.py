"""The caretaker of what agents may use: rule book, guests' tools, sub-agents, audit, put on the gateway's desk."""

import asyncio
import hashlib
import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final, Self

import msgspec

from ...config.file import Snapshot
from ...config.rpc_methods import ConfigService, ConfigUpdate
from ...core import session_keys
from ...core.agents import AgentRoster
from ...core.channel import ChatAddress, MessageDelivery, OutboundMessage, PostResult
from ...core.errors import BadRequest
from ...core.model import Caller, Grant, Json, ToolCall, ToolResult, ToolSpec
from ...core.providers import MODEL_RUNTIMES
from ...core.rpc import RpcError, RpcModule
from ...core.session_target import SessionAddress, bind_by_key, find_root_session
from ...core.sessions import Run, RunClaim, RunOptions, Session
from ...mcp.client.server import PooledMcpServer
from ...mcp.client.server_pool import McpServerPool as Servers
from ...store.subagents import SqlSubagentRepository
from ...tools import policy_rules
from ...tools.audit_writer import AuditQueue, AuditWriter
from ...tools.subject import find_listed_group
from ...tools.tool_names import is_known_name
from ..agents.models.settings import choose_model, read_providers
from ..agents.subagents import settings
from ..agents.subagents.agent_messages import AgentMessenger
from ..agents.subagents.rpc_methods import DelegationMethods
from ..agents.subagents.session_visibility import SessionVisibility
from ..agents.subagents.subagents import SubagentSupervisor
from ..agents.subagents.task_methods import TaskMethods
from ..agents.subagents.tools import GatewayTools
from .gateway import GatewayServer
from .runs import StoreServices, caller_for_session

if TYPE_CHECKING:
    # For the types alone: a gateway by itself has no proxy to load.
    from ...proxy.engine.app_session import AppSession
    from ...proxy.state import ProxyState

logger = logging.getLogger(__name__)

GATEWAY_SOURCE: Final = "gateway"
"""The source of the gateway's own tools."""
MAX_APP_TOOLS: Final = 1024  # tools that apps may lend to one session


class AgentTools:
    """`async with` it before the store is opened and until it is closed; `around` goes around the runs."""

    def __init__(
        self,
        gateway: GatewayServer,
        config: ConfigService,
        audit_queue: AuditQueue,
        *,
        roster: Callable[[], AgentRoster],
        proxy_state: "ProxyState | None" = None,
    ) -> None:
        self._gateway = gateway
        self._config = config
        self._audit_queue = audit_queue
        self._roster = roster
        self._server_sources = _ServerSources(gateway)
        self._app_sources = _AppSources(gateway, proxy_state, roster)
        self._services: StoreServices | None = None
        self._delivery = _LateDelivery()
        self._visibility: SessionVisibility | None = None
        gateway.registry.add(
            GATEWAY_SOURCE,
            GatewayTools(gateway.call_method, main_session=lambda: session_keys.normalize_key("main", roster())),
        )
        gateway.tool_methods.resolve_agent_caller = self._make_agent_caller
        gateway.tool_methods.resolve_session = self._resolve_session
        gateway.tool_methods.bind_session = gateway.authenticator.bind_session = self.act_in_session

    def connect_channels(self, channels: MessageDelivery) -> None:
        """From now on, what agents send each other and what sub-agents bring back reaches people through it."""
        self._delivery.connected.set_result(channels)

    async def __aenter__(self) -> Self:
        self._apply_rules(self._config.current)
        await self._server_sources.open(self._config.current.config.mcp.servers)
        self._quiet = self._config.changed.connect(self._on_config_change)
        self._app_sources.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._quiet()
        self._app_sources.close()
        await self._server_sources.aclose()

    @asynccontextmanager
    async def run_scope(self, services: StoreServices) -> AsyncIterator[None]:
        """Everything that must be there before the first run begins, and stay until the last has ended."""
        self._services = services
        roster, read = self._roster, self._read_settings
        book = SqlSubagentRepository(services.store)
        sight = SessionVisibility(services.sessions, book, services.runs, settings=read, roster=roster)
        self._visibility = sight
        who = (book, services.sessions, services.runs, self._gateway.publish)
        async with (
            AuditWriter(self._audit_queue, services.audit) as audit_writer,
            AgentMessenger(
                services.sessions, services.runs, settings=read, roster=roster, channels=self._delivery
            ) as letters,
            SubagentSupervisor(*who, settings=read, roster=roster, channels=self._delivery) as family,
        ):
            delegation = DelegationMethods(
                family, letters, sight, settings=read, roster=roster, model_problem=self._model_problem
            )
            guarded: Sequence[RpcModule] = [
                sight.guard_methods(delegation.cascade_stops(room)) for room in services.rpc_modules
            ]
            for room in (*guarded, delegation, TaskMethods(family, book, sight), audit_writer):
                self._gateway.add_module(room)
            yield

    def spawnable_agents(self, agent: str) -> tuple[str, ...]:
        """The agents besides itself that this one may set to work; `*` = any."""
        return self._read_settings().spawnable_agents(agent)

    async def check_visibility(self, caller: Caller, key: str) -> None:
        """Raises Fault unless `caller` may see the session `key`."""
        assert self._visibility is not None
        await self._visibility.check_visible(caller, key)

    async def make_run_caller(self, claim: RunClaim) -> Caller:
        """As whom a run's agent calls tools."""
        return await self._make_caller(claim.session, claim.run.options)

    async def _make_caller(self, session: Session, options: RunOptions) -> Caller:
        if session.spawned_by is not None and self._services is not None:
            began = await find_root_session(session.spawned_by, self._services.sessions)
            session = msgspec.structs.replace(session, spawned_by=began)
        everybody = self._config.current.config.tools.get("apps", {}).get("sessions") == "all"
        apps = self._app_sources.sources_for_session(session.key, include_all=everybody)
        return caller_for_session(session, options, rules=self._gateway.policy.rules, apps=apps)

    def _resolve_session(self, key: str | None, agent: str | None) -> str | None:
        if key is None and agent is None:
            return None
        roster = self._roster()
        key = session_keys.normalize_key(key or "main", roster, agent_id=agent)
        roster.get_agent(session_keys.split_key(key)[0])
        return key

    async def _make_agent_caller(self, key: str | None, agent: str | None) -> Caller:
        """The agent of a session as its owner's run would act; for `tools.effective`."""
        assert self._services is not None
        roster = self._roster()
        key = session_keys.normalize_key(key or "main", roster, agent_id=agent)
        session = await self._services.sessions.get(key)
        if session is None:
            roster.get_agent(session_keys.split_key(key)[0])
            session = _empty_session(key, roster)
        return await self._make_caller(session, RunOptions(grant=Grant(owner=True)))

    async def act_in_session(self, caller: Caller, place: SessionAddress) -> Caller:
        """Somebody who acts in a session: with its own rights, under that session's rules about tools."""
        roster, book = self._roster(), self._gateway.policy.rules
        try:
            key = session_keys.normalize_key(place.session, roster)
        except RpcError:  # no key of ours: it is judged by what it says
            return await bind_by_key(caller, place)
        session = await self._services.sessions.get(key) if self._services is not None else None
        grant = Grant(
            channel=place.channel or None,
            account=place.account or None,
            to=place.to or None,
            thread=place.thread or None,
            group=find_listed_group(book, channel=place.channel, account=place.account, to=place.to),
            owner=caller.is_owner,
        )
        found = await self._make_caller(session or _empty_session(key, roster), RunOptions(grant=grant))
        return msgspec.structs.replace(caller, session=key, session_grant=found.grant)

    def _model_problem(self, agent: str, model: str) -> str | None:
        """Why an agent can't work with a model. The demo and the CLIs are not asked: they have names of their own."""
        runtime = next((card.runtime for card in self._roster().agents if card.id == agent), None)
        if runtime not in MODEL_RUNTIMES:
            return None
        try:
            choose_model(model, read_providers(self._config.current.config.models), namesake=runtime)
        except BadRequest as exc:
            return str(exc)
        return None

    def _read_settings(self) -> settings.DelegationSettings:
        return settings.parse_delegation_settings(self._config.current.config)

    def _apply_rules(self, snapshot: Snapshot) -> None:
        book = policy_rules.from_config(snapshot.resolved)
        if book.problem is not None:
            logger.error("no tool is allowed to anybody: %s", book.problem)
        self._gateway.tools.default_agent = book.default_agent
        self._gateway.apply_rules(book)

    def _on_config_change(self, change: ConfigUpdate) -> None:
        self._apply_rules(change.after)
        before, after = change.before.config.mcp.servers, change.after.config.mcp.servers
        if before != after:
            self._server_sources.update(after)


class _LateDelivery:
    """A `MessageDelivery` for services that are built before the channels: it waits until those are open."""

    def __init__(self) -> None:
        self.connected: asyncio.Future[MessageDelivery] = asyncio.get_running_loop().create_future()

    async def post(
        self, address: ChatAddress, message: OutboundMessage, *, key: str, wait: float = 0.0, session: str | None = None
    ) -> PostResult:
        return await (await asyncio.shield(self.connected)).post(address, message, key=key, wait=wait, session=session)

    async def find_address(self, session: str) -> ChatAddress | None:
        return await (await asyncio.shield(self.connected)).find_address(session)

    async def has_run_message(self, run: Run, address: ChatAddress) -> bool:
        return await (await asyncio.shield(self.connected)).has_run_message(run, address)


def _empty_session(key: str, roster: AgentRoster) -> Session:
    """A session of that key as it would be before its first message."""
    return Session(
        key=key,
        agent_id=session_keys.split_key(key)[0],
        session_id="",
        epoch=0,
        revision="",
        created_at=0,
        updated_at=0,
        classification=session_keys.classify_key(key, roster),
    )


class _ServerSources:
    """The MCP servers of the config as sources of the registry; none is started here."""

    def __init__(self, gateway: GatewayServer) -> None:
        self._gateway = gateway
        self._pool = Servers({})
        self._registered: dict[str, PooledMcpServer] = {}
        self._update_task: asyncio.Task[None] | None = None
        self._target_entries: Json = {}

    async def open(self, servers: Json) -> None:
        await self._pool.reconfigure(servers)
        self._gateway.tools.pool = self._pool
        self._sync_registry()

    def update(self, servers: Json) -> None:
        """Go over to these, one change after the other; only the last counts."""
        self._target_entries = servers
        if self._update_task is None or self._update_task.done():
            self._update_task = asyncio.get_running_loop().create_task(self._apply_updates())

    async def _apply_updates(self) -> None:
        done: Json | None = None
        while done is not self._target_entries:
            done = self._target_entries
            await self._pool.reconfigure(done)
            self._sync_registry()

    def _sync_registry(self) -> None:
        for name, fault in self._pool.errors.items():
            logger.warning("MCP server %s can't be used: %s", name, fault)
        now, registry = self._pool.sources(), self._gateway.registry
        for name, server in list(self._registered.items()):
            if now.get(name) is not server:
                registry.remove(name)
                del self._registered[name]
        for name, server in now.items():
            if name not in self._registered:
                registry.add(name, server)
                self._registered[name] = server

    async def aclose(self) -> None:
        if self._update_task is not None:
            await asyncio.wait((self._update_task,))
        await self._pool.aclose()


class _AppSources:
    """Sessions of the app proxy, when it lives in this process: each is lent to the conversation it names.

    One is looked at when its app has come, and then for that conversation alone.
    """

    def __init__(
        self, gateway: GatewayServer, proxy_state: "ProxyState | None", roster: Callable[[], AgentRoster]
    ) -> None:
        self._gateway = gateway
        self._proxy_state = proxy_state
        self._roster = roster
        self._connected: dict[str, tuple[AppSession, str | None]] = {}
        self._by_session: defaultdict[str | None, dict[str, AppSession]] = defaultdict(dict)
        self._indexed_roster: AgentRoster | None = None
        self._disconnects: list[Callable[[], None]] = []

    def open(self) -> None:
        if self._proxy_state is None:
            return
        self._disconnects = [
            self._proxy_state.app_attached.connect(self._on_app_connect),
            self._proxy_state.session_ended.connect(self._on_app_disconnect),
        ]
        for guest in self._proxy_state.engine.sessions.values():
            if guest.bridge is not None:
                self._on_app_connect(guest)

    def close(self) -> None:
        for quiet in self._disconnects:
            quiet()

    def _on_app_connect(self, app: "AppSession") -> None:
        name = _app_source_name(app)
        before = self._connected.get(name)
        if before is not None:
            if before[0] is app:
                return
            self._on_app_disconnect(app)
        said = msgspec.json.decode(app.registration.about)
        chat = said.get("chat_id") or said.get("chatId")
        self._connected[name] = (app, chat if isinstance(chat, str) else None)
        self._index_by_session()[_session_for_chat(self._connected[name][1], self._roster())][name] = app
        self._gateway.registry.add(name, _AppToolSource(app))

    def _on_app_disconnect(self, app: "AppSession") -> None:
        name = _app_source_name(app)
        there = self._connected.pop(name, None)
        if there is not None:
            sorted_in, session = self._index_by_session(), _session_for_chat(there[1], self._roster())
            sorted_in[session].pop(name, None)
            if not sorted_in[session]:
                del sorted_in[session]
            self._gateway.registry.remove(name)

    def sources_for_session(self, session: str, *, include_all: bool) -> list[str]:
        """The apps whose tools this session has: those that came first, up to MOST_LENT tools."""
        names, tools = [], 0
        for name in self._connected if include_all else self._index_by_session().get(session, {}):
            count = max(1, len(self._connected[name][0].specs()))
            if tools + count > MAX_APP_TOOLS:
                break
            tools += count
            names.append(name)
        return names

    def _index_by_session(self) -> "defaultdict[str | None, dict[str, AppSession]]":
        """The apps by the session their conversation is; sorted anew when the config gives sessions other names."""
        roster = self._roster()
        if self._indexed_roster is not roster:
            self._indexed_roster = roster
            self._by_session.clear()
            for name, (guest, chat) in self._connected.items():
                self._by_session[_session_for_chat(chat, roster)][name] = guest
        return self._by_session


def _session_for_chat(chat: str | None, roster: AgentRoster) -> str | None:
    """The session that the name an app has for its conversation means; None: no session of ours."""
    if not chat:
        return None
    try:
        return session_keys.normalize_key(chat, roster)
    except RpcError:
        return None


def _app_source_name(app: "AppSession") -> str:
    """Not the session's id, which is a key to it: names stand in the audit."""
    return f"app/{hashlib.sha256(app.registration.id.encode()).hexdigest()[:12]}"


class _AppToolSource:
    """An app's tools without those that bear the name of one of the house's own."""

    def __init__(self, app: "AppSession") -> None:
        self._app = app
        self.changed = app.changed

    def specs(self) -> Sequence[ToolSpec]:
        return [spec for spec in self._app.specs() if not is_known_name(spec.name)]

    async def call(self, call: ToolCall) -> ToolResult:
        return await self._app.call(call)
