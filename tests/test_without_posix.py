"""Every surface starts and answers where the modules and functions of POSIX are missing, as on Windows."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.running import READY_WAIT, process, read_line
from tests.web_client import rpc, send

WITHOUT_POSIX = (sys.executable, "-m", "tests.without_posix")
WAIT = 60.0
NO_GATEWAY = {"OPENCLAW_GATEWAY_PORT": "1"}
"""A port at which none answers, also while a gateway runs on this machine."""
OPENING = {"protocolVersion": "2025-11-25", "capabilities": {}}


def environment(state: Path) -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
    return {**kept, "OPENCLAW_STATE_DIR": str(state), "HOME": str(state)}


def ask_stdio(state: Path, *words: str, call: dict[str, Any]) -> dict[int, Any]:
    messages = [rpc("initialize", OPENING, 1), rpc("tools/list", {}, 2), rpc("tools/call", call, 3)]
    text = "".join(json.dumps(message) + "\n" for message in messages)
    ended = subprocess.run(
        [*WITHOUT_POSIX, *words], input=text, capture_output=True, text=True, timeout=WAIT, check=False,
        env=environment(state) | NO_GATEWAY,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    return {message["id"]: message for message in map(json.loads, ended.stdout.splitlines()) if "id" in message}


def test_the_node_answers_over_stdio(tmp_path: Path) -> None:
    answers = ask_stdio(tmp_path, "openclaw", "node", "--stdio", call={"name": "device.info", "arguments": {}})

    assert answers[1]["result"]["serverInfo"]["name"] == "openclaw-node"
    assert "system.run" in {tool["name"] for tool in answers[2]["result"]["tools"]}
    assert answers[3]["result"]["structuredContent"]["deviceName"]


def test_an_order_is_carried_out(tmp_path: Path) -> None:
    call = {"name": "order_openclaw", "arguments": {"message": "hello"}}
    answers = ask_stdio(tmp_path, "openclaw", "mcp-server", call=call)

    assert "hello" in json.dumps(answers[3]["result"]["content"])


def test_the_stdio_proxy_and_echo_answer(tmp_path: Path) -> None:
    echo = ask_stdio(tmp_path, "openclaw", "echo", call={"name": "echo", "arguments": {"text": "hello"}})
    proxy = ask_stdio(tmp_path, "openclaw", "proxy", "--stdio", call={"name": "any"})

    assert echo[3]["result"]["content"][0]["text"] == "hello"
    assert "no session" in proxy[3]["error"]["message"]


@pytest.mark.parametrize("words", [("node", "--port", "0"), ("proxy", "--port", "0"), ("gateway", "--port", "0")])
def test_a_server_answers_at_its_port(tmp_path: Path, words: tuple[str, ...]) -> None:
    command = (*WITHOUT_POSIX, "openclaw", *words)
    with process(*command, stdout=subprocess.PIPE, env=environment(tmp_path)) as child:
        line = read_line(child, READY_WAIT).decode()
        address = next(word for word in line.split() if word.startswith("http"))
        path, status = {"node": ("", 401), "proxy": ("/health", 200), "gateway": ("", 401)}[words[0]]

        assert send(address + path, "GET").status == status


def test_everything_starts_at_once_and_the_agent_answers(tmp_path: Path) -> None:
    ports = ("--gateway-port", "0", "--node-port", "0", "--proxy-port", "0")
    with process(*WITHOUT_POSIX, "openclaw", "up", *ports, stdout=subprocess.PIPE, env=environment(tmp_path)) as child:
        shown = [read_line(child, READY_WAIT).decode().split()[0] for _ in range(4)]
        assert shown == ["surface", "proxy", "node", "gateway"]
        chat = subprocess.run(
            [*WITHOUT_POSIX, "openclaw", "chat", "-m", "hello"], capture_output=True, text=True, timeout=WAIT,
            check=False, env=environment(tmp_path),
        )  # fmt: skip
    assert "hello" in chat.stdout, chat.stderr


def test_the_nodes_doctor_names_what_the_platform_lacks(tmp_path: Path) -> None:
    ended = subprocess.run(
        [*WITHOUT_POSIX, "openclaw", "node", "doctor"], capture_output=True, text=True, timeout=WAIT, check=True,
        env=environment(tmp_path),
    )  # fmt: skip

    assert "The canvas is not built for Windows yet." in ended.stdout
    assert "Notifications are not built for Windows yet." in ended.stdout
    assert "platform  approval questions can't be answered in a terminal here" in ended.stdout
