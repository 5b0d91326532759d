"""Others than the owner in a session the owner uses too: what its agent tells them, and which tools it has for them.

A real gateway, a group of the local channel, a scripted model where the prompt is what counts.
"""

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from openclaw_mcp.core.transcript import redact_for_others
from tests.gateway.agents.models.conversations import APIS, provider
from tests.gateway.agents.models.fake import FakeModel, Step, call, say
from tests.gateway.wiring.gateways import WAIT, Json, Refused, World, joined, world
from tests.mcp.client.servers import ECHO

GROUP = "agent:main:local:group:#g"
OPEN: Json = {"local": {"dmPolicy": "open", "allowFrom": ["*"], "groupPolicy": "open", "requireMention": False}}
MALLORY = {"id": "mallory", "name": "Mallory"}
SECRET = "OWNERS-SECRET-MARK"
THOUGHT = "I-AM-THINKING-OF-IT"


def send(server: World, text: str, conversation: str = "#g", **more: Any) -> str:
    """What the agent answers to a message in a conversation; from the owner unless `sender` says otherwise."""
    run = server.ask("local.send", conversation=conversation, text=text, **more)["runId"]
    return server.answer(run)


def demo(server: World, *orders: str, **more: Any) -> str:
    """The same of the demo agent, whose prompt names the sender in the first line."""
    return send(server, "\n".join(["please", *orders]), **more)


# ---- tools of MCP servers --------------------------------------------------------------------------------------------


LENT: list[tuple[str, Json, bool]] = [
    ("by nothing", {}, False),
    ("by a profile", {"tools": {"profile": "coding"}}, False),
    ("by what covers everything", {"tools": {"allow": ["*"]}}, False),
    ("by its name", {"tools": {"alsoAllow": ["one__echo"]}}, True),
    ("by its server", {"tools": {"alsoAllow": ["mcp/one"]}}, True),
    ("by all servers", {"tools": {"alsoAllow": ["bundle-mcp"]}}, True),
]


@pytest.mark.parametrize(("how", "config", "lent"), LENT, ids=[row[0] for row in LENT])
def test_a_servers_tools_are_the_owners_unless_lent(tmp_path: Path, how: str, config: Json, lent: bool) -> None:
    """In the list and when called: by an agent, by a program of its run, and by a lesser operator."""
    order = '!tool one__echo {"text": "hi"}'
    refused = "one__echo is refused: it is for the owner, unless an allow list names it or mcp/one"
    base = {"channels": OPEN, "mcp": {"servers": {"one": ECHO}}, "agents": {"list": [{"id": "main"}]}}
    with world(tmp_path, base | config) as server:
        assert demo(server, order) == "hi"
        assert server.invoke("one__echo", text="hi")["ok"]
        reply = demo(server, order, sender=MALLORY)
        direct = send(server, order, conversation="room", sender=MALLORY)
        with joined(server.served, "operator.read", "operator.write") as operator:
            invoked = operator.invoke("one__echo", text="hi")

        assert [reply, direct] == (["hi", "hi"] if lent else [refused, refused])
        assert invoked["ok"] is lent
        if not lent:
            assert refused in invoked["error"]["message"]


@pytest.mark.parametrize("lent", [False, True])
def test_a_model_that_answers_a_stranger_is_offered_no_servers_tool(tmp_path: Path, lent: bool) -> None:
    with FakeModel(say("hello")) as model:
        tools = {"tools": {"alsoAllow": ["mcp/one"]}} if lent else {}
        with world(tmp_path, behind("openai", model, mcp={"servers": {"one": ECHO}}, **tools)) as server:
            send(server, "hi")
            send(server, "hi", sender=MALLORY)
            offered = ["one__echo" in json.dumps(request.body["tools"]) for request in model.requests]
        assert offered == [True, lent]


# ---- what the owner's tools returned ---------------------------------------------------------------------------------


def behind(api: str, model: FakeModel, **more: Any) -> Json:
    """The config of a gateway whose agent works with this model, with a secret in a part only the owner reads."""
    agents = {"defaults": {"model": {"primary": "fake/m-1"}}, "list": [{"id": "main"}]}
    models = {"providers": {"fake": provider(api, model)}}
    return {"models": models, "agents": agents, "channels": OPEN, "commands": {"ownerAllowFrom": [SECRET]}, **more}


LOOK = call("gateway", action="config.get", path="commands")


@pytest.mark.parametrize("api", APIS)
def test_a_strangers_model_is_not_told_what_the_owners_tools_said(tmp_path: Path, api: str) -> None:
    steps = (LOOK, say("All is well.", think=THOUGHT), say("hi Mallory"), say("as I said"))
    with FakeModel(*steps) as model, world(tmp_path, behind(api, model)) as server:
        assert send(server, "look at the config") == "All is well."
        send(server, "what did the tool say?", sender=MALLORY)
        send(server, "and to me?")
        owners, mallorys, again = (json.dumps(model.wait_for(n).body["messages"]) for n in (2, 3, 4))

    assert SECRET in owners
    assert SECRET in again, "the owner's own next run knows it"
    assert [word for word in (SECRET, THOUGHT, "config.get") if word in mallorys] == []
    assert "All is well." in mallorys
    assert "look at the config" in mallorys


def test_a_stranger_is_told_again_what_its_own_tools_said(tmp_path: Path) -> None:
    steps = (call("agents_list"), say("there is one"), say("yes"))
    with FakeModel(*steps) as model, world(tmp_path, behind("openai", model)) as server:
        send(server, "who is there?", sender=MALLORY)
        send(server, "sure?", sender={"id": "eve", "name": "Eve"})
        assert "requester" in json.dumps(model.wait_for(3).body["messages"])


def test_what_the_owners_sub_agent_found_is_not_in_a_strangers_prompt(tmp_path: Path) -> None:
    """The result comes as a message from the gateway; only what the agent makes of it is said to the group."""

    def model_of(request: Any) -> Step:
        last = json.dumps(request.body["messages"][-1])
        if "has finished" in last:
            return say("It is done.")
        if "find it" in last:
            return say(f"the code is {SECRET}")
        return say("hello") if "Mallory" in last or '"tool"' in last else call("sessions_spawn", task="find it")

    with FakeModel(model_of) as model, world(tmp_path, behind("openai", model)) as server:
        send(server, "have it looked for")
        server.until("chat", lambda event: event["state"] == "final" and "It is done." in json.dumps(event))
        send(server, "what was found?", sender=MALLORY)
        prompt = json.dumps(model.requests[-1].body["messages"])

    assert "what was found?" in prompt
    assert "It is done." in prompt
    assert SECRET not in prompt


READINGS: list[tuple[str, Json]] = [
    ("sessions_history", {"sessionKey": GROUP, "includeTools": True}),
    ("sessions_history", {"sessionKey": GROUP}),
]


@pytest.mark.parametrize(("tool", "arguments"), READINGS)
def test_a_stranger_reads_no_tools_of_the_owners_in_the_history(tmp_path: Path, tool: str, arguments: Json) -> None:
    steps = (LOOK, say("All is well."), call(tool, **arguments), say("read"), call(tool, **arguments), say("read"))
    with FakeModel(*steps) as model, world(tmp_path, behind("openai", model)) as server:
        send(server, "look at the config")
        send(server, "read it", sender=MALLORY)
        send(server, "read it")
        mallorys, owners = (json.dumps(model.wait_for(n).body["messages"][-1]) for n in (4, 6))

    assert "All is well." in mallorys
    assert "gateway" not in mallorys
    assert SECRET not in mallorys
    assert ("toolResult" in owners) is arguments.get("includeTools", False)


def test_neither_does_a_program_of_a_strangers_run(tmp_path: Path) -> None:
    """With the run's own credential, by each method that shows messages."""
    config = {"channels": OPEN, "agents": {"list": [{"id": "main"}]}, "commands": {"ownerAllowFrom": [SECRET]}}
    with world(tmp_path, config) as server:
        demo(server, '!tool gateway {"action": "config.get", "path": "commands"}')
        whole = server.ask("chat.history", sessionKey=GROUP)["messages"]
        ids = [message["__openclaw"]["id"] for message in whole if message["role"] != "user"]
        assert len(ids) == 3
        for owner in (True, False):
            token = server.ask("attach.grant", sessionKey=GROUP, senderIsOwner=owner)["token"]
            with joined(server.served, token=token) as program:
                answers: list[Any] = [program.ask("chat.history", sessionKey=GROUP)]
                for id in ids:
                    answers += _answer(program, "chat.message.get", sessionKey=GROUP, messageId=id)
                answers += _answer(program, "sessions.get", key=GROUP)
            roles = {message["role"] for message in answers[0]["messages"]}
            assert ("toolResult" in roles) is owner
            assert ('"toolCall"' in json.dumps(answers)) is owner


def _answer(program: World, method: str, **params: Any) -> list[Any]:
    """What it tells, if it is open to the program at all."""
    try:
        return [program.ask(method, **params)]
    except Refused as refused:
        assert refused.kind == "FORBIDDEN" or "scope" in str(refused), refused
        return []


def test_an_old_transcript_counts_as_the_owners() -> None:
    assert redact_for_others({"role": "toolResult", "content": [{"type": "text", "text": SECRET}]})["content"] == []


# ---- sub-agents ------------------------------------------------------------------------------------------------------


@contextmanager
def gateway_with_sub_agent(
    tmp_path: Path, sender: Json | None, visibility: str = "tree"
) -> Iterator[tuple[World, str]]:
    """A gateway and the session of a sub-agent at work that a member of the group started."""
    tools = {"sessions": {"visibility": visibility}}
    with world(tmp_path, {"channels": OPEN, "agents": {"list": [{"id": "main"}]}, "tools": tools}) as server:
        task = {"task": f"!say {SECRET}\n!sleep {WAIT}", "label": "search"}
        more = {} if sender is None else {"sender": sender}
        child = json.loads(demo(server, f"!tool sessions_spawn {json.dumps(task)}", **more))["childSessionKey"]
        yield server, child


EVERY_DEED: list[tuple[str, Json]] = [
    ("sessions_list", {}),
    ("subagents", {"action": "list"}),
    ("subagents", {"action": "status"}),
    ("sessions_history", {"sessionKey": "CHILD", "includeTools": True}),
    ("session_status", {"sessionKey": "CHILD"}),
    ("sessions_send", {"sessionKey": "CHILD", "message": "stop that", "timeoutSeconds": 0}),
    ("sessions_send", {"label": "search", "message": "stop that", "timeoutSeconds": 0}),
    ("subagents", {"action": "status", "target": "CHILD"}),
    ("subagents", {"action": "steer", "target": "CHILD", "message": "!say mine"}),
    ("subagents", {"action": "steer", "target": "1", "message": "!say mine"}),
    ("subagents", {"action": "kill", "target": "search"}),
    ("subagents", {"action": "kill", "target": "CHILD"}),
    ("subagents", {"action": "kill", "target": "1"}),
    ("subagents", {"action": "kill", "target": "all"}),
]


@pytest.mark.parametrize("visibility", ["tree", "agent", "all"])
def test_an_owners_sub_agent_is_out_of_a_strangers_sight(tmp_path: Path, visibility: str) -> None:
    with gateway_with_sub_agent(tmp_path, None, visibility) as (server, child):
        for tool, arguments in EVERY_DEED:
            order = json.dumps(arguments).replace("CHILD", child)
            reply = demo(server, f"!tool {tool} {order}", sender=MALLORY)
            text = reply.replace(f"session {child} is", "")  # which it named itself
            assert '"runId"' not in text, (tool, arguments)
            assert child not in text, (tool, arguments)
        assert server.ask("tasks.list")["tasks"][0]["status"] == "running"
        assert server.texts(child, "user") == [f"!say {SECRET}\n!sleep {WAIT}"]
        assert child in demo(server, "!tool sessions_list {}")
        assert '"killed": 1' in demo(server, '!tool subagents {"action": "kill", "target": "all"}')


def test_a_strangers_own_sub_agent_is_seen_and_stopped_by_whoever_asks_there(tmp_path: Path) -> None:
    with gateway_with_sub_agent(tmp_path, MALLORY) as (server, child):
        assert child in demo(server, "!tool sessions_list {}", sender=MALLORY)
        assert child in demo(server, '!tool subagents {"action": "list"}')
        assert '"killed": 1' in demo(server, '!tool subagents {"action": "kill", "target": "1"}', sender=MALLORY)


# ---- files -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["audio/a/b", "audio/a\0b", "audio/" + "a" * 300, "audio/ogg'; touch pwned; '", "ü/ü"])
def test_no_file_of_a_strangers_silences_a_conversation(tmp_path: Path, kind: str) -> None:
    """Each later turn recalls it."""
    audio = {"models": [{"type": "cli", "command": "sh", "args": ["-c", "wc -c < '{{MediaPath}}'"]}]}
    with FakeModel(say("hello")) as model:
        with world(tmp_path, behind("openai", model, tools={"media": {"audio": audio}})) as server:
            file = {"mimeType": kind, "fileName": "v.ogg", "content": base64.b64encode(b"x").decode()}
            assert send(server, "listen", sender=MALLORY, attachments=[file]) == "hello"
            assert send(server, "are you there?") == "hello"
            sent = {"sessionKey": "main", "message": "listen", "idempotencyKey": "1", "attachments": [file]}
            assert server.answer(server.ask("chat.send", **sent)["runId"]) == "hello"
        prompts = json.dumps([request.body["messages"] for request in model.requests])
        assert "v.ogg (application/octet-stream, 1 bytes); it was not read" in prompts
        assert "pwned" not in prompts
