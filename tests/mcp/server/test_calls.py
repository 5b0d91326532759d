"""What a call returns, and what is sent before its result."""

import asyncio

import pytest

from openclaw_mcp.core.errors import ToolDenied
from openclaw_mcp.core.model import (
    Audio,
    Contents,
    Embedded,
    Image,
    Json,
    Link,
    Text,
    ToolCall,
    ToolResult,
    ToolSpec,
    text_result,
)
from openclaw_mcp.protocol.jsonrpc import JsonRpcError
from tests.conversation import Conversation, Tools, serving


def test_every_kind_of_content_goes_out_in_mcps_shape() -> None:
    async def work(call: ToolCall) -> ToolResult:
        return ToolResult(
            (
                Text("hi", annotations={"audience": ["user"]}),
                Image(b"\x00\xff", "image/png"),
                Audio(b"\x01", "audio/wav"),
                Embedded(Contents(uri="a://b", mime_type="text/plain", text="in")),
                Link(uri="c://d", name="d", size=3),
            ),
            structured={"n": 1},
        )

    result = asyncio.run(Conversation(serving(Tools(work=work))).call("work"))

    assert result["content"] == [
        {"type": "text", "text": "hi", "annotations": {"audience": ["user"]}},
        {"type": "image", "data": "AP8=", "mimeType": "image/png"},
        {"type": "audio", "data": "AQ==", "mimeType": "audio/wav"},
        {"type": "resource", "resource": {"uri": "a://b", "mimeType": "text/plain", "text": "in"}},
        {"type": "resource_link", "uri": "c://d", "name": "d", "size": 3},
    ]
    assert result["structuredContent"] == {"n": 1}
    assert result["isError"] is False


@pytest.mark.parametrize("stateless", [True, False])
def test_a_tool_that_breaks_is_a_result_that_tells_no_secrets(stateless: bool) -> None:
    async def work(call: ToolCall) -> ToolResult:
        raise RuntimeError("password=hunter2")

    result = asyncio.run(Conversation(serving(Tools(work=work)), stateless=stateless).call("work"))

    assert result["isError"] is True
    assert "hunter2" not in str(result)


def test_a_refusal_is_a_result_with_its_reason() -> None:
    async def work(call: ToolCall) -> ToolResult:
        raise ToolDenied("not on a Sunday")

    result = asyncio.run(Conversation(serving(Tools(work=work))).call("work"))

    assert result["content"][0]["text"] == "not on a Sunday"
    assert result["isError"] is True


def test_wrong_arguments_are_a_result_that_names_the_field() -> None:
    async def work(call: ToolCall) -> ToolResult:
        return text_result("never")

    tools = Tools()
    tools.add(ToolSpec(name="work", input_schema={"properties": {"n": {"type": "integer"}}}), work)

    result = asyncio.run(Conversation(serving(tools)).call("work", {"n": "x"}))

    assert result["isError"] is True
    assert "n: " in result["content"][0]["text"]


def progress_of(meta: Json) -> list[Json]:
    async def work(call: ToolCall) -> ToolResult:
        for value in (1, 1, 0.5, 2):
            await call.context.progress(value, total=2, message=f"at {value}")
        return text_result("done")

    client = Conversation(serving(Tools(work=work)))
    asyncio.run(client.ask("tools/call", {"name": "work", "_meta": meta}))
    return [message["params"] for message in client.received]


def test_progress_is_sent_to_clients_that_asked_and_only_grows() -> None:
    assert progress_of({"progressToken": "t"}) == [
        {"progressToken": "t", "progress": 1, "total": 2, "message": "at 1"},
        {"progressToken": "t", "progress": 2, "total": 2, "message": "at 2"},
    ]


def test_progress_is_sent_to_no_other_client() -> None:
    assert progress_of({}) == []


def logged(level: str | None, *, stateless: bool) -> list[str]:
    async def work(call: ToolCall) -> ToolResult:
        await call.context.log("debug", "small")
        await call.context.log("error", "big", logger="tests")
        return text_result("done")

    client = Conversation(serving(Tools(work=work)), stateless=stateless)

    async def talk() -> None:
        meta = {}
        if stateless and level:
            meta["io.modelcontextprotocol/logLevel"] = level
        elif level:
            await client.ask("logging/setLevel", {"level": level})
        await client.ask("tools/call", {"name": "work", "_meta": meta})

    asyncio.run(talk())
    return [message["params"]["data"] for message in client.received]


def test_log_lines_follow_the_level_of_the_request_or_connection() -> None:
    assert logged("debug", stateless=True) == ["small", "big"]
    assert logged("error", stateless=True) == ["big"]
    assert logged(None, stateless=True) == []
    assert logged("debug", stateless=False) == ["small", "big"]
    assert logged("error", stateless=False) == ["big"]


def test_an_unknown_log_level_is_refused() -> None:
    with pytest.raises(JsonRpcError, match="level"):
        logged("loud", stateless=False)
