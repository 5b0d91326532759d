"""An order from the tool call to the one answer, against a gateway played by a script."""

import asyncio
import base64
from collections.abc import AsyncGenerator, Callable
from typing import Any

import pytest

from openclaw_mcp.core.errors import OpenClawError
from openclaw_mcp.core.gateway_port import GatewayEventHandler
from openclaw_mcp.core.model import Json
from openclaw_mcp.core.rpc import RpcError
from openclaw_mcp.mcp.server.server import McpServer, McpServerInfo
from openclaw_mcp.net.gateway_client import remote_run
from openclaw_mcp.order.approvals import OrderEvent
from openclaw_mcp.order.conversation import AgentOrder, run_remote_order
from openclaw_mcp.order.order_tool import ErrorTextToolbox, OrderTools
from openclaw_mcp.order.running_order import SuspendedOrders
from openclaw_mcp.tools.dispatcher import ToolDispatcher
from openclaw_mcp.tools.registry import ToolRegistry
from tests.conversation import Conversation

PNG = b"\x89PNG\r\n\x1a\n" + b"\0" * 8


class Script:
    """A gateway that tells these events once an order is sent."""

    is_lost = False

    def __init__(
        self, *events: tuple[str, Any], refuse: OpenClawError | None = None, end: Json | None = None,
        history: tuple[Json, ...] = (),
    ) -> None:  # fmt: skip
        self.calls: list[tuple[str, Json]] = []
        self.handlers: list[GatewayEventHandler] = []
        self._events = events
        self._refuse = refuse
        self._end = end
        self._history = history

    async def call(self, method: str, params: Json, *, within: float) -> Any:
        self.calls.append((method, params))
        if method == "agent.wait":
            return self._end
        if method == "chat.history":
            order = {"role": "user", "content": "do it", "idempotencyKey": f"{self.calls[0][1]['idempotencyKey']}:user"}
            return {"messages": [*self._history[:1], order, *self._history[1:]]}
        if method == "chat.send":
            if self._refuse is not None:
                raise self._refuse
            for event, payload in self._events:
                for receive in self.handlers:
                    receive(event, {"runId": params["idempotencyKey"], **payload} if type(payload) is dict else payload)
        return {}

    def subscribe(self, handler: GatewayEventHandler) -> Callable[[], None]:
        self.handlers.append(handler)
        return lambda: self.handlers.remove(handler)


def delta(text: str, **more: Any) -> tuple[str, Json]:
    return "chat", {"state": "delta", "message": {"content": [{"type": "text", "text": text}]}, **more}


def final(text: str, *blocks: Json) -> tuple[str, Json]:
    return "chat", {"state": "final", "message": {"content": [{"type": "text", "text": text}, *blocks]}}


def served(script: Script) -> Conversation:
    async def run(order: AgentOrder) -> AsyncGenerator[OrderEvent, None]:
        return run_remote_order(script, order)

    toolbox = ToolDispatcher(ToolRegistry({"order": OrderTools(run, SuspendedOrders())}))
    return Conversation(McpServer(McpServerInfo(name="order", version="1"), ErrorTextToolbox(toolbox)), stateless=False)


def ordered(script: Script, **arguments: Any) -> Any:
    client = served(script)
    return asyncio.run(asyncio.wait_for(client.call("order_openclaw", {"message": "do it", **arguments}), 10))


def answer(*events: tuple[str, Json]) -> str:
    result = ordered(Script(*events))
    assert result["isError"] is False
    return str(result["content"][0]["text"])


def test_the_final_text_is_the_answer() -> None:
    assert answer(final("done")) == "done"


def test_what_was_streamed_is_not_said_twice() -> None:
    assert answer(delta("Hel"), delta("Hello"), final("Hello")) == "Hello"


def test_parts_said_before_and_after_a_tool_are_both_in_the_answer() -> None:
    tool = ("agent", {"stream": "tool", "data": {"phase": "start", "name": "ls", "toolCallId": "1"}})

    assert answer(delta("Looking."), tool, delta("Found it."), final("Found it.")) == "Looking.\n\nFound it."


def tool_result(*texts: str, name: str = "ls") -> tuple[str, Json]:
    blocks = [{"type": "text", "text": text} for text in texts]
    data = {"phase": "result", "name": name, "toolCallId": "1", "result": {"content": blocks}}
    return "agent", {"stream": "tool", "data": data}


def test_what_tools_said_is_part_of_the_answer_in_its_place_and_once() -> None:
    listing = tool_result("a.txt\nb.txt")
    assert answer(listing, final("Two files.")) == "a.txt\nb.txt\n\nTwo files."
    assert answer(listing, listing, final("They are:\n\na.txt\nb.txt")) == "They are:\n\na.txt\nb.txt"
    assert answer(tool_result("b.txt"), final("b.txt")) == "b.txt"


def test_an_answer_that_also_is_a_line_of_a_tools_result_is_said_all_the_same() -> None:
    assert answer(tool_result("1\n42\n3"), final("42")) == "1\n42\n3\n\n42"


def test_too_much_of_tools_is_left_out_and_named_and_the_answer_stays() -> None:
    result = ordered(Script(tool_result("x" * 600_000), tool_result("y" * 600_000, name="cat"), final("done")))
    texts = [block["text"] for block in result["content"]]
    assert texts[0] == "x" * 600_000 + "\n\ndone"
    assert (
        texts[1] == "Left out of this answer: what cat said (600000 characters; tools may say 1000000 in one answer)."
    )


def test_a_text_that_was_rewritten_is_said_as_rewritten() -> None:
    assert answer(delta("Wrong"), delta("Right", replace=True), final("Right")) == "Right"


def test_other_runs_are_not_received() -> None:
    assert answer(("chat", {"runId": "another", "state": "final"}), final("mine")) == "mine"


def test_the_message_goes_out_byte_for_byte() -> None:
    script = Script(final("ok"))
    message = '  \tline\r\nüñí 🎉 {"json": true} \u200b /status  '

    ordered(script, message=message)

    assert script.calls[0][1]["message"] == message


def test_pictures_go_out_as_they_came_and_come_back_as_blocks() -> None:
    script = Script(final("see", {"type": "image", "data": base64.b64encode(PNG).decode(), "mimeType": "image/png"}))

    result = ordered(script, images=[{"data": base64.b64encode(PNG).decode(), "mimeType": "image/png"}])

    (sent,) = script.calls[0][1]["attachments"]
    assert base64.b64decode(sent["content"]) == PNG
    assert (sent["type"], sent["mimeType"], sent["fileName"]) == ("image", "image/png", "image-1.png")
    assert [block["type"] for block in result["content"]] == ["text", "image"]


def test_a_picture_a_tool_made_is_in_the_answer() -> None:
    block = {"type": "image", "source": {"media_type": "image/png", "data": base64.b64encode(PNG).decode()}}
    tool = ("agent", {"stream": "tool", "data": {"phase": "result", "name": "snap", "result": {"content": [block]}}})

    result = ordered(Script(tool, final("there")))

    assert result["content"][1]["mimeType"] == "image/png"


def test_a_picture_the_gateway_only_names_is_named_once() -> None:
    def media_event(*places: str) -> tuple[str, Json]:
        return "agent", {"stream": "assistant", "data": {"text": "see", "mediaUrls": list(places)}}

    data = {"phase": "result", "result": {"content": [{"type": "image", "mimeType": "image/png", "omitted": True}]}}
    events = (media_event("/home/a/pic.png"), media_event("/home/a/pic.png", "https://x.org/b.png"))

    result = ordered(Script(*events, ("agent", {"stream": "tool", "data": data}), final("see")))

    text, note = result["content"]
    assert text["text"] == "see"
    assert note["text"] == (
        "Left out of this answer: pic.png (the gateway did not send it); "
        "b.png (only a link: https://x.org/b.png); image/png (the gateway did not send it)."
    )


def test_unrelated_orders_never_share_a_session() -> None:
    keys = set()
    for _ in range(20):
        script = Script(final("ok"))
        ordered(script)
        keys.add(script.calls[0][1]["sessionKey"])

    assert len(keys) == 20
    assert all(key.startswith("mcp-") and len(key.split("-")) == 3 for key in keys)


def test_a_given_session_key_is_used() -> None:
    script = Script(final("ok"))

    ordered(script, sessionKey="user-123-conversation")

    assert script.calls[0][1]["sessionKey"] == "user-123-conversation"


@pytest.mark.parametrize(
    ("script", "says"),
    [
        (Script(("chat", {"state": "error", "errorMessage": "no model"})), "Error: no model"),
        (Script(("chat", {"state": "aborted"})), "Error: the order was stopped"),
        (Script(refuse=RpcError("unknown agent")), "Error: unknown agent"),
    ],
)
def test_what_goes_wrong_is_an_error_in_so_many_words(script: Script, says: str) -> None:
    result = ordered(script)

    assert result["isError"] is True
    assert result["content"][0]["text"].startswith(says)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"message": ""}, "empty"),
        ({"message": " \n"}, "empty"),
        ({"message": "a\0b"}, "NUL"),
        ({"message": 5}, "message"),
        ({"sessionKey": ""}, "sessionKey"),
        ({"sessionKey": "a\nb"}, "sessionKey"),
        ({"sessionKey": "x" * 513}, "sessionKey"),
        ({"images": [{"data": "!", "mimeType": "image/png"}]}, "images[0]"),
        ({"images": [{"mimeType": "image/png"}]}, "data"),
        ({"files": "report.pdf"}, "files"),
    ],
)
def test_a_bad_order_is_one_sentence_and_nothing_is_sent(arguments: Json, says: str) -> None:
    script = Script(final("never"))

    result = ordered(script, **arguments)

    assert result["isError"] is True
    assert result["content"][0]["text"].startswith("Error: ")
    assert says in result["content"][0]["text"]
    assert script.calls == []


def test_a_gateway_that_went_away_is_said_and_not_waited_for() -> None:
    script = Script(delta("half an ans"), ("gone", "the connection was cut"))
    result = ordered(script)
    assert result["isError"] is True
    assert result["content"][0]["text"] == "Error: the gateway went away: the connection was cut"
    assert [method for method, _ in script.calls] == ["chat.send"]


def test_a_lost_connection_loses_no_answer() -> None:
    script = Script(delta("Hel"), ("hello", {}), end={"status": "ok", "terminalReply": {"text": "Hello"}})

    assert ordered(script)["content"][0]["text"] == "Hello"


def test_an_order_that_had_to_wait_gets_its_own_answer() -> None:
    """A real OpenClaw ends such a run with nothing, and answers it in the transcript."""

    def received(role: str, text: str) -> Json:
        return {"role": role, "content": [{"type": "text", "text": text}]}

    before, mine, after = (
        received("assistant", "to another"),
        received("assistant", "to you"),
        received("assistant", "to a third"),
    )
    history = (before, mine, received("toolResult", "not said"), received("user", "the third"), after)
    script = Script(("chat", {"state": "final"}), end={"status": "ok"}, history=history)

    assert ordered(script)["content"][0]["text"] == "to you"


def test_an_end_is_received_however_much_was_said_before() -> None:
    pieces = [delta("x" * length) for length in range(1, remote_run.MOST_QUEUED_EVENTS + 100)]

    assert answer(*pieces, final("the end")).endswith("the end")


def test_a_cancelled_order_stops_the_run() -> None:
    script = Script(delta("thinking"))

    async def scenario() -> None:
        client = served(script)
        call = asyncio.ensure_future(
            client.ask(
                "tools/call",
                {
                    "name": "order_openclaw",
                    "arguments": {"message": "long"},
                    "_meta": {"progressToken": 1},
                },
            )
        )
        await client.wait_messages(1)
        call.cancel()
        await asyncio.wait((call,))

    asyncio.run(scenario())

    (_, sent), (method, stopped) = script.calls
    assert (method, stopped["runId"]) == ("chat.abort", sent["idempotencyKey"])
    assert script.handlers == []


def test_progress_tells_the_text_so_far_and_the_tool_in_use() -> None:
    tool = ("agent", {"stream": "tool", "data": {"phase": "start", "name": "ls", "toolCallId": "1"}})
    client = served(Script(delta("Hel"), delta("Hello"), tool, final("Hello")))
    order = {"name": "order_openclaw", "arguments": {"message": "x"}, "_meta": {"progressToken": 1}}

    asyncio.run(client.ask("tools/call", order))

    assert [message["params"]["message"] for message in client.received] == ["Hel", "Hello", "using ls"]
