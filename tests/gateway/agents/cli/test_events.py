"""What each CLI says, and what we make of it; recorded shapes, today's and older ones."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from openclaw_mcp.core.agent import (
    ModelSelected,
    PartialAnswer,
    ThinkingText,
    ToolOutcome,
    ToolUse,
    TurnCompleted,
    Usage,
)

from .gateways import DIALECTS, CliHarness, lines, remembered

CLAUDE: list[Any] = [
    {"type": "system", "subtype": "init", "session_id": "s-1", "model": "claude-x", "mcp_servers": []},
    {"type": "stream_event", "session_id": "s-1", "event": {"type": "content_block_start"}},
    {"type": "stream_event", "event": {"delta": {"type": "thinking_delta", "thinking": "hm"}}},
    {"type": "stream_event", "event": {"type": "content_block_start"}},
    {"type": "stream_event", "event": {"delta": {"type": "text_delta", "text": "let me "}}},
    {"type": "stream_event", "event": {"delta": {"type": "text_delta", "text": "look"}}},
    {
        "type": "assistant",
        "message": {
            "content": [
                {"type": "text", "text": "let me look"},
                {"type": "tool_use", "id": "t1", "name": "mcp__remoteclaw__message_send", "input": {"message": "yo"}},
            ]
        },
    },
    {"type": "assistant", "parent_tool_use_id": "t9", "message": {"content": [{"type": "text", "text": "inner"}]}},
    {
        "type": "user",
        "message": {
            "content": [{"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "ok"}]}]
        },
    },
    {"type": "tool_progress", "elapsed_time_seconds": 30},
    {"type": "stream_event", "event": {"type": "content_block_start"}},
    {"type": "stream_event", "event": {"delta": {"type": "text_delta", "text": "done"}}},
    {
        "result": "done",
        "type": "result",
        "subtype": "success",
        "is_error": False,
        "session_id": "s-1",
        "total_cost_usd": 0.5,
        "usage": {
            "input_tokens": 7,
            "output_tokens": 3,
            "cache_read_input_tokens": 2,
            "cache_creation_input_tokens": 1,
        },
    },
]
GEMINI: list[Any] = [
    {"type": "init", "session_id": "s-1", "model": "gemini-x"},
    {"type": "message", "role": "user", "content": "hi"},
    {"type": "message", "role": "assistant", "content": "let me look", "delta": True},
    {"type": "tool_use", "tool_name": "mcp_remoteclaw_message_send", "tool_id": "t1", "parameters": {"message": "yo"}},
    {"type": "tool_result", "tool_id": "t1", "status": "success", "output": "ok"},
    {"type": "message", "role": "assistant", "content": "done", "delta": True},
    {"type": "result", "status": "success", "stats": {"input_tokens": 9, "cached": 2, "output_tokens": 3}},
]
CALL = {"id": "t1", "type": "mcp_tool_call", "server": "remoteclaw", "tool": "message_send"}
CODEX: list[Any] = [
    {"type": "thread.started", "thread_id": "s-1"},
    {"type": "turn.started"},
    {"type": "item.completed", "item": {"id": "r", "type": "reasoning", "text": "hm"}},
    {"type": "item.completed", "item": {"id": "a", "type": "agent_message", "text": "let me look"}},
    {"type": "item.started", "item": {**CALL, "arguments": {"message": "yo"}, "status": "in_progress"}},
    {"type": "error", "message": "Reconnecting... 1/5"},
    {
        "type": "item.completed",
        "item": {**CALL, "result": {"content": [{"type": "text", "text": "ok"}]}, "status": "completed"},
    },
    {"type": "item.completed", "item": {"id": "b", "type": "agent_message", "text": "done"}},
    {"type": "turn.completed", "usage": {"input_tokens": 9, "cached_input_tokens": 2, "output_tokens": 3}},
]
OPENCODE: list[Any] = [
    {"type": "step_start", "sessionID": "s-1", "part": {}},
    {"type": "text", "sessionID": "s-1", "part": {"text": "let me look"}},
    {
        "type": "tool_use",
        "sessionID": "s-1",
        "part": {
            "tool": "remoteclaw_message_send",
            "callID": "t1",
            "state": {"status": "completed", "input": {"message": "yo"}, "output": "ok"},
        },
    },
    {"type": "step_finish", "sessionID": "s-1", "part": {"reason": "tool-calls", "tokens": {"input": 3, "output": 1}}},
    {"type": "reasoning", "sessionID": "s-1", "part": {"text": "hm"}},
    {"type": "text", "sessionID": "s-1", "part": {"text": "done"}},
    {
        "type": "step_finish",
        "sessionID": "s-1",
        "part": {"reason": "stop", "cost": 0.25, "tokens": {"input": 4, "output": 2, "cache": {"read": 2, "write": 1}}},
    },
]
TODAY = {"claude": CLAUDE, "gemini": GEMINI, "codex": CODEX, "opencode": OPENCODE}
USED = {
    "claude": Usage(input=7, output=3, cache_read=2, cache_write=1, cost_usd=0.5),
    "gemini": Usage(input=7, output=3, cache_read=2),
    "codex": Usage(input=7, output=3, cache_read=2),
    "opencode": Usage(input=7, output=3, cache_read=2, cache_write=1, cost_usd=0.25),
}


@pytest.mark.parametrize("cli", DIALECTS)
def test_a_turn_with_a_tool_is_reported_as_it_happens(tmp_path: Path, cli: str) -> None:
    harness = CliHarness(tmp_path, cli, [*lines(*TODAY[cli])])
    events = harness.run()
    assert isinstance(events[0], ModelSelected)
    assert "".join(event.text for event in events if isinstance(event, PartialAnswer)) == "let me look\n\ndone"
    assert [event for event in events if isinstance(event, ToolUse)] == [
        ToolUse("t1", "message_send", {"message": "yo"})
    ]
    assert [event for event in events if isinstance(event, ToolOutcome)] == [
        ToolOutcome("t1", "message_send", ({"type": "text", "text": "ok"},))
    ]
    assert [event.text for event in events if isinstance(event, ThinkingText)] == ([] if cli == "gemini" else ["hm"])
    end = events[-1]
    assert isinstance(end, TurnCompleted)
    assert end.usage == USED[cli]
    assert msgspec.json.decode(end.resume or "")["id"] == "s-1"


OLDER: dict[str, list[Any]] = {
    "claude": [
        {"type": "system", "subtype": "init", "session_id": "s-1"},
        {"type": "assistant", "message": {"content": [{"type": "text", "text": "done"}]}},
        {"type": "result", "subtype": "success", "result": "done", "session_id": "s-1", "cost_usd": 0.5, "usage": {}},
    ],
    "gemini": [
        {"type": "init", "session_id": "s-1"},
        {"type": "tool_use", "tool_name": "remoteclaw__x", "tool_id": "t1"},
        {"type": "tool_result", "tool_id": "t1", "status": "error", "error": {"message": "no"}},
        {"type": "message", "role": "assistant", "content": "done"},
        {"type": "result", "status": "success"},
    ],
    "codex": [
        {"type": "thread.started", "session_id": "s-1"},
        {"type": "item.started", "item": {"type": "mcp_tool_call", "name": "x", "id": "t1"}},
        {"type": "item.completed", "item": {"type": "mcp_tool_call", "name": "x", "id": "t1", "error": "no"}},
        {"type": "item.updated", "item": {"id": "a", "item_type": "assistant_message", "text": "do"}},
        {
            "type": "item.completed",
            "item": {"id": "a", "item_type": "assistant_message", "content": [{"type": "output_text", "text": "done"}]},
        },
        {"type": "turn.completed", "usage": {"input_tokens": 1}},
    ],
    "opencode": [
        {
            "type": "tool_use",
            "sessionID": "s-1",
            "part": {"name": "x", "id": "t1", "input": {}, "state": {"error": "no"}},
        },
        {"type": "text", "sessionID": "s-1", "part": {"content": "done"}},
        {"type": "step_finish", "sessionID": "s-1", "part": {"reason": "stop"}},
    ],
}


@pytest.mark.parametrize("cli", DIALECTS)
def test_older_field_names_are_understood(tmp_path: Path, cli: str) -> None:
    harness = CliHarness(tmp_path, cli, [{"raw": "a banner, not JSON"}, {"raw": "[1]"}, *lines(*OLDER[cli])])
    events = harness.run()
    assert "".join(event.text for event in events if isinstance(event, PartialAnswer)) == "done"
    outcomes = [event for event in events if isinstance(event, ToolOutcome)]
    assert [(event.name, event.failed, event.content) for event in outcomes] == (
        [] if cli == "claude" else [("x", True, ({"type": "text", "text": "no"},))]
    )
    end = events[-1]
    assert isinstance(end, TurnCompleted)
    assert end.usage is None or end.usage.cost_usd in (None, 0.5)


def test_codex_shells_are_tool_calls_with_their_status(tmp_path: Path) -> None:
    item = {"id": "c", "type": "command_execution", "command": "ls", "aggregated_output": "no such file"}
    started = {"type": "item.started", "item": item}
    ended = {"type": "item.completed", "item": {**item, "exit_code": 2, "status": "failed"}}
    events = CliHarness(tmp_path, "codex", lines(started, ended, {"type": "turn.completed"})).run()
    assert ToolUse("c", "command_execution", {"command": "ls"}) in events
    assert ToolOutcome("c", "command_execution", ({"type": "text", "text": "no such file"},), failed=True) in events


@pytest.mark.parametrize(
    ("cli", "counted", "share"),
    [
        ("codex", {"input": 300, "output": 60, "cache_read": 50}, Usage(input=80, output=20, cache_read=20)),
        ("claude", {"cost_usd": 0.4}, Usage(input=7, output=3, cache_read=2, cache_write=1, cost_usd=0.5 - 0.4)),
    ],
)
def test_what_a_cli_counts_for_the_whole_session_is_reported_for_the_turn(
    tmp_path: Path, cli: str, counted: Any, share: Usage
) -> None:
    events = list(TODAY[cli])
    if cli == "codex":
        usage = {"input_tokens": 450, "cached_input_tokens": 70, "output_tokens": 80}
        events[-1] = {"type": "turn.completed", "usage": usage}
    resume = remembered(cli, "s-1", used={"type": "usage", **counted})
    end = CliHarness(tmp_path, cli, lines(*events)).final(resume=resume)
    assert end.usage == share


def test_a_session_that_counts_again_is_believed(tmp_path: Path) -> None:
    resume = remembered("codex", "s-1", used={"type": "usage", "input": 9999, "output": 9999})
    assert CliHarness(tmp_path, "codex", lines(*CODEX)).final(resume=resume).usage == USED["codex"]


def test_ten_thousand_lines_arrive_whole_and_in_order(tmp_path: Path) -> None:
    result = {"type": "result", "status": "success"}
    events = CliHarness(tmp_path, "gemini", [{"count": 10_000}, *lines(result)]).run()
    text = "".join(event.text for event in events if isinstance(event, PartialAnswer))
    assert text.split() == [str(number) for number in range(10_000)]


def test_a_line_beyond_all_measure_is_dropped_and_the_rest_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("openclaw_mcp.gateway.agents.cli.process.MAX_LINE_LENGTH", 10_000)
    events = CliHarness(
        tmp_path, "claude", [{"raw": '{"type": "' + "x" * 200_000 + '"}'}, *lines(*OLDER["claude"])]
    ).run()
    assert PartialAnswer("done") in events
