"""The shared state of the proxy's entry points: sessions, the MCP servers for them, counters, limits."""

import math
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final, NamedTuple

from msgspec import Struct

from .. import __version__
from ..core.model import Caller
from ..core.signal import Signal
from ..mcp.server.http_gate import LOOPBACK_HOSTS, HttpAccessRules, HttpRefusal, bearer_auth
from ..mcp.server.server import McpServer, McpServerInfo
from ..mcp.server.session_server import SessionServer
from ..net.peers import PendingBytes
from ..net.tasks import Tasks
from ..net.websocket_server import make_untrusted_pool
from ..protocol.bridge import SECRET_HEADER, is_secret_of
from ..tools.audit import AuditRecord
from ..tools.deadline import Deadlines, ProgressExtension
from ..tools.dispatcher import ToolDispatcher
from ..tools.registry import ToolRegistry
from ..tools.schema import SchemaListBudget
from .audit_log import ProxyAuditLog
from .engine.app_session import NO_SUCH_SESSION, AppRegistration, AppSession, SessionGone
from .engine.bridge import Bridge
from .engine.engine import CancelledRequest, SessionEngine, open_engine
from .engine.limits import Rate, RateBucket
from .engine.tool_list import EMPTY_MANIFEST, BadTools, ToolManifest, parse_manifest
from .metrics import Metrics
from .registration import parse_registration
from .settings import ProxySettings

MAX_PARTIAL_BYTES: Final = 256 << 20  # bytes of apps' messages that have begun, together
MAX_IDLE_SERVERS: Final = 1024  # sessions whose MCP server is kept ready; at some 15 KiB each
ANY: Final = "*"

APP: Final = Caller(kind="app", name="app")
CLIENT: Final = Caller(kind="agent", name="mcp")

_INFO = McpServerInfo(name="openclaw-proxy", version=__version__, title="OpenClaw app tools")


class CreatedSession(Struct, frozen=True):
    registration: AppRegistration
    is_camel_case: bool
    """The app writes camelCase, and is answered so."""


class _SessionEntry(NamedTuple):
    server: SessionServer
    registry: ToolRegistry


@asynccontextmanager
async def open_proxy(settings: ProxySettings) -> AsyncIterator["ProxyState"]:
    """A proxy from its start to its end. Raises BadRequest for settings that can't be used."""
    async with ProxyAuditLog(settings.audit) as audit_log, open_engine(settings) as engine, Tasks("bridges") as bridges:
        yield ProxyState(settings, engine, audit_log, bridges)


class ProxyState:
    """An `AppDirectory` too."""

    def __init__(
        self, settings: ProxySettings, engine: SessionEngine, audit_log: ProxyAuditLog, bridge_tasks: Tasks
    ) -> None:
        self.settings = settings
        self.engine = engine
        self.bridge_tasks = bridge_tasks
        self.metrics = Metrics()
        self._audit_log = audit_log
        self._deadlines = Deadlines()
        self._extension = ProgressExtension(
            settings.longest_call, "OPENCLAW_PROXY_TOOL_TIMEOUT_SECONDS", "OPENCLAW_PROXY_MAX_CALL_SECONDS"
        )
        self._servers: dict[AppSession, _SessionEntry] = {}
        self.app_attached: Signal[AppSession] = Signal()
        """Emitted when an app opens the bridge of a session here."""
        self.session_ended: Signal[AppSession] = Signal()
        self.unauthenticated = make_untrusted_pool()
        """WebSockets of apps that have no bridge yet."""
        self.partial_messages = PendingBytes(max_bytes=MAX_PARTIAL_BYTES)
        """Messages of apps that are not whole yet."""
        self.app_gate = self._make_gate(settings.app_token, APP)
        self.mcp_gate = self._make_gate(settings.mcp_token, CLIENT)
        engine.ended.connect(self._on_session_end)
        engine.cancelled.connect(self._on_cancel)

    # ---- sessions ----

    def connected_apps(self) -> Sequence[AppSession]:
        return [session for session in self.engine.sessions.values() if session.bridge is not None]

    async def register(self, body: bytes, *, client: Any = None, secret: str | None = None) -> CreatedSession:
        """A session from a create body, for the app at `client`: with a secret the one it registered with that before,
        if there is one. Raises BadRequest, TooManySessions."""
        request = parse_registration(body, client=client, secret=secret)
        manifest = EMPTY_MANIFEST if request.tools is None else self._parse_tools(request.tools)
        if secret is None or not await self._resume(request.registration, manifest):
            await self.engine.add(request.registration, manifest)
        is_snake_case = request.is_snake_case or manifest.is_camel_case is False
        is_camel_case = bool(manifest.is_camel_case) or request.is_camel_case
        return CreatedSession(request.registration, is_camel_case and not is_snake_case)

    async def _resume(self, registration: AppRegistration, manifest: ToolManifest) -> bool:
        """Whether this very session is there; it has these tools then."""
        session = await self.engine.find(registration.id)
        if session is None:
            return False
        if not registration.is_same_app(session.registration):
            await self.engine.remove(registration.id)  # what clients and the gateway know of it is no longer true
            return False
        try:
            if manifest.raw != session.manifest.raw:
                await self.engine.replace_tools(session, manifest)
        except SessionGone:
            return False
        return True

    def _parse_tools(self, raw: bytes) -> ToolManifest:
        return parse_manifest(raw, most=self.settings.most_tools, check=SchemaListBudget().check)

    async def replace_tools(self, session: AppSession, raw: bytes) -> int:
        """How many tools it has now. Raises BadRequest, TooManySessions, SessionGone."""
        if len(raw) > self.settings.largest_body:
            raise BadTools(f"tools: {len(raw)} bytes are too many; they may take {self.settings.largest_body}")
        manifest = self._parse_tools(raw)
        await self.engine.replace_tools(session, manifest)
        return len(manifest.specs)

    async def attach(self, session: AppSession, bridge: Bridge) -> None:
        """Raises BridgeTaken, SessionGone."""
        await self.engine.attach(session, bridge)
        self.app_attached.emit(session)

    async def find_session(self, id: str) -> AppSession:
        """Raises HttpRefusal."""
        session = self.engine.find_cached(id) or await self.engine.find(id)
        if session is None:
            self.metrics.count_refusal("unknown_session")
            raise HttpRefusal(404, NO_SUCH_SESSION)
        return session

    async def find_own_session(self, id: str, secret: str) -> AppSession:
        """The session for an app that wants to hold its bridge or to change its tools. Raises HttpRefusal."""
        session = await self.find_session(id)
        if not (is_secret_of(secret, id) if secret else not session.registration.has_secret):
            raise HttpRefusal(403, f"this session was registered with another {SECRET_HEADER}, or with none")
        return session

    def session_server(self, session: AppSession) -> SessionServer:
        """The server of a session's MCP requests, made when the first one comes."""
        entry = self._servers.get(session)
        if entry is None:
            id = session.registration.id
            source = f"app/{id}"
            caller = Caller(kind="agent", name="mcp", scopes=frozenset({f"source:{source}"}), session=id)
            registry = ToolRegistry({source: session})
            dispatcher = ToolDispatcher(
                registry,
                audit=self._record_call,
                deadline=self.settings.tool_timeout,
                extension=self._extension,
                deadlines=self._deadlines,
                check_arguments=session.registration.validate,
            )
            cancel_elsewhere = partial(self.engine.cancel_remote_request, session)
            server = SessionServer(McpServer(_INFO, dispatcher), caller, cancel_elsewhere=cancel_elsewhere)
            entry = _SessionEntry(server, registry)
            self._servers[session] = entry
            if len(self._servers) > MAX_IDLE_SERVERS:
                self._drop_idle_servers()
        return entry.server

    def _drop_idle_servers(self) -> None:
        """Drop the oldest servers without a request: one is made again in less time than a call takes."""
        idle = [session for session, entry in self._servers.items() if not entry.server.is_busy]
        for session in idle[: MAX_IDLE_SERVERS // 4]:
            self._drop_server(session)

    def _drop_server(self, session: AppSession) -> None:
        self._servers.pop(session).registry.remove(f"app/{session.registration.id}")

    def _on_session_end(self, session: AppSession) -> None:
        self.session_ended.emit(session)
        if session in self._servers:
            self._servers[session].server.close()
            self._drop_server(session)

    def _on_cancel(self, cancelled: CancelledRequest) -> None:
        if cancelled.session in self._servers:
            self._servers[cancelled.session].server.cancel(cancelled.client, cancelled.request_id)

    # ---- limits ----

    async def check_rate(self, *buckets: tuple[str, Rate | None]) -> None:
        """Count a request against its limits. Raises HttpRefusal."""
        limited = [RateBucket(name, rate) for name, rate in buckets if rate is not None]
        if not limited:
            return
        wait = await self.engine.take_tokens(limited)
        if wait > 0:
            self.metrics.count_refusal("rate")
            headers = ((b"retry-after", b"%d" % math.ceil(wait)),)
            raise HttpRefusal(429, f"too many requests; try again in {math.ceil(wait)} s", headers)

    def _make_gate(self, token: str, caller: Caller) -> HttpAccessRules:
        settings = self.settings
        hosts = None if settings.app_token and settings.mcp_token and settings.hosts is None else LOOPBACK_HOSTS
        if settings.hosts is not None:
            hosts = None if ANY in settings.hosts else LOOPBACK_HOSTS | settings.hosts
        pages = {origin if "://" in origin else origin.partition(":")[0] for origin in settings.origins}
        return HttpAccessRules(
            identify=bearer_auth(token, caller) if token else lambda _: caller,
            allowed_hosts=hosts,
            allowed_origins=None if ANY in pages else LOOPBACK_HOSTS | pages,
            largest_body=settings.largest_body,
        )

    def _record_call(self, record: AuditRecord) -> None:
        self.metrics.count_call(record)
        self._audit_log.write(record)
