"""Our decisions beside the real OpenClaw's, on rule books made up at random.

`make interop` fetches it.
"""

import json
import os
import random
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest

from openclaw_mcp.core.model import Caller, Grant, ToolSpec
from openclaw_mcp.tools.config_policy import ConfigPolicy
from openclaw_mcp.tools.policy_rules import from_config
from tests.programs import need_node, need_npm

QUESTIONS = 4000
REAL_WAIT = 240  # seconds for Node.js to load the product's modules on a busy machine

TOOLS = ["exec", "process", "read", "write", "edit", "message", "sessions_list", "sessions_history", "sessions_send",
         "session_status", "agents_list", "browser", "memory_search", "memory_get", "lobster"]  # fmt: skip
PLUGIN_TOOLS = ["pinch", "walk_list"]
WORDS = [*TOOLS, "group:fs", "group:runtime", "group:memory", "group:messaging", "group:agents", "group:sessions",
         "group:plugins", "crab", "stranger", "*", "s*s", "*_list", "me*", "Bash", " EXEC "]  # fmt: skip
SENDERS = ["*", "id:7", "name:ann", "username:@ann", "channel:irc:7", "e164:+1", "8", "ann"]
SESSIONS = ["agent:main:main", "agent:main:irc:group:#a", "agent:main:irc:group:#b", "agent:main:irc:group:#a:thread:5"]


class Author(random.Random):
    """Makes up rule books and callers."""

    def maybe(self, chance: float) -> bool:
        return self.random() < chance

    def words(self) -> list[str]:
        return [self.choice(WORDS) for _ in range(self.randint(0, 4))]

    def lists(self, *, profiles: bool = False) -> dict[str, Any]:
        section: dict[str, Any] = {}
        if self.maybe(0.45):
            section["allow"] = self.words()
        elif self.maybe(0.3):
            section["alsoAllow"] = self.words()
        if self.maybe(0.4):
            section["deny"] = self.words()
        if profiles and self.maybe(0.4):
            section["profile"] = self.choice(["minimal", "coding", "full"])
        return section

    def people(self) -> dict[str, Any]:
        return {key: self.lists() for key in self.sample(SENDERS, self.randint(1, 4))}

    def rules(self) -> dict[str, Any]:
        section = self.lists(profiles=True)
        if self.maybe(0.4):
            section["byProvider"] = {
                key: self.lists(profiles=True) for key in self.sample(["openai", "OpenAI/GPT", "x"], 2)
            }
        if self.maybe(0.4):
            section["toolsBySender"] = self.people()
        return section

    def group(self) -> dict[str, Any]:
        section = {"tools": self.lists()} if self.maybe(0.6) else {}
        return section | ({"toolsBySender": self.people()} if self.maybe(0.6) else {})

    def question(self) -> dict[str, Any]:
        agent: dict[str, Any] = {"id": "main", "default": True}
        config: dict[str, Any] = {"agents": {"list": [agent]}}
        if self.maybe(0.7):
            config["tools"] = self.rules()
        if self.maybe(0.5):
            agent["tools"] = self.rules()
        if self.maybe(0.6):
            groups = {key: self.group() for key in self.sample(["#a", "#b", "*"], self.randint(1, 3))}
            config["channels"] = {"irc": {"groups": groups}}
        who: dict[str, Any] = {"session": self.choice(SESSIONS), "channel": "irc"}
        if self.maybe(0.6):
            who["model"] = self.choice(["openai/gpt", "openai/o1", "x", "y"])
        names = {"id": self.choice("78"), "name": "Ann", "username": self.choice(["ann", "@Ann"]), "e164": "+1"}
        sender = {key: value for key, value in names.items() if self.maybe(0.6)}
        if sender and self.maybe(0.7):
            who["sender"] = sender
        source, tools = self.choice([("claw", TOOLS), ("claw", TOOLS), ("plugin/crab", PLUGIN_TOOLS)])
        return {"config": config, "who": who, "source": source, "tool": self.choice(tools)}


def real_openclaw() -> tuple[str, str]:
    """Node.js and the package's folder."""
    return need_node(), os.environ.get("OPENCLAW_REAL") or str(need_npm("openclaw"))


def ours(question: dict[str, Any]) -> bool:
    fields = {key: value for key, value in question["who"].items() if key not in ("session", "model")}
    fields["models"] = [question["who"]["model"]] if "model" in question["who"] else []
    grant = msgspec.convert({"owner": True, **fields}, Grant)
    caller = Caller(kind="agent", name="run", session=question["who"]["session"], grant=grant)
    rules = ConfigPolicy(from_config(question["config"]))
    return rules(caller, question["source"], ToolSpec(name=question["tool"])).allowed


@pytest.mark.interop
@pytest.mark.parametrize("seed", [1, 2])
def test_we_decide_as_the_real_openclaw_does(seed: int, tmp_path: Path) -> None:
    node, folder = real_openclaw()
    author = Author(seed)
    questions = [author.question() for _ in range(QUESTIONS)]
    questions_file, answered = tmp_path / "questions.json", tmp_path / "answers.json"
    questions_file.write_text(json.dumps(questions))
    script = Path(__file__).parent / "real_policy.mjs"
    environment = {**os.environ, "HOME": str(tmp_path), "OPENCLAW_STATE_DIR": str(tmp_path / "state")}
    result = subprocess.run(
        [node, script, folder, questions_file, answered],
        env=environment,
        capture_output=True,
        text=True,
        timeout=REAL_WAIT,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-2000:]
    answers = json.loads(answered.read_text())

    assert 0.2 * QUESTIONS < sum(answers) < 0.8 * QUESTIONS, "the questions should not all have one answer"
    assert [q for q, answer in zip(questions, answers, strict=True) if ours(q) != answer] == []
