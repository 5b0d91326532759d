"""The gateway's caretaker: intercom, HTTP and tools of every room on one port."""

import asyncio
import os
import platform
import socket
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol, runtime_checkable

from ... import __version__
from ...core.clock import now_ms
from ...core.errors import ToolError, Unauthorized
from ...core.model import Caller, Json
from ...core.ports import ToolSource
from ...core.rpc import ADMIN, NULL_PEER, READ, RpcCall, RpcError, RpcMethod, RpcModule, has_scope, scope_error
from ...mcp.client.lazy_start import LazyServerStart
from ...mcp.server.http import McpHttp
from ...mcp.server.http_gate import LOOPBACK_HOSTS, HttpAccessRules, HttpRefusal
from ...mcp.server.server import McpServer, McpServerInfo
from ...net import asgi, listen
from ...net.asgi import App, Receive, Scope, Send
from ...net.gateway_client.acting_headers import read_session_address
from ...net.gateway_client.identity import DeviceIdentity
from ...net.http_limits import ConnectionBounds
from ...net.metrics import Metric, format_metrics
from ...tools.audit import AuditSink, log_record
from ...tools.config_policy import ConfigPolicy
from ...tools.dispatcher import ToolDispatcher
from ...tools.grant_audit import GrantAudit
from ...tools.policy import combine_policies, scope_policy
from ...tools.policy_rules import PolicyRules
from ...tools.registry import ToolRegistry
from ...tools.rpc_methods import ToolMethods, error_kind, invoke, operator_caller
from ..rpc.authenticator import Authenticator
from ..rpc.devices import DeviceMethods
from ..rpc.grants import RunGrants
from ..rpc.health import redact_health
from ..rpc.logs import LogMethods
from ..rpc.pairing import DevicePairing, FilePairingStorage, PairingStorage
from ..rpc.server import RpcServer
from . import empty_status, process_stats

APP_CHANGES_INTERVAL: Final = 1.0  # seconds at least between two times clients are told that apps have other tools
HEALTH_INTERVAL: Final = 60.0  # seconds between `health` events
LOG_FILE: Final = "gateway.log"
PROBE_PATHS: Final = frozenset({"/health", "/healthz", "/ready", "/readyz"})
CHANNEL_HOOKS_PREFIX: Final = "/channels/"
"""Both are asked under any Host: by load balancers, who learn nothing more, and by services who prove themselves to
their channel. Everything else is for those who know us by a name of ours."""
ANY_HOST: Final = "*"


@runtime_checkable
class StatusProvider(Protocol):
    """A room that has something to add to `health` and `status`."""

    def health(self) -> Json: ...

    def status(self) -> Json: ...


@runtime_checkable
class RouteProvider(Protocol):
    """A room that answers HTTP paths of its own. A path that ends in `/` takes everything below it."""

    def routes(self) -> Mapping[str, App]: ...


class GatewayServer:
    """Rooms are added before `serve`; `publish` is theirs to use from the start."""

    def __init__(
        self,
        folder: Path,
        token: str,
        *,
        sources: Mapping[str, ToolSource] | None = None,
        pairing_store: PairingStorage | None = None,
        hosts: frozenset[str] = frozenset(),
        accepts_remote: bool = False,
        audit: AuditSink = log_record,
        digest_key: bytes | None = None,
    ) -> None:
        """`hosts`: names we are known by, beside this machine's own for itself. `beyond`: other machines reach us."""
        digest_key = digest_key or os.urandom(16)
        self.folder = folder
        self.version = __version__
        self.registry = ToolRegistry(sources)
        self.policy = ConfigPolicy(PolicyRules())
        self.dispatcher = ToolDispatcher(
            self.registry, policy=combine_policies(scope_policy, self.policy), audit=audit, digest_key=digest_key,
            cache_key=self.policy.cache_key, app_change_interval=APP_CHANGES_INTERVAL,
        )  # fmt: skip
        self.tools = LazyServerStart(self.dispatcher, self.registry)
        """The desk as every door uses it: it starts the MCP servers a caller needs."""
        self.tool_methods = ToolMethods(self.tools)
        self.pairing = DevicePairing(pairing_store or FilePairingStorage(folder / "pairing.json"))
        self._token = token.encode()
        self.grants = RunGrants(
            denial_reason=self.policy.refusal_reason, record_use=GrantAudit(self.policy, audit, digest_key)
        )
        self.authenticator = Authenticator(token, self.pairing, origins=hosts - {ANY_HOST}, grants=self.grants)
        self.rpc_server = RpcServer(self.authenticator, self)
        self.publish = self.rpc_server.publish
        self._loop_monitor = process_stats.EventLoopMonitor()
        self._instance_id = str(uuid.uuid4())
        self._port: int | None = None
        self._modules: list[RpcModule] = []
        self._gate = self._make_gate(hosts, accepts_remote=accepts_remote)
        self._mcp = self._make_mcp_endpoint()
        self._exact_routes: dict[str, App] = {}
        self._prefix_routes: dict[str, App] = {}
        for path, app in self._builtin_routes():
            self._exact_routes[path] = app
        self.pairing.revoked.connect(self.rpc_server.disconnect_device)
        for room in (
            self,
            DeviceMethods(self.pairing, self.publish, self._online_devices),
            LogMethods(folder / LOG_FILE),
            self.tool_methods,
        ):
            self.add_module(room)

    def add_module(self, module: RpcModule) -> None:
        """Take a room in: its methods, and its reports and routes if it has any."""
        self.rpc_server.register(module.methods())
        if isinstance(module, RouteProvider):
            for path, app in module.routes().items():
                (self._prefix_routes if path.endswith("/") else self._exact_routes)[path] = app
        if module is not self:
            self._modules.append(module)

    def apply_rules(self, rules: PolicyRules) -> None:
        """Follow these rules from now on, at every door."""
        self.policy.replace_rules(rules)
        self.dispatcher.refresh()
        self.rpc_server.announce_tools()

    async def call_method(self, method: str, params: Json, caller: Caller) -> Any:
        """Call a room's method from within, as this caller and no more. Raises Fault."""
        found = self.rpc_server.find_method(method)
        if found is None:
            raise RpcError(f"unknown method: {method}")
        if found.scope is not None and not has_scope(caller.scopes, found.scope):
            raise scope_error(found.scope)
        return await found.handle(RpcCall(method=method, params=params, caller=caller, peer=NULL_PEER))

    async def serve(
        self,
        listener: socket.socket,
        *,
        ready: Callable[[], None] | None = None,
        bounds: ConnectionBounds = ConnectionBounds(),
    ) -> None:
        """Until SIGINT, SIGTERM or cancellation. Raises StateBroken before anything is served."""
        await self.pairing.open()
        self._port = listener.getsockname()[1]
        timers = [asyncio.ensure_future(self._loop_monitor.watch()), asyncio.ensure_future(self._publish_health())]
        try:
            async with self.rpc_server:
                await listen.serve(
                    self, listener, on_ready=ready, websockets=self.rpc_server.make_socket, bounds=bounds
                )
        finally:
            self.grants.close()
            for timer in timers:
                timer.cancel()
            await self._mcp.aclose()
            await asyncio.gather(*timers, return_exceptions=True)

    # ---- what the intercom says of us ----------------------------------------------------------------------------

    def health(self) -> Json:
        begun = time.perf_counter()
        health = empty_status.empty_health(
            ts=now_ms(),
            sessions={"path": str(self.folder), "count": 0, "recent": []},
            eventLoop=self._loop_monitor.stats(),
        )
        for room in self._modules:
            if isinstance(room, StatusProvider):
                health |= room.health()
        health["durationMs"] = round((time.perf_counter() - begun) * 1000)
        return health

    def status(self) -> Json:
        status = empty_status.empty_status(
            runtimeVersion=self.version,
            eventLoop=self._loop_monitor.stats(),
            processMemory={"rssBytes": process_stats.resident_memory(), "heapUsedBytes": 0, "heapTotalBytes": 0},
            pid=os.getpid(),
            uptimeMs=self.rpc_server.uptime_ms,
        )
        for room in self._modules:
            if isinstance(room, StatusProvider):
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
            "instanceId": self._instance_id,
            "text": f"Gateway: {host} · app {self.version} · mode gateway · reason self",
            "ts": now_ms(),
        }

    def refusal_reason(self, client: Any, headers: Sequence[tuple[bytes, bytes]]) -> str | None:
        """The gate's word on where a request comes from; None: it may come in."""
        scope: Scope = {"client": client, "headers": headers}
        try:
            self._gate.check_source(scope, asgi.read_headers(scope))
        except HttpRefusal as refusal:
            return f"{refusal.reason}: ask for this machine by its own name, or name it in OPENCLAW_GATEWAY_HOSTS"
        return None

    # ---- our own methods -----------------------------------------------------------------------------------------

    def methods(self) -> Sequence[RpcMethod]:
        return (
            RpcMethod("health", None, self._health, role="any"),
            RpcMethod("status", READ, self._status),
            RpcMethod("system-presence", READ, self._presence),
            RpcMethod("system.info", READ, self._system_info),
            RpcMethod("last-heartbeat", READ, self._last_heartbeat),
            RpcMethod("gateway.identity.get", READ, self._identity),
        )

    async def _health(self, call: RpcCall) -> Json:
        return redact_health(call.caller, self.health())

    async def _status(self, call: RpcCall) -> Json:
        return self.status()

    async def _presence(self, call: RpcCall) -> list[Json]:
        return self.rpc_server.list_presence()

    async def _system_info(self, call: RpcCall) -> Json:
        return process_stats.machine_info(self.folder) | {
            "port": self._port,
            "processInstanceId": self._instance_id,
            "uptimeMs": self.rpc_server.uptime_ms,
            "eventLoop": self._loop_monitor.stats(),
            "processMemory": {"rssBytes": process_stats.resident_memory(), "heapUsedBytes": 0, "heapTotalBytes": 0},
        }

    async def _last_heartbeat(self, call: RpcCall) -> None:
        return None

    async def _identity(self, call: RpcCall) -> Json:
        own = await asyncio.to_thread(DeviceIdentity.load, self.folder / "identity.json")
        return {"deviceId": own.id, "publicKey": own.public_key}

    async def _publish_health(self) -> None:
        while True:
            await asyncio.sleep(HEALTH_INTERVAL)
            self.rpc_server.publish_health()

    def _online_devices(self) -> set[str]:
        guests = self.rpc_server.connections.values()
        return {g.auth.connect.device.id for g in guests if g.auth and g.auth.connect.device}

    # ---- HTTP ----------------------------------------------------------------------------------------------------

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        path: str = scope["path"]
        if (
            path != "/mcp" and path not in PROBE_PATHS and not path.startswith(CHANNEL_HOOKS_PREFIX)
        ):  # MCP's own door asks the same gate
            words = self.refusal_reason(scope.get("client"), scope["headers"])
            if words is not None:
                await asgi.send_json(send, _error_body("forbidden", words), status=403)
                return
        app = self._exact_routes.get(path) or next(
            (a for root, a in self._prefix_routes.items() if path.startswith(root)), None
        )
        if app is None:
            await asgi.send_json(send, _error_body("not_found", f"nothing is at {path[:200]}"), status=404)
            return
        await app(scope, receive, send)

    def _builtin_routes(self) -> Iterable[tuple[str, App]]:
        yield from ((path, self._liveness if path.startswith("/health") else self._readiness) for path in PROBE_PATHS)
        yield "/metrics", self._metrics
        yield "/tools/invoke", self._invoke_over_http
        yield "/mcp", self._mcp

    async def _liveness(self, scope: Scope, receive: Receive, send: Send) -> None:
        await asgi.send_json(send, {"ok": True, "status": "live"})

    async def _readiness(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = {
            "ready": True,
            "failing": [],
            "uptimeMs": self.rpc_server.uptime_ms,
            "eventLoop": self._loop_monitor.stats(),
        }
        await asgi.send_json(send, body)

    async def _metrics(self, scope: Scope, receive: Receive, send: Send) -> None:
        kind = "text/plain; version=0.0.4; charset=utf-8"
        await asgi.send_response(send, 200, format_metrics(self._collect_metrics()).encode(), content_type=kind)

    def _collect_metrics(self) -> Iterable[Metric]:
        intercom = self.rpc_server
        yield Metric("openclaw_up_seconds", "gauge", "Time since start.", [({}, intercom.uptime_ms / 1000)])
        yield Metric("openclaw_memory_bytes", "gauge", "Resident memory.", [({}, process_stats.resident_memory())])
        yield Metric("openclaw_connections", "gauge", "Connections that are in.", [({}, len(intercom.connections))])
        for name, labels, words in (
            ("handshakes", ("outcome",), "Handshakes by outcome."),
            ("requests", ("method", "outcome"), "Requests answered."),
            ("events", ("event",), "Events sent, counted per receiver."),
            ("slow_consumers", (), "Connections closed because they did not read."),
        ):
            samples = [
                (dict(zip(labels, key[1:], strict=True)), float(count))
                for key, count in sorted(intercom.counters.items())
                if key[0] == name
            ]
            yield Metric(f"openclaw_{name}_total", "counter", words, samples)
        spent = [({"method": method}, seconds) for method, seconds in sorted(intercom.seconds_by_method.items())]
        yield Metric("openclaw_request_seconds_total", "counter", "Time spent answering.", spent)

    async def _invoke_over_http(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] != "POST":
            await asgi.send_text(send, "Method Not Allowed", status=405, extra={"allow": "POST"})
            return
        headers = asgi.read_headers(scope)
        if not self.has_token(headers):
            await asgi.send_json(send, _error_body("unauthorized", "Unauthorized"), status=401)
            return
        try:
            body = await asgi.read_json(receive)
        except asgi.BodyRefused as exc:
            await asgi.send_json(send, _error_body("invalid_request_error", str(exc)), status=exc.status)
            return
        caller = await self._act_in_session(operator_caller("gateway-token", entry_point="http"), headers)
        status, answer = await self._invoke_tool(caller, body if isinstance(body, dict) else {})
        await asgi.send_json(send, answer, status=status)

    async def _invoke_tool(self, caller: Caller, body: Json) -> tuple[int, Json]:
        name, args = body.get("tool") or body.get("name"), body.get("args") or {}
        if not isinstance(name, str):
            return 400, {"ok": False, **_error_body("invalid_request", "tools.invoke requires name")}
        if not isinstance(args, dict):
            return 400, {"ok": False, **_error_body("invalid_request", "args must be an object")}
        if isinstance(body.get("action"), str):
            args = {"action": body["action"], **args}
        session, agent = (_text_or_none(body.get(key)) for key in ("sessionKey", "agentId"))
        try:
            caller = await self.tool_methods.resolve_session_caller(caller, session, agent)
            return 200, {"ok": True, "result": await invoke(self.tools, name, args, caller)}
        except RpcError as exc:
            return 400, {"ok": False, **_error_body("invalid_request", str(exc))}
        except ToolError as exc:
            kind = error_kind(exc)
            status = {"not_found": 404, "invalid_request": 400, "forbidden": 403}.get(kind, 500)
            return status, {"ok": False, **_error_body(kind, str(exc))}

    def _make_gate(self, hosts: frozenset[str], *, accepts_remote: bool) -> HttpAccessRules:
        known = LOOPBACK_HOSTS | hosts | (process_stats.host_names() if accepts_remote else frozenset())
        return HttpAccessRules(
            identify=self._identify,
            bind_session=self._act_in_session,
            allowed_hosts=None if ANY_HOST in hosts else known,
            allow_ip_hosts=accepts_remote,
            allowed_origins=LOOPBACK_HOSTS | (hosts - {ANY_HOST}),
        )

    def _make_mcp_endpoint(self) -> McpHttp:
        info = McpServerInfo(name="openclaw", version=__version__, title="OpenClaw gateway")
        return McpHttp(McpServer(info, self.tools), access_rules=self._gate)

    def _identify(self, headers: Mapping[str, str]) -> Caller:
        if not self.has_token(headers):
            raise Unauthorized("the gateway's token is needed: Authorization: Bearer TOKEN")
        return operator_caller("gateway-token", entry_point="mcp")

    async def _act_in_session(self, caller: Caller, headers: Mapping[str, str]) -> Caller:
        """It may say in which session it acts; that session's rules hold then."""
        place = read_session_address({name: (value,) for name, value in headers.items()})
        return caller if place is None else await self.authenticator.bind_session(caller, place)

    def has_token(self, headers: Mapping[str, str]) -> bool:
        """Whether an HTTP request carries the shared token."""
        return asgi.has_bearer_token(headers, self._token)


def _error_body(kind: str, message: str) -> Json:
    return {"error": {"message": message, "type": kind}}


def _text_or_none(value: Any) -> str | None:
    return value if isinstance(value, str) else None
