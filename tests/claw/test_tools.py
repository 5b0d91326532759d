"""Each tool: what it asks of the gateway, what it makes of the answer, what it writes down. On a fake gateway."""

import base64
import json
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from scripts.claw_reference import PATH, page
from scripts.first_replies import FOLDER, tool_lists

from openclaw_mcp.claw.tool_context import GatewayOffer, OutcomeUnknown
from openclaw_mcp.claw.toolbox import SPECS
from openclaw_mcp.core import claw_catalogue
from openclaw_mcp.core.claw_methods import MESSAGE_ACTIONS, METHODS_BY_TOOL
from openclaw_mcp.core.errors import ToolUnavailable
from openclaw_mcp.core.model import Text
from openclaw_mcp.net.file_access import FileAccess
from openclaw_mcp.net.side_effects_file import read_effects
from openclaw_mcp.tools.tool_names import CLAW_TOOLS

from .recorded_gateway import HOME, REAL, FakeGateway, refused


@pytest.fixture
def fake(tmp_path: Path) -> FakeGateway:
    return FakeGateway(tmp_path, home=HOME)


@pytest.fixture
def real(tmp_path: Path) -> FakeGateway:
    return FakeGateway(tmp_path, offers=REAL, home=HOME)


DESTRUCTIVE = {
    "subagents", "message_delete", "cron_update", "cron_remove", "gateway_restart", "gateway_config_apply",
    "gateway_config_patch",
}  # fmt: skip
READ_ONLY = {
    "sessions_list", "sessions_history", "session_status", "agents_list", "message_read", "cron_status", "cron_list",
    "cron_runs", "gateway_config_get", "gateway_config_schema",
}  # fmt: skip

# ---- the list --------------------------------------------------------------------------------------------------------


def test_there_are_the_29_in_the_order_of_the_inventory() -> None:
    assert tuple(spec.name for spec in SPECS) == CLAW_TOOLS == tuple(METHODS_BY_TOOL)


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_every_tool_says_what_it_does_and_takes_a_valid_schema(spec: Any) -> None:
    jsonschema_rs.meta.validate(spec.input_schema)
    assert spec.input_schema["type"] == "object"
    assert set(spec.input_schema.get("required", ())) <= set(spec.input_schema["properties"])
    assert all(field.get("description") for field in spec.input_schema["properties"].values())
    assert len(spec.description) > 10
    assert spec.annotations["readOnlyHint"] == (spec.effect == "read")
    assert spec.owner_only == spec.name.startswith(("cron_", "gateway_"))


def test_what_can_not_be_undone_is_marked_and_what_only_looks_too() -> None:
    marked = {spec.name for spec in SPECS if (spec.annotations or {}).get("destructiveHint")}
    assert marked == DESTRUCTIVE
    looks = {spec.name for spec in SPECS if (spec.annotations or {})["readOnlyHint"]}
    assert looks == READ_ONLY


def test_the_reference_says_what_the_tools_say() -> None:
    assert PATH.read_text(encoding="utf-8") == page(), "run scripts/claw_reference.py"


def test_the_menus_by_profile_are_the_rules_own() -> None:
    assert (FOLDER / "claw_lists.py").read_text(encoding="utf-8") == tool_lists(), "run make first-replies"


def test_no_alias_hides_a_parameter() -> None:
    for tool in claw_catalogue.CLAW_TOOLS.values():
        properties = tool.spec.input_schema["properties"]
        assert set(tool.aliases.values()) <= set(properties), tool.spec.name
        assert not set(tool.aliases) & set(properties), tool.spec.name


def test_the_text_is_the_answer_as_indented_json(fake: FakeGateway) -> None:
    fake.answers["agents.list"] = {"agents": [{"id": "main"}], "name": "Ä"}
    result = fake.use("agents_list")

    (block,) = result.content
    assert isinstance(block, Text)
    assert block.text == json.dumps(result.structured, indent=2, ensure_ascii=False)


def test_a_tool_that_is_not_to_be_had_here_is_refused_with_the_reason(fake: FakeGateway) -> None:
    changes: list[None] = []
    fake.tools.changed.connect(changes.append)

    fake.offered.emit(GatewayOffer(frozenset({"sessions.list", "config.get"})))
    had = [spec.name for spec in SPECS if fake.tools.refusal_reason(spec.name) is None]
    assert had == ["sessions_list", "gateway_config_get"]
    assert "no cron.add" in str(fake.tools.refusal_reason("cron_add"))
    fake.offered.emit(GatewayOffer(frozenset({"sessions.list", "config.get"}), frozenset({"sessions_list"})))
    assert "not among the tools the gateway grants" in str(fake.tools.refusal_reason("gateway_config_get"))
    fake.offered.emit(GatewayOffer(frozenset({"sessions.list", "config.get"}), frozenset({"sessions_list"})))
    assert len(changes) == 2


def test_a_real_gateway_has_a_way_for_every_tool(real: FakeGateway) -> None:
    real.offered.emit(GatewayOffer(REAL))
    assert not any(real.tools.refusal_reason(spec.name) for spec in SPECS)


def test_called_before_it_is_known_the_missing_method_is_named(tmp_path: Path) -> None:
    bare = FakeGateway(tmp_path, offers=frozenset({"sessions.list"}))
    assert bare.fails("cron_add", job={"schedule": {}, "payload": {}}) == (
        "Tool error (cron_add): the gateway this run is connected to has no cron.add, which cron_add needs"
    )


def test_a_refusal_is_a_result_that_names_the_tool(fake: FakeGateway) -> None:
    fake.answers["agents.list"] = refused("missing scope: operator.read")
    assert fake.fails("agents_list") == "Tool error (agents_list): missing scope: operator.read"


def test_a_wrong_argument_is_a_result_too(fake: FakeGateway) -> None:
    assert "limit" in fake.fails("sessions_list", limit=0)
    assert "prompt" in fake.fails("sessions_spawn")
    assert fake.asked == []


# ---- sessions --------------------------------------------------------------------------------------------------------


def test_a_filter_and_a_limit_go_together(fake: FakeGateway) -> None:
    fake.works("sessions_list", filter="ada", limit=5.0)
    assert fake.last("sessions.list") == {
        "search": "ada", "limit": 5, "includeDerivedTitles": True, "includeLastMessage": True,
    }  # fmt: skip


def test_history_can_leave_tools_out(fake: FakeGateway) -> None:
    reply = {"role": "assistant", "content": [{"type": "text", "text": "hi"}]}
    used = {"role": "assistant", "content": [{"type": "toolCall", "id": "1"}]}
    fake.answers["chat.history"] = {"messages": [{"role": "user", "content": "x"}, used, {"role": "toolResult"}, reply]}

    assert len(fake.works("sessions_history", sessionKey="main")["messages"]) == 4
    messages = fake.works("sessions_history", session_key="main", limit=3, include_tools=False)["messages"]
    assert [message["role"] for message in messages] == ["user", "assistant"]
    assert fake.last("chat.history") == {"sessionKey": "main", "limit": 3}


def test_sending_resolves_the_label_waits_and_gives_the_reply(fake: FakeGateway) -> None:
    fake.answers["sessions.resolve"] = {"ok": True, "key": "agent:main:ops"}
    fake.answers["agent"] = lambda params: {"runId": params["idempotencyKey"], "status": "accepted"}
    fake.answers["agent.wait"] = {"status": "ok", "terminalReply": {"text": "all well"}}

    answer = fake.works("sessions_send", label="ops", message="how is it?", timeoutSeconds=7)

    assert (answer["status"], answer["reply"], answer["sessionKey"]) == ("ok", "all well", "agent:main:ops")
    sent = fake.last("agent")
    assert (sent["sessionKey"], sent["message"], sent["deliver"]) == ("agent:main:ops", "how is it?", False)
    assert sent["inputProvenance"]["sourceSessionKey"] == "agent:main:cli"
    assert fake.last("agent.wait") == {"runId": sent["idempotencyKey"], "timeoutMs": 7000}
    (record,) = read_effects(fake.path).sent
    assert (record.tool, record.to, record.text) == ("sessions_send", "agent:main:ops", "how is it?")


def test_sending_without_waiting_returns_at_once(fake: FakeGateway) -> None:
    fake.answers["agent"] = {"runId": "R", "sessionKey": "agent:main:x"}
    answer = fake.works("sessions_send", sessionKey="agent:main:x", message="go", timeout=0)
    assert answer == {"runId": "R", "status": "accepted", "sessionKey": "agent:main:x"}
    assert [method for method, _ in fake.asked] == ["agent"]


def test_a_reply_the_end_does_not_carry_is_the_last_thing_the_agent_said(fake: FakeGateway) -> None:
    fake.answers |= {"agent": {"runId": "R"}, "agent.wait": {"status": "ok"}}
    blocks = [{"type": "thinking", "text": "hm"}, {"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    messages = [{"role": "assistant", "content": blocks}, {"role": "user", "content": "and?"}]
    fake.answers["chat.history"] = {"messages": messages}

    assert fake.works("sessions_send", sessionKey="x", message="go")["reply"] == "one\n\ntwo"


def test_what_goes_wrong_after_the_message_arrived_is_no_failure_of_sending(fake: FakeGateway) -> None:
    fake.answers |= {
        "agent": {"runId": "R"},
        "agent.wait": [{"status": "timeout"}, refused("gone"), {"status": "error"}],
    }
    for status in ("timeout", "error", "error"):
        assert fake.works("sessions_send", sessionKey="x", message="go")["status"] == status
    assert len(read_effects(fake.path).sent) == 3


def test_a_message_that_was_not_taken_is_not_recorded(fake: FakeGateway) -> None:
    fake.answers["agent"] = refused("no such session")
    assert "no such session" in fake.fails("sessions_send", sessionKey="x", message="go")
    assert not fake.path.exists() or fake.path.read_bytes() == b""


@pytest.mark.parametrize("arguments", [{}, {"sessionKey": "a", "label": "b"}, {"sessionKey": " ", "label": ""}])
def test_exactly_one_of_key_and_label(fake: FakeGateway, arguments: Any) -> None:
    assert "either `sessionKey` or `label`" in fake.fails("sessions_send", message="x", **arguments)


def test_a_session_does_not_wait_for_itself(fake: FakeGateway) -> None:
    assert "this very session" in fake.fails("sessions_send", sessionKey="Agent:main:CLI", message="x")
    fake.answers["sessions.resolve"] = {"ok": True, "key": "agent:main:cli"}
    assert "this very session" in fake.fails("sessions_send", sessionKey="cli", message="x")


def test_what_was_sent_is_on_record_under_the_sessions_whole_key(fake: FakeGateway) -> None:
    fake.answers |= {"sessions.resolve": {"ok": True, "key": "agent:main:main"}, "agent": {"runId": "R"}}
    fake.works("sessions_send", sessionKey="main", message="go", timeout=0)
    assert fake.last("sessions.resolve") == {"key": "main", "allowMissing": True}
    assert [record.to for record in read_effects(fake.path).sent] == ["agent:main:main"]


@pytest.mark.parametrize("word", ["prompt", "task", "message"])
def test_spawning_is_for_this_session(fake: FakeGateway, word: str) -> None:
    fake.works("sessions_spawn", **{word: "dig"}, agentId="digger", channel=" Local", timeout=9)
    request = fake.last("sessions.spawn")
    assert request.pop("idempotencyKey")
    assert request == {
        "task": "dig", "sessionKey": "agent:main:cli", "agentId": "digger", "runTimeoutSeconds": 9,
    }  # fmt: skip


def test_a_sub_agents_result_is_for_this_conversation_and_no_other_channel(
    fake: FakeGateway, real: FakeGateway, tmp_path: Path
) -> None:
    for gateway in (fake, real, FakeGateway(tmp_path)):
        refusal = gateway.fails("sessions_spawn", prompt="dig", channel="telegram")
        assert "leave `channel` out" in refusal
        assert gateway.asked == []


def test_a_gateway_that_does_not_spawn_gets_a_child_session(real: FakeGateway) -> None:
    real.answers["sessions.create"] = {"key": "agent:main:dashboard:1", "runId": "R"}
    child = real.works("sessions_spawn", prompt="dig", label="d")
    assert (child["status"], child["childSessionKey"], child["runId"]) == ("accepted", "agent:main:dashboard:1", "R")
    request = real.last("sessions.create")
    assert (request["parentSessionKey"], request["message"], request["label"]) == ("agent:main:cli", "dig", "d")


def test_no_one_speaks_for_another_session(fake: FakeGateway) -> None:
    fake.works("subagents", action="cancel", params={"runId": "R", "sessionKey": "agent:main:main"})
    assert fake.last("sessions.subagents") == {"action": "cancel", "runId": "R", "sessionKey": "agent:main:cli"}
    assert fake.again["sessions.subagents"] is False


def test_children_of_a_gateway_that_does_not_spawn_are_its_own_only(real: FakeGateway) -> None:
    row = {"key": "agent:main:c", "label": "digger", "activeRunIds": ["R"]}
    real.answers["sessions.list"] = {"sessions": [row]}
    assert real.works("subagents", action="list")["runs"] == [row]
    assert real.works("subagents", action="status", runId="R")["run"] == row
    assert real.works("subagents", action="cancel", target="digger")["terminated"] == 1
    assert real.last("sessions.abort") == {"key": "agent:main:c"}
    assert "no sub-agent" in real.fails("subagents", action="cancel", runId="of another")
    assert all(params["spawnedBy"] == "agent:main:cli" for name, params in real.asked if name == "sessions.list")


def test_the_status_is_about_the_session(fake: FakeGateway) -> None:
    row = {"key": "agent:main:cli", "hasActiveRun": True, "activeRunIds": ["R"], "status": "running", "model": "m"}
    fake.answers["sessions.describe"] = {"session": row}
    status = fake.works("session_status")
    assert fake.last("sessions.describe")["key"] == "agent:main:cli"
    assert status["run"] == {"active": True, "runIds": ["R"], "status": "running"}
    assert status["session"] == row


def test_a_session_there_is_not(fake: FakeGateway) -> None:
    fake.answers["sessions.describe"] = {"session": None}
    assert fake.works("session_status")["exists"] is False
    assert "no session 'other'" in fake.fails("session_status", sessionKey="other")


# ---- messages --------------------------------------------------------------------------------------------------------


def test_a_message_goes_out_once_and_is_written_down_as_the_gateway_names_it(fake: FakeGateway) -> None:
    fake.answers["message.action"] = {"kind": "send", "channel": "local", "to": "ada", "payload": {"messageId": "1"}}
    fake.works("message_send", to="@Ada", text="hello")

    request = fake.last("message.action")
    assert request.pop("idempotencyKey")
    assert request == {
        "channel": "local",
        "accountId": "default",
        "action": "send",
        "params": {"target": "@Ada", "to": "@Ada", "accountId": "default", "message": "hello"},
        "sessionKey": "agent:main:cli",
    }
    (record,) = read_effects(fake.path).sent
    assert (record.tool, record.provider, record.account) == ("message", "local", "default")
    assert (record.to, record.text, record.media_url, record.thread) == ("ada", "hello", None, None)


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("message_send", {"message": "hello"}),
        ("message_send", {"media": "https://example.com/a.png"}),
        ("message_send_attachment", {"file": "https://example.com/a.png"}),
        ("message_send_with_effect", {"message": "hello", "effectId": "confetti"}),
    ],
)
def test_without_a_target_this_conversation_and_its_thread_are_meant(
    fake: FakeGateway, tool: str, arguments: Any
) -> None:
    fake.works(tool, **arguments)
    params = fake.last("message.action")["params"]
    assert (params["to"], params["threadId"]) == ("room-1", "t7")
    assert params.get("message") == arguments.get("message")
    assert params.get("media") == arguments.get("media", arguments.get("file"))
    (record,) = read_effects(fake.path).sent
    assert (record.to, record.thread) == ("room-1", "t7")


def test_neither_text_nor_media_is_nothing_to_send(fake: FakeGateway) -> None:
    assert "`message` is empty" in fake.fails("message_send", target="ada")
    assert fake.asked == []


def test_every_messaging_tool_is_written_down_as_the_one_tool_message(fake: FakeGateway) -> None:
    fake.answers["message.action"] = {"payload": {"results": [{"ok": True}]}}
    fake.works("message_reply", message="a")
    fake.works("message_broadcast", targets=["b"], message="b")
    fake.works("message_send_with_effect", message="c", effectId="confetti")
    fake.works("sessions_send", sessionKey="agent:main:other", message="d", timeout=0)
    assert [record.tool for record in read_effects(fake.path).sent] == [
        "message",
        "message",
        "message",
        "sessions_send",
    ]


def test_each_send_has_a_key_of_its_own(fake: FakeGateway) -> None:
    for _ in range(2):
        fake.works("message_send", target="a", message="same")
    keys = [params["idempotencyKey"] for _, params in fake.asked]
    assert len(set(keys)) == 2


def test_a_reply_stays_in_the_conversation_and_its_thread(fake: FakeGateway) -> None:
    fake.works("message_reply", message="yes", replyTo="m3")
    request = fake.last("message.action")
    assert request["action"] == "reply"
    assert request["params"] == {
        "target": "room-1", "to": "room-1", "threadId": "t7", "accountId": "default", "message": "yes", "replyTo": "m3",
    }  # fmt: skip
    (record,) = read_effects(fake.path).sent
    assert (record.to, record.thread) == ("room-1", "t7")


def test_another_thread_and_another_conversation_are_taken_as_said(fake: FakeGateway) -> None:
    fake.works("message_thread_reply", message="here", threadId="t9")
    assert fake.last("message.action")["params"]["threadId"] == "t9"
    fake.works("message_send", target="elsewhere", message="x")
    assert "threadId" not in fake.last("message.action")["params"]
    fake.works("message_send", target="room-1", message="x", channel="matrix")
    request = fake.last("message.action")
    assert (request["channel"], request.get("accountId"), request["params"].get("threadId")) == ("matrix", None, None)


def test_a_file_of_the_folder_we_were_started_in_is_read_here_and_travels_as_bytes(tmp_path: Path) -> None:
    file = tmp_path / "plan.txt"
    file.write_bytes(b"secret plan" * 50)
    fake = FakeGateway(tmp_path, home=HOME, files=FileAccess(folders=(tmp_path,)))
    fake.answers["message.action"] = lambda params: {"sendResult": {"mediaUrl": params["params"]["buffer"]}}
    answer = fake.works("message_send_attachment", target="a", path=str(file), message="see")

    params = fake.last("message.action")["params"]
    assert params["filename"] == "plan.txt"
    assert base64.b64decode(params["buffer"].partition(",")[2]) == b"secret plan" * 50
    assert len(answer["sendResult"]["mediaUrl"]) < 100
    (record,) = read_effects(fake.path).sent
    assert (record.text, record.media_url) == ("see", str(file))


@pytest.mark.parametrize(("tool", "name"), [("message_send_attachment", "file"), ("message_send", "media")])
@pytest.mark.parametrize(("token", "owner"), [("ocg_x", None), ("ocg_x", False), ("ocg_x", True), ("gateway's", None)])
def test_any_other_file_is_the_gateways_to_judge_and_to_read(
    tmp_path: Path, tool: str, name: str, token: str, owner: bool | None
) -> None:
    """Under a run's token nothing is read here at all, whatever the environment says of its owner."""
    (tmp_path / "work").mkdir()
    for file in ("plan.txt", "work/plan.txt"):
        (tmp_path / file).write_text("plan")
    received = {**HOME, "token": token, "owner": owner}
    fake = FakeGateway(tmp_path, home=received, files=FileAccess(folders=(tmp_path / "work",)))
    arguments = {"target": "a", "message": "x"} if tool == "message_send" else {"target": "a"}
    fake.works(tool, **arguments, **{name: str(tmp_path / "plan.txt")})
    params = fake.last("message.action")["params"]
    assert (params["media"], "buffer" in params) == (str(tmp_path / "plan.txt"), False)
    fake.works(tool, **arguments, **{name: str(tmp_path / "work/plan.txt")})
    assert ("buffer" in fake.last("message.action")["params"]) == (token != "ocg_x")


@pytest.mark.parametrize(("near", "owner"), [(False, None), (False, True), (True, False)])
def test_a_path_the_gateway_could_not_mean_or_would_judge_as_the_owners_stays_here(
    tmp_path: Path, near: bool, owner: bool | None
) -> None:
    (tmp_path / "plan.txt").write_text("plan")
    (tmp_path / "work").mkdir()
    received = {**HOME, "owner": owner}
    fake = FakeGateway(tmp_path, home=received, near=near, files=FileAccess(folders=(tmp_path / "work",)))
    words = fake.fails("message_send_attachment", target="a", file=str(tmp_path / "plan.txt"))
    assert "files are sent from" in words
    assert fake.asked == []


def test_an_address_is_the_gateways_to_fetch(fake: FakeGateway) -> None:
    fake.works("message_send", target="a", message="", media="https://example.org/a.png")
    assert fake.last("message.action")["params"]["media"] == "https://example.org/a.png"
    assert read_effects(fake.path).media_urls == ("https://example.org/a.png",)


def test_a_file_there_is_not_is_not_sent(tmp_path: Path) -> None:
    fake = FakeGateway(tmp_path, home=HOME, files=FileAccess(folders=(tmp_path,)))
    assert "there is no file" in fake.fails("message_send_attachment", target="a", file=str(tmp_path / "nothing"))
    assert "is no file" in fake.fails("message_send_attachment", target="a", file=str(tmp_path))
    assert fake.asked == []


def test_an_effect_has_its_name(fake: FakeGateway) -> None:
    fake.works("message_send_with_effect", target="a", message="hooray", effect="confetti")
    request = fake.last("message.action")
    assert (request["action"], request["params"]["effectId"]) == ("sendWithEffect", "confetti")


def test_a_broadcast_is_recorded_for_each_target_that_got_it(fake: FakeGateway) -> None:
    results = [{"to": "A", "ok": True}, {"to": "b", "ok": False, "error": "blocked"}, {"to": "C", "ok": True}]
    fake.answers["message.action"] = {"kind": "broadcast", "payload": {"results": results}}
    answer = fake.works("message_broadcast", targets=["a", "b", "c", "a"], message="all")

    assert fake.last("message.action")["params"]["targets"] == ["a", "b", "c"]
    assert (answer["sent"], answer["failed"]) == (2, 1)
    assert [record.to for record in read_effects(fake.path).sent] == ["A", "C"]


def test_a_broadcast_no_one_got_is_a_failure_and_leaves_no_record(fake: FakeGateway) -> None:
    fake.answers["message.action"] = {"payload": {"results": [{"to": "a", "ok": False, "error": "blocked"}]}}
    assert "nothing was sent: a: blocked" in fake.fails("message_broadcast", targets=["a"], message="x")
    assert read_effects(fake.path).sent == ()


def test_a_gateway_without_broadcast_gets_one_message_after_another(real: FakeGateway) -> None:
    real.answers["message.action"] = [{}, refused("blocked"), OutcomeUnknown("lost"), {}]
    answer = real.works("message_broadcast", targets=["a", "b", "c", "d"], message="x")
    assert [one["ok"] for one in answer["results"]] == [True, False, False, True]
    effects = read_effects(real.path)
    assert [record.to for record in effects.sent] == ["a", "d"]
    assert [record.to for record in effects.unsure] == ["c"]
    assert {record.tool for record in (*effects.sent, *effects.unsure)} == {"message"}


@pytest.mark.parametrize(
    ("tool", "arguments", "inner"),
    [
        ("message_reply", {"message": "x", "replyToId": "m"}, {"replyTo": "m"}),
        ("message_thread_reply", {"message": "x", "threadId": "t"}, {"threadId": "t"}),
        ("message_send_attachment", {"target": "a", "file": "https://x.test/y.png"}, {"media": "https://x.test/y.png"}),
    ],
)
def test_a_gateway_that_knows_some_actions_only_as_a_send_gets_a_send(
    fake: FakeGateway, tmp_path: Path, tool: str, arguments: Any, inner: Any
) -> None:
    (tmp_path / "real").mkdir()
    real = FakeGateway(tmp_path / "real", offers=REAL, home=HOME)
    for gateway, action in ((real, "send"), (fake, MESSAGE_ACTIONS[tool])):
        gateway.works(tool, **arguments)
        request = gateway.last("message.action")
        assert request["action"] == action
        assert inner.items() <= request["params"].items()
    assert [sent.tool for sent in read_effects(real.path).sent] == ["message"]


@pytest.mark.parametrize("tool", ["message_react", "message_delete", "message_pin", "message_read"])
def test_what_is_there_is_touched_as_an_operator(fake: FakeGateway, tool: str) -> None:
    """A real gateway lets only its own agents do it otherwise."""
    fake.works(tool, **({} if tool == "message_read" else {"messageId": "m", "emoji": "👍"}))
    assert fake.last("message.action")["conversationReadOrigin"] == "direct-operator"


def test_a_broadcast_without_a_channel_reaches_no_one_by_accident(tmp_path: Path) -> None:
    homeless = FakeGateway(tmp_path)
    assert "`channel`" in homeless.fails("message_broadcast", targets=["a"], message="x")
    assert homeless.asked == []


@pytest.mark.parametrize(
    ("tool", "arguments", "action", "inner"),
    [
        ("message_react", {"emoji": "👍", "message_id": "m"}, "react", {"emoji": "👍", "messageId": "m"}),
        ("message_react", {"emoji": "👍", "messageId": "m", "remove": True}, "react", {"remove": True}),
        ("message_delete", {"messageId": "m"}, "delete", {"messageId": "m"}),
        ("message_pin", {"id": "m"}, "pin", {"messageId": "m"}),
        ("message_read", {"limit": 3}, "read", {"to": "room-1", "limit": 3, "threadId": "t7"}),
        ("message_read", {"channelId": "other"}, "read", {"to": "other"}),
        ("message_read", {"to": "other"}, "read", {"to": "other"}),
    ],
)
def test_what_is_done_to_messages_is_asked_and_not_recorded(
    fake: FakeGateway, tool: str, arguments: Any, action: str, inner: Any
) -> None:
    fake.works(tool, **arguments)
    request = fake.last("message.action")
    assert request["action"] == action
    assert inner.items() <= request["params"].items()
    assert not fake.path.exists()


def test_a_send_no_one_knows_the_end_of_is_written_down_as_such(fake: FakeGateway) -> None:
    fake.answers["message.action"] = OutcomeUnknown("the connection broke; whether it was done is not known")
    assert "not known" in fake.fails("message_send", target="a", message="x")
    effects = read_effects(fake.path)
    assert (effects.sent, [record.to for record in effects.unsure]) == ((), ["a"])


def test_an_answer_that_says_no_is_a_failure_and_no_send(fake: FakeGateway) -> None:
    fake.answers["message.action"] = {"ok": False, "reason": "missing_token", "hint": "no bot token"}
    assert "no bot token" in fake.fails("message_send", target="a", message="x")
    assert read_effects(fake.path).sent == ()


def test_a_send_the_gateway_keeps_for_later_is_a_send(fake: FakeGateway) -> None:
    fake.answers["message.action"] = refused("queued", kind="UNAVAILABLE", details={"code": "OUTBOUND_DELIVERY_QUEUED"})
    assert fake.works("message_send", target="a", message="x")["status"] == "queued"
    assert read_effects(fake.path).texts == ("x",)


def test_nothing_is_sent_when_it_could_not_be_recorded(tmp_path: Path) -> None:
    fake = FakeGateway(tmp_path / "missing", home=HOME)
    for tool, arguments in (
        ("message_send", {"target": "a", "message": "x"}),
        ("message_broadcast", {"targets": ["a"], "message": "x"}),
        ("sessions_send", {"sessionKey": "a", "message": "x"}),
        ("cron_add", {"job": {"schedule": {}, "payload": {}}}),
    ):
        assert "can't be written" in fake.fails(tool, **arguments)
    assert fake.asked == []


# ---- cron ------------------------------------------------------------------------------------------------------------


def test_a_job_belongs_to_the_run_that_adds_it(fake: FakeGateway) -> None:
    fake.answers["cron.add"] = {"id": "job-1"}
    schedule = {"kind": "every", "everyMs": 60000}
    fake.works("cron_add", job={"schedule": schedule, "payload": {"kind": "agentTurn", "message": "look\nat it"}})
    assert fake.last("cron.add") == {
        "schedule": schedule,
        "payload": {"kind": "agentTurn", "message": "look\nat it"},
        "name": "look",
        "sessionTarget": "isolated",
        "wakeMode": "now",
        "sessionKey": "agent:main:cli",
        "delivery": {
            "mode": "announce", "channel": "local", "to": "room-1", "accountId": "default", "threadId": "t7",
        },
    }  # fmt: skip
    assert [added.job_id for added in read_effects(fake.path).cron_added] == ["job-1"]


def test_what_a_job_says_itself_stands(fake: FakeGateway) -> None:
    job = {"name": "n", "schedule": {}, "payload": {"kind": "systemEvent", "text": "x"}, "sessionKey": None}
    fake.works("cron_add", job=json.dumps(job))
    assert fake.last("cron.add") == {
        "name": "n", "schedule": {}, "payload": {"kind": "systemEvent", "text": "x"}, "sessionTarget": "main",
        "wakeMode": "now",
    }  # fmt: skip


def test_a_job_given_in_parts_is_a_job(fake: FakeGateway) -> None:
    fake.works("cron_add", schedule={"kind": "at"}, payload={"kind": "systemEvent", "text": "tea"})
    assert fake.last("cron.add")["name"] == "tea"
    assert "schedule" in fake.fails("cron_add", name="nothing else")


def test_a_job_that_may_have_been_added_is_not_added_again_by_itself(fake: FakeGateway) -> None:
    fake.answers["cron.add"] = OutcomeUnknown("the connection broke")
    assert "cron_list before you add it again" in fake.fails("cron_add", schedule={}, payload={})
    assert fake.again["cron.add"] is False
    assert read_effects(fake.path).cron_added == ()


@pytest.mark.parametrize(
    ("tool", "arguments", "method", "params"),
    [
        ("cron_status", {}, "cron.status", {}),
        ("cron_list", {"filter": "tea"}, "cron.list", {"query": "tea", "enabled": "all", "includeDisabled": True}),
        ("cron_list", {"enabled": "enabled"}, "cron.list", {"enabled": "enabled", "includeDisabled": False}),
        ("cron_update", {"jobId": "j", "updates": {"enabled": False}}, "cron.update",
         {"id": "j", "patch": {"enabled": False}}),
        ("cron_update", {"id": "j", "patch": '{"enabled": false}'}, "cron.update",
         {"id": "j", "patch": {"enabled": False}}),
        ("cron_remove", {"id": "j"}, "cron.remove", {"id": "j"}),
        ("cron_run", {"jobId": "j"}, "cron.run", {"id": "j", "mode": "force"}),
        ("cron_runs", {"jobId": "j", "limit": 3}, "cron.runs", {"id": "j", "scope": "job", "limit": 3}),
        ("cron_runs", {}, "cron.runs", {"scope": "all"}),
    ],
)  # fmt: skip
def test_the_other_cron_tools(fake: FakeGateway, tool: str, arguments: Any, method: str, params: Any) -> None:
    fake.works(tool, **arguments)
    assert fake.last(method) == params


# ---- the gateway itself ----------------------------------------------------------------------------------------------

CONFIG = {"agents": {"list": [{"id": "main"}]}, "gateway": {"port": 1}}


def test_the_config_whole_or_in_part(fake: FakeGateway) -> None:
    fake.answers["config.get"] = {"config": CONFIG, "hash": "h", "valid": True, "exists": True, "raw": "…"}
    assert fake.works("gateway_config_get")["config"] == CONFIG
    assert fake.works("gateway_config_get", key="agents.list.0.id")["value"] == "main"
    assert fake.works("gateway_config_get", path="agents.list[0]")["value"] == {"id": "main"}
    assert "no agents.none" in fake.fails("gateway_config_get", key="agents.none")


@pytest.mark.parametrize(
    "arguments", [{"patches": {"a": 1}}, {"patch": '{"a": 1}'}, {"raw": {"a": 1}}, {"patches": [{"a": 2}, {"a": 1}]}]
)
def test_a_patch_is_written_on_top_of_what_is_there(fake: FakeGateway, arguments: Any) -> None:
    fake.answers["config.get"] = {"hash": "h", "exists": True}
    fake.works("gateway_config_patch", **arguments, note="why")
    request = fake.last("config.patch")
    assert json.loads(request.pop("raw")) == {"a": 1}
    assert request == {"baseHash": "h", "note": "why", "sessionKey": "agent:main:cli"}


def test_a_person_was_faster_once(fake: FakeGateway) -> None:
    stale = refused("config changed since last load; re-run config.get and retry")
    fake.answers["config.get"] = [{"hash": "h1"}, {"hash": "h2"}]
    fake.answers["config.apply"] = [stale, {"ok": True}]
    assert fake.works("gateway_config_apply", config={"b": 2})["ok"] is True
    assert [params["baseHash"] for method, params in fake.asked if method == "config.apply"] == ["h1", "h2"]


def test_a_person_was_faster_twice_or_the_caller_insists_on_its_base(fake: FakeGateway) -> None:
    stale = refused("config changed since last load; re-run config.get and retry")
    fake.answers["config.get"] = {"hash": "h"}
    fake.answers["config.apply"] = stale
    assert "config changed" in fake.fails("gateway_config_apply", config={})
    fake.asked.clear()
    assert "config changed" in fake.fails("gateway_config_apply", config={}, baseHash="mine")
    assert [params["baseHash"] for _, params in fake.asked] == ["mine"]


def test_there_is_no_base_when_there_is_no_file(fake: FakeGateway) -> None:
    fake.answers["config.get"] = {"hash": "h", "exists": False}
    fake.works("gateway_config_patch", patches={})
    assert "baseHash" not in fake.last("config.patch")


def test_an_invalid_config_is_refused_in_the_gateways_words(fake: FakeGateway) -> None:
    fake.answers["config.get"] = {"hash": "h"}
    fake.answers["config.patch"] = refused('invalid config: ui: Unrecognized key: "bogus"')
    assert "Unrecognized key" in fake.fails("gateway_config_patch", patches={"ui": {"bogus": 1}})


def test_schema_and_restart(fake: FakeGateway) -> None:
    fake.works("gateway_config_schema")
    fake.works("gateway_config_schema", key="agents.defaults")
    fake.works("gateway_restart", reason="new day")
    assert [method for method, _ in fake.asked] == ["config.schema", "config.schema.lookup", "gateway.restart.request"]
    assert fake.last("config.schema.lookup") == {"path": "agents.defaults"}
    assert fake.last("gateway.restart.request") == {"reason": "new day"}


def test_no_gateway_is_said_plainly(fake: FakeGateway) -> None:
    fake.answers["agents.list"] = ToolUnavailable("the gateway can't be used: connection refused")
    assert "can't be used" in fake.fails("agents_list")
