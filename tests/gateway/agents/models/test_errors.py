"""What goes wrong with a model: keys, limits of rate, servers that fail, streams that break, windows that overflow."""

import asyncio
import json
import logging
import os
import socket
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest

from openclaw_mcp.core.agent import ModelSelected, Notice, PartialAnswer, ToolOutcome, ToolUse, TurnCompleted
from openclaw_mcp.core.config.config import read_config
from openclaw_mcp.core.model import Json, ToolCall, ToolResult, text_result
from openclaw_mcp.gateway.agents.models import api_keys, history
from openclaw_mcp.gateway.agents.models.errors import ModelError, error_from_response, error_from_stream, retry_after
from openclaw_mcp.gateway.agents.models.settings import KeySource, read_providers

from ....conversation import Tools
from ....programs import need
from .conversations import APIS, KEY, WAIT, Agent, answered, failed, provider, run
from .fake import FakeModel, Request, Step, call, say

both = pytest.mark.parametrize("api", APIS)
ONCE: Json = {"limits": {"retries": 1}}
OVERFLOW = "This model's maximum context length is 8192 tokens"


@both
def test_a_refused_key_is_said_and_never_shown(api: str, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        with FakeModel(keys=("another",)) as model, caplog.at_level(logging.DEBUG):
            end = await failed(Agent(api, model))
        assert len(model.requests) == 1  # the same key again would not help
        assert "its key is refused or not set" in end.message
        assert end.detail == {"provider": "fake", "model": "m", "failoverReason": "auth"}
        assert KEY not in end.message
        assert KEY not in caplog.text

    run(scenario())


@both
def test_keys_take_turns_and_the_good_one_stays(api: str) -> None:
    async def scenario() -> None:
        with FakeModel(keys=("good",)) as model:
            agent = Agent(api, model, apiKey=["bad1", "bad2", "good"])
            for _ in range(2):
                assert isinstance(await agent.ask(), TurnCompleted)
            await agent.clients.aclose()
        assert [request.key for request in model.requests] == ["bad1", "bad2", "good", "good"]

    run(scenario())


@both
def test_a_busy_key_makes_way_for_the_next(api: str) -> None:
    async def scenario() -> None:
        limited = Step(status=429, headers={"retry-after": "50"})
        with FakeModel(lambda request: limited if request.key == "tired" else say("ok")) as model:
            end = await answered(Agent(api, model, apiKey=["tired", "fresh"]))
        assert end.text == "ok"
        assert [request.key for request in model.requests] == ["tired", "fresh"]

    run(scenario())


@both
def test_the_wait_a_provider_asks_for_is_kept(api: str) -> None:
    async def scenario() -> None:
        clock = asyncio.get_running_loop().time
        with FakeModel(Step(status=429, headers={"retry-after-ms": "300"}), say("ok")) as model:
            start = clock()
            end = await answered(Agent(api, model))
        assert end.text == "ok"
        assert clock() - start >= 0.3

    run(scenario())


@both
def test_a_wait_too_long_is_an_answer_of_its_own(api: str) -> None:
    async def scenario() -> None:
        with FakeModel(Step(status=429, headers={"retry-after": "86400"}, error="slow down")) as model:
            end = await failed(Agent(api, model))
        assert len(model.requests) == 1
        assert end.kind == "rate_limit"
        assert "slow down" in end.message

    run(scenario())


@both
@pytest.mark.parametrize("first", [Step(status=500), Step(status=529), Step(say="half of it, cut", drop=True)])
def test_trouble_that_passes_is_tried_again(api: str, first: Step) -> None:
    async def scenario() -> None:
        with FakeModel(first, say("whole")) as model:
            agent = Agent(api, model)
            end = await answered(agent)
        assert end.text == agent.text == "whole"  # what the broken try said is void
        assert len(model.requests) == 2

    run(scenario())


@both
@pytest.mark.parametrize("step", [Step(status=503), Step(say="on and on", drop=True), Step(broken="overloaded_error")])
def test_trouble_that_stays_ends_after_the_retries(api: str, step: Step) -> None:
    async def scenario() -> None:
        with FakeModel(step) as model:
            end = await failed(Agent(api, model, settings=ONCE))
        assert len(model.requests) == 2
        assert end.message.startswith("The model fake/m did not answer:")

    run(scenario())


@both
def test_a_refused_request_is_called_refused(api: str) -> None:
    async def talk() -> None:
        with FakeModel(Step(status=400, error="no such option")) as model:
            end = await failed(Agent(api, model))
        assert end.message == "The provider of fake/m refused the request: no such option"

    run(talk())


@both
def test_tools_used_before_a_break_are_not_used_again(api: str) -> None:
    used: list[Any] = []

    async def pay(call: ToolCall) -> ToolResult:
        used.append(call.arguments)
        return text_result("paid")

    async def scenario() -> None:
        steps = (call("pay", euros=5), Step(status=500), Step(say="it is pai", drop=True), say("Paid."))
        with FakeModel(*steps) as model:
            end = await answered(Agent(api, model, tools=Tools(pay=pay)))
        assert end.text == "Paid."
        assert used == [{"euros": 5}]

    run(scenario())


@both
def test_a_call_that_broke_off_is_never_made(api: str) -> None:
    async def pay(call: ToolCall) -> ToolResult:
        raise AssertionError("half a call")

    async def scenario() -> None:
        with FakeModel(Step(calls=(("pay", {"euros": 100000}),), drop=True), say("ok")) as model:
            agent = Agent(api, model, tools=Tools(pay=pay))
            await answered(agent)
        assert not agent.all(ToolUse)

    run(scenario())


@both
def test_another_model_answers_when_the_first_can_not(api: str) -> None:
    async def scenario() -> None:
        other = "anthropic" if api == "openai" else "openai"
        with FakeModel(Step(status=401)) as dead, FakeModel(call("go"), say("Here.")) as alive:
            config = {"models": {"providers": {"dead": provider(api, dead), "alive": provider(other, alive)}}}
            chosen = {"model": {"primary": "dead/x", "fallbacks": ["alive/y"]}}
            agent = Agent(api, config=config, settings=chosen, tools=Tools(go=lambda call: _went()))
            end = await answered(agent)
        assert end.text == "Here."
        assert agent.all(ModelSelected) == [ModelSelected("dead", "x"), ModelSelected("alive", "y")]
        assert (len(dead.requests), len(alive.requests)) == (1, 2)  # the rest of the turn stays with it

    run(scenario())


def test_another_model_is_sooner_than_a_long_wait() -> None:
    async def scenario() -> None:
        limited = Step(status=429, headers={"retry-after": "40"})
        with FakeModel(lambda request: limited if request.body["model"] == "x" else say("Here.")) as model:
            agent = Agent("openai", model, settings={"model": {"primary": "fake/x", "fallbacks": ["fake/y"]}})
            end = await answered(agent)
        assert end.text == "Here."
        assert [request.body["model"] for request in model.requests] == ["x", "y"]

    run(scenario())


async def _went() -> ToolResult:
    return text_result("went")


@both
def test_a_request_the_provider_can_not_read_is_not_repeated(api: str) -> None:
    async def scenario() -> None:
        with FakeModel(Step(status=400, error="messages.0: bad")) as model:
            end = await failed(Agent(api, model))
        assert len(model.requests) == 1
        assert "messages.0: bad" in end.message

    run(scenario())


@both
def test_a_refusal_is_one(api: str) -> None:
    async def scenario() -> None:
        with FakeModel(say("no", stop="content_filter" if api == "openai" else "refusal")) as model:
            assert (await failed(Agent(api, model))).kind == "refusal"

    run(scenario())


@both
def test_a_model_that_says_nothing_is_given_up_on(api: str) -> None:
    async def scenario() -> None:
        with FakeModel(Step(hang=WAIT)) as model:
            end = await failed(Agent(api, model, settings={"limits": {"retries": 0}}, timeoutSeconds=0.2))
        assert "sent nothing for 0.2 s" in end.message

    run(scenario())


def test_no_server_at_the_address() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        place = f"http://127.0.0.1:{unused.getsockname()[1]}/v1"

    async def scenario() -> None:
        config = {"models": {"providers": {"fake": {"baseUrl": place}}}}
        end = await failed(Agent("openai", config=config, settings={"limits": {"retries": 0}}))
        assert f"no server answers at {place}" in end.message

    run(scenario())


# ---- limits ----------------------------------------------------------------------------------------------------------


@both
@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ({"modelCalls": 5}, "asked the model 5 times without coming to an end in one run; raise limits.modelCalls"),
        ({"toolCalls": 5}, "called tools more than 5 times in one run; raise limits.toolCalls"),
        ({"tokens": 500}, "used 550 tokens in one run; raise limits.tokens"),
    ],
)
def test_an_endless_loop_of_tools_is_stopped_with_a_sentence(api: str, limits: Json, words: str) -> None:
    async def scenario() -> None:
        with FakeModel(call("go")) as model:
            agent = Agent(api, model, settings={"limits": limits}, tools=Tools(go=lambda call: _went()))
            end = await failed(agent)
        assert words in end.message
        assert len(model.requests) <= 6

    run(scenario())


@both
def test_only_so_many_tools_go_at_once(api: str) -> None:
    going: list[int] = [0, 0]

    async def work(call: ToolCall) -> ToolResult:
        going[0] += 1
        going[1] = max(going)
        await asyncio.sleep(0.01)
        going[0] -= 1
        return text_result("done")

    async def scenario() -> None:
        with FakeModel(Step(calls=(("work", {}),) * 9), say("ok")) as model:
            await answered(Agent(api, model, settings={"limits": {"parallelTools": 3}}, tools=Tools(work=work)))
        assert going == [0, 3]

    run(scenario())


# ---- aborts ----------------------------------------------------------------------------------------------------------


@both
def test_an_abort_closes_the_stream(api: str) -> None:
    async def scenario() -> None:
        with FakeModel(Step(say="word " * 1000, slow=0.02)) as model:
            agent = Agent(api, model)
            turn = asyncio.ensure_future(agent.hear())
            await agent.until(PartialAnswer)
            assert not model.requests[0].gone.is_set()
            turn.cancel()
            await asyncio.wait({turn})
            assert model.requests[0].gone.wait(WAIT)
            await agent.clients.aclose()
        assert turn.cancelled()

    run(scenario())


@both
def test_an_abort_ends_every_tool_before_it_returns(api: str) -> None:
    async def scenario() -> None:
        ended: list[str] = []

        async def wait(call: ToolCall) -> ToolResult:
            try:
                await asyncio.sleep(WAIT)
            finally:
                ended.append(call.arguments["n"])
            return text_result("never")

        with FakeModel(Step(calls=(("wait", {"n": "1"}), ("wait", {"n": "2"})))) as model:
            agent = Agent(api, model, tools=Tools(wait=wait))
            turn = asyncio.ensure_future(agent.hear())
            while len(agent.all(ToolUse)) < 2:
                agent.news.clear()
                await agent.news.wait()
            turn.cancel()
            await asyncio.wait({turn})
            assert sorted(ended) == ["1", "2"]
            assert not agent.all(ToolOutcome)
            await agent.clients.aclose()

    run(scenario())


# ---- the window ------------------------------------------------------------------------------------------------------


def long_past(turns: int, letters: int = 2000) -> list[Json]:
    past: list[Json] = []
    for number in range(turns):
        past.append({"role": "user", "content": f"question {number} " + "x" * letters})
        past.append({"role": "assistant", "content": [{"type": "text", "text": f"answer {number}"}]})
    return past


@both
def test_older_turns_leave_the_window_and_the_transcript_says_so(api: str) -> None:
    async def scenario() -> None:
        past = long_past(40)
        with FakeModel(say("ok")) as model:
            agent = Agent(api, model, models=[{"id": "m", "contextWindow": 10_000, "maxTokens": 1000}])
            await answered(agent, "now", recall=past)
            (notice,) = agent.all(Notice)
            body = {"role": "assistant", "content": [], "notice": notice.detail}
            again = [*past, {"role": "user", "content": "now"}, body, {"role": "assistant", "content": "ok"}]
            await answered(agent, "and then", recall=again)
        first, second = (json.dumps(request.body) for request in model.requests)
        assert "no longer shown" in notice.text
        assert "question 39" in first
        assert "question 5 " not in first
        assert len(first) < 10_000 / 0.3
        assert len(agent.all(Notice)) == 1  # the second turn keeps to the cut of the first
        assert '"now"' in second
        assert "question 5 " not in second
        assert _oldest(second) - _oldest(first) in (0, 1)

    run(scenario())


def _oldest(sent: str) -> int:
    return next(number for number in range(1000) if f"question {number} " in sent)


@both
def test_a_provider_that_says_too_long_gets_less(api: str) -> None:
    def script(request: Request) -> Step:
        fits = len(json.dumps(request.body["messages"])) < 30_000
        return say("ok") if fits else Step(status=400, error=OVERFLOW)

    async def scenario() -> None:
        with FakeModel(script) as model:
            agent = Agent(api, model)
            end = await answered(agent, recall=long_past(30))
        assert end.text == "ok"
        assert agent.all(Notice)

    run(scenario())


@both
def test_old_results_of_the_present_turn_are_shortened(api: str) -> None:
    async def read(call: ToolCall) -> ToolResult:
        return text_result(f"page {call.arguments['n']}: " + "y" * 9000)

    async def scenario() -> None:
        steps = [call("read", n=n) for n in range(6)]
        with FakeModel(*steps, say("read")) as model:
            agent = Agent(api, model, models=[{"id": "m", "contextWindow": 10_000}], tools=Tools(read=read))
            end = await answered(agent)
        assert end.text == "read"
        last = json.dumps(model.requests[-1].body)
        assert "page 5: " + "y" * 8000 in last
        assert "do not fit" in last

    run(scenario())


@both
def test_a_message_larger_than_the_window_is_said_to_be(api: str) -> None:
    async def scenario() -> None:
        with FakeModel(say("ok")) as model:
            agent = Agent(api, model, models=[{"id": "m", "contextWindow": 2000}])
            end = await failed(agent, "z" * 100_000)
        assert not model.requests
        assert end.kind == "context_length"
        assert "window of 2000 tokens" in end.message

    run(scenario())


def test_more_messages_than_are_recalled_is_a_cut_as_well() -> None:
    async def scenario() -> None:
        with FakeModel(say("ok")) as model:
            agent = Agent("openai", model)
            await answered(agent, recall=long_past(history.RECALLED_MESSAGES, letters=1))
        assert len(model.requests[0].body["messages"]) == history.KEPT_MESSAGES + 1
        (notice,) = agent.all(Notice)
        assert notice.detail == {"kind": "dropped", "kept": history.KEPT_MESSAGES}

    run(scenario())


# ---- keys and words ------------------------------------------------------------------------------------------------


def test_keys_come_from_the_environment_or_a_private_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_KEY", "from-env")
    bare, inside, open_file = tmp_path / "bare", tmp_path / "inside.json", tmp_path / "open"
    for file, text in ((bare, "from-file\n"), (inside, '{"a": {"b/c": "from-json"}}'), (open_file, "seen by all")):
        file.write_text(text)
        file.chmod(0o600)
    open_file.chmod(0o644)
    keys = [
        "plain", "${A_KEY}", {"source": "env", "id": "A_KEY"}, {"source": "file", "path": str(bare)},
        {"source": "file", "path": str(inside), "id": "/a/b~1c"},
    ]  # fmt: skip
    fake = read_providers(
        read_config({"models": {"providers": {"x": {"baseUrl": "http://x", "apiKey": keys}}}}).models
    )["x"]
    ring = api_keys.KeyRing(fake)

    async def read() -> list[str | None]:
        return [await ring.read(source) for source in fake.keys]

    assert run(read()) == ["plain", "from-env", "from-env", "from-file", "from-json"]
    for source, words in (
        (KeySource("file", str(open_file)), "chmod 600"),
        (KeySource("file", str(tmp_path / "none")), "can't be read"),
        (KeySource("env", "NO_SUCH_VARIABLE"), "NO_SUCH_VARIABLE is not set"),
        (KeySource("value", "two\nlines"), "one line of plain characters"),
    ):
        with pytest.raises(ModelError, match=words):
            run(ring.read(source))


def test_a_key_comes_from_the_keyring_of_the_desktop(tmp_path: Path) -> None:
    session = need("dbus-run-session", package="dbus")
    daemon = need("gnome-keyring-daemon", package="gnome-keyring")
    script = tmp_path / "script.py"
    script.write_text(
        "import asyncio, keyring\n"
        "from openclaw_mcp.core.config.config import read_config\n"
        "from openclaw_mcp.gateway.agents.models.api_keys import KeyRing\n"
        "from openclaw_mcp.gateway.agents.models.settings import read_providers\n"
        "from openclaw_mcp.gateway.agents.models.errors import ModelError\n"
        "keyring.set_password('openclaw-mcp', 'lab', 'sk-9')\n"
        "for account in ('lab', 'other'):\n"
        "    given = {'apiKey': {'source': 'keyring', 'id': account}}\n"
        "    ring = KeyRing(read_providers(read_config({'models': {'providers': {'x': given}}}).models)['x'])\n"
        "    try:\n"
        "        print(asyncio.run(ring.read(ring.sort_sources()[0])))\n"
        "    except ModelError as exc:\n"
        "        print(exc)\n"
    )
    unlock = f"printf pw | {daemon} --unlock --components=secrets >/dev/null 2>&1; {sys.executable} {script}"
    environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path)}
    # The keyring's daemon ends with its bus, and the bus with the script.
    result = subprocess.run(
        [session, "--", "sh", "-c", unlock], env=environ, capture_output=True, text=True, timeout=60, check=False
    )
    found, missing = result.stdout.splitlines()
    assert found == "sk-9", result.stderr[-500:]
    assert 'the keyring holds nothing for service "openclaw-mcp", account "other"' in missing


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (401, b"{}", "auth"),
        (403, b"<html>", "auth"),
        (404, b'{"error":"model x not found"}', "not_found"),
        (400, b'{"error":{"message":"The model `x` does not exist"}}', "not_found"),
        (400, b'{"error":{"code":"context_length_exceeded","message":"m"}}', "context_length"),
        (400, b'{"type":"error","error":{"message":"prompt is too long: 9 tokens > 8"}}', "context_length"),
        (413, b"", "context_length"),
        (422, b'{"detail":"x"}', "bad_request"),
        (429, b"{}", "rate_limit"),
        (500, b"{}", "overloaded"),
        (529, b'{"type":"error","error":{"type":"overloaded_error"}}', "overloaded"),
    ],
)
def test_refusals_are_sorted(status: int, body: bytes, kind: str) -> None:
    assert error_from_response(status, body, {}).kind == kind


def test_waits_are_read_however_they_are_written() -> None:
    soon = format_datetime(datetime.now(UTC) + timedelta(seconds=30), usegmt=True)
    for written, least, most in (("2", 2, 2), ("0.5", 0.5, 0.5), (soon, 25, 31)):
        wait = retry_after({"retry-after": written})
        assert wait is not None
        assert least <= wait <= most
    assert retry_after({"retry-after": "soon"}) is None
    assert retry_after({}) is None


def test_errors_within_a_stream_are_sorted() -> None:
    assert error_from_stream({"error": {"type": "overloaded_error", "message": "Overloaded"}}).kind == "overloaded"
    assert error_from_stream({"type": "rate_limit_error"}).kind == "rate_limit"
    assert error_from_stream("what").kind == "bad_request"


@both
@pytest.mark.parametrize(
    ("settings", "config", "words"),
    [
        ({"model": None}, {}, "it has no model; set agents.defaults.model"),
        ({"model": "nobody/x"}, {}, "add models.providers.nobody to the config"),
        ({"model": "bare/x"}, {"bare": {}}, "models.providers.bare.baseUrl is not set"),
        ({"model": "far/main"}, {"far": {"api": "openclaw", "baseUrl": "ws://x"}}, "is another gateway"),
        ({"model": "x/y"}, {"x": {"baseUrl": "nonsense"}}, "must begin with http:// or https://"),
        ({"model": "x/y"}, {"x": {"baseUrl": "http://x", "apiKey": "${NOT_SET_AT_ALL}"}}, "NOT_SET_AT_ALL is not set"),
    ],
)
def test_what_is_wrong_with_the_config_is_said(api: str, settings: Json, config: Json, words: str) -> None:
    async def scenario() -> None:
        end = await failed(Agent(api, config={"models": {"providers": config}}, settings=settings))
        assert words in end.message

    run(scenario())
