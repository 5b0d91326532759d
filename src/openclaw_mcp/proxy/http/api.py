"""The HTTP API for apps: register, inspect, replace tools, delete; health, metrics, and the API's own description."""

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
from ...mcp.server.http_gate import HttpRefusal
from ...mcp.server.http_request import read_body, read_headers
from ...protocol import bridge as wire
from ..engine.app_session import AppSessionStatus, SessionGone, StoreDown, TooManySessions
from ..engine.tool_list import BadTools
from ..registration import extract_tools
from ..state import ProxyState
from .openapi import build_document

MAX_LISTED: Final = 1000  # sessions a list tells of, the newest

Handler = Callable[[Request], Awaitable[Response]]

_STATUS: dict[type[OpenClawError], int] = {
    BadTools: 422,
    SessionGone: 404,
    TooManySessions: 429,
    StoreDown: 503,
    BadRequest: 400,
}


class Api:
    """Handlers over one proxy state. Each needs the app's token and counts against its rate."""

    def __init__(self, state: ProxyState) -> None:
        self._state = state

    def app(self) -> Starlette:
        routes = [
            Route("/health", _health),
            Route("/metrics", self._guard(self._metrics)),
            Route("/openapi.json", self._guard(self._openapi)),
            self._route(wire.SESSIONS_PATH, POST=self._create, GET=self._list),
            self._route(wire.SESSIONS_PATH + "/{id}", GET=self._show, DELETE=self._delete),
            self._route(wire.SESSIONS_PATH + "/{id}/tools", PUT=self._replace_tools),
        ]
        return Starlette(routes=routes, exception_handlers={HTTPException: _handle_http_error})

    def _route(self, path: str, **handlers: Handler) -> Route:
        """One route for all methods of a path, so that `Allow` names them all."""

        async def dispatch(request: Request) -> Response:
            return await handlers["GET" if request.method == "HEAD" else request.method](request)

        return Route(path, self._guard(dispatch), methods=list(handlers))

    def _guard(self, handler: Handler) -> Handler:
        async def handle(request: Request) -> Response:
            try:
                headers, _ = read_headers(request.scope)
                self._state.app_gate.authenticate(request.scope, headers)
                self._state.app_gate.check_body(headers)
                await self._state.check_rate(("app", self._state.settings.app_rate))
                return await handler(request)
            except HttpRefusal as refusal:
                if refusal.status in (401, 403):
                    self._state.metrics.count_refusal("unauthorized" if refusal.status == 401 else "forbidden")
                extra = {key.decode(): value.decode() for key, value in refusal.headers}
                return json_response({"detail": refusal.reason}, refusal.status, extra)
            except OpenClawError as exc:
                status = next((code for kind, code in _STATUS.items() if isinstance(exc, kind)), 500)
                return json_response(
                    {"detail": str(exc)}, status, {"retry-after": "30"} if status in (429, 503) else {}
                )

        return handle

    async def _read_body(self, request: Request) -> bytes:
        return await read_body(request.receive, self._state.settings.largest_body)

    async def _create(self, request: Request) -> Response:
        made = await self._state.register(
            await self._read_body(request),
            client=request.scope.get("client"),
            secret=request.headers.get(wire.SECRET_HEADER),
        )
        bridge, mcp = self._session_urls(request, made.registration.id)
        links = {"link": f'<{bridge}>; rel="bridge", <{mcp}>; rel="mcp"'}
        if made.is_camel_case:
            return json_response({"mcpSessionId": made.registration.id}, 200, links)
        return json_response({"mcpSessionId": made.registration.id, "bridge_url": bridge, "mcp_url": mcp}, 200, links)

    async def _list(self, request: Request) -> Response:
        device = request.query_params.get("device_id") or request.query_params.get("deviceId")
        entries = await self._state.engine.list_sessions(device, MAX_LISTED)
        return json_response({"sessions": [self._format_session(request, entry) for entry in entries]})

    async def _show(self, request: Request) -> Response:
        session = await self._state.find_session(request.path_params["id"])
        entry = await self._state.engine.session_status(session)
        return json_response({**self._format_session(request, entry), "tools": Raw(entry.manifest.raw)})

    async def _delete(self, request: Request) -> Response:
        """Well also when there is no such session: an app that repeats the request has what it asked for."""
        await self._state.engine.remove(request.path_params["id"])
        return json_response({"ok": True})

    async def _replace_tools(self, request: Request) -> Response:
        secret = request.headers.get(wire.SECRET_HEADER, "")
        session = await self._state.find_own_session(request.path_params["id"], secret)
        count = await self._state.replace_tools(session, extract_tools(await self._read_body(request)))
        return json_response({"ok": True, "tool_count": count})

    async def _metrics(self, request: Request) -> Response:
        state = self._state
        bridges = [session.bridge for session in state.engine.sessions.values() if session.bridge is not None]
        running = sum(bridge.pending_count for bridge in bridges)
        try:
            sessions = await state.engine.count()
        except StoreDown:  # the one number that needs it; the others are wanted most while it is away
            sessions = None
        text = state.metrics.format_text(sessions=sessions, bridges=len(bridges), running_calls=running)
        return PlainTextResponse(text, media_type="text/plain; version=0.0.4")

    async def _openapi(self, request: Request) -> Response:
        return json_response(build_document())

    def _format_session(self, request: Request, status: AppSessionStatus) -> dict[str, Any]:
        bridge, mcp = self._session_urls(request, status.registration.id)
        return {
            **status.registration.decode_about(),
            "mcpSessionId": status.registration.id,
            "bridge_url": bridge,
            "mcp_url": mcp,
            "connected": status.connected,
            "tool_count": len(status.manifest.specs),
            "created_at": datetime.fromtimestamp(status.registration.created, UTC).isoformat(timespec="milliseconds"),
        }

    def _session_urls(self, request: Request, id: str) -> tuple[str, str]:
        """The bridge's and the MCP endpoint's, as this client can reach them."""
        base = self._state.settings.public_url
        if not base:
            scheme = request.headers.get("x-forwarded-proto", request.url.scheme)
            base = f"{'https' if scheme == 'https' else 'http'}://{request.headers.get('host', 'localhost')}"
        return wire.bridge_url(base, id), wire.mcp_url(base, id)


def json_response(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(value), status, headers, "application/json")


async def _health(request: Request) -> Response:
    return PlainTextResponse("ok")


async def _handle_http_error(request: Request, exc: Exception) -> Response:
    assert isinstance(exc, HTTPException)
    reason = "there is nothing at this address" if exc.status_code == 404 else "that method is not for this address"
    return json_response({"detail": reason}, exc.status_code, dict(exc.headers or {}))
