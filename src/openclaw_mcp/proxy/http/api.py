"""The HTTP API for apps: register, inspect, retool, delete; health, metrics, and the API's own description."""

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
from msgspec import Raw
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from ...core.errors import BadRequest, OpenClawError
from ...mcp.server.http_gate import Refusal
from ...mcp.server.http_request import read_body, read_headers
from ..engine.app_session import GONE, Entry, SessionGone, StoreDown, TooManySessions
from ..engine.tool_list import BadTools
from ..state import House, about, tools_in
from .openapi import document

MOST_LISTED: Final = 1000  # sessions a list tells of, the newest

Handler = Callable[[Request], Awaitable[Response]]

_STATUS: dict[type[OpenClawError], int] = {
    BadTools: 422,
    SessionGone: 404,
    TooManySessions: 429,
    StoreDown: 503,
    BadRequest: 400,
}


class Api:
    """Handlers over one house. Each is admitted by the app's token and counted against its rate."""

    def __init__(self, house: House) -> None:
        self._house = house

    def app(self) -> Starlette:
        sessions = "/v1/chat/sessions"
        routes = [
            Route("/health", _health),
            Route("/metrics", self._guarded(self._metrics)),
            Route("/openapi.json", self._guarded(self._openapi)),
            self._route(sessions, POST=self._create, GET=self._list),
            self._route(sessions + "/{id}", GET=self._show, DELETE=self._delete),
            self._route(sessions + "/{id}/tools", PUT=self._retool),
        ]
        return Starlette(routes=routes, exception_handlers={HTTPException: _no_route})

    def _route(self, path: str, **handlers: Handler) -> Route:
        """One route for all methods of a path, so that `Allow` names them all."""

        async def chosen(request: Request) -> Response:
            return await handlers["GET" if request.method == "HEAD" else request.method](request)

        return Route(path, self._guarded(chosen), methods=list(handlers))

    def _guarded(self, handler: Handler) -> Handler:
        async def guarded(request: Request) -> Response:
            try:
                headers, _ = read_headers(request.scope)
                self._house.app_gate.admit(request.scope, headers)
                self._house.app_gate.check_body(headers)
                await self._house.admit(("app", self._house.settings.app_rate))
                return await handler(request)
            except Refusal as refusal:
                if refusal.status in (401, 403):
                    self._house.metrics.refused("unauthorized" if refusal.status == 401 else "forbidden")
                extra = {key.decode(): value.decode() for key, value in refusal.headers}
                return answer({"detail": refusal.reason}, refusal.status, extra)
            except OpenClawError as exc:
                status = next((code for kind, code in _STATUS.items() if isinstance(exc, kind)), 500)
                return answer({"detail": str(exc)}, status, {"retry-after": "30"} if status in (429, 503) else {})

        return guarded

    async def _body(self, request: Request) -> bytes:
        return await read_body(request.receive, self._house.settings.largest_body)

    async def _create(self, request: Request) -> Response:
        made = await self._house.register(await self._body(request), client=request.scope.get("client"))
        bridge, mcp = self._urls(request, made.session.id)
        links = {"link": f'<{bridge}>; rel="bridge", <{mcp}>; rel="mcp"'}
        if made.camel:
            return answer({"mcpSessionId": made.session.id}, 200, links)
        return answer({"mcpSessionId": made.session.id, "bridge_url": bridge, "mcp_url": mcp}, 200, links)

    async def _list(self, request: Request) -> Response:
        device = request.query_params.get("device_id") or request.query_params.get("deviceId")
        entries = await self._house.engine.entries(device, MOST_LISTED)
        return answer({"sessions": [self._shape(request, entry) for entry in entries]})

    async def _show(self, request: Request) -> Response:
        guest = await self._house.find(request.path_params["id"])
        entry = await self._house.engine.entry(guest)
        return answer({**self._shape(request, entry), "tools": Raw(entry.menu.raw)})

    async def _delete(self, request: Request) -> Response:
        if not await self._house.engine.remove(request.path_params["id"]):
            raise Refusal(404, GONE)
        return answer({"ok": True})

    async def _retool(self, request: Request) -> Response:
        guest = await self._house.find(request.path_params["id"])
        count = await self._house.retool(guest, tools_in(await self._body(request)))
        return answer({"ok": True, "tool_count": count})

    async def _metrics(self, request: Request) -> Response:
        house = self._house
        bridges = [guest.bridge for guest in house.engine.guests.values() if guest.bridge is not None]
        house.metrics.running = sum(bridge.waiting for bridge in bridges)
        try:
            sessions = await house.engine.count()
        except StoreDown:  # the one number that needs it; the others are wanted most while it is away
            sessions = None
        text = house.metrics.text(sessions=sessions, bridges=len(bridges))
        return PlainTextResponse(text, media_type="text/plain; version=0.0.4")

    async def _openapi(self, request: Request) -> Response:
        return answer(document())

    def _shape(self, request: Request, entry: Entry) -> dict[str, Any]:
        bridge, mcp = self._urls(request, entry.session.id)
        return {
            **about(entry.session),
            "mcpSessionId": entry.session.id,
            "bridge_url": bridge,
            "mcp_url": mcp,
            "connected": entry.connected,
            "tool_count": len(entry.menu.specs),
            "created_at": datetime.fromtimestamp(entry.session.created, UTC).isoformat(timespec="milliseconds"),
        }

    def _urls(self, request: Request, id: str) -> tuple[str, str]:
        """The bridge's and the MCP endpoint's, as the one who asks can reach them."""
        base = self._house.settings.public_url
        if not base:
            scheme = request.headers.get("x-forwarded-proto", request.url.scheme)
            base = f"{'https' if scheme == 'https' else 'http'}://{request.headers.get('host', 'localhost')}"
        return f"ws{base[4:]}/v1/chat/sessions/{id}/bridge", f"{base}/v1/mcp/{id}"


def answer(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(value), status, headers, "application/json")


async def _health(request: Request) -> Response:
    return PlainTextResponse("ok")


async def _no_route(request: Request, exc: Exception) -> Response:
    assert isinstance(exc, HTTPException)
    reason = "there is nothing at this address" if exc.status_code == 404 else "that method is not for this address"
    return answer({"detail": reason}, exc.status_code, dict(exc.headers or {}))
