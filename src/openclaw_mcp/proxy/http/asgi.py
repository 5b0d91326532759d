"""The proxy as an ASGI app: MCP requests and bridges are served here, everything else by the API."""

import asyncio
from collections.abc import MutableMapping
from typing import Any, Final

from starlette.types import ASGIApp

from ...mcp.server import session_server
from ...mcp.server.http_gate import HttpRefusal
from ...mcp.server.http_request import SingleRequestServer, read_headers, send_refusal
from ...net.asgi import Receive as AsgiReceive
from ...net.asgi import Scope as AsgiScope
from ...net.asgi import Send as AsgiSend
from ...protocol.bridge import MCP_PATH
from ..engine.app_session import StoreDown
from ..state import ProxyState
from .api import Api
from .bridge_socket import BridgeSocket

NAME_SEPARATOR: Final = "."  # in MCP-Session-Id, between the session and a client's own name; no session's id has it


class ProxyAsgi:
    """One ASGI app over one proxy state."""

    def __init__(self, state: ProxyState) -> None:
        self._state = state
        self._inline = SingleRequestServer(state.mcp_gate)
        self._api: ASGIApp = Api(state).app()

    async def __call__(self, scope: AsgiScope, receive: AsgiReceive, send: AsgiSend) -> None:
        path: str = scope["path"]
        headers, repeated = read_headers(scope)
        origin = headers.get("origin")
        if origin is not None:
            send = _add_cors_headers(origin, send)
            if scope["method"] == "OPTIONS":
                await self._preflight(scope, headers, send)
                return
        if path == MCP_PATH or path.startswith(f"{MCP_PATH}/"):
            await self._serve_mcp(path[len(MCP_PATH) + 1 :].rstrip("/"), scope, headers, repeated, receive, send)
        else:
            if path.endswith("/") and path != "/":  # the same place: a redirect would lose the body or the method
                scope["path"] = path.rstrip("/")
            await self._api(scope, receive, send)

    # ---- MCP ----

    async def _serve_mcp(
        self,
        id: str,
        scope: AsgiScope,
        headers: dict[str, str],
        repeated: str | None,
        receive: AsgiReceive,
        send: AsgiSend,
    ) -> None:
        state = self._state
        try:
            state.mcp_gate.authenticate(scope, headers)
            prefix = ""
            client = _client_name(id, headers["mcp-session-id"]) if "mcp-session-id" in headers else None
            if not id:
                id = _session_from_header(headers.get("mcp-session-id", ""))
                prefix = f"{id}{NAME_SEPARATOR}"
            settings = state.settings
            if settings.mcp_rate is not None:
                await state.check_rate(("mcp", settings.mcp_rate))
            session = await state.find_session(id)
            if settings.session_rate is not None:  # only of sessions that exist: each counter is kept
                await state.check_rate((f"session/{id}", settings.session_rate))
            session.active_requests += 1
            try:
                await session_server.serve(
                    state.session_server(session),
                    scope["method"],
                    headers,
                    repeated,
                    receive,
                    send,
                    request_server=self._inline,
                    client=client,
                    session_id_prefix=prefix,
                )
            finally:
                session.active_requests -= 1
        except HttpRefusal as refusal:
            if refusal.status in (401, 403):
                state.metrics.count_refusal("unauthorized" if refusal.status == 401 else "forbidden")
            await send_refusal(send, refusal)
        except StoreDown as exc:
            await send_refusal(send, HttpRefusal(503, str(exc), ((b"retry-after", b"1"),)))

    # ---- bridges ----

    def make_socket(
        self, config: Any, server_state: Any, app_state: Any, _loop: asyncio.AbstractEventLoop | None = None
    ) -> asyncio.Protocol:
        """A new socket, with uvicorn's arguments."""
        return BridgeSocket(self._state, server_state.connections)

    # ---- pages in a browser ----

    async def _preflight(self, scope: AsgiScope, headers: dict[str, str], send: AsgiSend) -> None:
        try:
            self._state.app_gate.check_source(scope, headers)  # the credential comes with the real request
        except HttpRefusal as refusal:
            await send_refusal(send, refusal)
            return
        allowed = [
            (b"access-control-allow-methods", b"GET, POST, PUT, DELETE"),
            (b"access-control-allow-headers", headers.get("access-control-request-headers", "*").encode("latin-1")),
            (b"access-control-max-age", b"600"),
            (b"content-length", b"0"),
        ]
        await send({"type": "http.response.start", "status": 200, "headers": allowed})
        await send({"type": "http.response.body", "body": b""})


def _session_from_header(value: str) -> str:
    """The session that MCP-Session-Id names. Raises HttpRefusal.

    A client may have it from its settings, from our answer to `initialize` (the session, a dot, the client's own name),
    or send both in one header.
    """
    ids = {name.strip().partition(NAME_SEPARATOR)[0] for name in value.split(",")} - {""}
    if not ids:
        raise HttpRefusal(400, "no session: name it in the path, /v1/mcp/{id}, or in MCP-Session-Id")
    if len(ids) > 1:
        raise HttpRefusal(400, "MCP-Session-Id names two sessions; name the one you mean")
    return ids.pop()


def _client_name(path_id: str, value: str) -> str | None:
    """The name that tells a client's requests from another's: what it was given with `initialize`."""
    names = [name.strip() for name in value.split(",")]
    if path_id:
        return next((name for name in names if name and name != path_id), None)
    return next((name for name in names if NAME_SEPARATOR in name), None)


def _add_cors_headers(origin: str, send: AsgiSend) -> AsgiSend:
    """Make answers readable for the page; whether it may ask at all is decided by the gate."""
    shown = [
        (b"access-control-allow-origin", origin.encode("latin-1")),
        (b"access-control-expose-headers", b"link, mcp-session-id, retry-after, www-authenticate"),
        (b"vary", b"origin"),
    ]

    async def send_with_headers(event: MutableMapping[str, Any]) -> None:
        if event["type"] == "http.response.start" and event["status"] != 403:
            event["headers"] = [*event.get("headers", ()), *shown]
        await send(event)

    return send_with_headers
