"""A proxy that misbehaves on request, as a real one can't be made to."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from openclaw_mcp.net import listen

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
Talk = Callable[[Receive, Send], Awaitable[None]]
"""One bridge, from its acceptance to its end."""

START_WAIT = 10.0


class StandIn:
    """Answers registrations from `answers`, then with sessions s1, s2, …; each bridge is the next of `talks`."""

    def __init__(self) -> None:
        self.address = ""
        self.answers: list[tuple[int, dict[str, str], Any]] = []
        self.talks: list[Talk] = []
        self.requests: list[tuple[str, str]] = []
        self.sessions = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await receive()
            chosen = "openclaw-bridge" if scope["subprotocols"] else None
            await send({"type": "websocket.accept", "subprotocol": chosen})
            self.requests.append(("BRIDGE", scope["path"].split("/")[4]))
            await (self.talks.pop(0) if self.talks else stay)(receive, send)
            return
        self.requests.append((scope["method"], scope["path"]))
        status, headers = 200, dict[str, str]()
        body: Any = {"ok": True}
        if scope["method"] == "POST":
            if self.answers:
                status, headers, body = self.answers.pop(0)
            else:
                self.sessions += 1
                body = {"mcpSessionId": f"s{self.sessions}"}
        pairs = [(name.encode(), value.encode()) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": status, "headers": pairs})
        await send({"type": "http.response.body", "body": json.dumps(body).encode()})


async def stay(receive: Receive, send: Send) -> None:
    """Answer pings until the app goes."""
    while (event := await receive())["type"] != "websocket.disconnect":
        if "ping" in (event.get("text") or ""):
            await send({"type": "websocket.send", "text": '{"type":"pong"}'})


def close(code: int) -> Talk:
    async def talk(receive: Receive, send: Send) -> None:
        await send({"type": "websocket.close", "code": code, "reason": "as told"})

    return talk


@contextlib.asynccontextmanager
async def stand_in() -> AsyncIterator[StandIn]:
    app, ready = StandIn(), asyncio.Event()
    listener = listen.bind("127.0.0.1", 0)
    app.address = f"http://127.0.0.1:{listener.getsockname()[1]}"
    server = asyncio.create_task(listen.serve(app, listener, on_ready=ready.set, websockets=WebSocketsSansIOProtocol))
    try:
        async with asyncio.timeout(START_WAIT):
            await ready.wait()
        yield app
    finally:
        server.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await server
