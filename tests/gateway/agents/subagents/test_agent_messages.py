"""Sessions that see, read and write to each other: as far as the config lets them, and no further."""

import json
from collections.abc import Iterator

import pytest

from tests.gateway.wiring.gateways import Refused, World, comes, world

AGENTS = {"list": [{"id": "main", "default": True}, {"id": "friend"}, {"id": "loner"}]}
OPEN = {"sessions": {"visibility": "all"}, "agentToAgent": {"enabled": True, "allow": ["main", "fr*"]}}
SKIP = "!say REPLY_SKIP"


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    config = {"agents": AGENTS, "tools": OPEN}
    with world(tmp_path_factory.mktemp("state"), config) as made:
        for session in ("agent:main:a", "agent:main:b", "agent:friend:main", "agent:loner:main"):
            made.say(session, f"!say this is {session}")
        yield made


def seen(house: World, session: str) -> set[str]:
    return {row["key"] for row in house.tool(session, "sessions_list", limit=500)["sessions"]}


def read(house: World, session: str, other: str) -> str:
    return house.say(session, f"!tool sessions_history {json.dumps({'sessionKey': other})}")


# ---- sight ----


def test_all_means_all_whom_the_config_names(house: World) -> None:
    assert {"agent:main:a", "agent:main:b", "agent:friend:main"} <= seen(house, "agent:main:a")
    assert "agent:loner:main" not in seen(house, "agent:main:a")
    assert {row.split(":")[1] for row in seen(house, "agent:loner:main")} == {"loner"}
    assert "this is agent:friend:main" in read(house, "agent:main:a", "agent:friend:main")
    assert "tools.agentToAgent.allow does not name loner" in read(house, "agent:main:a", "agent:loner:main")


@pytest.mark.parametrize(
    ("visibility", "sees"),
    [
        ("self", {"agent:main:eye"}),
        ("tree", {"agent:main:eye", "child"}),
        ("agent", {"agent:main:eye", "child", "agent:main:b"}),
        ("all", {"agent:main:eye", "child", "agent:main:b"}),  # without agentToAgent no other agent's
    ],
)
def test_each_visibility_shows_so_much_and_lets_read_as_much(house: World, visibility: str, sees: set[str]) -> None:
    house.configure(tools={"sessions": {"visibility": visibility}})
    try:
        child = house.tool("agent:main:eye", "sessions_spawn", task="!say ANNOUNCE_SKIP")["childSessionKey"]
        wanted = {child if name == "child" else name for name in sees}
        others = {child, "agent:main:b", "agent:friend:main", "agent:loner:main"}
        found = seen(house, "agent:main:eye")

        assert wanted <= found
        assert not (others - wanted) & found
        for key in others | {"agent:main:eye"}:
            refused = read(house, "agent:main:eye", key).startswith(f"session {key} is out of sight")
            assert refused == (key not in wanted)
    finally:
        house.configure(tools=OPEN)


def test_what_is_out_of_sight_can_be_neither_written_to_nor_looked_up(house: World) -> None:
    house.configure(tools={})
    try:
        for order in (
            'sessions_send {"sessionKey": "agent:main:b", "message": "psst"}',
            'session_status {"sessionKey": "agent:main:b"}',
            'session_status {"sessionKey": "agent:main:b", "model": "x/y"}',
            'sessions_history {"sessionKey": "agent:main:b"}',
        ):
            assert "agent:main:b is out of sight: tools.sessions.visibility is tree" in house.say(
                "agent:main:nosy", f"!tool {order}"
            )
        assert "psst" not in house.texts("agent:main:b", "user")
        row = house.tool("agent:main:nosy", "session_status")
        assert row["session"]["key"] == "agent:main:nosy"
    finally:
        house.configure(tools=OPEN)


def test_settings_that_cant_be_understood_open_nothing(house: World) -> None:
    house.configure(tools={"sessions": {"visibility": "everything"}})
    try:
        said = house.say("agent:main:a", "!tool sessions_list {}", '!tool sessions_spawn {"task": "!say x"}')
        assert said.count("no work is handed on") == 2
    finally:
        house.configure(tools=OPEN)


def test_an_operator_sees_everything(house: World) -> None:
    received = json.loads(house.invoke("sessions_list")["output"]["content"][0]["text"])
    assert {"agent:loner:main", "agent:main:a"} <= {row["key"] for row in received["sessions"]}


# ---- reading ----


def test_history_is_cut_to_size_and_secrets_are_hidden(house: World) -> None:
    house.say("agent:main:long", f"!say {'x' * 5000} sk-abcdefghijklmnopqrstuvwxyz123456", "!tool agents_list {}")
    received = house.tool("agent:main:a", "sessions_history", sessionKey="agent:main:long")
    answer = received["messages"][-1]["content"][0]["text"]

    assert len(answer) < 4100
    assert (received["contentTruncated"], received["contentRedacted"]) == (True, True)
    assert "sk-abcdefghijkl" not in json.dumps(received)
    assert {message["role"] for message in received["messages"]} == {"user", "assistant"}
    with_tools = house.tool("agent:main:a", "sessions_history", sessionKey="agent:main:long", includeTools=True)
    assert "toolResult" in {message["role"] for message in with_tools["messages"]}


def test_a_session_may_be_named_by_its_id(house: World) -> None:
    id = house.ask("sessions.describe", key="agent:main:b")["session"]["sessionId"]

    assert house.tool("agent:main:a", "sessions_history", sessionKey=id)["sessionKey"] == "agent:main:b"
    assert "there is no session nowhere" in read(house, "agent:main:a", "nowhere")


def test_lists_can_be_narrowed(house: World) -> None:
    found = house.tool("agent:main:a", "sessions_list", filter="agent:friend:m", messageLimit=1)["sessions"]
    rows = {row["key"]: row for row in found}
    assert "agent:main:b" not in rows
    assert len(rows["agent:friend:main"]["messages"]) == 1
    kinds = house.tool("agent:main:a", "sessions_list", kinds=["main"])["sessions"]
    assert {row["key"] for row in kinds} == {"agent:friend:main"}


def test_agents_are_reported_whom_they_may_start(house: World) -> None:
    received = house.tool("agent:main:a", "agents_list")
    assert received == {
        "requester": "main",
        "allowAny": False,
        "agents": [{"id": "main", "name": "main", "configured": True}],
    }
    house.configure(agents={**AGENTS, "defaults": {"subagents": {"allowAgents": ["*", "ghost"]}}})
    try:
        received = house.tool("agent:main:a", "agents_list")
        assert (received["allowAny"], [agent["id"] for agent in received["agents"]]) == (
            True,
            ["main", "friend", "loner"],
        )
    finally:
        house.configure(agents=AGENTS)


# ---- writing ----


def test_a_message_is_answered(house: World) -> None:
    asked = {"sessionKey": "agent:friend:main", "message": "!say REPLY_SKIP"}
    received = house.tool("agent:main:a", "sessions_send", **asked)

    assert (received["status"], received["reply"], received["sessionKey"]) == ("ok", "REPLY_SKIP", "agent:friend:main")
    assert received["delivery"] == {"status": "pending", "mode": "announce"}


def test_a_label_finds_its_session(house: World) -> None:
    house.ask("sessions.patch", key="agent:main:b", label="the archive")

    received = house.tool("agent:main:a", "sessions_send", label="the archive", message=SKIP)
    assert (received["status"], received["sessionKey"]) == ("ok", "agent:main:b")
    assert "session the attic is not there, or out of sight" in house.say(
        "agent:main:a", f"!tool sessions_send {json.dumps({'label': 'the attic', 'message': 'x'})}"
    )


@pytest.mark.parametrize(
    ("asked", "words"),
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
def test_a_message_that_cant_be_sent_says_why(house: World, asked: dict[str, object], words: str) -> None:
    assert words in house.say("agent:main:a", f"!tool sessions_send {json.dumps(asked)}")


def test_a_failure_over_there_is_reported_here(house: World) -> None:
    received = house.tool("agent:main:a", "sessions_send", sessionKey="agent:main:b", message="!fail no paper")
    assert (received["status"], received["error"]) == ("error", "no paper")


def test_who_does_not_wait_is_reported_that_it_is_on_its_way(house: World) -> None:
    asked = {"sessionKey": "agent:main:slow", "message": "!sleep 2\n!say REPLY_SKIP"}
    assert house.tool("agent:main:a", "sessions_send", **asked, timeoutSeconds=0)["status"] == "accepted"
    received = house.tool("agent:main:a", "sessions_send", **asked, timeout=0.2)
    assert (received["status"], "will be answered" in received["error"]) == ("timeout", True)
    assert comes(lambda: house.texts("agent:main:slow").count("REPLY_SKIP") == 2)


def test_the_two_agents_talk_on_until_one_has_nothing_to_add(house: World) -> None:
    """The target's reply is the requester's next message, and so on; each `!say` peels off one turn."""
    asked = {"sessionKey": "agent:friend:pong", "message": "!say !say !say !say REPLY_SKIP"}
    received = house.tool("agent:main:ping", "sessions_send", **asked)

    assert received["reply"] == "!say !say !say REPLY_SKIP"
    assert comes(lambda: "REPLY_SKIP" in house.texts("agent:main:ping") + house.texts("agent:friend:pong"))
    assert house.texts("agent:main:ping")[-2:] == ["!say !say REPLY_SKIP", "REPLY_SKIP"]
    assert house.texts("agent:friend:pong") == ["!say !say !say REPLY_SKIP", "!say REPLY_SKIP"]


def test_the_exchange_is_bounded(house: World) -> None:
    house.configure(session={"agentToAgent": {"maxPingPongTurns": 1}})
    try:
        house.tool("agent:main:b1", "sessions_send", sessionKey="agent:friend:b2", message="!say !say !say !say end")
        assert comes(lambda: house.texts("agent:main:b1")[-1:] == ["!say !say end"])
        house.tool("agent:main:b1", "sessions_send", sessionKey="agent:main:b", message=SKIP)  # time for one more
        assert len(house.texts("agent:friend:b2")) == 1
    finally:
        house.configure(session={})


def test_a_method_an_agent_has_no_business_with_is_closed_to_it(house: World) -> None:
    """Operators go on as before."""
    assert house.ask("sessions.search", query="agent")["results"]
    with pytest.raises(Refused, match="unknown agent id"):
        house.ask("sessions.converse", sessionKey="agent:ghost:main", message="x")
