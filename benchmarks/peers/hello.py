"""The HTTP floor: an ASGI callable that reads nothing and always says the same. Usage: hello.py PORT."""

import sys
from collections.abc import Awaitable, Callable
from typing import Any

from serving import serve

BODY = b"hello"
HEADERS = [(b"content-type", b"text/plain"), (b"content-length", b"%d" % len(BODY))]

Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]


async def hello(scope: dict[str, Any], receive: Receive, send: Send) -> None:
    if scope["type"] == "lifespan":
        await _live(receive, send)
        return
    await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
    await send({"type": "http.response.body", "body": BODY})


async def _live(receive: Receive, send: Send) -> None:
    message = await receive()
    while message["type"] == "lifespan.startup":
        await send({"type": "lifespan.startup.complete"})
        message = await receive()
    await send({"type": "lifespan.shutdown.complete"})


if __name__ == "__main__":
    serve(hello, port=int(sys.argv[1]))
