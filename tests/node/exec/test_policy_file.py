"""The file of rules: read again when it has changed, and only then."""

import asyncio
import os
import time
from pathlib import Path

import pytest

from openclaw_mcp.core.errors import ToolDenied
from openclaw_mcp.core.model import LOCAL_CALLER, ToolCall
from openclaw_mcp.core.ports import NullCallContext
from openclaw_mcp.node import private_files
from openclaw_mcp.node.exec import approvals
from openclaw_mcp.node.exec.approvals import BadPolicy, ExecAuthorizer
from openclaw_mcp.node.exec.rules import ExecPolicy
from openclaw_mcp.node.questions import PromptAnswer, PromptRouter, UserQuestion

ALLOW, DENY = ExecPolicy(default_action="allow"), ExecPolicy(default_action="deny")
CALL = ToolCall(caller=LOCAL_CALLER, name="system.run", arguments={}, context=NullCallContext())


class Person:
    keeps_questions = False

    def is_available(self) -> bool:
        return True

    async def ask(self, question: UserQuestion) -> PromptAnswer | None:
        return "always"


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Each reading of the file."""
    found: list[Path] = []

    def read(path: Path, *, largest: int) -> bytes:
        found.append(path)
        return private_files.read_private(path, largest=largest)

    monkeypatch.setattr(approvals, "read_private", read)
    return found


def authorizer(folder: Path, policy: ExecPolicy) -> ExecAuthorizer:
    router = PromptRouter([Person()], seconds=lambda: 5, ask_in_client=lambda: False)
    exec_authorizer = ExecAuthorizer(state_dir=folder, prompt_router=router)
    exec_authorizer.save_policy(policy)
    return exec_authorizer


def let_it_settle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(private_files, "CLOCK_TICK_NS", -(10**12))


def test_the_file_is_read_once_for_many_decisions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reads: list[Path]
) -> None:
    exec_authorizer = authorizer(tmp_path, ExecPolicy(default_action="prompt"))
    let_it_settle(monkeypatch)

    asyncio.run(exec_authorizer.authorise(CALL, ["touch", "x"], cwd=tmp_path, asker="a test"))
    assert len(reads) == 1  # although a person was asked between two verdicts, and the answer was to be remembered

    exec_authorizer.evaluate(["touch", "y"])
    exec_authorizer.evaluate(["touch", "z"])
    assert len(reads) == 2  # once more, since the answer changed the file


def test_a_file_changed_a_moment_ago_is_read_each_time(tmp_path: Path, reads: list[Path]) -> None:
    exec_authorizer = authorizer(tmp_path, ALLOW)

    exec_authorizer.load_policy()
    exec_authorizer.load_policy()

    assert len(reads) == 2


def test_a_change_of_the_same_size_and_time_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    exec_authorizer = authorizer(tmp_path, DENY)
    old = exec_authorizer.path.stat()
    let_it_settle(monkeypatch)
    assert exec_authorizer.load_policy() == DENY

    time.sleep(0.02)  # a tick of the file system's clock
    text = exec_authorizer.path.read_text().replace('"deny"', '"prompt"').replace("\n}", "}", 1)[: old.st_size]
    exec_authorizer.path.write_text(text.ljust(old.st_size))
    os.utime(exec_authorizer.path, ns=(old.st_atime_ns, old.st_mtime_ns))

    assert exec_authorizer.path.stat().st_size == old.st_size
    assert exec_authorizer.load_policy().default_action == "prompt"


def test_a_file_that_became_unreadable_denies_although_it_was_read_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exec_authorizer = authorizer(tmp_path, ALLOW)
    let_it_settle(monkeypatch)
    exec_authorizer.load_policy()

    target = tmp_path / "elsewhere"
    exec_authorizer.path.rename(target)
    exec_authorizer.path.symlink_to(target)

    with pytest.raises(BadPolicy):
        exec_authorizer.evaluate(["ls"])


def test_stricter_rules_count_for_the_next_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    exec_authorizer = authorizer(tmp_path, ALLOW)
    let_it_settle(monkeypatch)
    asyncio.run(exec_authorizer.authorise(CALL, ["touch", "x"], cwd=tmp_path, asker="a test"))

    exec_authorizer.save_policy(DENY)

    with pytest.raises(ToolDenied):
        asyncio.run(exec_authorizer.authorise(CALL, ["touch", "x"], cwd=tmp_path, asker="a test"))
