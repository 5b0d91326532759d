"""The gateway's HTTP: probes, metrics, `/tools/invoke`, `/mcp`, and the paths of modules."""

import hmac
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol, runtime_checkable

from ... import __version__
from ...core.errors import ToolError, Unauthorized
from ...core.model import Caller, Json
from ...core.ports import Toolbox
from ...core.rpc import RpcError, RpcModule
from ...core.session_target import BindSession
from ...mcp.server.http import McpHttp
from ...mcp.server.http_gate import LOOPBACK_HOSTS, HttpAccessRules, HttpRefusal
from ...mcp.server.server import McpServer, McpServerInfo
from ...net import asgi
from ...net.asgi import App, Receive, Scope, Send
from ...net.forwarded_requests import (
    FORWARDED_FOR,
    UNATTRIBUTED,
    RequestRefusal,
    client_address,
    is_forwarded,
)
from ...net.gateway_client.acting_headers import is_grant_token, read_session_address
from ...net.metrics import Metric, format_metrics
from ...net.peers import is_loopback
from ...tools.rpc_methods import ToolMethods, error_kind, invoke, operator_caller
from ..rpc.connections import Connections
from ..rpc.grants import RunGrants
from .granted_calls import GrantedToolbox
from .process_stats import host_names, resident_memory
from .status import GatewayStatus

PROBE_PATHS: Final = frozenset({"/health", "/healthz", "/ready", "/readyz"})
CHANNEL_HOOKS_PREFIX: Final = "/channels/"
"""Both are served under any Host: to load balancers, who learn nothing more, and to services that authenticate to
their channel. Every other path is served only under the gateway's own names."""
ANY_HOST: Final = "*"
GRANT_MISUSED: Final = "a run's token is only for programs of the gateway's own machine"


@runtime_checkable
class RouteProvider(Protocol):
    """A module that answers HTTP paths of its own. A path that ends in `/` takes everything below it."""

    def routes(self) -> Mapping[str, App]: ...


class HttpAccess:
    """Who may use the gateway over HTTP: by Host and Origin, then by the shared token."""

    def __init__(
        self, token: str, *, hosts: frozenset[str], accepts_remote: bool, bind_session: BindSession,
        find_granted: Callable[[str], Caller | None] = lambda token: None,
        trusted_proxies: Callable[[], Sequence[str]] = tuple,
    ) -> None:  # fmt: skip
        """`hosts`: names the gateway has, beside this machine's own. `accepts_remote`: other machines reach it.
        `find_granted`: who calls `/mcp` with a grant's token. `trusted_proxies`: whose word on the client is taken."""
        self._token = token.encode()
        self._bind_session = bind_session
        self._find_granted = find_granted
        self._trusted_proxies = trusted_proxies
        known = LOOPBACK_HOSTS | hosts | (host_names() if accepts_remote else frozenset())
        self.rules = HttpAccessRules(
            identify=self._identify,
            bind_session=self.bind_session,
            allowed_hosts=None if ANY_HOST in hosts else known,
            allow_ip_hosts=accepts_remote,
            allowed_origins=LOOPBACK_HOSTS | (hosts - {ANY_HOST}),
        )

    def refusal_reason(self, client: Any, headers: Sequence[tuple[bytes, bytes]]) -> RequestRefusal | None:
        """Why a request from there is refused before it is read; None if it is not."""
        if not self.is_attributed(client, headers):
            return UNATTRIBUTED
        scope: Scope = {"client": client, "headers": headers}
        try:
            self.rules.check_source(scope, asgi.read_headers(scope))
        except HttpRefusal as refusal:
            remedy = "ask for this machine by its own name, or name it in OPENCLAW_GATEWAY_HOSTS"
            return RequestRefusal(f"{refusal.reason}: {remedy}")
        return None

    def is_attributed(self, client: Any, headers: Sequence[tuple[bytes, bytes]]) -> bool:
        """Whether it is known whose request it is: one passed on by a proxy that is not trusted is no one's."""
        values = [value.decode("latin-1") for name, value in headers if name == FORWARDED_FOR.encode()]
        forwarded = is_forwarded(name.decode("latin-1") for name, _ in headers)
        peer = str(client[0]) if client else ""
        found = client_address(peer, forwarded=forwarded, forwarded_for=values, trusted=self._trusted_proxies())
        return found is not None

    def is_misused_grant(self, client: Any, headers: Mapping[str, str]) -> bool:
        """Whether a request from elsewhere carries a run's grant: those are for programs of this machine, as on the
        WebSocket."""
        is_local = bool(client) and is_loopback(str(client[0])) and not is_forwarded(headers)
        return is_grant_token(_bearer_token(headers)) and not is_local

    def has_token(self, headers: Mapping[str, str]) -> bool:
        """Whether a request carries the shared token."""
        return hmac.compare_digest(_bearer_token(headers).encode(), self._token)

    async def bind_session(self, caller: Caller, headers: Mapping[str, str]) -> Caller:
        """The caller in the session that its headers name; that session's rules apply then. A grant names its own."""
        address = read_session_address({name: (value,) for name, value in headers.items()})
        return caller if address is None or caller.grant is not None else await self._bind_session(caller, address)

    def _identify(self, headers: Mapping[str, str]) -> Caller:
        if self.has_token(headers):
            return operator_caller("gateway-token", entry_point="mcp")
        granted = self._find_granted(_bearer_token(headers))
        if granted is None:
            raise Unauthorized("the gateway's token is needed, or a grant's: Authorization: Bearer TOKEN")
        return granted


class GatewayHttp:
    """An ASGI app."""

    def __init__(
        self,
        access: HttpAccess,
        tools: Toolbox,
        tool_methods: ToolMethods,
        *,
        status: GatewayStatus,
        connections: Connections,
        grants: RunGrants,
    ) -> None:
        self._access = access
        self._tools = tools
        self._tool_methods = tool_methods
        self._status = status
        self._connections = connections
        info = McpServerInfo(name="openclaw", version=__version__, title="OpenClaw gateway")
        self._mcp = McpHttp(McpServer(info, GrantedToolbox(tools, grants)), access_rules=access.rules)
        self.exact_routes: dict[str, App] = {
            "/health": self._liveness,
            "/healthz": self._liveness,
            "/ready": self._readiness,
            "/readyz": self._readiness,
            "/metrics": self._metrics,
            "/tools/invoke": self._invoke,
            "/mcp": self._mcp,
        }
        self.prefix_routes: dict[str, App] = {}

    def add(self, module: RpcModule) -> None:
        """The module's routes, if it has any."""
        if isinstance(module, RouteProvider):
            for path, app in module.routes().items():
                (self.prefix_routes if path.endswith("/") else self.exact_routes)[path] = app

    async def aclose(self) -> None:
        await self._mcp.aclose()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        path: str = scope["path"]
        if path not in PROBE_PATHS and not path.startswith(CHANNEL_HOOKS_PREFIX):
            client, headers = scope.get("client"), scope["headers"]
            refusal = self._access.refusal_reason(client, headers)
            if path == "/mcp" and refusal is not UNATTRIBUTED:
                refusal = None  # the MCP endpoint checks the other rules itself
            if refusal is not UNATTRIBUTED and self._access.is_misused_grant(client, asgi.read_headers(scope)):
                refusal = RequestRefusal(GRANT_MISUSED)
            if refusal is not None:
                await asgi.send_json(send, refusal.body(), status=403)
                return
        app = self.exact_routes.get(path) or next(
            (app for prefix, app in self.prefix_routes.items() if path.startswith(prefix)), None
        )
        if app is None:
            await _send_error(send, 404, "not_found", f"nothing is at {path[:200]}")
            return
        await app(scope, receive, send)

    async def _liveness(self, scope: Scope, receive: Receive, send: Send) -> None:
        await asgi.send_json(send, {"ok": True, "status": "live"})

    async def _readiness(self, scope: Scope, receive: Receive, send: Send) -> None:
        loop = self._status.loop_monitor.stats()
        body = {"ready": True, "failing": [], "uptimeMs": self._status.uptime_ms, "eventLoop": loop}
        await asgi.send_json(send, body)

    async def _metrics(self, scope: Scope, receive: Receive, send: Send) -> None:
        connections = self._connections
        metrics = (
            Metric("openclaw_up_seconds", "gauge", "Time since start.", [({}, self._status.uptime_ms / 1000)]),
            Metric("openclaw_memory_bytes", "gauge", "Resident memory.", [({}, resident_memory())]),
            Metric("openclaw_connections", "gauge", "Connections that are in.", [({}, len(connections))]),
            *connections.metrics.collect(),
        )
        kind = "text/plain; version=0.0.4; charset=utf-8"
        await asgi.send_response(send, 200, format_metrics(metrics).encode(), content_type=kind)

    async def _invoke(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] != "POST":
            await asgi.send_text(send, "Method Not Allowed", status=405, extra={"allow": "POST"})
            return
        headers = asgi.read_headers(scope)
        if not self._access.has_token(headers):
            await _send_error(send, 401, "unauthorized", "Unauthorized")
            return
        try:
            body = await asgi.read_json(receive)
        except asgi.BodyRefused as exc:
            await _send_error(send, exc.status, "invalid_request_error", str(exc))
            return
        caller = await self._access.bind_session(operator_caller("gateway-token", entry_point="http"), headers)
        status, answer = await self._invoke_tool(caller, body if isinstance(body, dict) else {})
        await asgi.send_json(send, answer, status=status)

    async def _invoke_tool(self, caller: Caller, body: Json) -> tuple[int, Json]:
        name, args = body.get("tool") or body.get("name"), body.get("args") or {}
        session, agent = (
            value if isinstance(value, str) else None for value in (body.get("sessionKey"), body.get("agentId"))
        )
        try:
            if not isinstance(name, str):
                raise RpcError("tools.invoke requires name")
            if not isinstance(args, dict):
                raise RpcError("args must be an object")
            if isinstance(body.get("action"), str):
                args = {"action": body["action"], **args}
            caller = await self._tool_methods.resolve_session_caller(caller, session, agent)
            return 200, {"ok": True, "result": await invoke(self._tools, name, args, caller)}
        except RpcError as exc:
            return 400, {"ok": False, **_error_body("invalid_request", str(exc))}
        except ToolError as exc:
            kind = error_kind(exc)
            status = {"not_found": 404, "invalid_request": 400, "forbidden": 403}.get(kind, 500)
            return status, {"ok": False, **_error_body(kind, str(exc))}


def _bearer_token(headers: Mapping[str, str]) -> str:
    scheme, _, given = headers.get("authorization", "").partition(" ")
    return given.strip() if scheme.lower() == "bearer" else ""


async def _send_error(send: Send, status: int, kind: str, message: str) -> None:
    await asgi.send_json(send, _error_body(kind, message), status=status)


def _error_body(kind: str, message: str) -> Json:
    return {"error": {"message": message, "type": kind}}
