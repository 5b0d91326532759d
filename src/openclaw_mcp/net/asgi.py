"""HTTP without a framework: read a body, write an answer."""

from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any, Final

import msgspec

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

MAX_BODY: Final = 2 << 20  # bytes of a request to the gateway's small routes


class BodyTooLarge(Exception):
    """More than the route takes."""


def read_headers(scope: Scope) -> Mapping[str, str]:
    return {key.decode("latin-1"): value.decode("latin-1").strip() for key, value in scope["headers"]}


async def read_body(receive: Receive, max_bytes: int = MAX_BODY) -> bytes:
    """Raises BodyTooLarge. A client that goes away has sent nothing: half a body must not be taken for a whole one."""
    chunks: list[bytes] = []
    size = 0
    while True:
        event = await receive()
        if event["type"] != "http.request":
            return b""
        chunks.append(event.get("body", b""))
        size += len(chunks[-1])
        if size > max_bytes:
            raise BodyTooLarge
        if not event.get("more_body"):
            break
    return b"".join(chunks)


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
    await send_response(
        send, status, msgspec.json.encode(value), content_type="application/json; charset=utf-8", extra=extra
    )


async def send_text(send: Send, text: str, *, status: int = 200, extra: Mapping[str, str] | None = None) -> None:
    await send_response(send, status, text.encode(), content_type="text/plain; charset=utf-8", extra=extra)
