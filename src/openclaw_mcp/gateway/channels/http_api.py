"""HTTP calls to a messenger's server: its answer, or one of the channel's errors."""

from typing import Any, Final, TypeVar

import msgspec

from ...core.channel import ChannelError, ChannelRefused
from ...core.lenient import decode_lenient
from ...net.httpx_client import ResponseTooLarge, create_client, httpx, read_body

CONNECT_WAIT: Final = 10.0  # seconds until the server counts as unreachable
ANSWER_WAIT: Final = 60.0  # seconds; joining a large room can take a homeserver this long
UPLOAD_WAIT: Final = 300.0  # seconds for the largest attachment over a slow line
DEFAULT_RETRY_AFTER: Final = 5.0  # seconds, when a server limits our rate without naming a time

T = TypeVar("T")


class HttpApi:
    """One connection pool to one server. A subclass names the server, as its errors do, and reads its refusals."""

    server_name: str
    url_setting: str
    """What to check when the answer is not of such a server."""
    answer_limit: int
    """Bytes of the largest answer that is not a file."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        # Connections for the receiver, and a few sends and downloads beside it.
        self._http = create_client(timeout=ANSWER_WAIT, connect_timeout=CONNECT_WAIT, max_connections=16)

    async def aclose(self) -> None:
        await self._http.aclose()

    def error_from_response(self, response: httpx.Response, raw: bytes) -> ChannelError:
        """The channel's error for an unsuccessful answer."""
        raise NotImplementedError

    async def request(
        self, method: str, path: str, *, wait: float = ANSWER_WAIT, limit: int | None = None, **options: Any
    ) -> bytes:
        """The answer's body. Raises ChannelRefused when it has more than `limit` bytes."""
        timeout = httpx.Timeout(wait, connect=CONNECT_WAIT)
        limit = limit or self.answer_limit
        try:
            async with self._http.stream(method, self.url + path, timeout=timeout, **options) as response:
                raw = await read_body(response, limit)
        except ResponseTooLarge:
            raise ChannelRefused(f"{self.server_name}'s answer is larger than {limit} bytes") from None
        except httpx.HTTPError as exc:
            # Without its cause: that holds the request, whose URL or headers hold the token.
            raise ChannelError(f"{self.server_name} did not answer ({type(exc).__name__})") from None
        if not response.is_success:
            raise self.error_from_response(response, raw)
        return raw

    def decode(self, raw: bytes | msgspec.Raw, kind: type[T]) -> T:
        try:
            return decode_lenient(raw, kind)
        except msgspec.DecodeError:
            text = f"{self.server_name}'s answer is not as documented: is {self.url_setting} right?"
            raise ChannelError(text) from None

    def decode_error(self, raw: bytes, kind: type[T]) -> T:
        """The body of a refusal; an empty one when a proxy wrote it."""
        try:
            return decode_lenient(raw, kind)
        except msgspec.DecodeError:
            return kind()
