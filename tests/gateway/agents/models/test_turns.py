"""A model answers: streaming, thinking, tools one by one and together, images both ways, what it remembers."""

import asyncio
import base64
import json
from typing import Any

import pytest

from openclaw_mcp.core.agent import (
    AgentEvent,
    Attachment,
    ModelSelected,
    PartialAnswer,
    ThinkingText,
    ToolOutcome,
    ToolUpdate,
    ToolUse,
    TurnCompleted,
    Usage,
)
from openclaw_mcp.core.errors import ToolDenied
from openclaw_mcp.core.model import Image, Json, Text, ToolCall, ToolResult, ToolSpec, text_result
from openclaw_mcp.gateway.agents.models import history
from openclaw_mcp.gateway.agents.models.event_stream import EmitEvent, stream_events

from ....conversation import Tools
from .conversations import APIS, KEY, Agent, answered, run
from .fake import FakeModel, Step, call, say

PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)

both = pytest.mark.parametrize("api", APIS)


async def echo(call: ToolCall) -> ToolResult:
    return text_result(f"echo {call.arguments.get('text')}")


def sent_texts(body: Json) -> str:
    return json.dumps(body["messages"])


@both
def test_an_answer_streams_and_adds_up(api: str) -> None:
    async def scenario() -> None:
        with FakeModel(Step(say="Hello there, person.", think="Let me see.", slow=0.02, usage=(50, 7, 20))) as model:
            agent = Agent(api, model)
            end = await answered(agent)
        assert end.text == agent.text == "Hello there, person."
        assert len(agent.all(PartialAnswer)) > 1
        assert "".join(thought.text for thought in agent.all(ThinkingText)) == "Let me see."
        assert agent.all(ModelSelected) == [ModelSelected("fake", "m")]
        assert end.usage is not None
        assert (end.usage.output, end.usage.cache_read) == (7, 20)
        assert model.requests[0].key == KEY
        assert model.requests[0].body["stream"] is True

    run(scenario())


@both
def test_a_tool_is_called_as_the_agent_and_its_result_read(api: str) -> None:
    async def scenario() -> None:
        with FakeModel(Step(say="I look.", calls=(("echo", {"text": "hi"}),)), say("It said hi.")) as model:
            agent = Agent(api, model, tools=Tools(echo=echo))
            end = await answered(agent)
        assert end.text == "I look.\n\nIt said hi."
        (use,), (outcome,) = agent.all(ToolUse), agent.all(ToolOutcome)
        assert (use.name, use.arguments) == ("echo", {"text": "hi"})
        assert outcome == ToolOutcome(use.id, "echo", ({"type": "text", "text": "echo hi"},), False)
        assert "echo hi" in sent_texts(model.requests[1].body)
        assert agent.all(Usage)[-1].output == 20  # both answers

    run(scenario())


@both
def test_calls_of_one_answer_go_together(api: str) -> None:
    async def scenario() -> None:
        arrived = asyncio.Barrier(3)

        async def meet(call: ToolCall) -> ToolResult:
            async with asyncio.timeout(10):
                await arrived.wait()  # no call gets past it alone
            return text_result(f"met {call.arguments['who']}")

        calls = tuple(("meet", {"who": who}) for who in ("ann", "bob", "cid"))
        with FakeModel(Step(calls=calls), say("All met.")) as model:
            agent = Agent(api, model, tools=Tools(meet=meet))
            await answered(agent)
        assert len(agent.all(ToolOutcome)) == 3
        sent = sent_texts(model.requests[1].body)
        assert sent.index("met ann") < sent.index("met bob") < sent.index("met cid")

    run(scenario())


@both
def test_names_no_api_takes_are_mapped_both_ways(api: str) -> None:
    names = ["files.read", "files/read", "files_read", "ü" * 3, "x" * 80]

    async def scenario() -> None:
        tools = Tools()
        for name in names:
            tools.add(ToolSpec(name=name), lambda call: _echo_text(call.name))
        with FakeModel(_each_tool, say("done")) as model:
            agent = Agent(api, model, tools=tools)
            await answered(agent)
        assert sorted(use.name for use in agent.all(ToolUse)) == sorted(names)
        assert {o.content[0]["text"] for o in agent.all(ToolOutcome)} == set(names)

    run(scenario())


async def _echo_text(text: str) -> ToolResult:
    return text_result(text)


def _each_tool(request: Any) -> Step:
    names = [tool.get("name") or tool["function"]["name"] for tool in request.body["tools"]]
    assert all(len(name) <= 64 and name.replace("-", "_").isidentifier() for name in names)
    assert len(set(names)) == len(names)
    return Step(calls=tuple((name, {}) for name in names))


@both
def test_a_tool_that_fails_is_reported_to_the_model(api: str) -> None:
    async def deny(call: ToolCall) -> ToolResult:
        raise ToolDenied("the house rules say no")

    async def bug(call: ToolCall) -> ToolResult:
        raise ZeroDivisionError

    async def scenario() -> None:
        calls: tuple[tuple[str, Any], ...] = (("deny", {}), ("bug", {}), ("nowhere", {}), ("deny", "[1"))
        with FakeModel(Step(calls=calls), say("I see.")) as model:
            agent = Agent(api, model, tools=Tools(deny=deny, bug=bug))
            end = await answered(agent)
        assert end.text == "I see."
        assert all(outcome.failed for outcome in agent.all(ToolOutcome))
        sent = sent_texts(model.requests[1].body)
        for words in ("house rules say no", "an internal error", "nowhere", "not a JSON object"):
            assert words in sent
        assert "ZeroDivisionError" not in sent

    run(scenario())


@both
def test_a_tools_progress_is_reported_while_it_works(api: str) -> None:
    async def dig(call: ToolCall) -> ToolResult:
        await call.context.progress(1, total=2, message="half way")
        assert not call.context.can_ask("elicitation")
        return text_result("dug")

    async def scenario() -> None:
        with FakeModel(call("dig"), say("ok")) as model:
            agent = Agent(api, model, tools=Tools(dig=dig))
            await answered(agent)
        (update,) = agent.all(ToolUpdate)
        assert update.content == ({"type": "text", "text": "half way"},)
        assert agent.events.index(update) < agent.events.index(agent.all(ToolOutcome)[0])

    run(scenario())


@both
def test_images_go_in_with_the_message_and_with_results(api: str) -> None:
    async def look(call: ToolCall) -> ToolResult:
        return ToolResult((Text("here"), Image(PIXEL, "image/png")))

    async def scenario() -> None:
        with FakeModel(call("look"), say("A pixel.")) as model:
            agent = Agent(api, model, tools=Tools(look=look))
            film = Attachment(mime_type="video/mp4", name="film.mp4", data=b"frames")
            await answered(agent, attachments=(Attachment(mime_type="image/png", data=PIXEL), film))
        encoded = base64.b64encode(PIXEL).decode()
        first, second = (sent_texts(request.body) for request in model.requests)
        assert first.count(encoded) == 1
        assert "[attached: film.mp4, video/mp4, 6 bytes]" in first
        assert second.count(encoded) == 2
        if api == "anthropic":
            result = model.requests[1].body["messages"][-1]["content"][0]
            assert result["type"] == "tool_result"
            assert result["content"][1]["source"]["data"] == encoded
        else:
            assert model.requests[1].body["messages"][-1]["content"][1]["type"] == "image_url"

    run(scenario())


@both
def test_a_model_that_sees_nothing_is_sent_no_image(api: str) -> None:
    async def scenario() -> None:
        with FakeModel(say("ok")) as model:
            agent = Agent(api, model, models=[{"id": "m", "input": ["text"]}])
            await answered(agent, attachments=(Attachment(mime_type="image/png", data=PIXEL),))
        sent = sent_texts(model.requests[0].body)
        assert base64.b64encode(PIXEL).decode() not in sent
        assert "does not see images" in sent

    run(scenario())


@both
def test_earlier_turns_are_recalled_with_their_tools(api: str) -> None:
    tool_call = {
        "role": "assistant",
        "content": [{"type": "toolCall", "id": "c1", "name": "a.b", "arguments": {"x": 1}}],
    }
    result = {"role": "toolResult", "toolCallId": "c1", "content": [{"type": "text", "text": "42"}], "isError": False}
    answer = {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "six"}]}
    turns = [{"role": "user", "content": "what?"}, tool_call, result, answer]
    lost = {"role": "toolResult", "toolCallId": "gone", "content": [], "isError": False}

    async def scenario() -> None:
        with FakeModel(say("ok")) as model:
            await answered(Agent(api, model), "and now?", recall=[lost, *turns, *turns])
        messages = model.requests[0].body["messages"]
        sent = json.dumps(messages)
        assert "and now?" in json.dumps(messages[-1])
        assert sent.count('"42"') == 2
        assert "hm" not in sent
        assert "gone" not in sent
        if api == "openai":
            roles = [message["role"] for message in messages]
            assert roles == [*["user", "assistant", "tool", "assistant"] * 2, "user"]
            ids = [message["tool_call_id"] for message in messages if message["role"] == "tool"]
            assert len(set(ids)) == 2
        else:
            assert [message["role"] for message in messages[:4]] == ["user", "assistant", "user", "assistant"]

    run(scenario())


def test_thoughts_go_back_to_the_model_they_came_from() -> None:
    async def scenario() -> None:
        steps = (Step(think="deep", calls=(("echo", {}),)), say("ok"))
        with FakeModel(*steps) as model:
            agent = Agent("anthropic", model, tools=Tools(echo=echo), models=[{"id": "m", "reasoning": True}])
            await answered(agent, thinking="high")
        assert model.requests[0].body["thinking"]["budget_tokens"] == 16384
        assert model.requests[0].body["max_tokens"] > 16384
        thought = model.requests[1].body["messages"][1]["content"][0]
        assert thought == {"type": "thinking", "thinking": "deep", "signature": "signed"}

    run(scenario())


@both
def test_the_agent_is_reported_who_it_is(api: str, tmp_path: Any) -> None:
    (tmp_path / "AGENTS.md").write_text("Be brief.")

    async def scenario() -> None:
        with FakeModel(say("ok")) as model:
            agent = Agent(api, model, settings={"systemPrompt": "You are Ada."})
            await answered(agent, system_prompt="Speak French.", cwd=str(tmp_path))
        body = model.requests[0].body
        system = body["system"][0]["text"] if api == "anthropic" else body["messages"][0]["content"]
        for words in ("You are Ada.", "Speak French.", str(tmp_path), "Be brief."):
            assert words in system

    run(scenario())


@both
def test_what_a_workspace_tells_its_agent_lies_in_the_workspace(api: str, tmp_path: Any) -> None:
    """A repository from another person may hold a link to any file of this machine."""
    work = tmp_path / "work"
    work.mkdir()
    (tmp_path / "token.txt").write_text("a secret")
    (work / "CLAUDE.md").write_text("Be brief.")

    async def received(target: str) -> str:
        (work / "AGENTS.md").unlink(missing_ok=True)
        (work / "AGENTS.md").symlink_to(target)
        with FakeModel(say("ok")) as model:
            await answered(Agent(api, model), cwd=str(work))
        return json.dumps(model.requests[0].body)

    async def scenario() -> None:
        assert "Be brief." in await received("CLAUDE.md")
        for target in ("../token.txt", str(tmp_path / "token.txt"), "/proc/self/environ"):
            words = await received(target)
            assert "a secret" not in words
            assert "AGENTS.md" not in words

    run(scenario())


@both
def test_costs_are_added_up(api: str) -> None:
    async def scenario() -> None:
        cost = {"input": 10, "output": 100, "cacheRead": 1, "cacheWrite": 0}
        with FakeModel(Step(say="ok", usage=(1000, 100, 0))) as model:
            end = await answered(Agent(api, model, models=[{"id": "m", "cost": cost}]))
        assert end.usage is not None
        assert end.usage.cost_usd == pytest.approx(0.02)

    run(scenario())


def test_a_server_that_does_not_stream_is_understood() -> None:
    async def scenario() -> None:
        steps = (Step(whole=True, calls=(("echo", {"text": "x"}),)), Step(whole=True, say="done"))
        with FakeModel(*steps) as model:
            end = await answered(Agent("openai", model, tools=Tools(echo=echo)))
        assert end.text == "done"

    run(scenario())


@both
def test_an_answer_cut_by_its_length_says_so(api: str) -> None:
    async def scenario() -> None:
        with FakeModel(say("half", stop="length" if api == "openai" else "max_tokens")) as model:
            end = await answered(Agent(api, model))
        assert (end.text, end.stop_reason) == ("half", "length")

    run(scenario())


def test_calls_that_share_an_id_are_reported_apart() -> None:
    async def scenario() -> None:
        with FakeModel(Step(whole=True, calls=(("echo", {"text": "1"}),)), _again, say("ok")) as model:
            agent = Agent("openai", model, tools=Tools(echo=echo))
            await answered(agent)
        ids = [message["tool_call_id"] for message in model.requests[-1].body["messages"] if message["role"] == "tool"]
        assert len(set(ids)) == 2
        assert [use.id for use in agent.all(ToolUse)] == ids

    run(scenario())


def _again(request: Any) -> Step:
    return Step(whole=True, calls=(("echo", {"text": "2"}),))


def test_arguments_no_one_can_read_are_not_sent_back() -> None:
    async def scenario() -> None:
        with FakeModel(Step(calls=(("echo", '{"text": '),)), say("ok")) as model:
            await answered(Agent("openai", model, tools=Tools(echo=echo)))
        (written,) = model.requests[1].body["messages"][1]["tool_calls"]
        assert written["function"]["arguments"] == "{}"

    run(scenario())


@both
def test_only_the_latest_pictures_are_shown_again(api: str) -> None:
    encoded = base64.b64encode(PIXEL).decode()
    past: list[Json] = [{"role": "user", "content": "look"}]
    for n in range(history.RECENT_IMAGES + 3):
        use = {"type": "toolCall", "id": f"c{n}", "name": "look", "arguments": {}}
        picture = {"type": "image", "mimeType": "image/png", "data": encoded}
        past.append({"role": "assistant", "content": [use]})
        past.append({"role": "toolResult", "toolCallId": f"c{n}", "content": [picture], "isError": False})

    async def scenario() -> None:
        with FakeModel(say("ok")) as model:
            await answered(Agent(api, model), recall=past)
        sent = sent_texts(model.requests[0].body)
        assert sent.count(encoded) == history.RECENT_IMAGES
        assert sent.count("an image, shown then") == 3

    run(scenario())


def test_a_slow_reader_gets_fewer_and_longer_pieces() -> None:
    async def scenario() -> None:
        async def work(tell: EmitEvent) -> AgentEvent:
            for event in (
                PartialAnswer("a", replace=True),
                PartialAnswer("b"),
                ThinkingText("c"),
                ThinkingText("d"),
                PartialAnswer("e"),
            ):
                tell(event)
            return TurnCompleted()

        assert [event async for event in stream_events(work)] == [
            PartialAnswer("ab", replace=True), ThinkingText("cd"), PartialAnswer("e"), TurnCompleted(),
        ]  # fmt: skip

    run(scenario())
