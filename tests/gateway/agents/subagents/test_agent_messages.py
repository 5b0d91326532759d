"""Sessions that see, read and write to each other: as far as the config lets them, and no further."""

import json
from collections.abc import Iterator

import pytest

from tests.gateway.wiring.gateways import Refused, World, comes, world

AGENTS = {"list": [{"id": "main", "default": True}, {"id": "friend"}, {"id": "loner"}]}
OPEN = {"sessions": {"visibility": "all"}, "agentToAgent": {"enabled": True, "allow": ["main", "fr*"]}}
SKIP = "!say REPLY_SKIP"


@pytest.fixture(scope="module")
def harness(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    config = {"agents": AGENTS, "tools": OPEN}
    with world(tmp_path_factory.mktemp("state"), config) as gateway:
        for session in ("agent:main:a", "agent:main:b", "agent:friend:main", "agent:loner:main"):
            gateway.say(session, f"!say this is {session}")
        yield gateway


def visible_sessions(harness: World, session: str) -> set[str]:
    return {row["key"] for row in harness.tool(session, "sessions_list", limit=500)["sessions"]}


def read(harness: World, session: str, other: str) -> str:
    return harness.say(session, f"!tool sessions_history {json.dumps({'sessionKey': other})}")


# ---- sight ----


def test_all_means_all_whom_the_config_names(harness: World) -> None:
    assert {"agent:main:a", "agent:main:b", "agent:friend:main"} <= visible_sessions(harness, "agent:main:a")
    assert "agent:loner:main" not in visible_sessions(harness, "agent:main:a")
    assert {row.split(":")[1] for row in visible_sessions(harness, "agent:loner:main")} == {"loner"}
    assert "this is agent:friend:main" in read(harness, "agent:main:a", "agent:friend:main")
    assert "tools.agentToAgent.allow does not name loner" in read(harness, "agent:main:a", "agent:loner:main")


@pytest.mark.parametrize(
    ("visibility", "sees"),
    [
        ("self", {"agent:main:eye"}),
        ("tree", {"agent:main:eye", "child"}),
        ("agent", {"agent:main:eye", "child", "agent:main:b"}),
        ("all", {"agent:main:eye", "child", "agent:main:b"}),  # without agentToAgent no other agent's
    ],
)
def test_each_visibility_shows_so_much_and_lets_read_as_much(harness: World, visibility: str, sees: set[str]) -> None:
    harness.configure(tools={"sessions": {"visibility": visibility}})
    try:
        child = harness.tool("agent:main:eye", "sessions_spawn", task="!say ANNOUNCE_SKIP")["childSessionKey"]
        wanted = {child if name == "child" else name for name in sees}
        others = {child, "agent:main:b", "agent:friend:main", "agent:loner:main"}
        found = visible_sessions(harness, "agent:main:eye")

        assert wanted <= found
        assert not (others - wanted) & found
        for key in others | {"agent:main:eye"}:
            refused = read(harness, "agent:main:eye", key).startswith(f"session {key} is out of sight")
            assert refused == (key not in wanted)
    finally:
        harness.configure(tools=OPEN)


def test_what_is_out_of_sight_can_be_neither_written_to_nor_looked_up(harness: World) -> None:
    harness.configure(tools={})
    try:
        for order in (
            'sessions_send {"sessionKey": "agent:main:b", "message": "psst"}',
            'session_status {"sessionKey": "agent:main:b"}',
            'session_status {"sessionKey": "agent:main:b", "model": "x/y"}',
            'sessions_history {"sessionKey": "agent:main:b"}',
        ):
            assert "agent:main:b is out of sight: tools.sessions.visibility is tree" in harness.say(
                "agent:main:nosy", f"!tool {order}"
            )
        assert "psst" not in harness.texts("agent:main:b", "user")
        row = harness.tool("agent:main:nosy", "session_status")
        assert row["session"]["key"] == "agent:main:nosy"
    finally:
        harness.configure(tools=OPEN)


def test_settings_that_cant_be_understood_are_refused(harness: World) -> None:
    with pytest.raises(Refused, match=r"tools\.sessions\.visibility: must be one of self, tree, agent, all"):
        harness.configure(tools={"sessions": {"visibility": "everything"}})


def test_an_operator_sees_everything(harness: World) -> None:
    received = json.loads(harness.invoke("sessions_list")["output"]["content"][0]["text"])
    assert {"agent:loner:main", "agent:main:a"} <= {row["key"] for row in received["sessions"]}


# ---- reading ----


def test_history_is_cut_to_size_and_secrets_are_hidden(harness: World) -> None:
    harness.say("agent:main:long", f"!say {'x' * 5000} sk-abcdefghijklmnopqrstuvwxyz123456", "!tool agents_list {}")
    received = harness.tool("agent:main:a", "sessions_history", sessionKey="agent:main:long")
    answer = received["messages"][-1]["content"][0]["text"]

    assert len(answer) < 4100
    assert (received["contentTruncated"], received["contentRedacted"]) == (True, True)
    assert "sk-abcdefghijkl" not in json.dumps(received)
    assert {message["role"] for message in received["messages"]} == {"user", "assistant"}
    with_tools = harness.tool("agent:main:a", "sessions_history", sessionKey="agent:main:long", includeTools=True)
    assert "toolResult" in {message["role"] for message in with_tools["messages"]}


def test_a_session_may_be_named_by_its_id(harness: World) -> None:
    id = harness.ask("sessions.describe", key="agent:main:b")["session"]["sessionId"]

    assert harness.tool("agent:main:a", "sessions_history", sessionKey=id)["sessionKey"] == "agent:main:b"
    assert "there is no session nowhere" in read(harness, "agent:main:a", "nowhere")


def test_lists_can_be_narrowed(harness: World) -> None:
    found = harness.tool("agent:main:a", "sessions_list", filter="agent:friend:m", messageLimit=1)["sessions"]
    rows = {row["key"]: row for row in found}
    assert "agent:main:b" not in rows
    assert len(rows["agent:friend:main"]["messages"]) == 1
    kinds = harness.tool("agent:main:a", "sessions_list", kinds=["main"])["sessions"]
    assert {row["key"] for row in kinds} == {"agent:friend:main"}


def test_agents_are_reported_whom_they_may_start(harness: World) -> None:
    received = harness.tool("agent:main:a", "agents_list")
    assert received == {
        "requester": "main",
        "allowAny": False,
        "agents": [{"id": "main", "name": "main", "configured": True}],
    }
    harness.configure(agents={**AGENTS, "defaults": {"subagents": {"allowAgents": ["*", "ghost"]}}})
    try:
        received = harness.tool("agent:main:a", "agents_list")
        assert (received["allowAny"], [agent["id"] for agent in received["agents"]]) == (
            True,
            ["main", "friend", "loner"],
        )
    finally:
        harness.configure(agents=AGENTS)


# ---- writing ----


def test_a_message_is_answered(harness: World) -> None:
    arguments = {"sessionKey": "agent:friend:main", "message": "!say REPLY_SKIP"}
    received = harness.tool("agent:main:a", "sessions_send", **arguments)

    assert (received["status"], received["reply"], received["sessionKey"]) == ("ok", "REPLY_SKIP", "agent:friend:main")
    assert received["delivery"] == {"status": "pending", "mode": "announce"}


def test_a_label_finds_its_session(harness: World) -> None:
    harness.ask("sessions.patch", key="agent:main:b", label="the archive")

    received = harness.tool("agent:main:a", "sessions_send", label="the archive", message=SKIP)
    assert (received["status"], received["sessionKey"]) == ("ok", "agent:main:b")
    assert "session the attic is not there, or out of sight" in harness.say(
        "agent:main:a", f"!tool sessions_send {json.dumps({'label': 'the attic', 'message': 'x'})}"
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"message": "x"}, "either sessionKey or label"),
        ({"message": "x", "sessionKey": "agent:main:b", "label": "the archive"}, "either sessionKey or label"),
        ({"message": "x", "sessionKey": "agent:main:a"}, "can't write to itself"),
        ({"message": "x", "sessionKey": "agent:ghost:main"}, "does not name ghost"),
        ({"message": "", "sessionKey": "agent:main:b"}, "message"),
        ({"sessionKey": "agent:main:b"}, "message"),
        ({"message": "x", "sessionKey": "agent:main:b", "timeoutSeconds": -1}, "timeoutSeconds"),
    ],
)
def test_a_message_that_cant_be_sent_says_why(harness: World, arguments: dict[str, object], words: str) -> None:
    assert words in harness.say("agent:main:a", f"!tool sessions_send {json.dumps(arguments)}")


def test_a_failure_over_there_is_reported_here(harness: World) -> None:
    received = harness.tool("agent:main:a", "sessions_send", sessionKey="agent:main:b", message="!fail no paper")
    assert (received["status"], received["error"]) == ("error", "no paper")


def test_who_does_not_wait_is_reported_that_it_is_on_its_way(harness: World) -> None:
    arguments = {"sessionKey": "agent:main:slow", "message": "!sleep 2\n!say REPLY_SKIP"}
    assert harness.tool("agent:main:a", "sessions_send", **arguments, timeoutSeconds=0)["status"] == "accepted"
    received = harness.tool("agent:main:a", "sessions_send", **arguments, timeout=0.2)
    assert (received["status"], "will be answered" in received["error"]) == ("timeout", True)
    assert comes(lambda: harness.texts("agent:main:slow").count("REPLY_SKIP") == 2)


def test_the_two_agents_talk_on_until_one_has_nothing_to_add(harness: World) -> None:
    """The target's reply is the requester's next message, and so on; each `!say` peels off one turn."""
    arguments = {"sessionKey": "agent:friend:pong", "message": "!say !say !say !say REPLY_SKIP"}
    received = harness.tool("agent:main:ping", "sessions_send", **arguments)

    assert received["reply"] == "!say !say !say REPLY_SKIP"
    assert comes(lambda: "REPLY_SKIP" in harness.texts("agent:main:ping") + harness.texts("agent:friend:pong"))
    assert harness.texts("agent:main:ping")[-2:] == ["!say !say REPLY_SKIP", "REPLY_SKIP"]
    assert harness.texts("agent:friend:pong") == ["!say !say !say REPLY_SKIP", "!say REPLY_SKIP"]


def test_the_exchange_is_bounded(harness: World) -> None:
    harness.configure(session={"agentToAgent": {"maxPingPongTurns": 1}})
    try:
        harness.tool("agent:main:b1", "sessions_send", sessionKey="agent:friend:b2", message="!say !say !say !say end")
        assert comes(lambda: harness.texts("agent:main:b1")[-1:] == ["!say !say end"])
        harness.tool("agent:main:b1", "sessions_send", sessionKey="agent:main:b", message=SKIP)  # time for one more
        assert len(harness.texts("agent:friend:b2")) == 1
    finally:
        harness.configure(session={})


def test_a_method_an_agent_has_no_business_with_is_closed_to_it(harness: World) -> None:
    """Operators go on as before."""
    assert harness.ask("sessions.search", query="agent")["results"]
    with pytest.raises(Refused, match="unknown agent id"):
        harness.ask("sessions.converse", sessionKey="agent:ghost:main", message="x")
