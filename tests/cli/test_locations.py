"""An `openclaw up` on any ports is found: by the commands, by stdio servers, and by what is written for clients."""

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_up import ANY_PORT, addresses, alone
from tests.running import OPENCLAW, StdioServer, process


def settings(folder: Path, **more: str) -> dict[str, str]:
    """What a client gives a server, which knows the state directory and nothing else."""
    return {"PATH": os.environ["PATH"], "HOME": str(folder), "OPENCLAW_STATE_DIR": str(folder), **more}


def start(folder: Path, **more: str) -> None:
    command = [OPENCLAW, "up", "--detach", *ANY_PORT]
    result = subprocess.run(
        command, env=settings(folder, **more), capture_output=True, text=True, timeout=90, check=False
    )
    assert result.returncode == 0, result.stderr


def gateway_url(folder: Path) -> str:
    return addresses(folder)["gateway"].replace("http", "ws").removesuffix("/mcp")


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Path]:
    """One whose store is not where an agent in another process would look for it."""
    start(tmp_path, OPENCLAW_STORE_URL=str(tmp_path / "other.sqlite"))
    yield tmp_path
    alone(tmp_path, "down")


def exchange(command: list[str], env: dict[str, str], tool: str, arguments: dict[str, Any]) -> tuple[Any, str]:
    """The answer to one call, and what the server printed on stderr."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "bufsize": 0}
    with process(*command, env=env, **pipes) as child:
        server = StdioServer(child)
        answer = server.ask("tools/call", {"name": tool, "arguments": arguments})
        assert server.hang_up() == 0
        assert child.stderr is not None
        return answer["result"], child.stderr.read().decode()


def order(folder: Path, **more: str) -> tuple[Any, str]:
    arguments = {"message": "remember blue", "sessionKey": "colours"}
    return exchange([OPENCLAW, "mcp-server"], settings(folder, **more), "order_openclaw", arguments)


def written(folder: Path, client: str = ".claude.json") -> dict[str, Any]:
    entries: dict[str, Any] = json.loads((folder / client).read_text())["mcpServers"]
    return entries


def call_entry(folder: Path, name: str, tool: str, arguments: dict[str, Any]) -> tuple[Any, str]:
    """A call through an entry as a client makes it."""
    entry = written(folder)[name]
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), **entry["env"]}
    return exchange([entry["command"], *entry["args"]], environment, tool, arguments)


def test_orders_go_to_the_gateway_of_an_up_on_other_ports(up: Path) -> None:
    result, complaint = order(up)

    assert not result["isError"], result
    assert f"orders go to the gateway at {gateway_url(up)}" in complaint
    assert "colours" in alone(up, "sessions").stdout


def test_without_a_gateway_the_server_says_which_agent_it_serves(tmp_path: Path) -> None:
    result, complaint = order(tmp_path, OPENCLAW_GATEWAY_PORT="1")

    assert not result["isError"], result
    assert "no gateway runs at ws://127.0.0.1:1" in complaint
    assert "the agent in this process carries out the orders" in complaint
    assert str(tmp_path) in complaint


def test_what_connect_wrote_reaches_an_up_that_was_started_again_on_other_ports(up: Path) -> None:
    assert alone(up, "connect", "claude-code", "--yes").returncode == 0
    entries = written(up)
    before = gateway_url(up)
    assert before.rpartition(":")[2] not in json.dumps(entries), "a port in the settings can become wrong"
    alone(up, "down")
    start(up, OPENCLAW_STORE_URL=str(up / "other.sqlite"))
    assert gateway_url(up) != before

    result, complaint = call_entry(up, "openclaw", "order_openclaw", {"message": "hi", "sessionKey": "colours"})
    assert gateway_url(up) in complaint
    assert not result["isError"], result
    result, _ = call_entry(up, "openclaw-tools", "sessions_list", {})
    assert not result["isError"], result
    assert "colours" in json.dumps(result)


def test_a_tools_server_that_is_running_follows_its_gateway_to_another_port(up: Path) -> None:
    assert alone(up, "connect", "claude-code", "--surface", "tools", "--yes").returncode == 0
    entry = written(up)["openclaw-tools"]
    environment = {"PATH": os.environ["PATH"], "HOME": str(up), **entry["env"]}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "bufsize": 0}
    with process(entry["command"], *entry["args"], env=environment, **pipes) as child:
        server, call = StdioServer(child), {"name": "sessions_list", "arguments": {}}
        assert not server.ask("tools/call", call, id=1)["result"].get("isError")
        alone(up, "down")
        start(up)

        assert not server.ask("tools/call", call, id=2)["result"].get("isError")


def test_connect_passes_on_what_the_environment_says_of_the_gateway(tmp_path: Path) -> None:
    named = settings(tmp_path, OPENCLAW_GATEWAY_PORT="4711")
    command = [OPENCLAW, "connect", "cursor", "--surface", "order", "--print"]
    printed = subprocess.run(command, env=named, capture_output=True, text=True, timeout=60, check=True).stdout

    assert json.loads(printed)["mcpServers"]["openclaw"]["env"]["OPENCLAW_GATEWAY_PORT"] == "4711"


@pytest.mark.parametrize("command", [("cron", "status"), ("nodes", "list"), ("chat", "-m", "hi")])
def test_a_gateway_elsewhere_that_the_config_names_is_meant_by_every_command(
    tmp_path: Path, command: tuple[str, ...]
) -> None:
    (tmp_path / "openclaw.json").write_text('{"gateway": {"mode": "remote", "remote": {"url": "ws://127.0.0.1:9"}}}')

    result = alone(tmp_path, *command)

    assert result.returncode == 1
    assert "ws://127.0.0.1:9" in result.stderr


# ---- doctor ----


def client_findings(folder: Path) -> list[Any]:
    answer = json.loads(alone(folder, "doctor", "--json").stdout)
    return [finding for finding in answer["findings"] if finding["area"] == "clients"]


def test_the_doctor_tries_what_is_written_for_clients(up: Path) -> None:
    assert alone(up, "connect", "claude-code", "--yes").returncode == 0

    (finding,) = client_findings(up)

    assert finding["state"] == "fine", finding
    assert "Claude Code reaches openclaw, openclaw-node, openclaw-tools" in finding["says"]


def test_the_doctor_sees_an_address_that_became_wrong(up: Path) -> None:
    assert alone(up, "connect", "cursor", "--http", "--surface", "tools", "--yes").returncode == 0
    assert [finding["state"] for finding in client_findings(up)] == ["fine"]
    file = up / ".cursor" / "mcp.json"
    port = gateway_url(up).rpartition(":")[2]
    file.write_text(file.read_text().replace(f":{port}/", ":9/"))

    (finding,) = client_findings(up)

    assert finding["state"] == "attention"
    assert "Cursor's openclaw-tools has the address http://127.0.0.1:9/mcp, but it is at" in finding["says"]
    assert finding["remedy"] == "openclaw connect cursor --surface tools --http writes it again"


def test_while_nothing_runs_the_doctor_names_no_other_address(tmp_path: Path) -> None:
    assert alone(tmp_path, "connect", "cursor", "--http", "--surface", "tools", "--yes").returncode == 0
    file = tmp_path / ".cursor" / "mcp.json"
    file.write_text(re.sub(r"127\.0\.0\.1:\d+/", "127.0.0.1:9/", file.read_text()))

    (finding,) = client_findings(tmp_path)

    assert "has the address http://127.0.0.1:9/mcp, where nothing answers; openclaw up starts it" in finding["says"]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"command": "/nowhere/openclaw"}, "starts /nowhere/openclaw, which is not there"),
        ({"command": "/bin/sh"}, "starts /bin/sh, which is not a program of this installation"),
        ({"args": ["mcp-servers"]}, "with arguments that openclaw connect does not write, so it was not tried"),
        ({"args": ["config", "set", "gateway.port", "4444"]}, "so it was not tried"),
        ({"args": ["mcp-server", "--session", "x"]}, "so it was not tried"),
        ({"env": {"OPENCLAW_GATEWAY_PORT": "9"}}, "has the address ws://127.0.0.1:9, where nothing answers"),
        ({"env": {"XAUTHORITY": "/nowhere/xauth"}}, "has XAUTHORITY=/nowhere/xauth, which is gone"),
    ],
)
def test_the_doctor_names_what_is_wrong_with_an_entry(tmp_path: Path, change: dict[str, Any], says: str) -> None:
    assert alone(tmp_path, "connect", "cursor", "--surface", "order", "--yes").returncode == 0
    file = tmp_path / ".cursor" / "mcp.json"
    settings = json.loads(file.read_text())
    settings["mcpServers"]["openclaw"] |= change
    file.write_text(json.dumps(settings))

    (finding,) = client_findings(tmp_path)

    assert finding["state"] == "attention"
    assert says in finding["says"]
    assert "openclaw connect cursor" in finding["remedy"]
    assert not (tmp_path / "openclaw.json").exists()


@pytest.mark.parametrize(
    "variables",
    [
        {"PYTHONPATH": "{folder}/theirs"},
        {"OPENCLAW_STATE_DIR": "{folder}/theirs"},
        {"OPENCLAW_GATEWAY_PORT": "${{HOME}}"},
    ],
)
def test_the_doctor_starts_no_entry_with_variables_of_others(tmp_path: Path, variables: dict[str, str]) -> None:
    """The settings of a project come with its code, which others write."""
    (tmp_path / "theirs").mkdir()
    ran = tmp_path / "ran"
    (tmp_path / "theirs" / "sitecustomize.py").write_text(f"open({str(ran)!r}, 'w')")
    assert alone(tmp_path, "connect", "cursor", "--surface", "order", "--yes").returncode == 0
    file = tmp_path / ".cursor" / "mcp.json"
    settings = json.loads(file.read_text())
    given = {name: value.format(folder=tmp_path) for name, value in variables.items()}
    settings["mcpServers"]["openclaw"].setdefault("env", {}).update(given)
    file.write_text(json.dumps(settings))

    (finding,) = client_findings(tmp_path)

    assert not ran.exists()
    assert "so it was not tried" in finding["says"] or "where nothing answers" in finding["says"]
