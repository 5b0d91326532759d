"""What one tool may not do, no related tool does for it: a call is judged by what it does, at every entry point."""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from openclaw_mcp.core.session_target import SessionAddress
from tests.claw.gateways import call, environment, introduce, server
from tests.gateway.wiring.gateways import Refused, World, comes, world
from tests.gateway.wiring.test_one_policy import tool_client

Json = dict[str, Any]

FILE, EFFECT, THREAD = "message_send_attachment", "message_send_with_effect", "message_thread_reply"
RULES: dict[str, Json] = {
    "free": {},
    "plain": {"deny": [FILE, EFFECT, THREAD]},
    "listed": {"allow": ["message_send", "message_reply", "message_broadcast", "message_poll"]},
    "home": {"deny": ["message_send", "sessions_history", "cron_update"]},
    "mute": {"deny": ["message_reply"]},
}
"""An agent of each name, and its rules."""
CONFIG: Json = {
    "agents": {"list": [{"id": name, "runtime": "demo", "tools": rules} for name, rules in RULES.items()]},
    "channels": {"local": {"dmPolicy": "open", "allowFrom": ["*"]}},
    "gateway": {"tools": {"allow": ["cron"]}},
}
DATA = "data:text/plain,x"
TO, OWN = "room", "7"
"""The conversation of every agent here, and its thread."""

Ask = Callable[[str, Json], object]
"""Do a message action; raises Refused, or says what became of it."""


def key(agent: str) -> str:
    return f"agent:{agent}:local:direct:{TO}"


@pytest.fixture(scope="module")
def running_gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with world(tmp_path_factory.mktemp("state"), CONFIG) as gateway:
        yield gateway


def entry_points(running_gateway: World, agent: str) -> dict[str, Ask]:
    """Every way to a message action for a client in the agent's conversation."""
    params = {"sessionKey": key(agent), "channel": "local", "accountId": "default", "to": TO, "threadId": OWN}
    token = running_gateway.ask("attach.grant", **params, senderIsOwner=False)["token"]
    place = SessionAddress(session=key(agent), channel="local", account="default", to=TO, thread=OWN)
    return {
        **by_methods(running_gateway, "grant", None, token),
        **by_methods(running_gateway, "acting", place),
        **by_tool(running_gateway, agent),
    }


def by_methods(
    running_gateway: World, who: str, place: SessionAddress | None, token: str | None = None
) -> dict[str, Ask]:
    def action(action: str, params: Json) -> object:
        with tool_client(running_gateway, place, token=token) as client:
            return client.ask("message.action", action=action, params={"target": TO, **params}, channel="local")

    def old(action: str, params: Json) -> object:
        with tool_client(running_gateway, place, token=token) as client:
            return client.ask(f"message:{action}", channel="local", **{"target": TO, **params})

    def send(action: str, params: Json) -> object:
        with tool_client(running_gateway, place, token=token) as client:
            return client.ask("send", channel="local", idempotencyKey=os.urandom(8).hex(), to=TO, **params)

    return {f"{who} message.action": action, f"{who} message:": old, f"{who} send": send}


def by_tool(running_gateway: World, agent: str) -> dict[str, Ask]:
    def message_arguments(action: str, params: Json) -> Json:
        return {"action": action, "channel": "local", "target": TO, **params}

    def invoked(action: str, params: Json) -> object:
        result = running_gateway.invoke("message", key(agent), **message_arguments(action, params))
        return raise_unless_ok(str(result.get("error", {}).get("message", result)), result["ok"])

    def mcp(action: str, params: Json) -> object:
        result = running_gateway.mcp(
            "tools/call", key(agent), name="message", arguments=message_arguments(action, params)
        )["result"]
        return raise_unless_ok(result["content"][0]["text"], not result.get("isError"))

    def posted(action: str, params: Json) -> object:
        result = running_gateway.post("message", key(agent), **message_arguments(action, params))
        return raise_unless_ok(str(result.json), result.status == 200)

    def run(action: str, params: Json) -> object:
        reply = running_gateway.say(key(agent), f"!tool message {json.dumps(message_arguments(action, params))}")
        return raise_unless_ok(reply, "is refused" not in reply)

    return {"tools.invoke": invoked, "/tools/invoke": posted, "/mcp": mcp, "run": run}


def raise_unless_ok(text: str, ok: bool) -> str:
    if not ok:
        raise Refused({"message": text, "code": "FORBIDDEN"})
    return text


ENTRY_POINTS = [
    "grant message.action", "grant message:", "grant send", "acting message.action", "acting message:", "acting send",
    "tools.invoke", "/tools/invoke", "/mcp", "run",
]  # fmt: skip
FLAT: list[tuple[str, Json, str]] = [
    ("send", {"message": "x", "mediaUrl": DATA}, FILE),
    ("send", {"message": "", "mediaUrls": [DATA]}, FILE),
    ("send", {"message": "x", "threadId": "9"}, THREAD),
    ("send", {"message": "x", "threadId": "room"}, THREAD),
]
"""What `send` takes too."""
OTHERS: list[tuple[str, Json, str]] = [
    *((action, {"message": "x", name: DATA}, FILE)
      for action in ("send", "reply")
      for name in ("media", "mediaUrl", "file", "path", "filePath", "buffer")),
    ("reply", {"mediaUrls": [DATA]}, FILE),
    ("broadcast", {"targets": [TO], "message": "x", "media": DATA}, FILE),
    ("send", {"message": "x", "effectId": "confetti"}, EFFECT),
    ("reply", {"message": "x", "effect": "confetti"}, EFFECT),
    ("broadcast", {"targets": [TO, "elsewhere"], "message": "x", "effectId": "confetti"}, EFFECT),
    ("reply", {"message": "x", "threadId": "9"}, THREAD),
    ("broadcast", {"targets": [TO], "message": "x", "threadId": "9"}, THREAD),
    ("send", {"message": "x", "media": DATA, "dryRun": True}, FILE),
]  # fmt: skip


@pytest.mark.parametrize("agent", ["plain", "listed"])
@pytest.mark.parametrize("entry_point", ENTRY_POINTS)
def test_a_refused_tools_work_is_not_done_by_another(running_gateway: World, agent: str, entry_point: str) -> None:
    ask = entry_points(running_gateway, agent)[entry_point]
    before = running_gateway.ask("local.read", conversation=TO, limit=500)["messages"]
    rows = (
        FLAT if "send" in entry_point else [*FLAT, *OTHERS] if entry_point != "run" else [FLAT[0], FLAT[2], OTHERS[6]]
    )
    for action, params, tool in rows:
        with pytest.raises(Refused, match=f"{tool} is refused"):
            ask(action, params)
    assert running_gateway.ask("local.read", conversation=TO, limit=500)["messages"] == before


@pytest.mark.parametrize("agent", ["free", "plain", "listed"])
@pytest.mark.parametrize("entry_point", [entry_point for entry_point in ENTRY_POINTS if "send" not in entry_point])
def test_what_is_allowed_is_done(running_gateway: World, agent: str, entry_point: str) -> None:
    ask = entry_points(running_gateway, agent)[entry_point]
    ask("send", {"message": "x"})
    ask("send", {"message": "x", "target": "elsewhere"})
    ask("reply", {"message": "x", "target": TO})
    ask("broadcast", {"targets": ["a", "b"], "message": "x"})
    if agent == "free":
        for action, params, _ in (*FLAT, *OTHERS):
            ask(action, params)
    elif entry_point.startswith(("grant", "acting")):  # these know in which thread they are
        ask("send", {"message": "x", "target": TO, "threadId": OWN})


ELSEWHERE: list[tuple[str, Json]] = [
    ("reply", {"message": "x", "target": "far"}),
    ("reply", {"message": "x", "target": "local:far"}),
    ("reply", {"message": "x", "target": "", "channelId": "far"}),
    ("thread-reply", {"message": "x", "target": "far", "threadId": OWN}),
    ("broadcast", {"message": "x", "targets": ["far"]}),
    ("broadcast", {"message": "x", "targets": [TO, "far"]}),
    ("sendAttachment", {"file": DATA, "caption": "x", "target": "far"}),
    ("sendWithEffect", {"message": "x", "effectId": "confetti", "target": "far"}),
]
"""Words for another conversation, which are `message_send`."""


@pytest.mark.parametrize("entry_point", ["grant message.action", "grant message:", "acting message.action", "/mcp"])
def test_words_for_another_conversation_are_a_message_sent(running_gateway: World, entry_point: str) -> None:
    ask = entry_points(running_gateway, "home")[entry_point]
    for action, params in ELSEWHERE:
        with pytest.raises(Refused, match="message_send is refused"):
            ask(action, params)
    assert running_gateway.ask("local.read", conversation="far", limit=500)["messages"] == []
    if entry_point != "/mcp":
        for action, params in (
            ("reply", {"message": "x", "target": TO}),
            ("broadcast", {"message": "x", "targets": [TO, f"local:{TO}"]}),
            ("sendAttachment", {"file": DATA, "caption": "x", "target": TO}),
            ("sendAttachment", {"file": DATA, "target": "elsewhere"}),
        ):
            ask(action, params)


def test_an_answer_to_a_message_is_a_reply(running_gateway: World) -> None:
    for entry_point in ("grant message.action", "acting message.action", "/mcp"):
        ask = entry_points(running_gateway, "mute")[entry_point]
        ask("send", {"message": "x"})
        for action in ("send", "sendAttachment", "thread-reply"):
            params = {"message": "x", "file": DATA, "threadId": OWN, "replyTo": "1"}
            with pytest.raises(Refused, match="message_reply is refused"):
                ask(action, params)


def test_the_list_shows_the_parameters_that_may_be_given(running_gateway: World) -> None:
    def parameters_of(agent: str, tool: str) -> set[str]:
        tools = running_gateway.mcp("tools/list", key(agent))["result"]["tools"]
        return set(next(one for one in tools if one["name"] == tool)["inputSchema"]["properties"])

    assert {"media", "effectId", "replyTo", "threadId"} <= parameters_of("free", "message")
    for agent in ("plain", "listed"):
        assert {"media", "effectId", "replyTo", "threadId"} & parameters_of(agent, "message") == {"replyTo", "threadId"}
    assert {"media", "effectId", "replyTo"} & parameters_of("mute", "message") == {"media", "effectId"}
    assert "messageLimit" in parameters_of("free", "sessions_list")
    assert "messageLimit" not in parameters_of("home", "sessions_list")


@pytest.mark.parametrize("granted", [True, False])
def test_the_tool_server_lists_and_sends_alike(running_gateway: World, tmp_path: Path, granted: bool) -> None:
    more = {"SESSION_KEY": key("plain"), "CHANNEL": "local", "TO": TO, "ACCOUNT_ID": "default"}
    token = running_gateway.served.token
    if granted:
        grant = running_gateway.ask(
            "attach.grant", sessionKey=key("plain"), channel="local", to=TO, senderIsOwner=False
        )
        token, more["TOOLS"] = grant["token"], " ".join(grant["tools"])
    with server(environment(running_gateway.served.ws, token, tmp_path / "effects", **more)) as peer:
        introduce(peer)
        tools = peer.ask("tools/list", {}, id="list")["result"]["tools"]
        (send,) = [tool for tool in tools if tool["name"] == "message_send"]
        assert "replyToId" in send["inputSchema"]["properties"]
        assert "media" not in send["inputSchema"]["properties"]
        for n, arguments in enumerate(({"media": DATA}, {"file": DATA}, {"threadId": "9"})):
            result = call(peer, "message_send", n + 1, target=TO, message="x", **arguments)
            assert result["isError"] is True
            assert f"{THREAD if 'threadId' in arguments else FILE} is " in result["content"][0]["text"]
        assert call(peer, "message_send", 9, target=TO, message="x")["isError"] is False
        assert peer.hang_up() == 0


def test_a_refusal_by_what_is_done_is_on_record(running_gateway: World) -> None:
    with pytest.raises(Refused):
        entry_points(running_gateway, "plain")["grant message.action"]("send", {"message": "on record", "media": DATA})

    def outcomes() -> set[str]:
        records = running_gateway.ask("audit.list", limit=100)["records"]
        return {one["outcome"] for one in records if one["sessionKey"] == key("plain")}

    assert comes(lambda: "tool_denied" in outcomes())


def test_listing_sessions_with_their_messages_is_reading_them(running_gateway: World) -> None:
    assert "sessions" in running_gateway.tool(key("home"), "sessions_list")
    assert "sessions_history is refused" in running_gateway.say(key("home"), '!tool sessions_list {"messageLimit": 3}')
    assert "sessions" in running_gateway.tool(key("free"), "sessions_list", messageLimit=3)


# ---- jobs ------------------------------------------------------------------------------------------------------------

JOB: Json = {
    "name": "j",
    "schedule": {"kind": "every", "everyMs": 3_600_000},
    "sessionTarget": "isolated",
    "payload": {"kind": "agentTurn", "message": "x"},
}


@pytest.mark.parametrize("entry_point", ["grant", "acting", "tools.invoke"])
def test_a_job_that_tells_its_result_elsewhere_sends_a_message(running_gateway: World, entry_point: str) -> None:
    place = SessionAddress(session=key("home"), channel="local", account="default", to=TO, thread=OWN)
    token = running_gateway.ask(
        "attach.grant", sessionKey=key("home"), channel="local", accountId="default", to=TO, threadId=OWN
    )["token"]

    def ask(method: str, **params: Any) -> Any:
        if entry_point == "tools.invoke":
            result = running_gateway.invoke("cron", key("home"), action=method, **params)
            if not result["ok"]:
                raise Refused({"message": result["error"]["message"], "code": "FORBIDDEN"})
            return json.loads(result["output"]["content"][0]["text"])
        flat = params.get("job", params)
        flat = {("id" if name == "jobId" else name): value for name, value in flat.items()}
        with tool_client(
            running_gateway,
            place if entry_point == "acting" else None,
            token=None if entry_point == "acting" else token,
        ) as client:
            return client.ask(f"cron.{method}", **flat)

    def to(place: str, **more: Any) -> Json:
        return {"delivery": {"mode": "announce", "channel": "local", "to": place, **more}}

    with pytest.raises(Refused, match="message_send is refused"):
        ask("add", job=JOB | to("far"))
    with pytest.raises(Refused, match="message_send is refused"):
        ask("add", job=JOB | {"failureAlert": {"channel": "local", "to": "far"}})
    ask("add", job=JOB | {"delivery": {"mode": "none"}})
    if entry_point != "tools.invoke":  # which knows of no conversation of its own
        ask("add", job=JOB | to(TO, threadId=OWN))
    declared = JOB | {"declarationKey": f"d {entry_point}", "delivery": {"mode": "none"}}
    assert ask("add", job=declared)["created"] is True
    assert ask("add", job=declared)["updated"] is False
    with pytest.raises(Refused, match="cron_update is refused"):
        ask("add", job=declared | {"payload": {"kind": "agentTurn", "message": "far"}})


def test_a_job_is_not_changed_to_tell_its_result_elsewhere(running_gateway: World) -> None:
    """By one that may change jobs, and may not send."""
    running_gateway.configure(tools={"deny": ["message_send"]})
    try:
        job = running_gateway.ask("cron.add", **JOB, delivery={"mode": "none"})
        place = SessionAddress(session=key("free"), channel="local", account="default", to=TO)
        with tool_client(running_gateway, place) as client:
            elsewhere = {"delivery": {"mode": "announce", "channel": "local", "to": "far"}}
            with pytest.raises(Refused, match="message_send is refused"):
                client.ask("cron.update", id=job["id"], patch=elsewhere)
            client.ask("cron.update", id=job["id"], patch={"name": "renamed"})
            running_gateway.ask("cron.update", id=job["id"], patch=elsewhere)
    finally:
        running_gateway.configure(tools={})
