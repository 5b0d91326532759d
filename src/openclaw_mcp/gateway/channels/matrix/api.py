"""The Matrix client-server API over HTTP: returns an answer or raises one of the channel's errors."""

import hashlib
from collections.abc import Mapping
from typing import Any, Final, TypeVar
from urllib.parse import quote

import msgspec
from msgspec import Struct

from ....core.channel import ChannelBusy, ChannelError, ChannelRefused
from ....core.json_values import drop_none
from ....core.model import Json
from ....core.numbers import parse_whole_number
from ....net.httpx_client import httpx
from ..http_api import ANSWER_WAIT, DEFAULT_RETRY_AFTER, UPLOAD_WAIT, HttpApi
from .responses import Acknowledgement, UploadAnswer

T = TypeVar("T")
Body = Struct | Json
"""What is sent; JSON where nio makes it."""
Query = Mapping[str, str | int | None]

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


class _ErrorAnswer(Struct, frozen=True):
    errcode: str = ""
    retry_after_ms: float | None = None


class Homeserver(HttpApi):
    """One connection pool to one homeserver. `token` is of the current login: `MatrixLogin` changes it."""

    server_name = "the homeserver"
    url_setting = "the URL"
    answer_limit = 128 << 20  # bytes; the first sync of an account in thousands of rooms is smaller

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.token: str | None = None

    async def get(self, path: str, kind: type[T], *, params: Query | None = None, wait: float = ANSWER_WAIT) -> T:
        """`params` that are None are left out."""
        return self.decode(await self._request("GET", path, wait=wait, params=drop_none(params or {})), kind)

    async def put(self, path: str, body: Body) -> Acknowledgement:
        return self.decode(await self._send("PUT", path, body), Acknowledgement)

    async def post(self, path: str, body: Body, kind: type[T]) -> T:
        return self.decode(await self._send("POST", path, body), kind)

    async def upload(self, data: bytes, *, mime_type: str, name: str | None) -> str:
        """Its mxc URI."""
        raw = await self._request(
            "POST", "/_matrix/media/v3/upload", params={"filename": name} if name else {}, content=data,
            content_type=mime_type, wait=UPLOAD_WAIT,
        )  # fmt: skip
        return self.decode(raw, UploadAnswer).content_uri

    async def download(self, uri: str, *, limit: int) -> bytes:
        """The bytes behind an mxc URI. Raises ChannelRefused when there are more than `limit`, or none."""
        server, _, media = uri.removeprefix("mxc://").partition("/")
        if not uri.startswith("mxc://") or not server or not media:
            raise ChannelRefused("that attachment has no address on a Matrix server")
        path = client_path("media", "download", server, media, version="v1")
        return await self._request("GET", path, wait=UPLOAD_WAIT, limit=limit)

    async def _send(self, method: str, path: str, body: Body) -> bytes:
        return await self._request(method, path, content=msgspec.json.encode(body), content_type="application/json")

    async def _request(self, method: str, path: str, *, content_type: str | None = None, **options: Any) -> bytes:
        headers = {"Content-Type": content_type} if content_type else {}
        headers |= {"Authorization": f"Bearer {self.token}"} if self.token is not None else {}
        return await self.request(
            method, path, headers=headers,
            follow_redirects=method == "GET",  # to a media server elsewhere; httpx then drops the token
            **options,
        )  # fmt: skip

    def error_from_response(self, response: httpx.Response, raw: bytes) -> ChannelError:
        status, answer = response.status_code, self.decode_error(raw, _ErrorAnswer)
        code = answer.errcode
        if status == 429 or code == "M_LIMIT_EXCEEDED":
            return ChannelBusy("the homeserver asks us to slow down", _retry_after(response, answer))
        if status >= 500:
            return ChannelError(f"the homeserver failed with status {status}")
        if code in ("M_UNKNOWN_TOKEN", "M_MISSING_TOKEN"):
            return LoggedOut("the access token of channels.matrix is no longer valid: set a new one")
        text = ERROR_MESSAGES.get(code) or f"the homeserver refused with {code or status}"
        return MatrixRefused(text, code)


def _retry_after(response: httpx.Response, answer: _ErrorAnswer) -> float:
    if answer.retry_after_ms is not None:
        return answer.retry_after_ms / 1000
    seconds = parse_whole_number(response.headers.get("Retry-After", ""))
    return DEFAULT_RETRY_AFTER if seconds is None else float(seconds)


def client_path(*segments: str, version: str = "v3") -> str:
    """The path of a method, each segment quoted. Raises MatrixRefused for one that would lead to another method."""
    if {".", ".."} & set(segments):  # a stranger's message may name these as the message it answers, or as its file
        raise MatrixRefused("there is no such message, room or file", "M_NOT_FOUND")
    return "/".join([f"/_matrix/client/{version}", *(quote(segment, safe="") for segment in segments)])


def transaction_id(key: str) -> str:
    """The transaction id for a key: sending again with it makes no second event."""
    return "openclaw-" + hashlib.sha256(key.encode()).hexdigest()[:40]
