"""The proxy as an ASGI app: MCP requests take the short way, bridges theirs, everything else goes to the API."""

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
from ..engine.app_session import StoreDown
from ..state import ProxyState
from .api import Api
from .bridge_socket import BridgeSocket

MCP: Final = "/v1/mcp"


class ProxyAsgi:
    """One ASGI app over one house."""

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
        if path.startswith(MCP) and path[7:8] in ("", "/"):
            await self._serve_mcp(path[8:].rstrip("/"), scope, headers, repeated, receive, send)
        else:
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
        house = self._state
        try:
            house.mcp_gate.authenticate(scope, headers)
            client = headers.get("mcp-session-id")
            by_path = bool(id)
            if not by_path:
                if not client:
                    raise HttpRefusal(400, "no session: name it in the path, /v1/mcp/{id}, or in MCP-Session-Id")
                id, client = client, None
            settings = house.settings
            if settings.mcp_rate is not None:
                await house.check_rate(("mcp", settings.mcp_rate))
            guest = house.engine.find_cached(id) or await house.find_session(id)
            if settings.session_rate is not None:  # of sessions there are: what is counted is kept
                await house.check_rate((f"session/{id}", settings.session_rate))
            await session_server.serve(
                guest.session_server or house.session_server(guest),
                scope["method"],
                headers,
                repeated,
                receive,
                send,
                request_server=self._inline,
                client=client,
                assign_session_id=by_path,
                cancel_elsewhere=lambda client, request: house.engine.cancel_remote_request(guest, client, request),
            )
        except HttpRefusal as refusal:
            if refusal.status in (401, 403):
                house.metrics.count_refusal("unauthorized" if refusal.status == 401 else "forbidden")
            await send_refusal(send, refusal)
        except StoreDown as exc:
            await send_refusal(send, HttpRefusal(503, str(exc), ((b"retry-after", b"1"),)))

    # ---- bridges ----

    def make_socket(
        self, config: Any, server_state: Any, app_state: Any, _loop: asyncio.AbstractEventLoop | None = None
    ) -> asyncio.Protocol:
        """A fresh socket in uvicorn's manner."""
        return BridgeSocket(self._state, server_state.connections, server_state.tasks)

    # ---- pages in a browser ----

    async def _preflight(self, scope: AsgiScope, headers: dict[str, str], send: AsgiSend) -> None:
        try:
            # The credential comes with the real request; here only the page's address counts.
            gate = self._state.app_gate
            gate.authenticate(scope, {**headers, "authorization": f"Bearer {self._state.settings.app_token}"})
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


def _add_cors_headers(origin: str, send: AsgiSend) -> AsgiSend:
    """Answers that a page may read: which page may ask at all is the gate's decision."""
    shown = [
        (b"access-control-allow-origin", origin.encode("latin-1")),
        (b"access-control-expose-headers", b"link, mcp-session-id, retry-after, www-authenticate"),
        (b"vary", b"origin"),
    ]

    async def marked(event: MutableMapping[str, Any]) -> None:
        if event["type"] == "http.response.start" and event["status"] != 403:
            event["headers"] = [*event.get("headers", ()), *shown]
        await send(event)

    return marked
