"""The proxy as an ASGI app: MCP requests take the short way, bridges theirs, everything else goes to the API."""

import base64
import binascii
import logging
from collections.abc import MutableMapping
from typing import Any, Final

from starlette.types import ASGIApp

from ..apps import bridge as bridges
from ..apps.bridge import Bridge, Socket
from ..apps.guest import BridgeTaken, StoreDown
from ..core.errors import OpenClawError
from ..mcp import many
from ..mcp.gate import Refusal
from ..mcp.inline import Inline, Receive, Scope, Send, read_headers
from ..mcp.reply import refuse
from .api import Api
from .house import House

MCP: Final = "/v1/mcp"
SESSIONS: Final = "/v1/chat/sessions/"
BRIDGE: Final = "/bridge"
PROTOCOL: Final = "openclaw-bridge"
FORBIDDEN: Final = 4403
TRY_LATER: Final = 1013

logger = logging.getLogger(__name__)


class Front:
    """One ASGI app over one house."""

    def __init__(self, house: House) -> None:
        self._house = house
        self._inline = Inline(house.mcp_gate)
        self._api: ASGIApp = Api(house).app()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await self._bridge(scope, receive, send)
            return
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
            if settings.mcp_rate is not None or settings.session_rate is not None:
                await house.admit(("mcp", settings.mcp_rate), (f"session/{id}", settings.session_rate))
            guest = house.engine.near(id) or await house.find(id)
            await many.serve(
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

    async def _bridge(self, scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope["path"]
        if (await receive())["type"] != "websocket.connect":
            return
        id = path[len(SESSIONS) : -len(BRIDGE)]
        if not path.startswith(SESSIONS) or not path.endswith(BRIDGE) or "/" in id:
            await send({"type": "websocket.close"})
            return
        headers, _ = read_headers(scope)
        offered = [word.strip() for word in headers.get("sec-websocket-protocol", "").split(",")]
        chosen = PROTOCOL if PROTOCOL in offered else None
        # Accepted first: a refusal before that has no close code the app could see.
        await send({"type": "websocket.accept", "subprotocol": chosen})
        socket = _socket(receive, send)
        try:
            await self._serve_bridge(id, scope, {**_carried(offered), **headers}, socket)
        except Refusal as refusal:
            codes = {401: bridges.BAD_TOKEN, 404: bridges.NO_SESSION, 403: FORBIDDEN}
            await socket.close(codes.get(refusal.status, TRY_LATER), refusal.reason)
        except BridgeTaken as exc:
            await socket.close(bridges.ALREADY_ATTACHED, str(exc))
        except OpenClawError as exc:
            await socket.close(TRY_LATER, str(exc))
        except Exception:
            logger.exception("a bridge failed")
            await socket.close(bridges.SERVER_FAILED, "the proxy failed; its log says more")

    async def _serve_bridge(self, id: str, scope: Scope, headers: dict[str, str], socket: Socket) -> None:
        house = self._house
        house.app_gate.admit(scope, headers)
        await house.admit(("app", house.settings.app_rate))
        guest = await house.find(id)

        async def retool(raw: bytes) -> int:
            return await house.retool(guest, raw)

        bridge = Bridge(id, socket, limits=house.settings.bridge, retool=retool)
        await house.engine.attach(guest, bridge)
        try:
            await bridge.run()
        finally:
            house.metrics.bad_frames += bridge.bad_frames
            await house.engine.detach(guest, bridge)

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


def _carried(offered: list[str]) -> dict[str, str]:
    """The token a browser carries in a subprotocol, as the header it could not send."""
    for word in offered:
        if word.startswith("bearer."):
            encoded = word.removeprefix("bearer.")
            try:
                token = base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4)).decode()
            except (binascii.Error, ValueError):
                return {}
            return {"authorization": f"Bearer {token}"}
    return {}


def _socket(receive: Receive, send: Send) -> Socket:
    async def take() -> str | bytes | None:
        event = await receive()
        if event["type"] == "websocket.disconnect":
            return None
        text: str | None = event.get("text")
        return text if text is not None else event.get("bytes", b"")

    async def put(text: str) -> None:
        try:
            await send({"type": "websocket.send", "text": text})
        except RuntimeError:  # the server has closed it under us
            raise ConnectionResetError from None

    async def close(code: int, reason: str) -> None:
        try:
            await send({"type": "websocket.close", "code": code, "reason": reason[:120]})
        except (RuntimeError, OSError):  # gone already: nobody is there to be told
            return

    return Socket(take, put, close)
