"""HTTP without a framework: read the headers and the body of an ASGI request, check its token, send the answer."""

import asyncio
import hmac
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any, Final

import msgspec

from ..core.json_nesting import JsonTooDeep, decode_json

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

MAX_BODY: Final = 2 << 20  # bytes of a request to the gateway's small routes


class BodyRefused(Exception):
    """A body that can't be used: the status to answer with, and one sentence that says why."""

    def __init__(self, reason: str, status: int = 400) -> None:
        super().__init__(reason)
        self.status = status


class BodyTooLarge(BodyRefused):
    """More than the route takes."""


def read_headers(scope: Scope) -> dict[str, str]:
    """By lower-case name, values trimmed: not every server does."""
    return {key.decode("latin-1"): value.decode("latin-1").strip(" \t") for key, value in scope["headers"]}


def has_bearer_token(headers: Mapping[str, str], token: bytes) -> bool:
    """Whether the request carries `token`. Takes the same time however much of it is right."""
    scheme, _, given = headers.get("authorization", "").partition(" ")
    return scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), token)


async def read_body(receive: Receive, max_bytes: int = MAX_BODY, *, timeout: float | None = None) -> bytes:
    """The whole body; `timeout` is for what does not come with the headers. Raises BodyRefused."""
    event = await receive()
    if (
        event["type"] == "http.request"
        and not event.get("more_body")
        and len(body := event.get("body", b"")) <= max_bytes
    ):
        return bytes(body)  # nearly every request
    if event.get("more_body"):
        try:
            async with asyncio.timeout(timeout):
                return await _join_body(event, receive, max_bytes)
        except TimeoutError:
            raise BodyRefused(f"the body did not arrive within {timeout:g} s", 408) from None
    return await _join_body(event, receive, max_bytes)


async def _join_body(event: MutableMapping[str, Any], receive: Receive, max_bytes: int) -> bytes:
    chunks, size = [], 0
    while True:
        if event["type"] != "http.request":  # half a body must not be taken for a whole one
            raise BodyRefused("the body was cut off")
        chunks.append(event.get("body", b""))
        size += len(chunks[-1])
        if size > max_bytes:
            raise BodyTooLarge(f"the body may hold {max_bytes} bytes", 413)
        if not event.get("more_body"):
            return chunks[0] if len(chunks) == 1 else b"".join(chunks)
        event = await receive()


async def read_json(receive: Receive, max_bytes: int = MAX_BODY) -> Any:
    """The body, decoded. Raises BodyRefused."""
    try:
        return decode_json(await read_body(receive, max_bytes))
    except JsonTooDeep as exc:
        raise BodyRefused(f"the body can't be kept: {exc}") from None
    except ValueError:
        raise BodyRefused("the body is not JSON") from None


async def send_response(
    send: Send, status: int, body: bytes, *, content_type: str, extra: Mapping[str, str] | None = None
) -> None:
    headers = [
        (b"content-type", content_type.encode()),
        (b"content-length", str(len(body)).encode()),
        (b"cache-control", b"no-store"),
        (b"x-content-type-options", b"nosniff"),
        *((name.encode(), value.encode()) for name, value in (extra or {}).items()),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def send_json(send: Send, value: Any, *, status: int = 200, extra: Mapping[str, str] | None = None) -> None:
    content_type = "application/json; charset=utf-8"
    await send_response(send, status, msgspec.json.encode(value), content_type=content_type, extra=extra)


async def send_text(send: Send, text: str, *, status: int = 200, extra: Mapping[str, str] | None = None) -> None:
    await send_response(send, status, text.encode(), content_type="text/plain; charset=utf-8", extra=extra)


async def send_status(send: Send, status: int) -> None:
    """An answer without a body."""
    await send({"type": "http.response.start", "status": status, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body", "body": b""})
