"""The rules of one folder asked about a command, and real programs to ask about."""

import asyncio
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from openclaw_mcp.node.desktop import DesktopNotifier
from openclaw_mcp.node.exec.approvals import ExecAuthorizer
from openclaw_mcp.node.exec.rules import Action, ExecPolicy, Rule
from openclaw_mcp.node.questions import PromptRouter
from openclaw_mcp.node.system import SystemCapability

from ..media.making import call


def rules(default: Action, *, allow: Sequence[str] = (), deny: Sequence[str] = ()) -> ExecPolicy:
    allowed = tuple(Rule(pattern=pattern, action="allow") for pattern in allow)
    return ExecPolicy(
        default_action=default, rules=(*(Rule(pattern=pattern, action="deny") for pattern in deny), *allowed)
    )


def approvals_of(folder: Path, policy: ExecPolicy) -> ExecAuthorizer:
    """The approvals of a state directory with these rules, where no person is there to ask."""
    approvals = ExecAuthorizer(
        state_dir=folder, prompt_router=PromptRouter(seconds=lambda: 1, ask_in_client=lambda: True)
    )
    approvals.save_policy(policy)
    return approvals


def verdict(state: Path, policy: ExecPolicy, argv: Sequence[str], *, cwd: Path | None = None) -> Action:
    return approvals_of(state, policy).evaluate(argv, cwd=cwd).action


def run(state: Path, policy: ExecPolicy, command: str | Sequence[str], **arguments: Any) -> Any:
    """What system.run answers under these rules, with no person there to ask. Raises ToolDenied."""
    system = SystemCapability(approvals=approvals_of(state, policy), desktop=DesktopNotifier())
    start = next(each.run for each in system.commands() if each.spec.name == "system.run")

    async def started() -> Any:
        argv = command if isinstance(command, str) else list(command)
        return (await start(call("system.run", {"command": argv, **arguments}))).structured

    return asyncio.run(started())


def real(program: str) -> Path:
    """The file behind a program of this machine."""
    found = shutil.which(program)
    assert found, f"{program} is needed"
    return Path(found).resolve()


def script(path: Path, text: str = "exit 0") -> Path:
    """An executable script."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path
