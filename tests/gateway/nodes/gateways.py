"""A gateway with a machine room, nodes that answer as a test says, and the book in memory."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from openclaw_mcp.core.config.config import read_config
from openclaw_mcp.gateway.nodes.tools import NodeToolSources
from openclaw_mcp.gateway.wiring.gateway import GatewayServer
from openclaw_mcp.gateway.wiring.nodes import open_nodes
from openclaw_mcp.net.gateway_client.client import CannotConnect, GatewayClient
from openclaw_mcp.net.gateway_client.handshake import ClientInfo, ClientProfile, Credentials
from openclaw_mcp.net.gateway_client.identity import DeviceIdentity
from openclaw_mcp.protocol.gateway_frames import EventFrame

from ..rpc.gateways import TOKEN, WAIT, Running, running

COMMANDS = ("system.which", "system.run", "device.info")
Answer = Callable[[str, Any], Awaitable[Any]]


class MemoryBook:
    """A `PairingBook` for as long as the test lasts."""

    def __init__(self) -> None:
        self.rows: dict[str, Any] = {}

    async def all(self) -> dict[str, Any]:
        return dict(self.rows)

    async def put(self, id: str, record: Any, /) -> None:
        self.rows[id] = json.loads(json.dumps(record))

    async def remove(self, id: str, /) -> bool:
        return self.rows.pop(id, None) is not None


class Failed(Exception):
    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


async def echo(command: str, params: Any) -> Any:
    return {"command": command, "params": params}


class FakeNode:
    """A node in this process. Invocations are answered by `answer`; everything received is kept."""

    def __init__(self, client: GatewayClient, identity: DeviceIdentity, answer: Answer) -> None:
        self.client = client
        self.id = identity.id
        self.invoked: asyncio.Queue[Any] = asyncio.Queue()
        self.cancelled: asyncio.Queue[Any] = asyncio.Queue()
        self.resolved: asyncio.Queue[Any] = asyncio.Queue()
        self.replies: asyncio.Queue[Any] = asyncio.Queue()
        self._answer = answer
        self._tasks: set[asyncio.Task[None]] = set()
        client.events.connect(self._hear)

    def _hear(self, news: EventFrame) -> None:
        if news.event == "node.invoke.request":
            self.invoked.put_nowait(news.payload)
            task = asyncio.ensure_future(self._reply(news.payload))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        elif news.event == "node.invoke.cancel":
            self.cancelled.put_nowait(news.payload)
        elif news.event == "node.pair.resolved":
            self.resolved.put_nowait(news.payload)

    async def _reply(self, request: Any) -> None:
        reply: dict[str, Any] = {"id": request["id"], "nodeId": request["nodeId"]}
        try:
            payload = await self._answer(request["command"], json.loads(request.get("paramsJSON", "null")))
            reply |= {"ok": True, "payloadJSON": json.dumps(payload)}
        except Failed as exc:
            reply |= {"ok": False, "error": {"code": exc.code, "message": str(exc)}}
        self.replies.put_nowait(await self.client.call("node.invoke.result", reply))

    async def aclose(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


class NodeHarness:
    def __init__(self, gateway: Running, folder: Path, stalls: NodeToolSources) -> None:
        self.gateway = gateway
        self.folder = folder
        self.stalls = stalls
        self._approved: set[str] = set()

    @contextlib.asynccontextmanager
    async def reviewer(self, name: str = "reviewer", **more: Any) -> AsyncIterator[GatewayClient]:
        """An operator other than the other holders of the token: by a device that was approved."""
        if name not in self._approved:
            self._approved.add(name)
            await self._approve_device(name)
        async with self.silent("linux", name, **more) as client:
            yield client

    async def _approve_device(self, name: str) -> None:
        async with self.silent("another system", name):
            pass
        with pytest.raises(CannotConnect, match="pairing required"):
            async with self.silent("linux", name):
                pass
        async with self.gateway.client() as owner:
            (request,) = (await owner.call("device.pair.list"))["pending"]
            await owner.call("device.pair.approve", {"requestId": request["requestId"]})

    def silent(self, platform: str, name: str, **more: Any) -> GatewayClient:
        """An operator with a device of its own, admitted because it is on this machine and has the token."""
        who = ClientInfo(id="cli", version="1", platform=platform, mode="cli")
        return self.gateway.client(who=who, signer=DeviceIdentity.load(self.folder / f"{name}.json"), **more)

    @contextlib.asynccontextmanager
    async def node(
        self,
        name: str = "laptop",
        *,
        commands: tuple[str, ...] = COMMANDS,
        answer: Answer = echo,
    ) -> AsyncIterator[FakeNode]:
        """A node of this name, connected; the same name is the same device."""
        identity = DeviceIdentity.load(self.folder / f"{name}.json")
        who = ClientInfo(id="node-host", version="1", platform="linux", mode="node", display_name=name)
        reported = ClientProfile(client=who, role="node", caps=("system",), commands=commands)
        client = GatewayClient(
            self.gateway.url, reported, credentials=Credentials(token=TOKEN), signer=identity, redial=False
        )
        async with client:
            node = FakeNode(client, identity, answer)
            try:
                yield node
            finally:
                await node.aclose()

    @contextlib.asynccontextmanager
    async def approved(self, operator: GatewayClient, name: str = "laptop", **more: Any) -> AsyncIterator[FakeNode]:
        async with self.node(name, **more) as node:
            await approve(operator, node.id)
            yield node


async def approve(operator: GatewayClient, node_id: str) -> Any:
    pending = (await operator.call("node.pair.list"))["pending"]
    for request in pending:
        if request["nodeId"] == node_id:
            return await operator.call("node.pair.approve", {"requestId": request["requestId"]})
    return None


@contextlib.asynccontextmanager
async def machines(
    folder: Path, *, book: MemoryBook | None = None, config: dict[str, Any] | None = None
) -> AsyncIterator[NodeHarness]:
    storage = MemoryBook() if book is None else book
    written = {} if config is None else config

    furnished: list[NodeToolSources] = []

    @contextlib.asynccontextmanager
    async def furnish(gateway: GatewayServer) -> AsyncIterator[None]:
        async with open_nodes(gateway, storage, config=lambda: read_config(written)) as stalls:
            furnished.append(stalls)
            yield

    async with running(folder, furnish=furnish) as gateway:
        yield NodeHarness(gateway, folder, furnished[0])


async def next_of(queue: "asyncio.Queue[Any]") -> Any:
    async with asyncio.timeout(WAIT):
        return await queue.get()


def collect_events(client: GatewayClient, event: str) -> "asyncio.Queue[Any]":
    """A queue that gets this event's payloads from now on."""
    queue: asyncio.Queue[Any] = asyncio.Queue()
    client.events.connect(lambda news: queue.put_nowait(news.payload) if news.event == event else None)
    return queue


def order(node_id: str, command: str = "system.which", **more: Any) -> dict[str, Any]:
    return {"nodeId": node_id, "command": command, "idempotencyKey": more.pop("key", "k"), **more}
