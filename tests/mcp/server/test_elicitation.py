"""A tool asks the person behind the client; each era carries the question its own way."""

import asyncio
from typing import Any

import pytest

from openclaw_mcp.core.model import LOCAL_CALLER, Caller, Json, ToolCall, ToolResult, form_request, text_result
from openclaw_mcp.mcp.server.request_state import LIFETIME, RequestStateSigner
from openclaw_mcp.protocol import jsonrpc
from openclaw_mcp.protocol.jsonrpc import JsonRpcError
from tests.conversation import Conversation, Tools, call_request, serving

ASKS: Json = {"elicitation": {}, "sampling": {}, "roots": {}}
NAME: Json = {"type": "object", "properties": {"name": {"type": "string"}}}


def accept(**content: Any) -> Json:
    return {"action": "accept", "content": content}


async def greet(call: ToolCall) -> ToolResult:
    first = await call.context.ask({"name": form_request("Your name?", NAME)})
    second = await call.context.ask({"town": form_request("Your town?", NAME)})
    return text_result(f"{first['name']['content']['name']} of {second['town']['content']['name']}")


def stateless(capabilities: Json = ASKS, caller: Caller = LOCAL_CALLER) -> Conversation:
    return Conversation(serving(Tools(greet=greet)), capabilities=capabilities, caller=caller)


async def ask_name(client: Conversation) -> Any:
    result = await client.call("greet")
    assert result["resultType"] == "input_required"
    return result


def test_a_tool_asks_in_rounds_and_the_state_remembers_earlier_answers() -> None:
    async def talk() -> Any:
        client = stateless()
        one = await ask_name(client)
        assert one["inputRequests"]["name"]["method"] == "elicitation/create"
        two = await client.call("greet", inputResponses={"name": accept(name="Ada")}, requestState=one["requestState"])
        assert two["inputRequests"].keys() == {"town"}
        return await client.call(
            "greet", inputResponses={"town": accept(name="Rome")}, requestState=two["requestState"]
        )

    assert asyncio.run(talk())["content"][0]["text"] == "Ada of Rome"


def test_an_answer_that_is_no_object_counts_as_not_given() -> None:
    async def talk() -> Any:
        return await stateless().call("greet", inputResponses={"name": 12345, "other": {}})

    assert asyncio.run(talk())["inputRequests"].keys() == {"name"}


def refused(change: Any) -> str:
    """The error of a repeated call, after `change` did something to its state or itself."""

    async def talk() -> str:
        client = stateless()
        state = (await ask_name(client))["requestState"]
        with pytest.raises(JsonRpcError) as error:
            await change(client, state)
        assert error.value.code == jsonrpc.INVALID_PARAMS
        return error.value.message

    return asyncio.run(talk())


def test_a_state_that_was_altered_is_refused() -> None:
    for altered in (
        lambda s: s + "0",
        lambda s: ("1" if s[0] == "0" else "0") + s[1:],
        lambda s: s[:-2] + ("00" if s.endswith("ff") else "ff"),
        lambda s: "",
        lambda s: 7,
    ):

        async def change(client: Conversation, state: str, altered: Any = altered) -> None:
            await client.call("greet", requestState=altered(state))

        assert "requestState" in refused(change)


@pytest.mark.parametrize(("size", "why"), [(1_048_576, "was altered"), (1_048_577, "must be the string")])
def test_a_state_longer_than_any_we_give_is_not_even_looked_at(size: int, why: str) -> None:
    async def long(client: Conversation, state: str) -> None:
        await client.call("greet", requestState=state.ljust(size, "0"))

    assert why in refused(long)


def test_a_state_is_good_once() -> None:
    async def twice(client: Conversation, state: str) -> None:
        await client.call("greet", requestState=state)
        await client.call("greet", requestState=state)

    assert "used already" in refused(twice)


def test_a_state_belongs_to_one_call() -> None:
    async def other(client: Conversation, state: str) -> None:
        await client.call("greet", {"changed": True}, requestState=state)

    assert "another call" in refused(other)


def test_a_state_belongs_to_one_caller() -> None:
    sealed = RequestStateSigner()
    state = sealed.issue_state(LOCAL_CALLER, call_request(name="greet"), {})

    with pytest.raises(JsonRpcError, match="another call"):
        sealed.verify_state(Caller(kind="agent", name="thief"), call_request(name="greet", requestState=state))


def test_a_state_expires() -> None:
    now = 0.0
    sealed = RequestStateSigner(clock=lambda: now)
    state = sealed.issue_state(LOCAL_CALLER, call_request(), {})
    now = LIFETIME

    with pytest.raises(JsonRpcError, match="expired"):
        sealed.verify_state(LOCAL_CALLER, call_request(requestState=state))


def test_a_client_that_can_not_be_asked_learns_what_to_declare() -> None:
    with pytest.raises(JsonRpcError) as error:
        asyncio.run(stateless(capabilities={}).call("greet"))

    assert error.value.code == -32021
    assert error.value.data == {"requiredCapabilities": {"elicitation": {}}}


def test_a_handshake_client_is_asked_while_the_call_waits() -> None:
    async def talk() -> Any:
        client = Conversation(
            serving(Tools(greet=greet)), stateless=False, capabilities={"elicitation": {}}, answers_us=True
        )
        call = asyncio.ensure_future(client.call("greet"))
        for name in ("Ada", "Rome"):
            question = (await client.wait_messages(1)).pop()
            assert question["method"] == "elicitation/create"
            assert "mode" not in question["params"]
            client.peer.handle_response(jsonrpc.JsonRpcResponse(question["id"], accept(name=name), None))
        return await call

    assert asyncio.run(talk())["content"][0]["text"] == "Ada of Rome"


def test_a_handshake_client_that_can_not_be_asked_gets_a_readable_result() -> None:
    client = Conversation(serving(Tools(greet=greet)), stateless=False)

    result = asyncio.run(client.call("greet"))

    assert result["isError"] is True
    assert "elicitation" in result["content"][0]["text"]


def test_a_handshake_client_that_refuses_the_question_fails_the_call() -> None:
    async def talk() -> Any:
        client = Conversation(
            serving(Tools(greet=greet)), stateless=False, capabilities={"elicitation": {}}, answers_us=True
        )
        call = asyncio.ensure_future(client.call("greet"))
        await client.wait_messages(1)
        client.peer.handle_response(
            jsonrpc.JsonRpcResponse(client.received[0]["id"], None, {"code": -1, "message": "no form here"})
        )
        return await call

    assert "no form here" in asyncio.run(talk())["content"][0]["text"]


def test_a_form_may_be_asked_of_an_old_client_and_a_url_only_of_one_that_says_so() -> None:
    supported: dict[str, bool] = {}

    async def work(call: ToolCall) -> ToolResult:
        supported["form"] = call.context.can_ask("elicitation", "form")
        supported["url"] = call.context.can_ask("elicitation", "url")
        return text_result("ok")

    asyncio.run(Conversation(serving(Tools(work=work)), capabilities={"elicitation": {}}).call("work"))
    assert supported == {"form": True, "url": False}
    asyncio.run(Conversation(serving(Tools(work=work)), capabilities={"elicitation": {"url": {}}}).call("work"))
    assert supported["url"] is True
