"""CLI agents in a running gateway, with a stand-in for the CLI: what is remembered, how a run is ended, crashes."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ....claw import gateways as claw
from ....order.test_server import order, server, text_of
from ....running import END_WAIT
from ...wiring.gateways import serving
from ...wiring.test_gateway import WAIT, Served
from .gateways import ANSWERS, DIALECTS, CliHarness, alive, lines
from .test_events import CODEX


def ask(served: Served, method: str, params: Any) -> Any:
    result = served.call(method, json.dumps(params))
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def say(served: Served, message: str, run: str, **more: Any) -> None:
    ask(served, "chat.send", {"sessionKey": "main", "message": message, "idempotencyKey": run, **more})


def answered(served: Served, run: str) -> Any:
    return ask(served, "agent.wait", {"runId": run, "timeoutMs": WAIT * 1000})


def configured(folder: Path, cli: str, *attempts: Any) -> CliHarness:
    """A state directory whose one agent is the stand-in."""
    harness = asyncio.run(_world(folder, cli, *attempts))
    state = folder / "state"
    state.mkdir()
    settings = {**harness.settings, "id": "main", "runtime": cli, "workspace": str(harness.work)}
    (state / "openclaw.json").write_text(json.dumps({"agents": {"list": [settings]}}))
    return harness


async def _world(folder: Path, cli: str, *attempts: Any) -> CliHarness:
    return CliHarness(folder, cli, *attempts)


def wait_for(true: Callable[[], Any]) -> None:
    end = time.monotonic() + WAIT
    while not true():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_turn_by_a_cli_is_in_the_history_with_its_tools_and_its_cost(tmp_path: Path) -> None:
    harness = configured(tmp_path, "codex", lines(*CODEX))
    with serving(tmp_path / "state") as served:
        say(served, "find it", "r1")
        assert answered(served, "r1")["status"] == "ok"
        say(served, "again", "r2")
        assert answered(served, "r2")["status"] == "ok"
        history = ask(served, "chat.history", {"sessionKey": "main"})["messages"]
        found = ask(served, "sessions.search", {"query": "look"})
    user, call, result, answer = history[:4]
    assert user["role"] == "user"
    assert call["content"][0] == {
        "type": "toolCall",
        "id": "t1",
        "name": "message_send",
        "arguments": {"message": "yo"},
    }
    assert (result["toolName"], result["isError"]) == ("message_send", False)
    assert answer["content"][-1]["text"] == "let me look\n\ndone"
    assert (answer["provider"], answer["usage"]["input"], answer["usage"]["output"]) == ("openai", 7, 3)
    assert "s-1" not in harness.called(0)["args"]
    assert "s-1" in harness.called(1)["args"]
    assert found


@pytest.mark.parametrize("cli", DIALECTS)
def test_a_cli_without_a_model_of_its_own_uses_its_default_and_not_the_gateways(tmp_path: Path, cli: str) -> None:
    harness = configured(tmp_path, cli)
    file = tmp_path / "state" / "openclaw.json"
    config = json.loads(file.read_text())
    config["agents"]["defaults"] = {"model": "near/gateway-model"}
    config["models"] = {"providers": {"near": {"api": "openai", "baseUrl": "http://127.0.0.1:1"}}}
    file.write_text(json.dumps(config))
    with serving(tmp_path / "state") as served:
        say(served, "hello", "r1")
        assert answered(served, "r1")["status"] == "ok"
        ask(served, "sessions.patch", {"key": "main", "model": "chosen-here"})
        say(served, "again", "r2")
        assert answered(served, "r2")["status"] == "ok"
    first, second = (json.dumps([harness.called(number)[part] for part in ("args", "env")]) for number in (0, 1))
    assert "gateway-model" not in first
    assert "chosen-here" in second


def test_an_aborted_run_leaves_no_process(tmp_path: Path) -> None:
    steps = [*lines(ANSWERS["claude"][0]), {"child": "import time; time.sleep(600)"}, {"sleep": 600}]
    harness = configured(tmp_path, "claude", steps)
    with serving(tmp_path / "state") as served:
        say(served, "work", "r1")
        wait_for(harness.children)
        ask(served, "chat.abort", {"sessionKey": "main", "runId": "r1"})
        answered(served, "r1")
        wait_for(lambda: not any(map(alive, [harness.called()["pid"], *harness.children()])))


def test_a_cancelled_sub_agent_leaves_no_process(tmp_path: Path) -> None:
    """By the tool: the CLI itself, what it started, and what left its group."""
    stays = "import time; time.sleep(600)"
    steps = [*lines(ANSWERS["codex"][0]), {"child": stays}, {"child": stays, "apart": True}, {"sleep": 600}]
    harness = configured(tmp_path, "codex", steps)
    with serving(tmp_path / "state") as served:
        env = claw.environment(served.ws, served.token, tmp_path / "effects")
        with claw.server(env) as peer:
            claw.introduce(peer)
            spawned = claw.call(peer, "sessions_spawn", 1, prompt="work for ever")["structuredContent"]
            wait_for(lambda: len(harness.children()) == 2)
            started = [harness.called()["pid"], *harness.children()]
            assert all(map(alive, started))
            cancelled = claw.call(peer, "subagents", 2, action="cancel", runId=spawned["runId"])["structuredContent"]
            assert cancelled["terminated"] == 1
            wait_for(lambda: not any(map(alive, started)))
            status = claw.call(peer, "subagents", 3, action="status", runId=spawned["runId"])["structuredContent"]
            assert status["run"]["status"] == "killed"
        wait_for(lambda: not [path for path in (tmp_path / "state" / "runs").rglob("*") if path.name == "server.env"])


def test_a_killed_gateway_takes_its_clis_with_it_and_the_next_one_sweeps(tmp_path: Path) -> None:
    steps = [*lines(ANSWERS["gemini"][0]), {"child": "import time; time.sleep(600)"}, {"sleep": 600}]
    harness = configured(tmp_path, "gemini", steps, lines(*ANSWERS["gemini"]))
    runs, own = tmp_path / "state" / "runs", harness.home / ".gemini" / "settings.json"
    own.parent.mkdir()
    own.write_text('{"mcpServers": {"mine": {"command": "x"}}} // as I left it')
    before = own.read_bytes()
    with serving(tmp_path / "state") as served:
        say(served, "work", "r1")
        wait_for(harness.children)
        os.kill(served.child.pid, signal.SIGKILL)
        served.child.wait(END_WAIT)
        wait_for(lambda: not any(map(alive, [harness.called()["pid"], *harness.children()])))
    assert list(runs.glob("owner-*"))
    assert own.read_bytes() == before
    with serving(tmp_path / "state") as served:
        assert list(runs.glob("owner-*")) == []
        say(served, "hello", "r2")
        assert answered(served, "r2")["status"] == "ok"
    assert own.read_bytes() == before


def test_a_cli_that_is_not_there_is_said_in_the_chat(tmp_path: Path) -> None:
    configured(tmp_path, "opencode")
    (tmp_path / "opencode").unlink()
    with serving(tmp_path / "state") as served:
        say(served, "hello", "r1")
        ended = answered(served, "r1")
        assert ended["status"] == "error"
        assert "runtimeCommand" in json.dumps(ended)


def test_an_agent_ordered_without_a_gateway_may_be_a_cli(tmp_path: Path) -> None:
    harness = configured(tmp_path, "codex")
    with server(tmp_path / "state") as one:
        assert text_of(order(one, "hello?")) == "hello"
    assert "hello?" in harness.called()["stdin"]


def test_a_gateway_without_cli_agents_loads_none_of_them() -> None:
    look = (
        "import openclaw_mcp.gateway.wiring.assembly, sys; "
        "print([name for name in sys.modules if 'agents.cli' in name])"
    )
    assert subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True).stdout == "[]\n"
