"""A command and a camera wait for a yes that a person gave: to this question, in this call. A real node over HTTP."""

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from openclaw_mcp.core.model import Json, ToolCall, ToolResult, ToolSpec, text_result
from openclaw_mcp.node.consent import ConsentStore
from openclaw_mcp.node.questions import PromptRouter
from tests.conversation import Conversation, Tools, serving
from tests.web_client import opened, rpc, send, stateless

from .running import RunningNode, running_node

ASKS: Json = {"elicitation": {}}
POLLS: Json = {**ASKS, "extensions": {"io.modelcontextprotocol/tasks": {}}}
YES: Json = {"action": "accept", "content": {"allow": True}}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    folder = tmp_path_factory.mktemp("node")
    (folder / "exec-policy.json").write_text('{"defaultAction": "prompt", "rules": []}')
    with running_node(folder) as node:
        yield node


def called(node: RunningNode, argv: list[str], capabilities: Json = ASKS, **params: Any) -> Any:
    call = {"name": "system.run", "arguments": {"command": argv}, **params}
    body, headers = stateless("tools/call", call, capabilities=capabilities)
    return send(node.address, "POST", body, **headers, **node.bearer).json


@pytest.mark.parametrize("key", ["approve-exec", "approve-consent", "approve-exec-2", "approve"])
@pytest.mark.parametrize("capabilities", [ASKS, POLLS], ids=["plain", "tasks"])
def test_a_yes_that_comes_with_the_first_call_starts_nothing(
    node: RunningNode, tmp_path: Path, key: str, capabilities: Json
) -> None:
    touched = tmp_path / "touched"

    answer = called(node, ["touch", str(touched)], capabilities, inputResponses={key: YES})

    assert answer["result"]["resultType"] == "input_required"
    assert not touched.exists()


def test_a_yes_runs_the_command_it_was_asked_for_and_no_other_and_once(node: RunningNode, tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    state = called(node, ["touch", str(one)])["result"]["requestState"]
    answered = {"inputResponses": {"approve-exec": YES}, "requestState": state}

    assert "another call" in called(node, ["touch", str(two)], **answered)["error"]["message"]
    assert called(node, ["touch", str(one)], **answered)["result"]["isError"] is False
    assert one.exists()
    one.unlink()
    assert "used already" in called(node, ["touch", str(one)], **answered)["error"]["message"]
    assert not one.exists()
    assert not two.exists()


def test_a_yes_to_a_question_that_the_rules_have_changed_since_is_asked_for_again(
    node: RunningNode, tmp_path: Path
) -> None:
    touched, rules = tmp_path / "touched", node.state / "exec-policy.json"
    before = rules.read_text()
    state = called(node, ["touch", str(touched)])["result"]["requestState"]
    rules.write_text(json.dumps({"defaultAction": "prompt", "rules": [{"pattern": "touch *", "action": "prompt"}]}))
    try:
        answered = {"inputResponses": {"approve-exec": YES}, "requestState": state}
        again = called(node, ["touch", str(touched)], **answered)["result"]
    finally:
        rules.write_text(before)

    assert again["resultType"] == "input_required"
    assert "touch *" in again["inputRequests"]["approve-exec"]["params"]["message"]
    assert not touched.exists()


def _rewrite(script: Path) -> None:
    script.write_text("#!/bin/sh\ntouch worse\n")


def _replace(script: Path) -> None:
    other = script.with_name("other")
    other.write_text("#!/bin/sh\ntouch worse\n")
    other.chmod(0o755)
    other.rename(script)


def _link(script: Path) -> None:
    other = script.with_name("other")
    other.write_text("#!/bin/sh\ntouch worse\n")
    other.chmod(0o755)
    script.unlink()
    script.symlink_to(other)


SWAPS: dict[str, Callable[[Path], None]] = {
    "rewritten": _rewrite,
    "replaced": _replace,
    "made a link": _link,
    "removed": Path.unlink,
}
NAMED: dict[str, list[str]] = {
    "by a shell": ["sh", "script"],
    "by itself": ["./script"],
    "behind a wrapper": ["env", "sh", "script"],
    "in a text for a shell": ["sh", "-c", "sh script"],
}


@pytest.mark.parametrize("swap", SWAPS)
@pytest.mark.parametrize("named", NAMED)
def test_a_yes_to_one_file_does_not_run_another(node: RunningNode, tmp_path: Path, swap: str, named: str) -> None:
    script = tmp_path / "script"
    script.write_text("#!/bin/sh\ntouch good\n")
    script.chmod(0o755)

    def call_again(**params: Any) -> Any:
        call = {"name": "system.run", "arguments": {"command": NAMED[named], "cwd": str(tmp_path)}, **params}
        body, headers = stateless("tools/call", call, capabilities=ASKS)
        return send(node.address, "POST", body, **headers, **node.bearer).json["result"]

    state = call_again()["requestState"]
    SWAPS[swap](script)
    answered = call_again(inputResponses={"approve-exec": YES}, requestState=state)

    assert not (tmp_path / "worse").exists()
    if (swap, named) == ("removed", "by itself"):  # there is nothing left to ask about
        assert answered["isError"]
        return
    assert answered["resultType"] == "input_required"
    again = call_again(inputResponses={"approve-exec": YES}, requestState=answered["requestState"])
    assert again["resultType"] == "complete"


def test_another_connection_with_the_same_token_answers_nothing_it_was_not_asked(
    node: RunningNode, tmp_path: Path
) -> None:
    """Sessions of the handshake era: the question goes to the one that called, and its id can't be guessed."""
    touched = tmp_path / "touched"
    opening = {"protocolVersion": "2025-11-25", "capabilities": ASKS, "clientInfo": {"name": "t", "version": "1"}}
    opened_by = (send(node.address, "POST", rpc("initialize", opening), **node.bearer) for _ in range(2))
    first, second = ({"MCP_Session_Id": answer.headers["mcp-session-id"]} for answer in opened_by)
    call = rpc("tools/call", {"name": "system.run", "arguments": {"command": ["touch", str(touched)]}}, id=7)
    with opened(node.address, "POST", call, **first, **node.bearer) as stream:
        while not (line := stream.readline()).startswith(b"data: {"):
            assert line
        question = json.loads(line[5:])
        guesses = [*range(20), question["id"] + 1, question["id"] - 1]
        answers = [(second, question["id"]), ({}, question["id"]), *((first, guess) for guess in guesses)]
        answers.append(({"MCP_Session_Id": "0" * 32}, question["id"]))
        for session, id in answers:
            reply = {"jsonrpc": "2.0", "id": id, "result": YES}
            assert send(node.address, "POST", reply, **session, **node.bearer).status in (202, 404)
        assert not touched.exists()
        reply = {"jsonrpc": "2.0", "id": question["id"], "result": {"action": "decline"}}
        send(node.address, "POST", reply, **first, **node.bearer)
        assert b"the client said no" in stream.read()
    assert not touched.exists()


# ---- consent ----


@pytest.mark.parametrize("task", ["inline", "offered"])
@pytest.mark.parametrize("key", ["approve-consent", "approve-exec", "approve-consent-2"])
@pytest.mark.parametrize("capabilities", [ASKS, POLLS], ids=["plain", "tasks"])
def test_an_unanswered_consent_is_none(tmp_path: Path, key: str, task: Any, capabilities: Json) -> None:
    consents = ConsentStore(
        state_dir=tmp_path, prompt_router=PromptRouter(seconds=lambda: 1, ask_in_client=lambda: True)
    )
    filmed: list[str] = []

    async def film(call: ToolCall) -> ToolResult:
        await consents(call, f"film screen {call.arguments['screen']} for 5 s")
        filmed.append(call.arguments["screen"])
        return text_result("filmed")

    async def talk() -> None:
        tools = Tools()
        tools.add(ToolSpec(name="screen.record", task=task), film)
        server = serving(tools)
        client = Conversation(server, capabilities=capabilities)
        await client.call("screen.record", {"screen": "0"}, inputResponses={key: YES})
        await asyncio.sleep(0)
        plain = Conversation(server, capabilities=ASKS)
        question = await plain.call("screen.record", {"screen": "0"})
        assert filmed == []
        answered = {"inputResponses": {"approve-consent": YES}, "requestState": question["requestState"]}
        await plain.call("screen.record", {"screen": "0"}, **answered)
        await server.aclose()

    asyncio.run(talk())
    assert filmed == ["0"]
    assert consents.load() == {}
