"""The proxy's floor: an ASGI callable that reads the body of a POST and sends it back. Usage: echo_body.py PORT."""

import sys
from collections.abc import Awaitable, Callable
from typing import Any

from serving import serve

Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]


async def echo(scope: dict[str, Any], receive: Receive, send: Send) -> None:
    body, more = b"", True
    while more:
        event = await receive()
        body += event.get("body", b"")
        more = event.get("more_body", False)
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


if __name__ == "__main__":
    serve(echo, port=int(sys.argv[1]))
