"""A gateway on a free port of this process, clients for it, and a raw peer that says exactly what a test says."""

import asyncio
import contextlib
import json
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

from websockets.asyncio.client import ClientConnection, connect

from openclaw_mcp.core.rpc import ADMIN, APPROVALS, PAIRING, READ, WRITE, RpcCall, RpcError, RpcMethod
from openclaw_mcp.gateway.wiring.gateway import GatewayServer
from openclaw_mcp.mcp.client.server_pool import McpServerPool
from openclaw_mcp.net import listen
from openclaw_mcp.net.gateway_client.client import GatewayClient
from openclaw_mcp.net.gateway_client.handshake import ClientInfo, ClientProfile, Credentials, Signer
from openclaw_mcp.tools.audit import AuditSink, log_record

TOKEN = "the-shared-token"
BACKEND = ClientInfo(id="gateway-client", version="1", platform="linux", mode="backend")
NODE = ClientInfo(id="node-host", version="1", platform="linux", mode="node", display_name="a node")
TUI = ClientInfo(id="openclaw-tui", version="1", platform="linux", mode="ui")
EVERY = (READ, WRITE, ADMIN, APPROVALS, PAIRING)
WAIT = 20.0

CONNECT: dict[str, Any] = {
    "minProtocol": 4,
    "maxProtocol": 4,
    "client": {"id": "gateway-client", "version": "0", "platform": "linux", "mode": "backend"},
    "role": "operator",
    "scopes": [ADMIN],
    "auth": {"token": TOKEN},
}


def within(work: Coroutine[Any, Any, None]) -> None:
    """Run a test's coroutine, bounded."""

    async def bounded() -> None:
        async with asyncio.timeout(WAIT * 6):
            await work

    asyncio.run(bounded())


class Echo:
    """A room for tests: answers, answers twice, waits, fails, and subscribes."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.go = asyncio.Event()
        self.finished = 0

    def methods(self) -> Sequence[RpcMethod]:
        return (
            RpcMethod("echo", READ, self._echo),
            RpcMethod("twice", WRITE, self._twice),
            RpcMethod("wait", READ, self._wait),
            RpcMethod("broken", READ, self._broken),
            RpcMethod("refuse", READ, self._refuse),
            RpcMethod("unwritable", READ, self._unwritable),
            RpcMethod("subscribe", READ, self._subscribe),
            RpcMethod("tell", READ, self._tell),
            RpcMethod("big", READ, self._big),
            RpcMethod("seldom", READ, self._echo, per_minute=3),
            RpcMethod("hidden", READ, self._echo, advertised=False),
            RpcMethod("node.only", None, self._echo, role="node"),
        )

    async def _echo(self, call: RpcCall) -> Any:
        return {"params": call.params, "caller": call.caller.name, "kind": call.caller.kind}

    async def _twice(self, call: RpcCall) -> Any:
        await call.peer.acknowledge({"status": "accepted", "runId": "R"})
        await self.go.wait()
        return {"status": "ok", "runId": "R"}

    async def _wait(self, call: RpcCall) -> Any:
        self.begun.set()
        await self.go.wait()
        self.finished += 1
        return "done"

    async def _broken(self, call: RpcCall) -> Any:
        raise RuntimeError("a secret in the traceback")

    async def _refuse(self, call: RpcCall) -> Any:
        raise RpcError("not now", kind="UNAVAILABLE", retryable=True, retry_after_ms=7)

    async def _unwritable(self, call: RpcCall) -> Any:
        return object()

    async def _subscribe(self, call: RpcCall) -> Any:
        call.peer.subscriptions().add(call.params["topic"])
        return {"subscribed": True}

    async def _tell(self, call: RpcCall) -> Any:
        call.peer.send_event("chat", {"for": "you"})
        return {}

    async def _big(self, call: RpcCall) -> Any:
        return "x" * int(call.params["bytes"])


class Running:
    def __init__(self, gateway: GatewayServer, port: int, stop: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self.gateway = gateway
        self.port = port
        self.url = f"ws://127.0.0.1:{port}"
        self.http = f"http://127.0.0.1:{port}"
        self.stop = stop

    def client(
        self,
        *,
        scopes: Sequence[str] = EVERY,
        who: ClientInfo = BACKEND,
        role: str = "operator",
        token: str | None = TOKEN,
        signer: Signer | None = None,
        redial: bool = False,
        **more: Any,
    ) -> GatewayClient:
        profile = ClientProfile(client=who, role="node" if role == "node" else "operator", scopes=tuple(scopes))
        credentials = Credentials(token=token) if token is not None else Credentials()
        return GatewayClient(self.url, profile, credentials=credentials, signer=signer, redial=redial, **more)

    @contextlib.asynccontextmanager
    async def raw(self, **over: Any) -> AsyncIterator["Raw"]:
        """A peer that has connected."""
        async with self.stranger() as peer:
            await peer.event("connect.challenge")
            await peer.ask("connect", CONNECT | over)
            yield peer

    @contextlib.asynccontextmanager
    async def stranger(self, **headers: str) -> AsyncIterator["Raw"]:
        async with connect(
            self.url, max_size=None, compression=None, additional_headers=headers, proxy=None, ping_interval=None
        ) as socket:
            yield Raw(socket)


class Raw:
    """The other end of a WebSocket, frame by frame."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.events: list[Any] = []

    async def say(self, frame: Any) -> None:
        await self.socket.send(frame if isinstance(frame, str | bytes) else json.dumps(frame))

    async def hear(self) -> Any:
        async with asyncio.timeout(WAIT):
            return json.loads(await self.socket.recv())

    async def response(self, id: str) -> Any:
        while True:
            frame = await self.hear()
            if frame["type"] == "res" and frame["id"] == id:
                return frame
            self.events.append(frame)

    async def event(self, name: str) -> Any:
        for frame in self.events:
            if frame.get("event") == name:
                self.events.remove(frame)
                return frame
        while True:
            frame = await self.hear()
            if frame.get("event") == name:
                return frame
            self.events.append(frame)

    async def ask(self, method: str, params: Any = None) -> Any:
        id = str(uuid.uuid4())
        await self.say({"type": "req", "id": id, "method": method, "params": params or {}})
        return await self.response(id)

    async def closed(self) -> tuple[int | None, str | None]:
        async with asyncio.timeout(WAIT):
            await self.socket.wait_closed()
        return self.socket.close_code, self.socket.close_reason


@contextlib.asynccontextmanager
async def running(
    folder: Path,
    *,
    modules: Sequence[Any] = (),
    port: int = 0,
    sources: Any = None,
    audit: AuditSink = log_record,
    trusted_proxies: Sequence[str] = (),
    servers: McpServerPool | None = None,
    furnish: Callable[[GatewayServer], contextlib.AbstractAsyncContextManager[Any]] | None = None,
) -> AsyncIterator[Running]:
    """`furnish` prepares the gateway before it serves, and clears up after it has stopped."""
    async with contextlib.AsyncExitStack() as stack:
        gateway = GatewayServer(
            folder, TOKEN, sources=sources, audit=audit, trusted_proxies=lambda: tuple(trusted_proxies), servers=servers
        )
        for module in modules:
            gateway.add_module(module)
        if furnish is not None:
            await stack.enter_async_context(furnish(gateway))
        yield await stack.enter_async_context(_served(gateway, port))


@contextlib.asynccontextmanager
async def _served(gateway: GatewayServer, port: int) -> AsyncIterator[Running]:
    listener = listen.bind("127.0.0.1", port)
    ready = asyncio.Event()
    serving = asyncio.create_task(gateway.serve(listener, ready=ready.set))
    waiting = asyncio.create_task(ready.wait())
    await asyncio.wait([serving, waiting], return_when=asyncio.FIRST_COMPLETED)
    if serving.done():
        waiting.cancel()
        serving.result()

    async def stop() -> None:
        serving.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await serving

    try:
        yield Running(gateway, listener.getsockname()[1], stop)
    finally:
        await stop()
