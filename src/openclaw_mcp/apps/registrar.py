"""The app's side of the proxy's HTTP API: make, change and delete a session. Standard library only."""

import asyncio
import http.client
import ssl
import urllib.error
import urllib.request
from typing import Any, Final
from urllib.parse import quote, urlsplit

import msgspec
from msgspec import Struct

from ..core.errors import BadRequest, OpenClawError
from ..core.numbers import parse_whole_number

ANSWER_WAIT: Final = 15.0  # seconds the proxy may take to answer one request
MAX_ANSWER_BYTES: Final = 1 << 20  # bytes of an answer we read; ours are a few hundred
MAX_RETRY: Final = 60.0  # seconds; a longer Retry-After is not believed
NOT_A_PROXY: Final = (404, 405)  # what other servers say to a request for a session
RETRY_STATUSES: Final = frozenset({408, 425, 429, 500, 502, 503, 504})

Json = dict[str, Any]


class ProxyRefused(OpenClawError):
    """The proxy said no, and would say no again."""

    code = "proxy_refused"

    def __init__(self, reason: str, status: int = 0) -> None:
        super().__init__(reason)
        self.status = status


class ProxyUnreachable(OpenClawError):
    """No proxy answered, or it asked to come back later."""

    code = "proxy_unreachable"

    def __init__(self, reason: str, retry_after: float = 0.0) -> None:
        super().__init__(reason)
        self.retry_after = retry_after


class ProxySession(Struct, frozen=True):
    """A session as the app needs to know it."""

    id: str
    mcp_url: str
    """Where MCP clients find the tools."""


class ProxyApiClient:
    """One proxy and one credential."""

    def __init__(self, url: str, *, token: str, tls: ssl.SSLContext | None) -> None:
        scheme = _url_scheme(url)
        if scheme is None:
            shown = "an address with a password in it" if "@" in url else repr(url)
            raise BadRequest(f"{shown} is no address of a proxy; give one like http://127.0.0.1:8000")
        if not (token.isascii() and token.isprintable()):
            raise BadRequest("the app token has a line break or a character no header can carry; give one of ASCII")
        self._base_url = url.rstrip("/")
        self.headers = {"Authorization": f"Bearer {token}"} if token else {}
        self.tls = tls if scheme == "https" else None
        handlers: list[urllib.request.BaseHandler] = [_NoRedirects()]
        if scheme == "https":
            handlers.append(urllib.request.HTTPSHandler(context=tls))
        self._opener = urllib.request.build_opener(*handlers)

    def bridge_url(self, id: str) -> str:
        """From the address we were given, not from an answer: the token goes nowhere else."""
        return f"ws{self._base_url[4:]}/v1/chat/sessions/{quote(id, safe='')}/bridge"

    async def register(self, body: Json) -> ProxySession:
        try:
            made = await self._request("POST", "", body)
        except ProxyRefused as exc:
            if exc.status not in NOT_A_PROXY:
                raise
            made = {}
        id = made.get("mcpSessionId")
        if not isinstance(id, str) or not id:
            raise ProxyRefused(f"what answers at {self._base_url} is no app-tool proxy; give the address of one")
        return ProxySession(id, str(made.get("mcp_url") or f"{self._base_url}/v1/mcp/{id}"))

    async def put_tools(self, session: ProxySession, tools: list[Json]) -> None:
        await self._request("PUT", f"/{quote(session.id, safe='')}/tools", {"tools": tools})

    async def delete(self, session: ProxySession) -> None:
        await self._request("DELETE", f"/{quote(session.id, safe='')}", None)

    async def _request(self, method: str, path: str, body: Json | None) -> Json:
        return await asyncio.to_thread(self._request_blocking, method, path, body)

    def _request_blocking(self, method: str, path: str, body: Json | None) -> Json:
        data = None if body is None else msgspec.json.encode(body)
        headers = {**self.headers, "Content-Type": "application/json", "Accept": "application/json"}
        request = urllib.request.Request(f"{self._base_url}/v1/chat/sessions{path}", data, headers, method=method)  # noqa: S310  http and https only, checked above
        try:
            with self._opener.open(request, timeout=ANSWER_WAIT) as answer:
                return _decode_object(answer.read(MAX_ANSWER_BYTES))
        except urllib.error.HTTPError as exc:
            with exc:
                raise self.error_for_status(
                    exc.code, exc.read(MAX_ANSWER_BYTES), exc.headers.get("Retry-After")
                ) from None
        except (OSError, http.client.HTTPException) as exc:
            reason = getattr(exc, "reason", None) or exc
            words = (
                f"no proxy answers at {self._base_url}: {reason or type(exc).__name__}; start one with `openclaw proxy`"
            )
            raise ProxyUnreachable(words) from None

    def error_for_status(self, status: int, body: bytes = b"", retry_after: str | None = None) -> OpenClawError:
        """The error for an answer that is not a success."""
        detail = _decode_object(body).get("detail")
        said = f"{status}, {detail}" if isinstance(detail, str) else str(status)
        if status in RETRY_STATUSES:
            after = min(float(parse_whole_number(retry_after or "") or 0), MAX_RETRY)
            return ProxyUnreachable(f"the proxy asks to come back later ({said})", after)
        return ProxyRefused(f"the proxy at {self._base_url} refused ({said})", status)


def _url_scheme(url: str) -> str | None:
    """`http` or `https`, if this is an address that can be dialled: what can't be now never will."""
    try:
        parts = urlsplit(url)
        _ = parts.port  # raises when it is none
        host = (parts.hostname or "").encode("idna")  # raises for labels that are empty or too long
    except ValueError:
        return None
    plain = url.isprintable() and " " not in url and parts.path.isascii() and "@" not in parts.netloc
    return parts.scheme if plain and host and parts.scheme in ("http", "https") else None


def _decode_object(body: bytes) -> Json:
    try:
        read = msgspec.json.decode(body)
    except msgspec.DecodeError:
        return {}
    return read if isinstance(read, dict) else {}


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect would carry the token elsewhere."""

    def redirect_request(self, *_: Any) -> None:
        return None
