"""The app's side of the proxy's HTTP API: make, change and delete a session."""

import ssl
from typing import Final
from urllib.parse import quote, urlsplit

import msgspec
from msgspec import Struct, field

from ..core.errors import BadRequest, OpenClawError
from ..core.model import Json
from ..core.numbers import parse_whole_number
from ..net.http_client.address import InvalidAddress, is_header_value, parse_address
from ..net.http_client.client import CannotReach, HttpClient, system_tls_context
from ..net.http_client.connection import HttpError
from ..protocol.bridge import (
    DEFAULT_URL,
    MAX_SECRET_LENGTH,
    MIN_SECRET_LENGTH,
    SECRET_HEADER,
    SESSIONS_PATH,
    bridge_url,
    mcp_url,
    session_path,
)

RESPONSE_WAIT: Final = 15.0  # seconds without a byte of a response before the proxy counts as away
MAX_CONNECTIONS: Final = 4  # requests at once; an app makes one at a time
MAX_ANSWER_BYTES: Final = 1 << 20  # bytes of an answer we read; ours are a few hundred
MAX_RETRY: Final = 60.0  # seconds; a longer Retry-After is not believed
NOT_A_PROXY: Final = (404, 405)  # what other servers say to a request for a session
RETRY_STATUSES: Final = frozenset({408, 425, 429, 500, 502, 503, 504})
SUCCESSES: Final = range(200, 300)


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


class _Answer(Struct):
    """What is read of the proxy's answers, good or bad."""

    id: str = field(default="", name="mcpSessionId")
    mcp_url: str | None = None
    detail: str | None = None


class ProxyApiClient:
    """One proxy, one credential, and the secret of the app's session there."""

    def __init__(self, url: str, *, token: str, secret: str, tls: ssl.SSLContext | None) -> None:
        if not _is_proxy_url(url):
            shown = "an address with a password in it" if "@" in url else repr(url)
            raise BadRequest(f"{shown} is no address of a proxy; give one like {DEFAULT_URL}")
        if not is_header_value(token):
            raise BadRequest("the app token has a line break or a character no header can carry; give one of ASCII")
        if not is_header_value(secret) or not MIN_SECRET_LENGTH <= len(secret) <= MAX_SECRET_LENGTH:
            raise BadRequest(
                f"the session's secret must be {MIN_SECRET_LENGTH} to {MAX_SECRET_LENGTH} characters of ASCII; "
                "make one with secrets.token_hex(32)"
            )
        self._base_url = url.rstrip("/")
        authorization = {"Authorization": f"Bearer {token}"} if token else {}
        self.headers = {**authorization, SECRET_HEADER: secret}
        self.tls = tls if url.startswith("https") else None
        # No connection is kept: requests are rare, and an app may run in one event loop after another.
        self._http = HttpClient(
            max_connections=MAX_CONNECTIONS,
            max_idle=0,
            use_proxies=True,
            create_tls_context=system_tls_context if tls is None else lambda: tls,
        )

    def bridge_url(self, id: str) -> str:
        """From the address we were given, not from an answer: the token is sent nowhere else."""
        return bridge_url(self._base_url, quote(id, safe=""))

    async def register(self, body: Json) -> ProxySession:
        try:
            made = await self._request("POST", SESSIONS_PATH, body)
        except ProxyRefused as exc:
            if exc.status not in NOT_A_PROXY:
                raise
            made = _Answer()
        if not made.id:
            raise ProxyRefused(f"what answers at {self._base_url} is no app-tool proxy; give the address of one")
        return ProxySession(made.id, made.mcp_url or mcp_url(self._base_url, made.id))

    async def put_tools(self, session: ProxySession, tools: list[Json]) -> None:
        await self._request("PUT", f"{session_path(quote(session.id, safe=''))}/tools", {"tools": tools})

    async def delete(self, session: ProxySession) -> None:
        await self._request("DELETE", session_path(quote(session.id, safe="")), None)

    async def _request(self, method: str, path: str, body: Json | None) -> _Answer:
        data = b"" if body is None else msgspec.json.encode(body)
        headers = {**self.headers, "Content-Type": "application/json", "Accept": "application/json"}
        url = self._base_url + path
        sent = self._http.send(method, url, headers, (data,), size=len(data), timeout=RESPONSE_WAIT)
        try:
            async with sent as response:
                answer = await response.body_start(limit=MAX_ANSWER_BYTES)
        except HttpError as exc:
            reason = exc.reason if isinstance(exc, CannotReach) else ""
            raise ProxyUnreachable(
                f"no proxy answers at {self._base_url}: {reason or type(exc).__name__}; start one with `openclaw proxy`"
            ) from None
        if response.status in SUCCESSES:
            return _decode_answer(answer)
        # A redirect is an error too: following it would carry the token elsewhere.
        raise self.error_for_status(response.status, answer, response.headers.get("retry-after"))

    def error_for_status(self, status: int, body: bytes = b"", retry_after: str | None = None) -> OpenClawError:
        """The error for an answer that is not a success."""
        detail = _decode_answer(body).detail
        reason = str(status) if detail is None else f"{status}, {detail}"
        if status in RETRY_STATUSES:
            after = min(float(parse_whole_number(retry_after or "") or 0), MAX_RETRY)
            return ProxyUnreachable(f"the proxy asks to come back later ({reason})", after)
        return ProxyRefused(f"the proxy at {self._base_url} refused ({reason})", status)


def _is_proxy_url(url: str) -> bool:
    """Whether a connection to it can ever be tried."""
    try:
        host, parts = parse_address(url).host, urlsplit(url)
        host.encode("idna")  # raises for labels that are empty or too long
    except (InvalidAddress, ValueError):
        return False
    return url.isprintable() and " " not in url and parts.path.isascii() and "@" not in parts.netloc


def _decode_answer(body: bytes) -> _Answer:
    try:
        return msgspec.json.decode(body, type=_Answer)
    except msgspec.DecodeError:
        return _Answer()
