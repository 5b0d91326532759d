"""What every entrance of the proxy shares: the sessions, the doors onto them, the counters, the limits."""

import logging
import math
import os
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any, Final, Self

import msgspec
from msgspec import Raw, Struct

from .. import __version__
from ..core.errors import BadRequest
from ..core.json_nesting import TOO_DEEP_MESSAGE, decode_json
from ..core.model import Caller, Json
from ..core.ports import ConnectedApp
from ..core.signal import Signal
from ..mcp.server.http_gate import LOOPBACK_HOSTS, HttpAccessRules, HttpRefusal, bearer_auth
from ..mcp.server.server import McpServer, McpServerInfo
from ..mcp.server.session_server import SessionServer
from ..net.peers import PendingBytes, peer_key
from ..net.websocket_server import make_untrusted_pool
from ..tools.audit import AuditRecord
from ..tools.deadline import Deadlines
from ..tools.dispatcher import ToolDispatcher
from ..tools.registry import ToolRegistry
from ..tools.schema import SchemaListBudget
from .audit_log import ProxyAuditLog
from .engine.app_session import NO_SUCH_SESSION, AppRegistration, AppSession
from .engine.bridge import Bridge
from .engine.frames import short_reason
from .engine.memory import MemoryEngine, SessionEngine
from .engine.quotas import SessionQuota
from .engine.rate_limits import Rate, RateBucket
from .engine.tool_list import EMPTY_MANIFEST, BadTools, ToolManifest, parse_manifest
from .metrics import Metrics
from .settings import ProxySettings

logger = logging.getLogger(__name__)

MAX_ABOUT_BYTES: Final = 16 << 10  # bytes an app may say of itself besides its tools; each session keeps them
MOST_PARTIAL_BYTES: Final = 256 << 20  # bytes of apps' messages that have begun, together
MOST_IDLE_SERVERS: Final = 1024  # sessions whose MCP server is kept ready; at some 15 KiB each
ANY: Final = "*"

APP: Final = Caller(kind="app", name="app")
CLIENT: Final = Caller(kind="agent", name="mcp")

_INFO = McpServerInfo(name="openclaw-proxy", version=__version__, title="OpenClaw app tools")
_SNAKE: Final = {"device_id", "device_name", "app_version", "chat_id"}
_CAMEL: Final = {"deviceId", "deviceName", "appVersion", "chatId"}

_decode_object = msgspec.json.Decoder(dict[str, Raw]).decode
_decode_text: Callable[[Raw], str | None] = msgspec.json.Decoder(str | None).decode
_decode_bool = msgspec.json.Decoder(bool).decode


class CreatedSession(Struct, frozen=True):
    registration: AppRegistration
    is_camel_case: bool
    """The app writes camelCase, and is answered so."""


class ProxyState:
    """Its life is an `async with`."""

    engine: SessionEngine

    def __init__(self, settings: ProxySettings) -> None:
        self.settings = settings
        self.metrics = Metrics()
        self._audit_log = ProxyAuditLog(settings.audit)
        self._stack = AsyncExitStack()
        self._deadlines = Deadlines()
        self._registries: dict[AppSession, ToolRegistry] = {}
        self.app_attached: Signal[ConnectedApp] = Signal()
        """Emitted when an app attaches the bridge of a session here."""
        self.session_ended: Signal[ConnectedApp] = Signal()
        self.unauthenticated = make_untrusted_pool()
        """WebSockets of apps that have no bridge yet."""
        self.partial_messages = PendingBytes(max_bytes=MOST_PARTIAL_BYTES)
        """Messages of apps that are not whole yet."""
        self.app_gate = self._make_gate(settings.app_token, APP)
        self.mcp_gate = self._make_gate(settings.mcp_token, CLIENT)

    async def __aenter__(self) -> Self:
        await self._stack.enter_async_context(self._audit_log)
        settings = self.settings
        if settings.redis_url:
            try:
                # Here for start-up: a proxy that runs alone needs no Redis, nor the extra that brings its client.
                from .engine.redis import RedisEngine
            except ModuleNotFoundError:
                raise BadRequest("OPENCLAW_PROXY_REDIS_URL needs an extra: pip install 'openclaw-mcp[redis]'") from None

            shared = RedisEngine(
                settings.redis_url,
                ttl=settings.session_ttl,
                limits=settings.session_limits,
                ping=settings.bridge.ping,
                on_end=self._on_session_end,
                on_cancel=self._cancel_request,
                parse_manifest=self._parse_stored_tools,
            )
            self.engine = await self._stack.enter_async_context(shared)
        else:
            memory = MemoryEngine(
                ttl=settings.session_ttl,
                quota=SessionQuota(settings.session_limits),
                ping=settings.bridge.ping,
                on_end=self._on_session_end,
            )
            self.engine = await self._stack.enter_async_context(memory)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    def apps(self) -> Sequence[ConnectedApp]:
        """The apps whose bridge is attached here now."""
        return [session for session in self.engine.sessions.values() if session.bridge is not None]

    # ---- sessions ----

    async def register(self, body: bytes, *, client: Any = None) -> CreatedSession:
        """A new session from a create body, for whoever is at `client`. Raises BadRequest, TooManySessions."""
        fields = _decode_fields(body)
        tools = fields.pop("tools", None)
        menu = EMPTY_MANIFEST if tools is None or bytes(tools) == b"null" else self.parse_tools(bytes(tools))
        said = {name: _read_string(name, fields[name]) for name in (*_SNAKE, *_CAMEL) if name in fields}
        about = _encode_about(fields)
        session = AppRegistration(
            id=os.urandom(16).hex(),
            created=time.time(),
            about=about,
            device=said.get("device_id") or said.get("deviceId"),
            peer=peer_key(client),
            validate=_read_bool("validate", fields),
        )
        await self.engine.add(session, menu)
        snake = bool(fields.keys() & _SNAKE) or menu.is_camel_case is False
        return CreatedSession(session, not snake and bool(menu.is_camel_case or fields.keys() & _CAMEL))

    def parse_tools(self, raw: bytes) -> ToolManifest:
        return parse_manifest(raw, most=self.settings.most_tools, check=SchemaListBudget().check)

    def _parse_stored_tools(self, raw: bytes) -> ToolManifest:
        """One that was checked when it came; the desk checks a schema again before it is first used."""
        try:
            return parse_manifest(raw, most=self.settings.most_tools, check=lambda _: None)
        except BadTools as exc:  # of another version, which took more
            logger.warning("the tools of a stored session can't be used: %s", exc)
            return EMPTY_MANIFEST

    async def replace_tools(self, session: AppSession, raw: bytes) -> int:
        """How many tools it has now. Raises BadRequest, TooManySessions, SessionGone."""
        if len(raw) > self.settings.largest_body:
            raise BadTools(f"tools: {len(raw)} bytes are too many; they may take {self.settings.largest_body}")
        menu = self.parse_tools(raw)
        await self.engine.replace_tools(session, menu)
        return len(menu.specs)

    async def attach(self, session: AppSession, bridge: Bridge) -> None:
        """Raises BridgeTaken, SessionGone."""
        await self.engine.attach(session, bridge)
        self.app_attached.emit(session)

    async def find_session(self, id: str) -> AppSession:
        guest = self.engine.find_cached(id) or await self.engine.find(id)
        if guest is None:
            self.metrics.count_refusal("unknown_session")
            raise HttpRefusal(404, NO_SUCH_SESSION)
        return guest

    def session_server(self, session: AppSession) -> SessionServer:
        """What serves a session's MCP requests, made when the first one comes."""
        door = session.session_server
        if door is None:
            id = session.registration.id
            source = f"app/{id}"
            caller = Caller(kind="agent", name="mcp", scopes=frozenset({f"source:{source}"}), session=id)
            registry = ToolRegistry({source: session})
            desk = ToolDispatcher(
                registry,
                audit=self._record_call,
                deadline=self.settings.tool_timeout,
                deadlines=self._deadlines,
                check_arguments=session.registration.validate,
            )
            door = session.session_server = SessionServer(McpServer(_INFO, desk), caller)
            self._registries[session] = registry
            if len(self._registries) > MOST_IDLE_SERVERS:
                self._close_idle_servers()
        assert isinstance(door, SessionServer)
        return door

    def _close_idle_servers(self) -> None:
        """Let go of the oldest doors nobody stands in: one is made anew in less time than a call takes."""
        idle = [guest for guest in self._registries if not guest.session_server.is_busy]
        for guest in idle[: MOST_IDLE_SERVERS // 4]:
            self._close_server(guest)

    def _close_server(self, session: AppSession) -> None:
        registry = self._registries.pop(session, None)
        if registry is not None:
            registry.remove(f"app/{session.registration.id}")
            session.session_server = None

    # ---- limits ----

    async def check_rate(self, *buckets: tuple[str, Rate | None]) -> None:
        """Count a request against its limits. Raises Refusal."""
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

    def _on_session_end(self, session: AppSession) -> None:
        self.session_ended.emit(session)
        if session.session_server is not None:
            session.session_server.close()
            self._close_server(session)

    def _cancel_request(self, session: AppSession, client: str, request_id: str | int) -> None:
        if session.session_server is not None:
            session.session_server.cancel(client, request_id)


def _decode_fields(body: bytes) -> dict[str, Raw]:
    try:
        # Decoded first: the codec looks for bad UTF-8 only in the fields it reads, not in what is kept as it came.
        return _decode_object(body.decode())
    except msgspec.ValidationError:
        raise BadTools("the body must be a JSON object") from None
    except RecursionError:
        raise BadTools(f"the body is {TOO_DEEP_MESSAGE}") from None
    except ValueError:
        raise BadRequest("the body is not JSON") from None


def extract_tools(body: bytes) -> bytes:
    """The list in `{"tools": […]}`, or the bare list. Raises BadRequest."""
    if body.lstrip()[:1] == b"[":
        try:
            msgspec.json.decode(body.decode(), type=Raw)
        except RecursionError:
            raise BadTools(f"the body is {TOO_DEEP_MESSAGE}") from None
        except ValueError:
            raise BadRequest("the body is not JSON") from None
        return body.strip()
    tools = _decode_fields(body).get("tools")
    if tools is None:
        raise BadTools("`tools` is missing: send a list of tools, or an object that has one")
    return bytes(tools)


def _encode_about(fields: dict[str, Raw]) -> bytes:
    """What an app said of itself, as it is kept, and shown again. Raises BadTools."""
    about = msgspec.json.encode(fields)
    if len(about) > MAX_ABOUT_BYTES:
        raise BadTools(f"everything besides `tools` may take {MAX_ABOUT_BYTES} bytes; say less")
    try:
        decode_json(about)
    except ValueError as exc:
        raise BadTools(f"what the body says besides `tools` can't be kept: {short_reason(exc)}") from None
    return about


def _read_string(name: str, raw: Raw) -> str | None:
    try:
        return _decode_text(raw)
    except ValueError:
        raise BadTools(f"`{name}` must be a string") from None


def _read_bool(name: str, fields: dict[str, Raw]) -> bool:
    try:
        return _decode_bool(fields[name]) if name in fields else True
    except ValueError:
        raise BadTools(f"`{name}` must be true or false") from None


def decode_about(registration: AppRegistration) -> Json:
    shape: dict[str, Any] = msgspec.json.decode(registration.about)
    return shape
