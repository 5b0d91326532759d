"""A client that subscribes to changes is notified, in its era's way, and no other client is."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from openclaw_mcp.core.model import (
    Caller,
    Contents,
    ResourceRead,
    ResourceSpec,
    TemplateSpec,
    ToolCall,
    ToolResult,
    ToolSpec,
    text_result,
)
from openclaw_mcp.core.signal import Signal
from openclaw_mcp.protocol.jsonrpc import JsonRpcError
from openclaw_mcp.protocol.mcp import SUBSCRIPTION_ID
from tests.conversation import Conversation, Tools, serving


async def hello(call: ToolCall) -> ToolResult:
    return text_result("hello")


class Shelf:
    def __init__(self) -> None:
        self.changed: Signal[None] = Signal()
        self.updated: Signal[str] = Signal()

    async def list(self, caller: Caller) -> Sequence[ResourceSpec]:
        return []

    async def templates(self, caller: Caller) -> Sequence[TemplateSpec]:
        return []

    async def read(self, read: ResourceRead) -> Sequence[Contents]:
        return []


def received(wish: Any) -> list[tuple[str, Any]]:
    """What a listener that asked for `wish` receives of a tool change, a resource change and an update of a://b."""

    async def talk() -> list[tuple[str, Any]]:
        tools, shelf = Tools(hello=hello), Shelf()
        client = Conversation(serving(tools, resources=shelf))
        listening = asyncio.ensure_future(client.ask("subscriptions/listen", {"notifications": wish}))
        await client.wait_messages(1)
        tools.add(ToolSpec(name="new"), hello)
        shelf.changed.emit(None)
        shelf.updated.emit("a://b")
        for _ in range(10):
            await asyncio.sleep(0)
        listening.cancel()
        await asyncio.wait((listening,))
        assert all(message["params"]["_meta"] == {SUBSCRIPTION_ID: 1} for message in client.received)
        return [(message["method"], message["params"].get("notifications")) for message in client.received]

    return asyncio.run(talk())


def test_the_accepted_part_of_the_wish_is_acknowledged_first() -> None:
    assert received({"toolsListChanged": True, "promptsListChanged": True, "nonsense": True}) == [
        ("notifications/subscriptions/acknowledged", {"toolsListChanged": True}),
        ("notifications/tools/list_changed", None),
    ]


def test_only_subscribed_changes_are_sent() -> None:
    assert [method for method, _ in received({"resourceSubscriptions": ["a://b"]})][1:] == [
        "notifications/resources/updated"
    ]
    assert [method for method, _ in received({"resourcesListChanged": True})][1:] == [
        "notifications/resources/list_changed"
    ]
    assert received({})[1:] == []


@pytest.mark.parametrize("wish", [None, 7, {"resourceSubscriptions": "a"}, {"resourceSubscriptions": ["a"] * 1001}])
def test_a_wish_that_can_not_be_read_is_refused(wish: Any) -> None:
    client = Conversation(serving(Tools(hello=hello)))

    with pytest.raises(JsonRpcError, match=r"notifications|resourceSubscriptions"):
        asyncio.run(client.ask("subscriptions/listen", {"notifications": wish}))


def test_a_handshake_client_receives_list_changes_and_its_subscribed_resources() -> None:
    async def talk() -> list[str]:
        tools, shelf, received = Tools(hello=hello), Shelf(), list[bytes]()
        server = serving(tools, resources=shelf)
        client = Conversation(server, stateless=False)
        stop = server.subscriptions.connect(client.peer, received.append)
        await client.ask("resources/subscribe", {"uri": "a://b"})
        tools.add(ToolSpec(name="new"), hello)
        shelf.updated.emit("a://b")
        shelf.updated.emit("c://d")
        await client.ask("resources/unsubscribe", {"uri": "a://b"})
        shelf.updated.emit("a://b")
        stop()
        tools.add(ToolSpec(name="newer"), hello)
        return [str(message.decode()) for message in received]

    messages = asyncio.run(talk())

    assert len(messages) == 2
    assert "tools/list_changed" in messages[0]
    assert "a://b" in messages[1]


def test_a_task_is_watched_by_its_owner() -> None:
    gate = asyncio.Event()

    async def work(call: ToolCall) -> ToolResult:
        await gate.wait()
        return text_result("done")

    async def talk() -> list[Any]:
        tools = Tools()
        tools.add(ToolSpec(name="long", task="offered"), work)
        client = Conversation(serving(tools), capabilities={"extensions": {"io.modelcontextprotocol/tasks": {}}})
        id = (await client.call("long"))["taskId"]
        wish = {"notifications": {"taskIds": [id, "somebody-elses"]}}
        listening = asyncio.ensure_future(client.ask("subscriptions/listen", wish))
        await client.wait_messages(1)
        gate.set()
        await client.wait_messages(2)
        listening.cancel()
        assert client.received[0]["params"]["notifications"] == {"taskIds": [id]}
        return [client.received[1]["method"], client.received[1]["params"]["status"]]

    assert asyncio.run(asyncio.wait_for(talk(), 10)) == ["notifications/tasks", "completed"]
