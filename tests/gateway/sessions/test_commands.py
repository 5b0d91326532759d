"""Chat commands in messages of `chat.send`, and runs whose session ends before they do."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from openclaw_mcp.core.agents import AgentProfile, AgentRoster
from openclaw_mcp.core.model import Caller, Grant
from openclaw_mcp.core.rpc import RpcCall, RpcError
from openclaw_mcp.gateway.sessions import views

from .gateways import PATIENCE, GatewayHarness, TwinLink, open_harness

WAIT_MS = int(PATIENCE * 1000)


async def command(harness: GatewayHarness, text: str, run: str, *, link: TwinLink | None = None) -> str:
    """What the gateway replies to a command."""
    params = {"sessionKey": "main", "message": text, "idempotencyKey": run}
    assert await harness.call("chat.send", params, link=link) == {"runId": run, "status": "started"}
    end = await harness.until("chat", runId=run, state="final")
    return str(end["message"]["content"][0]["text"])


def in_harness(tmp_path: Path, scenario: Any) -> None:
    async def run() -> None:
        async with open_harness(str(tmp_path / "db")) as harness:
            await scenario(harness)

    asyncio.run(run())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("/help", "/status"),
        ("/commands", "/whoami"),
        ("/HELP", "/new"),
        ("/status", "Session agent:main:main on webchat."),
        ("/whoami", "You are tester on webchat."),
        ("/id", "tester"),
        ("/model", "demo/demo-echo"),
        ("/new", "A new conversation begins."),
    ],
)
def test_the_gateway_answers_a_command_and_asks_no_model(tmp_path: Path, text: str, said: str) -> None:
    async def scenario(harness: GatewayHarness) -> None:
        assert said in await command(harness, text, "c1")
        assert not harness.received("agent", runId="c1")
        page = await harness.call("chat.history", {"sessionKey": "main"})
        asked, answer = page["messages"]
        assert (asked["role"], asked["content"], asked["idempotencyKey"]) == ("user", text, "c1:user")
        assert (answer["provider"], answer["model"]) == ("openclaw", "gateway-injected")
        assert len(harness.received("session.message")) == 2

    in_harness(tmp_path, scenario)


def test_a_message_that_only_looks_like_a_command_is_for_the_agent(tmp_path: Path) -> None:
    async def scenario(harness: GatewayHarness) -> None:
        for number, text in enumerate(("/help me", "/unknown", "/model of a ship")):
            await harness.call("chat.send", {"sessionKey": "main", "message": text, "idempotencyKey": f"m{number}"})
            end = await harness.until("chat", runId=f"m{number}", state="final")
            assert text in end["message"]["content"][0]["text"]

    in_harness(tmp_path, scenario)


def test_a_message_can_be_for_the_agent_whatever_it_says(tmp_path: Path) -> None:
    async def scenario(harness: GatewayHarness) -> None:
        for number, text in enumerate(("/help", "/stop", "/new")):
            end = await harness.say(text, run=f"m{number}", suppressCommandInterpretation=True)
            assert text in end["terminalReply"]["text"]

    in_harness(tmp_path, scenario)


def test_a_command_is_run_once_and_can_be_waited_for(tmp_path: Path) -> None:
    async def scenario(harness: GatewayHarness) -> None:
        await harness.say("hello", run="r1")
        await command(harness, "/new", "c1")
        await harness.say("in the new one", run="r2")
        again = {"sessionKey": "main", "message": "/new", "idempotencyKey": "c1"}
        assert await harness.call("chat.send", again) == {"runId": "c1", "status": "ok"}
        page = await harness.call("chat.history", {"sessionKey": "main"})
        assert page["totalMessages"] == 4  # the command, its reply, and the turn after it: not reset again
        waited = await harness.call("agent.wait", {"runId": "c1", "timeoutMs": WAIT_MS})
        assert (waited["status"], waited["terminalReply"]["text"]) == ("ok", "A new conversation begins.")

    in_harness(tmp_path, scenario)


def test_a_command_is_answered_while_the_agent_works(tmp_path: Path) -> None:
    async def scenario(harness: GatewayHarness) -> None:
        await harness.call("chat.send", {"sessionKey": "main", "message": "!sleep 60", "idempotencyKey": "r1"})
        assert "Messages being answered or waiting: 1" in await command(harness, "/status", "c1")
        stop = {"sessionKey": "main", "message": "/stop", "idempotencyKey": "c2"}
        assert await harness.call("chat.send", stop) == {"ok": True, "aborted": True, "runIds": ["r1"]}
        assert (await harness.until("chat", runId="r1", state="aborted"))["stopReason"] == "stop"
        stop["idempotencyKey"] = "c3"
        assert await harness.call("chat.send", stop) == {"ok": True, "aborted": False, "runIds": []}

    in_harness(tmp_path, scenario)


def test_the_words_after_new_are_the_first_message_of_the_new_conversation(tmp_path: Path) -> None:
    async def scenario(harness: GatewayHarness) -> None:
        await harness.say("old words", run="r1")
        end = await harness.say("/new fresh words", run="r2")
        assert "fresh words" in end["terminalReply"]["text"]
        page = await harness.call("chat.history", {"sessionKey": "main"})
        assert [message["content"] for message in page["messages"] if message["role"] == "user"] == ["fresh words"]

    in_harness(tmp_path, scenario)


def test_who_may_not_reset_is_told_so_and_nothing_is_lost(tmp_path: Path) -> None:
    async def scenario(harness: GatewayHarness) -> None:
        await harness.say("keep me", run="r1")
        link = TwinLink("operator.read", "operator.write")
        assert "operator.admin" in await command(harness, "/new and more", "c1", link=link)
        page = await harness.call("chat.history", {"sessionKey": "main"})
        assert page["messages"][0]["content"] == "keep me"

    in_harness(tmp_path, scenario)


def test_a_model_is_chosen_for_the_session_and_given_up_again(tmp_path: Path) -> None:
    async def scenario(harness: GatewayHarness) -> None:
        assert await command(harness, "/model other/m-2", "c1") == "Model: other/m-2"
        row = (await harness.call("sessions.describe", {"key": "main"}))["session"]
        assert row["model"] == "other/m-2"
        assert await command(harness, "/model default", "c2") == "Model: demo/demo-echo"
        assert "no model's name" in await command(harness, "/model --version", "c3")

    in_harness(tmp_path, scenario)


def test_an_agent_of_a_cli_without_a_model_is_not_said_to_use_the_demo() -> None:
    roster = AgentRoster(agents=(AgentProfile(id="cli", runtime="claude"),), default_id="cli")
    chosen = views.model_selection("cli", roster)
    assert (chosen["modelProvider"], chosen["model"]) == ("claude", "default")


def test_a_sessions_agent_chooses_no_model_by_a_command(tmp_path: Path) -> None:
    """The model decides which rules for tools hold."""

    async def scenario(harness: GatewayHarness) -> None:
        agent = Caller(kind="agent", name="main", scopes=frozenset({"*"}), grant=Grant(owner=True))
        params = {"sessionKey": "main", "message": "/model other/m-2", "idempotencyKey": "c1"}
        send = harness.methods["chat.send"]
        await send.handle(RpcCall(method=send.name, params=params, caller=agent, peer=TwinLink()))
        reply = (await harness.until("chat", runId="c1"))["message"]["content"][0]["text"]
        assert reply == "Only the owner chooses the model."
        assert (await harness.call("sessions.describe", {"key": "main"}))["session"]["model"] == "demo-echo"

    in_harness(tmp_path, scenario)


def test_a_command_of_agent_other_than_a_reset_or_stop_is_a_task(tmp_path: Path) -> None:
    async def scenario(harness: GatewayHarness) -> None:
        task = await harness.call("agent", {"message": "/help", "idempotencyKey": "a1"})
        assert "/help" in task["result"]["payloads"][0]["text"]
        reset = await harness.call("agent", {"message": "/reset", "idempotencyKey": "a2"})
        assert (reset["status"], reset["result"]["payloads"][0]["text"]) == ("ok", "A new conversation begins.")

    in_harness(tmp_path, scenario)


# ---- runs that end with their session --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "params", "reason"),
    [
        ("chat.send", {"sessionKey": "agent:main:x", "message": "/new", "idempotencyKey": "c1"}, "restart"),
        ("sessions.reset", {"key": "agent:main:x"}, "restart"),
        ("sessions.delete", {"key": "agent:main:x"}, "aborted"),
    ],
)
def test_who_waits_for_a_run_learns_that_its_session_ended_it(
    tmp_path: Path, method: str, params: dict[str, Any], reason: str
) -> None:
    async def scenario(harness: GatewayHarness) -> None:
        send = {"sessionKey": "agent:main:x", "queueMode": "followup"}
        await harness.call("chat.send", {**send, "message": "!sleep 60", "idempotencyKey": "r1"})
        await harness.call("chat.send", {**send, "message": "later", "idempotencyKey": "r2"})
        waits = [
            asyncio.ensure_future(harness.call("agent.wait", {"runId": run, "timeoutMs": WAIT_MS}))
            for run in ("r1", "r2")
        ]
        await harness.until("agent", runId="r1", stream="lifecycle")
        await harness.call(method, params)
        for wait in waits:
            early = await wait
            late = await harness.call("agent.wait", {"runId": early["runId"], "timeoutMs": 0})
            assert (early["status"], early["error"], early["stopReason"]) == ("error", "aborted", reason)
            assert late == early

    in_harness(tmp_path, scenario)


def test_a_run_id_used_again_after_its_session_is_deleted_means_the_new_run(tmp_path: Path) -> None:
    async def scenario(harness: GatewayHarness) -> None:
        send = {"sessionKey": "agent:main:x", "idempotencyKey": "r1"}
        await harness.call("chat.send", {**send, "message": "!say one"})
        await harness.until("chat", runId="r1", state="final")
        await harness.call("sessions.delete", {"key": "agent:main:x"})
        await harness.call("chat.send", {**send, "message": "!say two"})
        waited = await harness.call("agent.wait", {"runId": "r1", "timeoutMs": WAIT_MS})
        assert waited["terminalReply"]["text"] == "two"

    in_harness(tmp_path, scenario)


# ---- sessions that a message creates ---------------------------------------------------------------------------------


def test_agent_with_a_new_session_id_creates_the_session(tmp_path: Path) -> None:
    async def scenario(harness: GatewayHarness) -> None:
        first = await harness.call("agent", {"message": "hi", "sessionId": "my-own-id", "idempotencyKey": "a1"})
        assert first["result"]["meta"]["agentMeta"]["sessionId"] == "my-own-id"
        again = await harness.call("agent", {"message": "hi", "sessionId": "my-own-id", "idempotencyKey": "a2"})
        assert again["status"] == "ok"
        found = await harness.call("sessions.resolve", {"sessionId": "my-own-id"})
        assert found["key"] == "agent:main:explicit:my-own-id"
        row = (await harness.call("sessions.describe", {"key": found["key"]}))["session"]
        assert (row["sessionId"], row["classification"]) == ("my-own-id", "explicit")

    in_harness(tmp_path, scenario)


@pytest.mark.parametrize(
    "more",
    [
        {"message": "hi", "attachments": [{"content": "###", "mimeType": "image/png"}]},
        {"message": "x" * 2_000_001},
        {"parentSessionKey": "agent:main:nobody"},
    ],
    ids=["attachment", "length", "parent"],
)
def test_a_refused_sessions_create_leaves_nothing_behind(tmp_path: Path, more: dict[str, Any]) -> None:
    async def scenario(harness: GatewayHarness) -> None:
        with pytest.raises(RpcError):
            await harness.call("sessions.create", {"key": "agent:main:made", **more})
        assert await harness.call("sessions.describe", {"key": "agent:main:made"}) == {"session": None}

    in_harness(tmp_path, scenario)


# ---- ids of runs in commands -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "place", "text"),
    [("chat.send", "sessionKey", "/status"), ("sessions.send", "key", "/help"), ("agent", "sessionKey", "/new")],
)
def test_no_command_takes_the_id_of_a_run_of_the_gateways_own(
    tmp_path: Path, method: str, place: str, text: str
) -> None:
    """The next message of a channel has such an id: it would count as answered."""

    async def scenario(harness: GatewayHarness) -> None:
        params = {place: "main", "message": text, "idempotencyKey": "telegram:default:77"}
        with pytest.raises(RpcError, match="the gateway's own runs"):
            await harness.call(method, params, link=TwinLink("operator.write"))
        assert (await harness.call("agent.wait", {"runId": "telegram:default:77", "timeoutMs": 0}))[
            "status"
        ] == "timeout"

    in_harness(tmp_path, scenario)


@pytest.mark.parametrize("message", ["!say a secret", "!sleep 60"], ids=["over", "at work"])
@pytest.mark.parametrize(
    ("method", "text"), [("chat.send", "/status"), ("agent", "/stop"), ("agent", "/new"), ("chat.send", "/reset")]
)
def test_a_command_with_the_id_of_another_sessions_run_is_refused(
    tmp_path: Path, method: str, text: str, message: str
) -> None:
    """`agent` answered it with that run's text."""

    async def scenario(harness: GatewayHarness) -> None:
        await harness.say("keep me", run="r0")
        send = {"sessionKey": "agent:main:private", "message": message, "idempotencyKey": "r1"}
        await harness.call("chat.send", send)
        if message == "!say a secret":
            await harness.until("chat", runId="r1", state="final")
        with pytest.raises(RpcError, match="already used in another session"):
            await harness.call(method, {"sessionKey": "main", "message": text, "idempotencyKey": "r1"})
        page = await harness.call("chat.history", {"sessionKey": "main"})
        assert page["messages"][0]["content"] == "keep me"

    in_harness(tmp_path, scenario)


@pytest.mark.parametrize("text", ["/approve ", "/new "])
def test_a_command_is_as_long_as_a_message_at_most(tmp_path: Path, text: str) -> None:
    async def scenario(harness: GatewayHarness) -> None:
        await harness.say("keep me", run="r1")
        with pytest.raises(RpcError, match="longer than"):
            params = {"sessionKey": "main", "message": text + "x" * 2_000_001, "idempotencyKey": "c1"}
            await harness.call("chat.send", params)
        page = await harness.call("chat.history", {"sessionKey": "main"})
        assert [message["content"] for message in page["messages"] if message["role"] == "user"] == ["keep me"]

    in_harness(tmp_path, scenario)
