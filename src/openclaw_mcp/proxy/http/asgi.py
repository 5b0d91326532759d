"""The proxy as an ASGI app: MCP requests take the short way, bridges theirs, everything else goes to the API."""

import asyncio
from collections.abc import MutableMapping
from typing import Any, Final

from starlette.types import ASGIApp

from ...mcp.server import session_server
from ...mcp.server.http_gate import Refusal
from ...mcp.server.http_reply import refuse
from ...mcp.server.http_request import Inline, Receive, Scope, Send, read_headers
from ..engine.app_session import StoreDown
from ..state import House
from .api import Api
from .bridge_socket import BridgeSocket

MCP: Final = "/v1/mcp"


class Front:
    """One ASGI app over one house."""

    def __init__(self, house: House) -> None:
        self._house = house
        self._inline = Inline(house.mcp_gate)
        self._api: ASGIApp = Api(house).app()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope["path"]
        headers, repeated = read_headers(scope)
        origin = headers.get("origin")
        if origin is not None:
            send = _for_pages(origin, send)
            if scope["method"] == "OPTIONS":
                await self._preflight(scope, headers, send)
                return
        if path.startswith(MCP) and path[7:8] in ("", "/"):
            await self._mcp(path[8:].rstrip("/"), scope, headers, repeated, receive, send)
        else:
            await self._api(scope, receive, send)

    # ---- MCP ----

    async def _mcp(
        self, id: str, scope: Scope, headers: dict[str, str], repeated: str | None, receive: Receive, send: Send
    ) -> None:
        house = self._house
        try:
            house.mcp_gate.admit(scope, headers)
            client = headers.get("mcp-session-id")
            by_path = bool(id)
            if not by_path:
                if not client:
                    raise Refusal(400, "no session: name it in the path, /v1/mcp/{id}, or in MCP-Session-Id")
                id, client = client, None
            settings = house.settings
            if settings.mcp_rate is not None:
                await house.admit(("mcp", settings.mcp_rate))
            guest = house.engine.near(id) or await house.find(id)
            if settings.session_rate is not None:  # of sessions there are: what is counted is kept
                await house.admit((f"session/{id}", settings.session_rate))
            await session_server.serve(
                guest.door or house.door(guest),
                scope["method"],
                headers,
                repeated,
                receive,
                send,
                inline=self._inline,
                client=client,
                introduce=by_path,
                elsewhere=lambda client, request: house.engine.cancel_elsewhere(guest, client, request),
            )
        except Refusal as refusal:
            if refusal.status in (401, 403):
                house.metrics.refused("unauthorized" if refusal.status == 401 else "forbidden")
            await refuse(send, refusal)
        except StoreDown as exc:
            await refuse(send, Refusal(503, str(exc), ((b"retry-after", b"1"),)))

    # ---- bridges ----

    def socket(
        self, config: Any, server_state: Any, app_state: Any, _loop: asyncio.AbstractEventLoop | None = None
    ) -> asyncio.Protocol:
        """A fresh socket in uvicorn's manner."""
        return BridgeSocket(self._house, server_state.connections, server_state.tasks)

    # ---- pages in a browser ----

    async def _preflight(self, scope: Scope, headers: dict[str, str], send: Send) -> None:
        try:
            # The credential comes with the real request; here only the page's address counts.
            gate = self._house.app_gate
            gate.admit(scope, {**headers, "authorization": f"Bearer {self._house.settings.app_token}"})
        except Refusal as refusal:
            await refuse(send, refusal)
            return
        allowed = [
            (b"access-control-allow-methods", b"GET, POST, PUT, DELETE"),
            (b"access-control-allow-headers", headers.get("access-control-request-headers", "*").encode("latin-1")),
            (b"access-control-max-age", b"600"),
            (b"content-length", b"0"),
        ]
        await send({"type": "http.response.start", "status": 200, "headers": allowed})
        await send({"type": "http.response.body", "body": b""})


def _for_pages(origin: str, send: Send) -> Send:
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
