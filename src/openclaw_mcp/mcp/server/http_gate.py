"""Which HTTP requests are served at all: by peer, browser headers, Host, Origin, credential, size, slots."""

import ipaddress
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any, Final

from msgspec import Struct

from ...core.errors import Unauthorized
from ...core.model import LOCAL_CALLER, Caller
from ...core.numbers import parse_whole_number
from ...net.asgi import has_bearer_token
from ...net.peers import is_loopback

LOOPBACK_HOSTS: Final = frozenset({"localhost", "127.0.0.1", "[::1]"})
MAX_BODY_BYTES: Final = 4 << 20
NO_HOST: Final = "\0"
_HOST: Final = re.compile(r"(\[[^\]]*\]|[^:/@\[\]]*)(?::[0-9]*)?")
MAX_REQUEST: Final = 3600.0  # seconds from the first byte to the answer; tools have shorter limits of their own

HeaderMap = Mapping[str, str]
Identify = Callable[[HeaderMap], Caller]
BindHttpSession = Callable[[Caller, HeaderMap], Awaitable[Caller]]


class HttpRefusal(Exception):
    """The request is not served; one sentence says why."""

    def __init__(self, status: int, reason: str, headers: tuple[tuple[bytes, bytes], ...] = ()) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason
        self.headers = headers


class HttpAccessRules(Struct, frozen=True, kw_only=True):
    """One surface's rules. The defaults suit a server for this machine's own programs."""

    identify: Identify = lambda _: LOCAL_CALLER
    """Credential to caller. Raises Unauthorized."""
    bind_session: BindHttpSession | None = None
    """That caller where its headers say that it acts; None = headers say nothing of that."""
    loopback_only: bool = False
    """Refuse connections that do not come from this machine, on any address we listen on."""
    allowed_hosts: frozenset[str] | None = LOOPBACK_HOSTS
    """Names a Host header may carry, without port; None = any. Keeps DNS rebinding out."""
    allow_ip_hosts: bool = False
    """Any IP address will do as Host, too: a page that has us under a name of its own names no address."""
    allowed_origins: frozenset[str] | None = LOOPBACK_HOSTS
    """Hosts an Origin header may name, or whole origins; an empty set refuses every Origin; None = any."""
    allow_browsers: bool = True
    """False refuses what only browsers send: Sec-Fetch-Site, Referer. Node's fetch sends Sec-Fetch-Mode: allowed."""
    json_only: bool = False
    """Refuse a POST that is not application/json, which a page can't send without a preflight."""
    silent_401: bool = False
    """Answer a missing or wrong credential without a body."""
    largest_body: int = MAX_BODY_BYTES
    max_concurrent: int | None = None
    """Requests served at once; None = no bound of its own. Answers and notifications need no slot."""
    max_seconds: float = MAX_REQUEST

    def authenticate(self, scope: Mapping[str, Any], headers: HeaderMap) -> Caller:
        """The caller behind this request. Raises HttpRefusal."""
        self.check_source(scope, headers)
        if self.json_only and scope["method"] == "POST" and not _is_json(headers):
            raise HttpRefusal(415, "application/json required")
        try:
            return self.identify(headers)
        except Unauthorized as exc:
            reason = "" if self.silent_401 else str(exc)
            raise HttpRefusal(401, reason, ((b"www-authenticate", b"Bearer"),)) from None

    def check_source(self, scope: Mapping[str, Any], headers: HeaderMap) -> None:
        """Check where a request comes from and for which host it was meant. Raises HttpRefusal."""
        if self.loopback_only and not is_loopback((scope.get("client") or ("",))[0]):
            raise HttpRefusal(403, "loopback only")
        origin = headers.get("origin")
        if (
            origin
            and self.allowed_origins is not None
            and self.allowed_origins.isdisjoint((origin, _origin_host(origin)))
        ):
            raise HttpRefusal(403, "origin not allowed")
        if not self.allow_browsers and (headers.get("sec-fetch-site") or headers.get("referer")):
            raise HttpRefusal(403, "browser context not allowed")
        if self.allowed_hosts is not None:
            host = _host_name(headers.get("host", ""))
            if host not in self.allowed_hosts and not (self.allow_ip_hosts and _is_address(host)):
                raise HttpRefusal(403, "host not allowed")
        given = scope.get("headers", ())
        if len(given) != len(headers) and _has_repeats(given):
            raise HttpRefusal(403, "host or origin given twice")

    def check_body(self, headers: HeaderMap) -> None:
        """Check a POST's headers before its body is read. Raises HttpRefusal."""
        length = headers.get("content-length", "0")
        if parse_whole_number(length, maximum=self.largest_body) is None:
            raise body_too_large(self.largest_body)


def body_too_large(max_bytes: int) -> HttpRefusal:
    return HttpRefusal(413, f"request body too large: at most {max_bytes} bytes")


def bearer_auth(token: str, caller: Caller) -> Identify:
    """Admit requests that carry `token`. The comparison takes the same time however much of it is right."""
    wanted = token.encode()

    def identify(headers: HeaderMap) -> Caller:
        if has_bearer_token(headers, wanted):
            return caller
        raise Unauthorized("missing or invalid bearer token")

    return identify


def _is_json(headers: HeaderMap) -> bool:
    return headers.get("content-type", "").partition(";")[0].strip().lower() == "application/json"


@lru_cache(maxsize=64)
def _host_name(value: str) -> str:
    """A Host header without its port; what is no host at all comes back as something no set contains."""
    found = _HOST.fullmatch(value)
    return found[1].lower() if found is not None else NO_HOST


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host[1:-1] if host.startswith("[") else host)
    except ValueError:
        return False
    return True


def _has_repeats(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Whether a header that decides comes more than once: another reader might take the other one."""
    names = [name for name, _ in headers if name in (b"host", b"origin")]
    return len(names) != len(set(names))


def _origin_host(origin: str) -> str:
    scheme, _, rest = origin.partition("://")
    return _host_name(rest) if scheme in ("http", "https") else origin
