"""A CLI agent with a stand-in for its program, and a grant issuer that keeps what it granted."""

import asyncio
import json
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

import msgspec
import psutil

from openclaw_mcp.core.agent import AgentEvent, Turn, TurnCompleted, TurnFailed
from openclaw_mcp.core.agents import AgentProfile
from openclaw_mcp.core.config.agents import AgentSettings
from openclaw_mcp.core.effects import CronAdded, RunEffects, SentMessage
from openclaw_mcp.core.model import Caller, Grant, Sender
from openclaw_mcp.gateway.agents.cli.claude import ClaudeAdapter
from openclaw_mcp.gateway.agents.cli.codex import CodexAdapter
from openclaw_mcp.gateway.agents.cli.dialect import CliAdapter
from openclaw_mcp.gateway.agents.cli.gemini import GeminiAdapter
from openclaw_mcp.gateway.agents.cli.grant_bridge import GatewayAccess
from openclaw_mcp.gateway.agents.cli.opencode import OpenCodeAdapter
from openclaw_mcp.gateway.agents.cli.run_folder import RunFolders
from openclaw_mcp.gateway.agents.cli.runtime import CliAgent, CliRuntimeContext

PATIENCE = 30.0  # seconds a test waits for something that must come
DYING = 5.0  # seconds a killed process may take to be gone; those that are not killed stay for minutes
DIALECTS: dict[str, Callable[[], CliAdapter]] = {
    "claude": ClaudeAdapter,
    "gemini": GeminiAdapter,
    "codex": CodexAdapter,
    "opencode": OpenCodeAdapter,
}
CALLER = Caller(
    kind="agent",
    name="run r1",
    session="agent:main:main",
    grant=Grant(
        channel="local", account="main", to="room", thread="t1", sender=Sender(id="u1", name="Ann"), owner=True
    ),
)
STRANGER = msgspec.structs.replace(
    CALLER, grant=Grant(channel="local", account="main", to="room", sender=Sender(id="u2", name="Eve"))
)
"""A sender who may write, and is not the owner."""

ANSWERS: dict[str, list[Any]] = {
    "claude": [
        {"type": "system", "subtype": "init", "session_id": "s-1", "model": "claude-x", "mcp_servers": []},
        {"type": "result", "subtype": "success", "is_error": False, "result": "hello", "session_id": "s-1"},
    ],
    "gemini": [
        {"type": "init", "session_id": "s-1", "model": "gemini-x"},
        {"type": "message", "role": "assistant", "content": "hello", "delta": True},
        {"type": "result", "status": "success", "stats": {}},
    ],
    "codex": [
        {"type": "thread.started", "thread_id": "s-1"},
        {"type": "item.completed", "item": {"id": "i", "type": "agent_message", "text": "hello"}},
        {"type": "turn.completed", "usage": {}},
    ],
    "opencode": [
        {"type": "step_start", "sessionID": "s-1"},
        {"type": "text", "sessionID": "s-1", "part": {"text": "hello"}},
        {"type": "step_finish", "sessionID": "s-1", "part": {"reason": "stop"}},
    ],
}
"""The shortest answer of each."""


def lines(*events: Any) -> list[Any]:
    return [{"line": event} for event in events]


class FakeGrantIssuer:
    """A `GrantIssuer` that keeps its grants."""

    def __init__(self) -> None:
        self.issued: dict[str, Caller] = {}
        self.revoked: list[str] = []
        self.most_at_once = 0
        self.did = RunEffects()

    def issue(self, caller: Caller, *, seconds: float) -> str:
        token = f"grant-secret-{len(self.issued)}"
        self.issued[token] = caller
        self.most_at_once = max(self.most_at_once, len(self.issued) - len(self.revoked))
        return token

    def revoke(self, token: str) -> None:
        if token not in self.revoked:
            self.revoked.append(token)

    async def settle(self, token: str) -> RunEffects:
        self.revoke(token)
        return self.did

    def find_caller(self, token: str) -> Caller | None:
        return None if token in self.revoked else self.issued.get(token)


class CliHarness:
    """One agent, its home, and what its program was called with."""

    def __init__(self, folder: Path, cli: str = "claude", *attempts: Sequence[Any], bridge: bool = True, **more: Any):
        self.folder = folder
        self.home = folder / "home"
        self.calls = folder / "calls"
        self.work = folder / "work"
        for each in (self.home, self.calls, self.work):
            each.mkdir(exist_ok=True)
        self.left: list[Path] = []
        """Files of the last run that outlived it."""
        self.grants = FakeGrantIssuer()
        self.folders = RunFolders(folder / "runs")
        (self.calls / "steps.json").write_text(json.dumps(attempts or [lines(*ANSWERS[cli])]))
        program = folder / cli
        stand_in = Path(__file__).with_name("stand_in.py")
        program.write_text(f'#!/bin/sh\nexec {shlex.join([sys.executable, str(stand_in), str(self.calls)])} "$@"\n')
        program.chmod(0o755)
        env = {"HOME": str(self.home), **more.pop("runtimeEnv", {})}
        fields = {"runtimeCommand": str(program), "runtimeEnv": env, **more}
        self.settings = {name: value for name, value in fields.items() if value != ""}
        """As the config writes them."""
        settings = msgspec.convert(self.settings, AgentSettings)
        self.card = AgentProfile(id="main", runtime=cli, workspace=str(self.work), settings=settings)
        way = GatewayAccess(
            url="ws://127.0.0.1:1", grants=self.grants, server_command=("our-server",), read_effects=read_effects
        )
        around = CliRuntimeContext(
            state_folder=folder,
            run_folders=self.folders,
            get_agent=lambda _: self.card,
            gateway_access=way if bridge else None,
            slots=asyncio.Semaphore(4),
        )
        self.agent = CliAgent(DIALECTS[cli](), around)

    def turn(self, prompt: str = "hi", **more: Any) -> Turn:
        fields: dict[str, Any] = {"caller": CALLER, "session_key": "agent:main:main", "session_id": "s", **more}
        return Turn(run_id="r1", agent_id="main", prompt=prompt, **fields)

    async def run_turn(self, prompt: str = "hi", **more: Any) -> list[AgentEvent]:
        async with asyncio.timeout(PATIENCE), aclosing(self.agent.run(self.turn(prompt, **more))) as events:
            return [event async for event in events]

    def run(self, prompt: str = "hi", **more: Any) -> list[AgentEvent]:
        try:
            return asyncio.run(self.run_turn(prompt, **more))
        finally:
            self.left = self.leftovers()
            self.folders.close()

    def failed(self, prompt: str = "hi", **more: Any) -> TurnFailed:
        end = self.run(prompt, **more)[-1]
        assert isinstance(end, TurnFailed), end
        return end

    def final(self, prompt: str = "hi", **more: Any) -> TurnCompleted:
        end = self.run(prompt, **more)[-1]
        assert isinstance(end, TurnCompleted), end
        return end

    def called(self, number: int = 0) -> Any:
        return json.loads((self.calls / f"call-{number}.json").read_text())

    def resumed(self, session: str, number: int = 0) -> bool:
        """Whether that call went on with a session of the CLI's."""
        return any(word.rpartition("=")[2] == session for word in self.called(number)["args"])

    @property
    def times_called(self) -> int:
        return len(list(self.calls.glob("call-*.json")))

    def leftovers(self) -> list[Path]:
        """Files of runs that are over."""
        return [path for path in (self.folder / "runs").rglob("*") if path.name != "lock" and path.is_file()]

    def children(self) -> list[int]:
        return [int(path.name.partition("-")[2]) for path in self.calls.glob("child-*")]


def read_effects(path: Path) -> RunEffects:
    """As much of the reader as these tests need."""
    try:
        found = [json.loads(line) for line in path.read_text().splitlines()]
    except FileNotFoundError:
        return RunEffects()
    sent = tuple(SentMessage(tool="message", to=each["to"], text=each["text"]) for each in found if "to" in each)
    added = tuple(CronAdded(job_id=each["jobId"]) for each in found if "jobId" in each)
    return RunEffects(sent=sent, cron_added=added)


def remembered(runtime: str, id: str, **more: Any) -> str:
    return msgspec.json.encode({"runtime": runtime, "id": id, **more}).decode()


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def gone(*pids: int) -> bool:
    """Whether they are, in a moment: one that was killed still has to be run to its end, perhaps on a busy machine."""
    end = time.monotonic() + DYING
    while any(map(alive, pids)):
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


async def until(true: Callable[[], Any], *, within: float = PATIENCE) -> None:
    """For what has no event to wait for: another process's doings."""
    async with asyncio.timeout(within):
        while not true():  # noqa: ASYNC110  (see above)
            await asyncio.sleep(0.02)
