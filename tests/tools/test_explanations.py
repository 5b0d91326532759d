"""What each step says of a decision, where its rule is written and which step decided: `explanations.json`."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from openclaw_mcp.core.model import ToolSpec
from openclaw_mcp.tools.config_policy import ConfigPolicy
from openclaw_mcp.tools.policy_rules import from_config
from tests.tools.test_policy_cases import caller

ROWS: list[dict[str, Any]] = msgspec.json.decode((Path(__file__).parent / "explanations.json").read_bytes())
NOTHING: dict[str, list[str]] = ROWS[0]["steps"]
"""What the steps say when nothing is configured; each row names those that say something else."""


@pytest.mark.parametrize("row", ROWS, ids=[row["says"] for row in ROWS])
def test_every_step_says_why_and_where_that_is_written(row: dict[str, Any]) -> None:
    who, tool = row.get("who", {}), row["tool"]
    rules, asker = ConfigPolicy(from_config(row["config"])), caller(who, who.get("door", "mcp"))
    source, spec = row.get("source", "claw"), ToolSpec(name=tool)

    explanation = rules.explain(asker, source, spec)

    steps = [(step.step, [step.key, step.outcome, step.reason, *step.notes]) for step in explanation.steps]
    assert steps == list((NOTHING | row["steps"]).items())
    assert (explanation.tool, explanation.source, explanation.decision) == (tool, source, rules(asker, source, spec))
    assert explanation.decision.step == row["decided"]
    assert explanation.decision.allowed == ("deny" not in [step.outcome for step in explanation.steps])
    words = [step.reason for step in explanation.steps if step.step == explanation.decision.step]
    assert explanation.decision.reason in (words or ["no rule refuses it"])
