"""The Matrix client-server API over HTTP: returns JSON or raises one of the channel's errors."""

import hashlib
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote

import msgspec

from ....core.channel import ChannelBusy, ChannelError, ChannelRefused
from ....core.model import Json
from ....core.numbers import parse_whole_number
from ....net.httpx_client import ResponseTooLarge, create_client, httpx, read_body

CONNECT_WAIT: Final = 10.0  # seconds until the server counts as unreachable
ANSWER_WAIT: Final = 60.0  # seconds; joining a large room can take a homeserver this long
UPLOAD_WAIT: Final = 300.0  # seconds for the largest attachment over a slow line
ANSWER_LIMIT: Final = 128 * 1024 * 1024  # bytes; the first sync of an account in thousands of rooms is smaller
DEFAULT_RETRY_AFTER: Final = 5.0  # seconds, when a server limits our rate without naming a time

CLIENT: Final = "/_matrix/client/v3"
MEDIA: Final = "/_matrix/client/v1/media"

ERROR_MESSAGES: Final[Mapping[str, str]] = {
    "M_FORBIDDEN": "this account may not do that in the room: is it a member, with the power to do so?",
    "M_NOT_FOUND": "there is no such room or message",
    "M_USER_DEACTIVATED": "the account is deactivated",
    "M_USER_SUSPENDED": "the account is suspended",
    "M_TOO_LARGE": "the homeserver finds it too large",
    "M_INVALID_PARAM": "the homeserver does not accept it: check the target's spelling",
    "M_BAD_JSON": "the homeserver does not accept the message's form",
    "M_GUEST_ACCESS_FORBIDDEN": "guests may not do that",
}


class MatrixRefused(ChannelRefused):
    """A refusal, with the server's own code for callers that handle it."""

    def __init__(self, message: str, errcode: str) -> None:
        super().__init__(message)
        self.errcode = errcode


class LoggedOut(ChannelError):
    """The server does not know our token. Messages wait until we are logged in again."""


class Homeserver:
    """One connection pool to one homeserver. `token` is of the current login: `MatrixLogin` changes it."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self.token: str | None = None
        # Connections for a sync, and a few sends and downloads beside it.
        self._http = create_client(timeout=ANSWER_WAIT, connect_timeout=CONNECT_WAIT, max_connections=16)

    async def aclose(self) -> None:
        await self._http.aclose()

    async def get(self, path: str, params: Json | None = None, *, wait: float = ANSWER_WAIT) -> Json:
        """`params` that are None are left out."""
        return await self._json("GET", path, params=params, wait=wait)

    async def put(self, path: str, body: Json) -> Json:
        return await self._json("PUT", path, body=body)

    async def post(self, path: str, body: Json) -> Json:
        return await self._json("POST", path, body=body)

    async def upload(self, data: bytes, *, mime_type: str, name: str | None) -> str:
        """Its mxc URI."""
        params = {"filename": name} if name else {}
        headers = {"Content-Type": mime_type}
        raw = await self._request(
            "POST", "/_matrix/media/v3/upload", params=params, data=data, headers=headers, wait=UPLOAD_WAIT
        )
        return str(_decode_object(raw).get("content_uri", ""))

    async def download(self, uri: str, *, limit: int) -> bytes:
        """The bytes behind an mxc URI. Raises ChannelRefused when there are more than `limit`, or none."""
        server, _, media = uri.removeprefix("mxc://").partition("/")
        if not uri.startswith("mxc://") or not server or not media:
            raise ChannelRefused("that attachment has no address on a Matrix server")
        path = f"{MEDIA}/download/{quote_segment(server)}/{quote_segment(media)}"
        return await self._request("GET", path, wait=UPLOAD_WAIT, limit=limit)

    async def _json(
        self, method: str, path: str, *, params: Json | None = None, body: Json | None = None, wait: float = ANSWER_WAIT
    ) -> Json:
        data = None if body is None else msgspec.json.encode(body)
        headers = {} if body is None else {"Content-Type": "application/json"}
        return _decode_object(await self._request(method, path, params=params, data=data, headers=headers, wait=wait))

    async def _request(
        self,
        method: str,
        path: str,
        *,
        params: Json | None = None,
        data: bytes | None = None,
        headers: dict[str, str] | None = None,
        wait: float = ANSWER_WAIT,
        limit: int = ANSWER_LIMIT,
    ) -> bytes:
        authorization = {} if self.token is None else {"Authorization": f"Bearer {self.token}"}
        timeout = httpx.Timeout(wait, connect=CONNECT_WAIT)
        try:
            async with self._http.stream(
                method,
                self.url + path,
                params={key: value for key, value in (params or {}).items() if value is not None},
                content=data,
                headers={**(headers or {}), **authorization},
                timeout=timeout,
                follow_redirects=method == "GET",  # to a media server elsewhere; httpx then drops the token
            ) as response:
                raw = await read_body(response, limit)
        except ResponseTooLarge:
            raise ChannelRefused(f"the homeserver's answer is larger than {limit} bytes") from None
        except httpx.HTTPError as exc:
            raise ChannelError(f"the homeserver did not answer ({type(exc).__name__})") from exc
        if not response.is_success:
            raise error_from_response(response, raw)
        return raw


def error_from_response(response: httpx.Response, raw: bytes) -> ChannelError:
    """The channel's error for an unsuccessful answer."""
    try:
        answer = _decode_object(raw)
    except ChannelError:
        answer = {}
    code = str(answer.get("errcode", ""))
    if response.status_code == 429 or code == "M_LIMIT_EXCEEDED":
        return ChannelBusy("the homeserver asks us to slow down", _retry_after(response, answer))
    if response.status_code >= 500:
        return ChannelError(f"the homeserver failed with status {response.status_code}")
    if code in ("M_UNKNOWN_TOKEN", "M_MISSING_TOKEN"):
        return LoggedOut("the access token of channels.matrix is no longer valid: set a new one")
    text = ERROR_MESSAGES.get(code) or f"the homeserver refused with {code or response.status_code}"
    return MatrixRefused(text, code)


def _retry_after(response: httpx.Response, answer: Json) -> float:
    asked = answer.get("retry_after_ms")
    if isinstance(asked, int | float):
        return float(asked) / 1000
    seconds = parse_whole_number(response.headers.get("Retry-After", ""))
    return DEFAULT_RETRY_AFTER if seconds is None else float(seconds)


def _decode_object(raw: bytes) -> Json:
    try:
        return msgspec.json.decode(raw, type=dict[str, Any])
    except msgspec.DecodeError as exc:
        raise ChannelError("the homeserver's answer is no JSON object: is the URL right?") from exc


def quote_segment(text: str) -> str:
    """`text` as one segment of a path."""
    return quote(text, safe="")


def transaction_id(key: str) -> str:
    """The transaction id for a key: sending again with it makes no second event."""
    return "openclaw-" + hashlib.sha256(key.encode()).hexdigest()[:40]
