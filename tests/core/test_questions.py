"""Questions about commands as conversations show them."""

from openclaw_mcp.core.approvals import NO_ORIGIN, CommandQuestion


def test_a_command_whose_end_is_pushed_out_of_sight_by_hidden_characters_can_not_be_allowed_there() -> None:
    """Each hidden character is shown as eight: a gateway elsewhere may send them as they are."""
    question = CommandQuestion(
        code="q1", origin=NO_ORIGIN, place="node laptop", command="ls " + "\u200b" * 600 + "; rm -rf /", why="",
        decisions=("allow-once", "deny"), expires_at_ms=60_000,
    )  # fmt: skip
    assert "rm -rf" not in question.describe(0)
    assert question.is_too_long
    assert "too long to be allowed here" in question.describe(0)
