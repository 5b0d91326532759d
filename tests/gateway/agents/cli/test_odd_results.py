"""A CLI that says in an odd way that it failed did not succeed."""

import json
from typing import Any

import pytest

from openclaw_mcp.gateway.agents.cli.claude import ClaudeReader
from openclaw_mcp.gateway.agents.cli.gemini import GeminiReader


@pytest.mark.parametrize("is_error", [True, 1, "true", ["overloaded"], {"code": 5}])
def test_claude_failed(is_error: Any) -> None:
    reader = ClaudeReader()
    list(reader.read_line(json.dumps({"type": "result", "is_error": is_error, "result": "no"}).encode()))
    assert (reader.done, reader.error) == (False, "no")


@pytest.mark.parametrize("status", ["error", None, 1, ["error"], {"code": 5}])
def test_gemini_failed(status: Any) -> None:
    reader = GeminiReader()
    list(reader.read_line(json.dumps({"type": "result", "status": status, "error": "no"}).encode()))
    assert (reader.done, reader.error) == (False, "no")


def test_what_a_subagent_of_claude_wrote_is_no_answer() -> None:
    reader = ClaudeReader()
    message = {"content": [{"type": "text", "text": "of the sub-agent"}]}
    event = {"type": "assistant", "message": message, "parent_tool_use_id": 7}
    assert list(reader.read_line(json.dumps(event).encode())) == []
