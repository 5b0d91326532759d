"""An answer counts with the state that asked for it: for that question, that call, that caller, once."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from openclaw_mcp.core.model import (
    LOCAL_CALLER,
    Caller,
    Grant,
    Json,
    ToolCall,
    ToolResult,
    ToolSpec,
    form_request,
    text_result,
)
from openclaw_mcp.mcp.server.request_state import LIFETIME, MAX_REMEMBERED, RequestStateSigner
from openclaw_mcp.mcp.server.server import McpServer
from openclaw_mcp.protocol import jsonrpc
from openclaw_mcp.protocol.jsonrpc import JsonRpcError
from tests.conversation import Conversation, Tools, call_request, serving

ASKS: Json = {"elicitation": {}}
POLLS: Json = {**ASKS, "extensions": {"io.modelcontextprotocol/tasks": {}}}
YES: Json = {"action": "accept", "content": {"allow": True}}
FORM: Json = {"type": "object", "properties": {"allow": {"type": "boolean"}}}
UNASKED_ANSWERS: Json = {"approve": YES, "approve-2": YES}


class Danger:
    """A server whose one tool acts after a yes, and what it did."""

    def __init__(self, *, rounds: int = 1, task: Any = "inline", **options: Any) -> None:
        self.done: list[Json] = []
        self.why = "no rule covers it"
        self._rounds = rounds
        tools = Tools()
        tools.add(ToolSpec(name="act", task=task), self._act)
        tools.add(ToolSpec(name="other", task=task), self._act)
        self.server: McpServer = serving(tools, **options)

    async def _act(self, call: ToolCall) -> ToolResult:
        for number in range(self._rounds):
            question = form_request(f"May {call.arguments} happen? ({self.why}, {number})", FORM)
            answer = (await call.context.ask({"approve": question}))["approve"]
            if answer.get("content") != {"allow": True}:
                return text_result("no", failed=True)
        self.done.append(call.arguments)
        return text_result("done")

    def client(self, capabilities: Json = ASKS, caller: Caller = LOCAL_CALLER) -> Conversation:
        return Conversation(self.server, capabilities=capabilities, caller=caller)

    async def state(self, **arguments: Any) -> str:
        result = await self.client().call("act", arguments)
        assert result["resultType"] == "input_required"
        return str(result["requestState"])


async def attempted(danger: Danger, *, caller: Caller = LOCAL_CALLER, tool: str = "act", **params: Any) -> str:
    """What became of a call with a yes: asked, refused, or done."""
    arguments = params.pop("arguments", {"x": 1})
    try:
        result = await danger.client(caller=caller).call(tool, arguments, **params)
    except JsonRpcError as exc:
        assert exc.code == jsonrpc.INVALID_PARAMS
        assert "requestState" in exc.message
        return "refused"
    return "asked" if result["resultType"] == "input_required" else "done"


# ---- what answers nothing ----

Attempt = Callable[[Danger], Coroutine[Any, Any, str]]


async def without_state(danger: Danger) -> str:
    return await attempted(danger, inputResponses={"approve": YES})


async def without_state_after_it_was_asked(danger: Danger) -> str:
    await danger.state(x=1)
    return await attempted(danger, inputResponses={"approve": YES})


async def with_an_empty_state(danger: Danger) -> str:
    return await attempted(danger, inputResponses={"approve": YES}, requestState="")


async def with_no_state_at_all(danger: Danger) -> str:
    return await attempted(danger, inputResponses={"approve": YES}, requestState=None)


async def with_a_made_up_state(danger: Danger) -> str:
    return await attempted(danger, inputResponses={"approve": YES}, requestState=f"{'0' * 64}.{b'[]'.hex()}")


async def with_a_state_in_odd_letters(danger: Danger) -> str:
    return await attempted(danger, inputResponses={"approve": YES}, requestState="é\ud800.zz")


async def with_anothers_arguments(danger: Danger) -> str:
    state = await danger.state(x=2)
    return await attempted(danger, inputResponses={"approve": YES}, requestState=state)


async def with_anothers_tool(danger: Danger) -> str:
    state = await danger.state(x=1)
    return await attempted(danger, tool="other", inputResponses={"approve": YES}, requestState=state)


def by(caller: Caller) -> Attempt:
    async def attempt(danger: Danger) -> str:
        state = await danger.state(x=1)
        return await attempted(danger, caller=caller, inputResponses={"approve": YES}, requestState=state)

    return attempt


async def of_another_server(danger: Danger) -> str:
    state = await Danger().state(x=1)
    return await attempted(danger, inputResponses={"approve": YES}, requestState=state)


async def with_another_method(danger: Danger) -> str:
    state = await danger.state(x=1)
    with pytest.raises(JsonRpcError, match="another call"):
        await danger.client().ask("tools/list", {"requestState": state, "inputResponses": {"approve": YES}})
    return "refused"


async def to_a_question_that_reads_otherwise_now(danger: Danger) -> str:
    state = await danger.state(x=1)
    danger.why = "the rule prompt 'act *' covers it"
    return await attempted(danger, inputResponses={"approve": YES}, requestState=state)


def answering(responses: Any) -> Attempt:
    async def attempt(danger: Danger) -> str:
        state = await danger.state(x=1)
        return await attempted(danger, inputResponses=responses, requestState=state)

    return attempt


async def nothing_with_a_state(danger: Danger) -> str:
    return await attempted(danger, requestState=await danger.state(x=1))


AGENT = Caller(kind="agent", name="mcp", scopes=LOCAL_CALLER.scopes, session="agent:main:one")
NO_ANSWERS: dict[str, tuple[Attempt, str]] = {
    "no state": (without_state, "asked"),
    "no state, though it was asked before": (without_state_after_it_was_asked, "asked"),
    "an empty state": (with_an_empty_state, "refused"),
    "a state that is null": (with_no_state_at_all, "refused"),
    "a made-up state": (with_a_made_up_state, "refused"),
    "a state in odd letters": (with_a_state_in_odd_letters, "refused"),
    "the state of other arguments": (with_anothers_arguments, "refused"),
    "the state of another tool": (with_anothers_tool, "refused"),
    "the state of another server, or of this one before it started anew": (of_another_server, "refused"),
    "the state with another method": (with_another_method, "refused"),
    "another name": (by(Caller(kind="local", name="thief", scopes=LOCAL_CALLER.scopes)), "refused"),
    "another kind": (by(Caller(kind="agent", name=LOCAL_CALLER.name, scopes=LOCAL_CALLER.scopes)), "refused"),
    "another session": (
        by(Caller(kind="local", name=LOCAL_CALLER.name, scopes=LOCAL_CALLER.scopes, session="s")),
        "refused",
    ),
    "fewer rights": (by(Caller(kind="local", name=LOCAL_CALLER.name)), "refused"),
    "another entry point": (
        by(Caller(kind="local", name=LOCAL_CALLER.name, scopes=LOCAL_CALLER.scopes, entry_point="agent")),
        "refused",
    ),
    "a run's grant": (
        by(Caller(kind="local", name=LOCAL_CALLER.name, scopes=LOCAL_CALLER.scopes, grant=Grant())),
        "refused",
    ),
    "a question whose text has changed since": (to_a_question_that_reads_otherwise_now, "asked"),
    "no answer": (nothing_with_a_state, "asked"),
    "an answer under another key": (answering({"approve-exec": YES}), "asked"),
    "an answer to a question not asked yet": (answering({"approve-2": YES}), "asked"),
    "answers that are a list": (answering([YES]), "asked"),
    "answers that are null": (answering(None), "asked"),
    "an answer that is a list": (answering({"approve": [YES]}), "asked"),
    "an answer that is text": (answering({"approve": "accept"}), "asked"),
    "an answer that is true": (answering({"approve": True}), "asked"),
}


@pytest.mark.parametrize("attempt", NO_ANSWERS)
def test_what_answers_no_question_runs_nothing(attempt: str) -> None:
    danger, (make, outcome) = Danger(), NO_ANSWERS[attempt]

    assert asyncio.run(make(danger)) == outcome
    assert danger.done == []


def test_an_answer_with_the_state_that_asked_for_it_counts() -> None:
    danger = Danger()

    assert asyncio.run(answering({"approve": YES, "more": YES})(danger)) == "done"
    assert danger.done == [{"x": 1}]


@pytest.mark.parametrize("caller", [LOCAL_CALLER, AGENT])
def test_each_of_two_rounds_is_answered_by_itself(caller: Caller) -> None:
    danger = Danger(rounds=2)

    async def talk() -> None:
        client = danger.client(caller=caller)
        one = await client.call("act", {"x": 1})
        two = await client.call("act", {"x": 1}, inputResponses=UNASKED_ANSWERS, requestState=one["requestState"])
        assert list(two["inputRequests"]) == ["approve-2"]
        assert danger.done == []
        last = await client.call("act", {"x": 1}, inputResponses={"approve-2": YES}, requestState=two["requestState"])
        assert last["resultType"] == "complete"

    asyncio.run(talk())
    assert danger.done == [{"x": 1}]


def test_an_earlier_answer_is_asked_for_again_when_its_question_has_changed() -> None:
    danger = Danger(rounds=2)

    async def talk() -> Any:
        client = danger.client()
        one = await client.call("act")
        two = await client.call("act", inputResponses={"approve": YES}, requestState=one["requestState"])
        danger.why = "the rules are others now"
        return await client.call("act", inputResponses={"approve-2": YES}, requestState=two["requestState"])

    assert list(asyncio.run(talk())["inputRequests"]) == ["approve"]
    assert danger.done == []


# ---- once ----


def test_a_state_is_good_once_however_many_send_it_at_the_same_time() -> None:
    danger = Danger()

    async def talk() -> list[str]:
        state = await danger.state(x=1)
        return await asyncio.gather(
            *(attempted(danger, inputResponses={"approve": YES}, requestState=state) for _ in range(20))
        )

    assert sorted(asyncio.run(talk())) == ["done"] + ["refused"] * 19
    assert danger.done == [{"x": 1}]


def test_servers_that_share_a_seal_serve_each_others_repeats_once() -> None:
    seal = RequestStateSigner()
    one, two = Danger(state_signer=seal), Danger(state_signer=seal)

    async def talk() -> list[str]:
        state = await one.state(x=1)
        return [await attempted(each, inputResponses={"approve": YES}, requestState=state) for each in (two, one, two)]

    assert asyncio.run(talk()) == ["done", "refused", "refused"]
    assert (one.done, two.done) == ([], [{"x": 1}])


def test_a_memory_full_of_used_states_refuses_until_they_expire_and_lets_none_be_used_twice() -> None:
    now = 0.0
    seal = RequestStateSigner(clock=lambda: now)
    states = [seal.issue_state(LOCAL_CALLER, call_request(), {}) for _ in range(20_001)]
    assert MAX_REMEMBERED == 20_000
    for state in states[:-1]:
        seal.verify_state(LOCAL_CALLER, call_request(requestState=state))

    for again in (states[-1], states[-1]):
        with pytest.raises(JsonRpcError, match="Too many questions"):
            seal.verify_state(LOCAL_CALLER, call_request(requestState=again))
    with pytest.raises(JsonRpcError, match="used already"):
        seal.verify_state(LOCAL_CALLER, call_request(requestState=states[0]))
    now = LIFETIME - 1
    with pytest.raises(JsonRpcError, match="Too many questions"):
        seal.verify_state(LOCAL_CALLER, call_request(requestState=states[-1]))
    late = seal.issue_state(LOCAL_CALLER, call_request(), {})
    now = LIFETIME
    seal.verify_state(LOCAL_CALLER, call_request(requestState=late))
    for spent in (states[0], states[-1], late):
        with pytest.raises(JsonRpcError, match="expired or was used"):
            seal.verify_state(LOCAL_CALLER, call_request(requestState=spent))


@pytest.mark.parametrize(("seconds", "outcome"), [(899.9, "done"), (900.0, "refused"), (901.0, "refused")])
def test_a_person_has_fifteen_minutes_to_answer(seconds: float, outcome: str) -> None:
    now = 0.0
    danger = Danger(clock=lambda: now)

    async def talk() -> str:
        nonlocal now
        state = await danger.state(x=1)
        now = seconds
        return await attempted(danger, inputResponses={"approve": YES}, requestState=state)

    assert asyncio.run(talk()) == outcome


# ---- tasks ----


def test_a_task_does_not_take_answers_its_call_came_with() -> None:
    danger = Danger(task="offered")

    async def talk() -> Any:
        client = danger.client(POLLS)
        task = await client.call("act", {"x": 1}, inputResponses=UNASKED_ANSWERS)
        return await settled(client, task["taskId"])

    assert asyncio.run(talk())["status"] == "input_required"
    assert danger.done == []


def test_a_tasks_question_is_answered_by_who_has_seen_it_and_not_before() -> None:
    danger = Danger(task="offered", rounds=2)

    async def talk() -> Any:
        client = danger.client(POLLS)
        id = (await client.call("act", {"x": 1}))["taskId"]
        answer = {"taskId": id, "inputResponses": UNASKED_ANSWERS}
        for _ in range(3):  # before it is asked, and after, but unseen
            await client.ask("tasks/update", answer)
            await asyncio.sleep(0)
        assert list((await settled(client, id))["inputRequests"]) == ["approve"]
        await client.ask("tasks/update", answer)
        await asyncio.sleep(0)
        await client.ask("tasks/update", answer)
        assert list((await settled(client, id))["inputRequests"]) == ["approve-2"]
        assert danger.done == []
        await client.ask("tasks/update", answer)
        return await settled(client, id)

    assert asyncio.run(talk())["status"] == "completed"
    assert danger.done == [{"x": 1}]


OTHERS = [
    Caller(kind="local", name="thief", scopes=LOCAL_CALLER.scopes),
    Caller(kind="agent", name=LOCAL_CALLER.name, scopes=LOCAL_CALLER.scopes),
    Caller(kind="local", name=LOCAL_CALLER.name, scopes=LOCAL_CALLER.scopes, session="s"),
    Caller(kind="local", name=LOCAL_CALLER.name, scopes=LOCAL_CALLER.scopes, grant=Grant()),
    Caller(kind="local", name=LOCAL_CALLER.name),
]


@pytest.mark.parametrize("other", OTHERS, ids=["name", "kind", "session", "grant", "scopes"])
@pytest.mark.parametrize("method", ["tasks/get", "tasks/update", "tasks/cancel"])
def test_a_task_is_its_callers_alone(method: str, other: Caller) -> None:
    danger = Danger(task="offered")

    async def talk() -> None:
        mine, theirs = danger.client(POLLS), danger.client(POLLS, caller=other)
        id = (await mine.call("act", {"x": 1}))["taskId"]
        await settled(mine, id)
        with pytest.raises(JsonRpcError, match="no task of yours"):
            await theirs.ask(method, {"taskId": id, "inputResponses": {"approve": YES}})
        assert (await settled(mine, id))["status"] == "input_required"
        await danger.server.aclose()

    asyncio.run(talk())
    assert danger.done == []


async def settled(client: Conversation, id: str) -> Any:
    """The task, once it is no longer at work."""
    for _ in range(1000):
        task = await client.ask("tasks/get", {"taskId": id})
        if task["status"] != "working":
            return task
        await asyncio.sleep(0)
    raise AssertionError(f"still {task}")


# ---- the handshake era ----


@pytest.mark.parametrize("guess", [0, 1, 2, "1", 1.0, True, None, [1], {"id": 1}, 0x5EED_5EED_5EED])
def test_a_response_to_an_unread_question_is_dropped(guess: Any) -> None:
    danger = Danger()

    async def talk() -> None:
        client = Conversation(danger.server, stateless=False, capabilities=ASKS, answers_us=True)
        client.peer.handle_response(jsonrpc.JsonRpcResponse(guess, YES, None))
        calling = asyncio.ensure_future(client.call("act", {"x": 1}))
        question = (await client.wait_messages(1))[0]
        client.peer.handle_response(jsonrpc.JsonRpcResponse(guess, YES, None))
        await asyncio.sleep(0)
        assert not calling.done()
        other = Conversation(danger.server, stateless=False, capabilities=ASKS, answers_us=True)
        other.peer.handle_response(jsonrpc.JsonRpcResponse(question["id"], YES, None))
        await asyncio.sleep(0)
        assert not calling.done()
        client.peer.handle_response(jsonrpc.JsonRpcResponse(question["id"], {"action": "decline"}, None))
        client.peer.handle_response(jsonrpc.JsonRpcResponse(question["id"], YES, None))
        assert (await calling)["isError"] is True

    asyncio.run(talk())
    assert danger.done == []
