"""A proxy on a free port, an app that lends tools, and clients that call them."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit

import websockets
from websockets.asyncio.client import ClientConnection

from openclaw_mcp.net import listen
from openclaw_mcp.net.http_limits import ConnectionBounds
from openclaw_mcp.proxy.http.asgi import ProxyAsgi
from openclaw_mcp.proxy.settings import ProxySettings
from openclaw_mcp.proxy.state import ProxyState, open_proxy

from .. import web_client
from ..web_client import Answer

WAIT = 10.0  # seconds a test waits for what must come
Json = dict[str, Any]

TEXT = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
ECHO = {"name": "echo_text", "path": "/tools/echo_text", "description": "Echo text.", "input_schema": TEXT}
HOLD = {"name": "hold", "description": "Answers when told to."}


class Proxy:
    """One instance, as its clients see it."""

    def __init__(self, address: str, state: ProxyState | None = None) -> None:
        self.address = address
        self.calls = address
        """Where MCP requests go: the same instance, or another one that shares its sessions."""
        self._state = state

    @property
    def state(self) -> ProxyState:
        assert self._state is not None
        return self._state

    async def send(self, method: str, path: str, body: Any = None, **headers: str) -> Answer:
        base = self.calls if path.startswith("/v1/mcp") else self.address
        return await asyncio.to_thread(web_client.send, base + path, method, body, **headers)

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection to where MCP requests go."""
        return await asyncio.open_connection("127.0.0.1", urlsplit(self.calls).port)

    async def create(self, **body: Any) -> Json:
        answer = await self.send("POST", "/v1/chat/sessions", {"tools": [ECHO, HOLD], **body})
        assert answer.status == 200, answer.body
        created: Json = answer.json
        return created

    async def rpc(self, id: str, method: str, params: Any = None, **headers: str) -> Any:
        answer = await self.send("POST", f"/v1/mcp/{id}", web_client.rpc(method, params), **headers)
        assert answer.status == 200, (answer.status, answer.body)
        return answer.json

    async def call(self, id: str, tool: str = "echo_text", **arguments: Any) -> Any:
        """A tool's result, as a handshake-era client gets it."""
        if tool == "echo_text":
            arguments.setdefault("text", "hello")
        answer = await self.rpc(id, "tools/call", {"name": tool, "arguments": arguments})
        return answer.get("result", answer)

    async def offers(self, id: str, *names: str) -> None:
        """Wait until exactly these tools are listed: another instance hears of a change a moment later."""
        async with asyncio.timeout(WAIT):
            while True:
                listed = (await self.rpc(id, "tools/list"))["result"]["tools"]
                if [tool["name"] for tool in listed] == list(names):
                    return
                await asyncio.sleep(0.02)

    def bridge_url(self, id: str) -> str:
        return f"ws{self.address[4:]}/v1/chat/sessions/{id}/bridge"

    @contextlib.asynccontextmanager
    async def app(self, id: str, **options: Any) -> AsyncIterator["App"]:
        """An app at the other end of a bridge, attached."""
        async with websockets.connect(self.bridge_url(id), compression=None, max_size=None, **options) as socket:
            app = App(socket)
            await app.settled()
            task = asyncio.create_task(app.run())
            try:
                yield app
            finally:
                task.cancel()
                await asyncio.wait((task,))

    async def refused(self, id: str, **options: Any) -> tuple[int, str]:
        """The close code and reason of a bridge that is refused."""
        async with websockets.connect(self.bridge_url(id), compression=None, **options) as socket:
            return await closed(socket)


async def closed(socket: ClientConnection) -> tuple[int, str]:
    async with asyncio.timeout(WAIT):
        await socket.wait_closed()
    assert socket.close_code is not None
    return socket.close_code, socket.close_reason or ""


class App:
    """Echoes, and keeps the calls of `hold` for the test to answer."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.held: asyncio.Queue[Json] = asyncio.Queue()
        self.cancelled: asyncio.Queue[str] = asyncio.Queue()
        self.errors: asyncio.Queue[Json] = asyncio.Queue()
        self.others: asyncio.Queue[Json] = asyncio.Queue()
        self.pings: asyncio.Queue[Json] = asyncio.Queue()
        self.answers_pings = True
        self.answer: Callable[[Json], Awaitable[None]] = self._echo

    async def settled(self) -> None:
        """Wait until the proxy has attached this bridge: it answers our ping."""
        await self.say(type="ping")
        frame = json.loads(await self.socket.recv())
        assert frame["type"] == "pong", frame

    async def run(self) -> None:
        async for text in self.socket:
            frame = json.loads(text)
            match frame["type"]:
                case "invoke_tool" if frame["tool_name"] == "hold":
                    self.held.put_nowait(frame)
                case "invoke_tool":
                    await self.answer(frame)
                case "cancel_tool":
                    self.cancelled.put_nowait(frame["request_id"])
                case "error":
                    self.errors.put_nowait(frame)
                case "ping":
                    self.pings.put_nowait(frame)
                    if self.answers_pings:
                        await self.say(type="pong")
                case _:
                    self.others.put_nowait(frame)

    def freeze(self) -> None:
        """Read nothing any more, so that not even a ping of the WebSocket itself is answered."""
        self.socket.transport.pause_reading()

    def thaw(self) -> None:
        self.socket.transport.resume_reading()

    async def say(self, **frame: Any) -> None:
        await self.socket.send(json.dumps(frame))

    async def result(self, frame: Json, content: Any, **more: Any) -> None:
        reply = {"type": "invoke_result", "request_id": frame["request_id"], "ok": True, "content": content, **more}
        await self.socket.send(json.dumps(reply))

    async def holding(self) -> Json:
        """The next call of `hold`."""
        frame: Json = await soon(self.held.get())
        return frame

    async def _echo(self, frame: Json) -> None:
        await self.result(frame, {"echoed_text": frame["arguments"].get("text")})


async def soon(awaitable: Awaitable[Any]) -> Any:
    async with asyncio.timeout(WAIT):
        return await awaitable


@contextlib.asynccontextmanager
async def proxy(
    settings: ProxySettings = ProxySettings(audit="off"), bounds: ConnectionBounds = ConnectionBounds()
) -> AsyncIterator[Proxy]:
    """A proxy in this process, on a socket of its own."""
    listener = listen.bind("127.0.0.1", 0)
    ready = asyncio.Event()
    async with open_proxy(settings) as state:
        front = ProxyAsgi(state)
        serve = listen.serve(front, listener, on_ready=ready.set, websockets=front.make_socket, bounds=bounds)
        serving = asyncio.create_task(serve)
        await soon(ready.wait())
        try:
            yield Proxy(f"http://127.0.0.1:{listener.getsockname()[1]}", state)
        finally:
            serving.cancel()
            await asyncio.wait((serving,))


def text_of(result: Json) -> str:
    assert [block["type"] for block in result["content"]] == ["text"], result
    text: str = result["content"][0]["text"]
    return text
