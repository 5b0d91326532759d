"""The gateway's caretaker: intercom, HTTP and tools of every room on one port."""

import asyncio
import hmac
import os
import platform
import socket
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol, runtime_checkable

from ... import __version__
from ...core.errors import ToolError, Unauthorized
from ...core.json_nesting import TooDeep, decode
from ...core.model import Caller, Json
from ...core.ports import ToolSource
from ...core.rpc import ADMIN, NOBODY, READ, Fault, Method, Room, RpcCall, covers, missing_scope
from ...mcp.client.lazy_start import Waking
from ...mcp.server.http import McpHttp
from ...mcp.server.http_gate import LOOPBACK_HOSTS, Gate, Refusal
from ...mcp.server.server import Info, McpServer
from ...net import asgi, listen
from ...net.asgi import App, Receive, Scope, Send
from ...net.gateway_client.acting_headers import read_place
from ...net.gateway_client.identity import Identity
from ...net.http_limits import Bounds
from ...net.metrics import Metric, written
from ...tools.audit import Audit, log
from ...tools.config_policy import HouseRules
from ...tools.dispatcher import Desk
from ...tools.grant_audit import Clerk
from ...tools.policy import by_scope, every
from ...tools.policy_rules import RuleBook
from ...tools.registry import Registry
from ...tools.rpc_methods import ToolMethods, invoke, kind_of, operator
from ..rpc.authenticator import Door
from ..rpc.devices import Devices
from ..rpc.grants import Grants
from ..rpc.health import health_for
from ..rpc.logs import Logs
from ..rpc.pairing import FileShelf, Pairing, Shelf, now_ms
from ..rpc.server import Intercom
from . import empty_status, process_stats

APPS_PAUSE: Final = 1.0  # seconds at least between two times clients are told that apps have other tools
HEALTH_EVERY: Final = 60.0  # seconds between `health` events
LOG_FILE: Final = "gateway.log"
PROBES: Final = frozenset({"/health", "/healthz", "/ready", "/readyz"})
HOOKS: Final = "/channels/"
"""Both are asked under any Host: by load balancers, who learn nothing more, and by services who prove themselves to
their channel. Everything else is for those who know us by a name of ours."""
ANY_HOST: Final = "*"


@runtime_checkable
class Reporting(Protocol):
    """A room that has something to add to `health` and `status`."""

    def health(self) -> Json: ...

    def status(self) -> Json: ...


@runtime_checkable
class Routing(Protocol):
    """A room that answers HTTP paths of its own. A path that ends in `/` takes everything below it."""

    def routes(self) -> Mapping[str, App]: ...


class Gateway:
    """Rooms are added before `serve`; `publish` is theirs to use from the start."""

    def __init__(
        self,
        folder: Path,
        token: str,
        *,
        sources: Mapping[str, ToolSource] | None = None,
        shelf: Shelf | None = None,
        hosts: frozenset[str] = frozenset(),
        beyond: bool = False,
        audit: Audit = log,
        digest_key: bytes | None = None,
    ) -> None:
        """`hosts`: names we are known by, beside this machine's own for itself. `beyond`: other machines reach us."""
        digest_key = digest_key or os.urandom(16)
        self.folder = folder
        self.version = __version__
        self.registry = Registry(sources)
        self.rules = HouseRules(RuleBook())
        self.desk = Desk(
            self.registry, policy=every(by_scope, self.rules), audit=audit, digest_key=digest_key,
            alike=self.rules.alike, apps_pause=APPS_PAUSE,
        )  # fmt: skip
        self.tools = Waking(self.desk, self.registry)
        """The desk as every door uses it: it starts the MCP servers a caller needs."""
        self.tool_methods = ToolMethods(self.tools)
        self.pairing = Pairing(shelf or FileShelf(folder / "pairing.json"))
        self._token = token.encode()
        self.grants = Grants(judge=self.rules.refusal, clerk=Clerk(self.rules, audit, digest_key))
        self.door = Door(token, self.pairing, origins=hosts - {ANY_HOST}, grants=self.grants)
        self.intercom = Intercom(self.door, self)
        self.publish = self.intercom.publish
        self._vitals = process_stats.Vitals()
        self._instance = str(uuid.uuid4())
        self._port: int | None = None
        self._rooms: list[Room] = []
        self._gate = self._gate_for(hosts, beyond=beyond)
        self._mcp = self._mcp_door()
        self._exact: dict[str, App] = {}
        self._below: dict[str, App] = {}
        for path, app in self._own_routes():
            self._exact[path] = app
        self.pairing.cut.listen(self.intercom.cut)
        for room in (
            self,
            Devices(self.pairing, self.publish, self._online),
            Logs(folder / LOG_FILE),
            self.tool_methods,
        ):
            self.add(room)

    def add(self, room: Room) -> None:
        """Take a room in: its methods, and its reports and routes if it has any."""
        self.intercom.offer(room.methods())
        if isinstance(room, Routing):
            for path, app in room.routes().items():
                (self._below if path.endswith("/") else self._exact)[path] = app
        if room is not self:
            self._rooms.append(room)

    def adopt(self, book: RuleBook) -> None:
        """Follow these rules from now on, at every door."""
        self.rules.adopt(book)
        self.desk.refresh()
        self.intercom.tell_tools()

    async def ask(self, method: str, params: Json, caller: Caller) -> Any:
        """Call a room's method from within, as this caller and no more. Raises Fault."""
        found = self.intercom.find(method)
        if found is None:
            raise Fault(f"unknown method: {method}")
        if found.scope is not None and not covers(caller.scopes, found.scope):
            raise missing_scope(found.scope)
        return await found.run(RpcCall(method=method, params=params, caller=caller, link=NOBODY))

    async def serve(
        self, listener: socket.socket, *, ready: Callable[[], None] | None = None, bounds: Bounds = Bounds()
    ) -> None:
        """Until SIGINT, SIGTERM or cancellation. Raises StateBroken before anything is served."""
        await self.pairing.open()
        self._port = listener.getsockname()[1]
        timers = [asyncio.ensure_future(self._vitals.watch()), asyncio.ensure_future(self._tell_health())]
        try:
            async with self.intercom:
                await listen.serve(self, listener, ready=ready, websockets=self.intercom.socket, bounds=bounds)
        finally:
            self.grants.close()
            for timer in timers:
                timer.cancel()
            await self._mcp.aclose()
            await asyncio.gather(*timers, return_exceptions=True)

    # ---- what the intercom says of us ----------------------------------------------------------------------------

    def health(self) -> Json:
        begun = time.perf_counter()
        health = empty_status.health(
            ts=now_ms(),
            sessions={"path": str(self.folder), "count": 0, "recent": []},
            eventLoop=self._vitals.event_loop(),
        )
        for room in self._rooms:
            if isinstance(room, Reporting):
                health |= room.health()
        health["durationMs"] = round((time.perf_counter() - begun) * 1000)
        return health

    def status(self) -> Json:
        status = empty_status.status(
            runtimeVersion=self.version,
            eventLoop=self._vitals.event_loop(),
            processMemory={"rssBytes": process_stats.memory(), "heapUsedBytes": 0, "heapTotalBytes": 0},
            pid=os.getpid(),
            uptimeMs=self.intercom.uptime_ms,
        )
        for room in self._rooms:
            if isinstance(room, Reporting):
                status |= room.status()
        return status

    def snapshot(self, scopes: frozenset[str]) -> Json:
        shown: Json = {
            "suspension": {"phase": "accepting"},
            "sessionDefaults": {
                "defaultAgentId": "main",
                "mainKey": "main",
                "mainSessionKey": "agent:main:main",
                "scope": "per-sender",
            },
        }
        if ADMIN in scopes:
            shown |= {
                "configPath": str(self.folder / "openclaw.json"),
                "stateDir": str(self.folder),
                "authMode": "token",
            }
        return shown

    def presence(self) -> Json:
        host = socket.gethostname()
        return {
            "host": host,
            "version": self.version,
            "platform": f"{platform.system().lower()} {platform.release()}",
            "deviceFamily": platform.system(),
            "mode": "gateway",
            "reason": "self",
            "instanceId": self._instance,
            "text": f"Gateway: {host} · app {self.version} · mode gateway · reason self",
            "ts": now_ms(),
        }

    def refusal(self, client: Any, headers: Sequence[tuple[bytes, bytes]]) -> str | None:
        """The gate's word on where a request comes from; None: it may come in."""
        scope: Scope = {"client": client, "headers": headers}
        try:
            self._gate.check_source(scope, asgi.headers_of(scope))
        except Refusal as refusal:
            return f"{refusal.reason}: ask for this machine by its own name, or name it in OPENCLAW_GATEWAY_HOSTS"
        return None

    # ---- our own methods -----------------------------------------------------------------------------------------

    def methods(self) -> Sequence[Method]:
        return (
            Method("health", None, self._health, role="any"),
            Method("status", READ, self._status),
            Method("system-presence", READ, self._presence),
            Method("system.info", READ, self._info),
            Method("last-heartbeat", READ, self._last_heartbeat),
            Method("gateway.identity.get", READ, self._identity),
        )

    async def _health(self, call: RpcCall) -> Json:
        return health_for(call.caller, self.health())

    async def _status(self, call: RpcCall) -> Json:
        return self.status()

    async def _presence(self, call: RpcCall) -> list[Json]:
        return self.intercom.presence()

    async def _info(self, call: RpcCall) -> Json:
        return process_stats.machine(self.folder) | {
            "port": self._port,
            "processInstanceId": self._instance,
            "uptimeMs": self.intercom.uptime_ms,
            "eventLoop": self._vitals.event_loop(),
            "processMemory": {"rssBytes": process_stats.memory(), "heapUsedBytes": 0, "heapTotalBytes": 0},
        }

    async def _last_heartbeat(self, call: RpcCall) -> None:
        return None

    async def _identity(self, call: RpcCall) -> Json:
        own = await asyncio.to_thread(Identity.load, self.folder / "identity.json")
        return {"deviceId": own.id, "publicKey": own.public_key}

    async def _tell_health(self) -> None:
        while True:
            await asyncio.sleep(HEALTH_EVERY)
            self.intercom.publish_health()

    def _online(self) -> set[str]:
        guests = self.intercom.guests.values()
        return {g.admitted.connect.device.id for g in guests if g.admitted and g.admitted.connect.device}

    # ---- HTTP ----------------------------------------------------------------------------------------------------

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        path: str = scope["path"]
        if path != "/mcp" and path not in PROBES and not path.startswith(HOOKS):  # MCP's own door asks the same gate
            words = self.refusal(scope.get("client"), scope["headers"])
            if words is not None:
                await asgi.answer_json(send, _error("forbidden", words), status=403)
                return
        app = self._exact.get(path) or next((a for root, a in self._below.items() if path.startswith(root)), None)
        if app is None:
            await asgi.answer_json(send, _error("not_found", f"nothing is at {path[:200]}"), status=404)
            return
        await app(scope, receive, send)

    def _own_routes(self) -> Iterable[tuple[str, App]]:
        yield from ((path, self._live if path.startswith("/health") else self._ready) for path in PROBES)
        yield "/metrics", self._metrics
        yield "/tools/invoke", self._invoke
        yield "/mcp", self._mcp

    async def _live(self, scope: Scope, receive: Receive, send: Send) -> None:
        await asgi.answer_json(send, {"ok": True, "status": "live"})

    async def _ready(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = {
            "ready": True,
            "failing": [],
            "uptimeMs": self.intercom.uptime_ms,
            "eventLoop": self._vitals.event_loop(),
        }
        await asgi.answer_json(send, body)

    async def _metrics(self, scope: Scope, receive: Receive, send: Send) -> None:
        kind = "text/plain; version=0.0.4; charset=utf-8"
        await asgi.answer(send, 200, written(self._measured()).encode(), kind=kind)

    def _measured(self) -> Iterable[Metric]:
        intercom = self.intercom
        yield Metric("openclaw_up_seconds", "gauge", "Time since start.", [({}, intercom.uptime_ms / 1000)])
        yield Metric("openclaw_memory_bytes", "gauge", "Resident memory.", [({}, process_stats.memory())])
        yield Metric("openclaw_connections", "gauge", "Connections that are in.", [({}, len(intercom.guests))])
        for name, labels, words in (
            ("handshakes", ("outcome",), "Handshakes by outcome."),
            ("requests", ("method", "outcome"), "Requests answered."),
            ("events", ("event",), "Events sent, counted per receiver."),
            ("slow_consumers", (), "Connections closed because they did not read."),
        ):
            samples = [
                (dict(zip(labels, key[1:], strict=True)), float(count))
                for key, count in sorted(intercom.counts.items())
                if key[0] == name
            ]
            yield Metric(f"openclaw_{name}_total", "counter", words, samples)
        spent = [({"method": method}, seconds) for method, seconds in sorted(intercom.seconds.items())]
        yield Metric("openclaw_request_seconds_total", "counter", "Time spent answering.", spent)

    async def _invoke(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] != "POST":
            await asgi.answer_text(send, "Method Not Allowed", status=405, extra={"allow": "POST"})
            return
        headers = asgi.headers_of(scope)
        if not self.bears_token(headers):
            await asgi.answer_json(send, _error("unauthorized", "Unauthorized"), status=401)
            return
        try:
            body = decode(await asgi.read_body(receive))
        except asgi.BodyTooLarge:
            words = f"the body may hold {asgi.LARGEST_BODY} bytes"
            await asgi.answer_json(send, _error("invalid_request_error", words), status=413)
            return
        except ValueError as exc:
            words = f"the body can't be kept: {exc}" if isinstance(exc, TooDeep) else "the body is not JSON"
            await asgi.answer_json(send, _error("invalid_request_error", words), status=400)
            return
        caller = await self._placed(operator("gateway-token", door="http"), headers)
        status, answer = await self._invoked(caller, body if isinstance(body, dict) else {})
        await asgi.answer_json(send, answer, status=status)

    async def _invoked(self, caller: Caller, body: Json) -> tuple[int, Json]:
        name, args = body.get("tool") or body.get("name"), body.get("args") or {}
        if not isinstance(name, str):
            return 400, {"ok": False, **_error("invalid_request", "tools.invoke requires name")}
        if not isinstance(args, dict):
            return 400, {"ok": False, **_error("invalid_request", "args must be an object")}
        if isinstance(body.get("action"), str):
            args = {"action": body["action"], **args}
        session, agent = (_text(body.get(key)) for key in ("sessionKey", "agentId"))
        try:
            caller = await self.tool_methods.placed(caller, session, agent)
            return 200, {"ok": True, "result": await invoke(self.tools, name, args, caller)}
        except Fault as exc:
            return 400, {"ok": False, **_error("invalid_request", str(exc))}
        except ToolError as exc:
            kind = kind_of(exc)
            status = {"not_found": 404, "invalid_request": 400, "forbidden": 403}.get(kind, 500)
            return status, {"ok": False, **_error(kind, str(exc))}

    def _gate_for(self, hosts: frozenset[str], *, beyond: bool) -> Gate:
        known = LOOPBACK_HOSTS | hosts | (process_stats.names() if beyond else frozenset())
        return Gate(
            identify=self._identify,
            place=self._placed,
            hosts=None if ANY_HOST in hosts else known,
            addresses=beyond,
            origins=LOOPBACK_HOSTS | (hosts - {ANY_HOST}),
        )

    def _mcp_door(self) -> McpHttp:
        info = Info(name="openclaw", version=__version__, title="OpenClaw gateway")
        return McpHttp(McpServer(info, self.tools), gate=self._gate)

    def _identify(self, headers: Mapping[str, str]) -> Caller:
        if not self.bears_token(headers):
            raise Unauthorized("the gateway's token is needed: Authorization: Bearer TOKEN")
        return operator("gateway-token", door="mcp")

    async def _placed(self, caller: Caller, headers: Mapping[str, str]) -> Caller:
        """It may say in which session it acts; that session's rules hold then."""
        place = read_place({name: (value,) for name, value in headers.items()})
        return caller if place is None else await self.door.acting(caller, place)

    def bears_token(self, headers: Mapping[str, str]) -> bool:
        """Whether an HTTP request carries the shared token."""
        scheme, _, given = headers.get("authorization", "").partition(" ")
        return scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), self._token)


def _error(kind: str, message: str) -> Json:
    return {"error": {"message": message, "type": kind}}


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None
