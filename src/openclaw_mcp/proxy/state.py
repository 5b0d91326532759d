"""What every entrance of the proxy shares: the sessions, the doors onto them, the counters, the limits."""

import logging
import math
import os
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any, Final, Self

import msgspec
from msgspec import Raw, Struct

from .. import __version__
from ..core.errors import BadRequest
from ..core.json_nesting import TOO_DEEP, decode
from ..core.model import Caller, Json
from ..core.signal import Bell
from ..mcp.server.http_gate import LOOPBACK_HOSTS, Gate, Refusal, bearer
from ..mcp.server.server import Info, McpServer
from ..mcp.server.session_server import Door
from ..net.peers import Begun, peer_of
from ..net.websocket_server import strangers
from ..tools.audit import Record
from ..tools.deadline import Deadlines
from ..tools.dispatcher import Desk
from ..tools.registry import Registry
from ..tools.schema import Together
from .audit_log import Book
from .engine.app_session import GONE, Guest, Session
from .engine.bridge import Bridge
from .engine.frames import short
from .engine.memory import Engine, Memory
from .engine.quotas import Places
from .engine.rate_limits import Bucket, Rate
from .engine.tool_list import EMPTY, BadTools, Menu, read_menu
from .metrics import Metrics
from .settings import Settings

logger = logging.getLogger(__name__)

LARGEST_ABOUT: Final = 16 << 10  # bytes an app may say of itself besides its tools; each session keeps them
MOST_HALF_SAID: Final = 256 << 20  # bytes of apps' messages that have begun, together
KEPT_DOORS: Final = 1024  # sessions whose MCP server is kept ready; at some 15 KiB each
ANY: Final = "*"

APP: Final = Caller(kind="app", name="app")
CLIENT: Final = Caller(kind="agent", name="mcp")

_INFO = Info(name="openclaw-proxy", version=__version__, title="OpenClaw app tools")
_SNAKE: Final = {"device_id", "device_name", "app_version", "chat_id"}
_CAMEL: Final = {"deviceId", "deviceName", "appVersion", "chatId"}

_object = msgspec.json.Decoder(dict[str, Raw]).decode
_text: Callable[[Raw], str | None] = msgspec.json.Decoder(str | None).decode
_switch = msgspec.json.Decoder(bool).decode


class Registered(Struct, frozen=True):
    session: Session
    camel: bool
    """The app writes camelCase, and is answered so."""


class House:
    """Its life is an `async with`."""

    engine: Engine

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.metrics = Metrics()
        self._book = Book(settings.audit)
        self._stack = AsyncExitStack()
        self._deadlines = Deadlines()
        self._doors: dict[Guest, Registry] = {}
        self.came: Bell[Guest] = Bell()
        """Rings when an app brings the bridge of a session here."""
        self.went: Bell[Guest] = Bell()
        self.strangers = strangers()
        """WebSockets of apps that have no bridge yet."""
        self.half_said = Begun(most=MOST_HALF_SAID)
        """Messages of apps that are not whole yet."""
        self.app_gate = self._gate(settings.app_token, APP)
        self.mcp_gate = self._gate(settings.mcp_token, CLIENT)

    async def __aenter__(self) -> Self:
        await self._stack.enter_async_context(self._book)
        settings = self.settings
        if settings.redis_url:
            try:
                # Here for start-up: a proxy that runs alone needs no Redis, nor the extra that brings its client.
                from .engine.redis import Shared
            except ModuleNotFoundError:
                raise BadRequest("OPENCLAW_PROXY_REDIS_URL needs an extra: pip install 'openclaw-mcp[redis]'") from None

            shared = Shared(
                settings.redis_url,
                ttl=settings.session_ttl,
                room=settings.room,
                ping=settings.bridge.ping,
                part=self._part,
                cancel=self._cancel,
                read=self._kept_menu,
            )
            self.engine = await self._stack.enter_async_context(shared)
        else:
            memory = Memory(
                ttl=settings.session_ttl,
                places=Places(settings.room),
                ping=settings.bridge.ping,
                part=self._part,
            )
            self.engine = await self._stack.enter_async_context(memory)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    # ---- sessions ----

    async def register(self, body: bytes, *, client: Any = None) -> Registered:
        """A new session from a create body, for whoever is at `client`. Raises BadRequest, TooManySessions."""
        fields = _fields(body)
        tools = fields.pop("tools", None)
        menu = EMPTY if tools is None or bytes(tools) == b"null" else self.menu(bytes(tools))
        said = {name: _string(name, fields[name]) for name in (*_SNAKE, *_CAMEL) if name in fields}
        about = _kept(fields)
        session = Session(
            id=os.urandom(16).hex(),
            created=time.time(),
            about=about,
            device=said.get("device_id") or said.get("deviceId"),
            peer=peer_of(client),
            validate=_bool("validate", fields),
        )
        await self.engine.add(session, menu)
        snake = bool(fields.keys() & _SNAKE) or menu.camel is False
        return Registered(session, not snake and bool(menu.camel or fields.keys() & _CAMEL))

    def menu(self, raw: bytes) -> Menu:
        return read_menu(raw, most=self.settings.most_tools, check=Together().check)

    def _kept_menu(self, raw: bytes) -> Menu:
        """One that was checked when it came; the desk checks a schema again before it is first used."""
        try:
            return read_menu(raw, most=self.settings.most_tools, check=lambda _: None)
        except BadTools as exc:  # of another version, which took more
            logger.warning("the tools of a stored session can't be used: %s", exc)
            return EMPTY

    async def retool(self, guest: Guest, raw: bytes) -> int:
        """How many tools it has now. Raises BadRequest, TooManySessions, SessionGone."""
        if len(raw) > self.settings.largest_body:
            raise BadTools(f"tools: {len(raw)} bytes are too many; they may take {self.settings.largest_body}")
        menu = self.menu(raw)
        await self.engine.retool(guest, menu)
        return len(menu.specs)

    async def attach(self, guest: Guest, bridge: Bridge) -> None:
        """Raises BridgeTaken, SessionGone."""
        await self.engine.attach(guest, bridge)
        self.came.ring(guest)

    async def find(self, id: str) -> Guest:
        guest = self.engine.near(id) or await self.engine.find(id)
        if guest is None:
            self.metrics.refused("unknown_session")
            raise Refusal(404, GONE)
        return guest

    def door(self, guest: Guest) -> Door:
        """What serves a session's MCP requests, made when the first one comes."""
        door = guest.door
        if door is None:
            id = guest.session.id
            source = f"app/{id}"
            caller = Caller(kind="agent", name="mcp", scopes=frozenset({f"source:{source}"}), session=id)
            registry = Registry({source: guest})
            desk = Desk(
                registry,
                audit=self._audit,
                deadline=self.settings.tool_timeout,
                deadlines=self._deadlines,
                check=guest.session.validate,
            )
            door = guest.door = Door(McpServer(_INFO, desk), caller)
            self._doors[guest] = registry
            if len(self._doors) > KEPT_DOORS:
                self._shut_idle()
        assert isinstance(door, Door)
        return door

    def _shut_idle(self) -> None:
        """Let go of the oldest doors nobody stands in: one is made anew in less time than a call takes."""
        idle = [guest for guest in self._doors if not guest.door.busy]
        for guest in idle[: KEPT_DOORS // 4]:
            self._shut(guest)

    def _shut(self, guest: Guest) -> None:
        registry = self._doors.pop(guest, None)
        if registry is not None:
            registry.remove(f"app/{guest.session.id}")
            guest.door = None

    # ---- limits ----

    async def admit(self, *buckets: tuple[str, Rate | None]) -> None:
        """Count a request against its limits. Raises Refusal."""
        limited = [Bucket(name, rate) for name, rate in buckets if rate is not None]
        if not limited:
            return
        wait = await self.engine.take(limited)
        if wait > 0:
            self.metrics.refused("rate")
            headers = ((b"retry-after", b"%d" % math.ceil(wait)),)
            raise Refusal(429, f"too many requests; try again in {math.ceil(wait)} s", headers)

    def _gate(self, token: str, caller: Caller) -> Gate:
        settings = self.settings
        hosts = None if settings.app_token and settings.mcp_token and settings.hosts is None else LOOPBACK_HOSTS
        if settings.hosts is not None:
            hosts = None if ANY in settings.hosts else LOOPBACK_HOSTS | settings.hosts
        pages = {origin if "://" in origin else origin.partition(":")[0] for origin in settings.origins}
        return Gate(
            identify=bearer(token, caller) if token else lambda _: caller,
            hosts=hosts,
            origins=None if ANY in pages else LOOPBACK_HOSTS | pages,
            largest_body=settings.largest_body,
        )

    def _audit(self, record: Record) -> None:
        self.metrics.call(record)
        self._book.write(record)

    def _part(self, guest: Guest) -> None:
        self.went.ring(guest)
        if guest.door is not None:
            guest.door.close()
            self._shut(guest)

    def _cancel(self, guest: Guest, client: str, id: str | int) -> None:
        if guest.door is not None:
            guest.door.cancel(client, id)


def _fields(body: bytes) -> dict[str, Raw]:
    try:
        # Decoded first: the codec looks for bad UTF-8 only in the fields it reads, not in what is kept as it came.
        return _object(body.decode())
    except msgspec.ValidationError:
        raise BadTools("the body must be a JSON object") from None
    except RecursionError:
        raise BadTools(f"the body is {TOO_DEEP}") from None
    except ValueError:
        raise BadRequest("the body is not JSON") from None


def tools_in(body: bytes) -> bytes:
    """The list in `{"tools": […]}`, or the bare list. Raises BadRequest."""
    if body.lstrip()[:1] == b"[":
        try:
            msgspec.json.decode(body.decode(), type=Raw)
        except RecursionError:
            raise BadTools(f"the body is {TOO_DEEP}") from None
        except ValueError:
            raise BadRequest("the body is not JSON") from None
        return body.strip()
    tools = _fields(body).get("tools")
    if tools is None:
        raise BadTools("`tools` is missing: send a list of tools, or an object that has one")
    return bytes(tools)


def _kept(fields: dict[str, Raw]) -> bytes:
    """What an app said of itself, as it is kept, and shown again. Raises BadTools."""
    about = msgspec.json.encode(fields)
    if len(about) > LARGEST_ABOUT:
        raise BadTools(f"everything besides `tools` may take {LARGEST_ABOUT} bytes; say less")
    try:
        decode(about)
    except ValueError as exc:
        raise BadTools(f"what the body says besides `tools` can't be kept: {short(exc)}") from None
    return about


def _string(name: str, raw: Raw) -> str | None:
    try:
        return _text(raw)
    except ValueError:
        raise BadTools(f"`{name}` must be a string") from None


def _bool(name: str, fields: dict[str, Raw]) -> bool:
    try:
        return _switch(fields[name]) if name in fields else True
    except ValueError:
        raise BadTools(f"`{name}` must be true or false") from None


def about(session: Session) -> Json:
    shape: dict[str, Any] = msgspec.json.decode(session.about)
    return shape
