"""A command that is not shown whole can't be allowed by who sees only a part of it."""

import pytest

from openclaw_mcp.core.approvals import MAX_SHOWN_COMMAND, NO_ORIGIN, CommandQuestion, is_shown_whole, quote_command

TAIL = "rm -rf ~"


def question(command: str) -> CommandQuestion:
    return CommandQuestion(
        code="q1", origin=NO_ORIGIN, place="here", command=command, why="", decisions=("allow-once", "deny"),
        expires_at_ms=60_000,
    )  # fmt: skip


@pytest.mark.parametrize("filler", ["\u200b" * 1000, "\x01" * 1000, "a\n" * 1400, "x" * MAX_SHOWN_COMMAND])
def test_a_command_that_is_longer_when_it_is_shown_is_too_long(filler: str) -> None:
    asked = question(f"echo {filler}; {TAIL}")

    assert asked.is_too_long
    assert "/approve q1 once" not in asked.describe(0)


@pytest.mark.parametrize("command", ["ls", "echo 日本 é", "a\nb", "x" * MAX_SHOWN_COMMAND])
def test_a_command_that_may_be_allowed_is_shown_to_its_end(command: str) -> None:
    assert is_shown_whole(f"{command[: -len(TAIL)]}{TAIL}")
    assert TAIL in quote_command(f"{command[: -len(TAIL)]}{TAIL}", "")
