"""Long calls become tasks a client can poll."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from openclaw_mcp.core.errors import BadRequest
from openclaw_mcp.core.model import Caller, Json, ToolCall, ToolResult, ToolSpec, form_request, text_result
from openclaw_mcp.mcp.server import tasks
from openclaw_mcp.mcp.server.server import McpServer
from openclaw_mcp.protocol.jsonrpc import JsonRpcError
from tests.conversation import Conversation, Tools, serving

POLLS: Json = {"extensions": {"io.modelcontextprotocol/tasks": {}}, "elicitation": {}}
MOST_POLLS = 1000


def long_tool(work: Any, task: Any = "offered", **options: Any) -> McpServer:
    tools = Tools()
    tools.add(ToolSpec(name="long", task=task), work)
    return serving(tools, **options)


async def until(client: Conversation, id: str, ready: Callable[[Any], bool]) -> Any:
    for _ in range(MOST_POLLS):
        task = await client.ask("tasks/get", {"taskId": id})
        if ready(task):
            return task
        await asyncio.sleep(0)
    raise AssertionError(f"still {task}")


def ended(task: Any) -> bool:
    return task["status"] in ("completed", "failed", "cancelled")


def outcome(work: Any) -> Any:
    async def talk() -> Any:
        client = Conversation(long_tool(work), capabilities=POLLS)
        task = await client.call("long")
        assert task["resultType"] == "task"
        assert task["status"] == "working"
        return await until(client, task["taskId"], ended)

    return asyncio.run(talk())


def test_a_result_waits_to_be_fetched() -> None:
    async def work(call: ToolCall) -> ToolResult:
        await asyncio.sleep(0)
        return text_result("at last")

    task = outcome(work)

    assert task["status"] == "completed"
    assert task["result"]["content"] == [{"type": "text", "text": "at last"}]


def test_a_tool_that_fails_completes_with_an_error_result() -> None:
    async def work(call: ToolCall) -> ToolResult:
        raise RuntimeError("no")

    task = outcome(work)

    assert (task["status"], task["result"]["isError"]) == ("completed", True)


def test_a_call_that_breaks_the_protocol_fails_the_task() -> None:
    async def work(call: ToolCall) -> ToolResult:
        raise BadRequest("not like this")

    task = outcome(work)

    assert task["status"] == "failed"
    assert task["error"] == {"code": -32602, "message": "not like this"}


def test_a_cancelled_task_really_stops() -> None:
    stopped: list[str] = []

    async def work(call: ToolCall) -> ToolResult:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.append("yes")
        return text_result("never")

    async def talk() -> Any:
        client = Conversation(long_tool(work), capabilities=POLLS)
        id = (await client.call("long"))["taskId"]
        await asyncio.sleep(0)
        assert (await client.ask("tasks/cancel", {"taskId": id})).keys() == {"resultType", "_meta"}
        task = await until(client, id, ended)
        await client.ask("tasks/cancel", {"taskId": id})
        return task

    assert asyncio.run(talk())["status"] == "cancelled"
    assert stopped == ["yes"]


def test_questions_are_polled_and_answered_one_by_one() -> None:
    yes: Json = {"type": "object", "properties": {}}

    async def work(call: ToolCall) -> ToolResult:
        answers = await call.context.ask({"a": form_request("A?", yes), "b": form_request("B?", yes)})
        again = await call.context.ask({"a": form_request("A again?", yes)})
        return text_result(f"{answers['a']['action']} {answers['b']['action']} {again['a']['action']}")

    async def talk() -> Any:
        client = Conversation(long_tool(work), capabilities=POLLS)
        id = (await client.call("long"))["taskId"]

        async def answer(**responses: Any) -> None:
            await client.ask("tasks/update", {"taskId": id, "inputResponses": responses})

        task = await until(client, id, lambda task: "inputRequests" in task)
        assert task["inputRequests"].keys() == {"a", "b"}
        await answer(a={"action": "accept"}, unknown={"ignored": True})
        task = await client.ask("tasks/get", {"taskId": id})
        assert (task["status"], list(task["inputRequests"])) == ("input_required", ["b"])
        await answer(a={"action": "decline"}, b={"action": "accept"})
        task = await until(client, id, lambda task: "a-2" in task.get("inputRequests", {}))
        await answer(**{"a-2": {"action": "cancel"}})
        return await until(client, id, ended)

    assert asyncio.run(talk())["result"]["content"][0]["text"] == "accept accept cancel"


def test_progress_of_a_task_is_its_status_message() -> None:
    reached = asyncio.Event()

    async def work(call: ToolCall) -> ToolResult:
        await call.context.progress(1, message="half way")
        reached.set()
        await asyncio.Event().wait()
        return text_result("never")

    async def talk() -> Any:
        server = long_tool(work)
        client = Conversation(server, capabilities=POLLS)
        id = (await client.call("long"))["taskId"]
        await reached.wait()
        task = await client.ask("tasks/get", {"taskId": id})
        await server.aclose()
        return task

    assert asyncio.run(talk())["statusMessage"] == "half way"


def test_a_tool_may_turn_into_a_task_after_asking() -> None:
    async def work(call: ToolCall) -> ToolResult:
        answers = await call.context.ask({"name": form_request("Name?", {"type": "object", "properties": {}})})
        await call.context.detach()
        return text_result(f"Hello, {answers['name']['content']['name']}!")

    async def talk() -> Any:
        client = Conversation(long_tool(work, "inline"), capabilities=POLLS)
        first = await client.call("long")
        assert first["resultType"] == "input_required"
        answer = {"action": "accept", "content": {"name": "Ada"}}
        second = await client.call("long", inputResponses={"name": answer}, requestState=first["requestState"])
        assert second["resultType"] == "task"
        return await until(client, second["taskId"], ended)

    assert asyncio.run(talk())["result"]["content"][0]["text"] == "Hello, Ada!"


def test_a_client_that_can_not_poll_waits_or_is_refused_as_the_tool_says() -> None:
    async def work(call: ToolCall) -> ToolResult:
        return text_result("done")

    assert asyncio.run(Conversation(long_tool(work)).call("long"))["content"][0]["text"] == "done"
    with pytest.raises(JsonRpcError) as refused:
        asyncio.run(Conversation(long_tool(work, "required")).call("long"))
    assert refused.value.data == {"requiredCapabilities": {"extensions": {"io.modelcontextprotocol/tasks": {}}}}


def test_a_task_is_its_callers_alone() -> None:
    async def work(call: ToolCall) -> ToolResult:
        return text_result("secret")

    async def talk() -> None:
        server = long_tool(work)
        id = (await Conversation(server, capabilities=POLLS).call("long"))["taskId"]
        thief = Conversation(
            server,
            capabilities=POLLS,
            caller=Caller(kind="agent", name="thief", scopes=frozenset({"*"})),
        )
        for method in ("tasks/get", "tasks/update", "tasks/cancel"):
            with pytest.raises(JsonRpcError, match="no task of yours"):
                await thief.ask(method, {"taskId": id, "inputResponses": {}})

    asyncio.run(talk())


def test_an_expired_task_is_forgotten() -> None:
    now = 0.0

    async def work(call: ToolCall) -> ToolResult:
        return text_result("old")

    async def talk() -> None:
        nonlocal now
        client = Conversation(long_tool(work, clock=lambda: now), capabilities=POLLS)
        id = (await client.call("long"))["taskId"]
        await until(client, id, ended)
        now = tasks.LIFETIME + 1
        with pytest.raises(JsonRpcError, match="expired"):
            await client.ask("tasks/get", {"taskId": id})

    asyncio.run(talk())


def test_what_expired_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "MAX_TASKS", 2)
    now = 0.0

    async def work(call: ToolCall) -> ToolResult:
        return text_result("done")

    async def talk() -> None:
        nonlocal now
        client = Conversation(long_tool(work, clock=lambda: now), capabilities=POLLS)
        for _ in range(5):
            await client.call("long")
            now += tasks.LIFETIME

    asyncio.run(talk())


def test_too_many_tasks_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "MAX_TASKS", 2)

    async def work(call: ToolCall) -> ToolResult:
        await asyncio.Event().wait()
        return text_result("never")

    async def talk() -> None:
        server = long_tool(work)
        client = Conversation(server, capabilities=POLLS)
        for _ in range(2):
            await client.call("long")
        with pytest.raises(JsonRpcError, match="tasks are kept already"):
            await client.call("long")
        await server.aclose()

    asyncio.run(talk())


def test_a_task_that_expires_while_it_runs_is_stopped() -> None:
    now = 0.0
    stopped = asyncio.Event()

    async def work(call: ToolCall) -> ToolResult:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()
        return text_result("never")

    async def talk() -> None:
        nonlocal now
        server = long_tool(work, clock=lambda: now)
        client = Conversation(server, capabilities=POLLS)
        await client.call("long")
        await asyncio.sleep(0)
        now = tasks.LIFETIME + 1
        await client.call("long")
        async with asyncio.timeout(5):
            await stopped.wait()
        await server.aclose()

    asyncio.run(talk())
