"""The node as a whole: its registry, its settings while it runs, its doctor and its wizard."""

import asyncio
import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from openclaw_mcp.core.errors import ToolNotFound, ToolUnavailable
from openclaw_mcp.core.model import Image, ResourceRead, ToolCall, ToolResult, ToolSpec
from openclaw_mcp.core.ports import NULL_CONTEXT
from openclaw_mcp.node.capability import NodeCommand, UnavailableReason, json_result
from openclaw_mcp.node.host import LocalNode
from openclaw_mcp.node.settings import BadSettings, NodeSettings, load_settings, save_settings
from tests.running import OPENCLAW
from tests.web_client import rpc, send

from .media.making import ANYBODY, call
from .running import RunningNode, running_node

WAIT = 30.0
PICTURE = b"\x89PNG pretend"


class Lamp:
    """A capability that can be unplugged."""

    name = "lamp"

    def __init__(self) -> None:
        self.plugged = True
        self.closed = False

    def commands(self) -> Sequence[NodeCommand]:
        spec = ToolSpec(name="lamp.look", description="Looks at the lamp.")
        return (NodeCommand(spec=spec, run=self._look),)

    def unavailable_reason(self, command: str) -> UnavailableReason | None:
        return None if self.plugged else UnavailableReason("The lamp is unplugged.", "Plug it in.")

    async def aclose(self) -> None:
        self.closed = True

    async def _look(self, call: ToolCall) -> ToolResult:
        return json_result({"lit": True}, Image(PICTURE, "image/png"))


async def names(node: LocalNode) -> set[str]:
    return {spec.name for spec in await node.tools.list(ANYBODY)}


# ---- one registry ----


def test_a_capability_registered_later_shows_at_once_and_is_announced(tmp_path: Path) -> None:
    async def scenario() -> None:
        node = LocalNode(tmp_path)
        rings: list[None] = []
        node.tools.changed.connect(rings.append)
        assert "lamp.look" not in await names(node)

        node.capabilities.add(Lamp())

        assert rings
        assert "lamp.look" in await names(node)
        assert (await node.tools.call(call("lamp.look"))).structured == {"lit": True}

    asyncio.run(scenario())


def test_a_command_is_offered_only_while_it_can_work(tmp_path: Path) -> None:
    async def scenario() -> None:
        node, lamp = LocalNode(tmp_path), Lamp()
        node.capabilities.add(lamp)
        lamp.plugged = False

        assert "lamp.look" not in await names(node)
        with pytest.raises(ToolUnavailable, match=r"lamp is unplugged\. Plug it in"):
            await node.tools.call(call("lamp.look"))
        with pytest.raises(ToolNotFound):
            await node.tools.call(call("lamp.smell"))

        lamp.plugged = True
        assert (await node.tools.call(call("lamp.look"))).structured == {"lit": True}
        async with node.open():
            pass
        assert lamp.closed

    asyncio.run(scenario())


def test_two_capabilities_cannot_own_one_name(tmp_path: Path) -> None:
    node = LocalNode(tmp_path)
    node.capabilities.add(Lamp())

    with pytest.raises(ValueError, match="already here"):
        node.capabilities.add(Lamp())


def test_what_was_captured_can_be_read_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        node = LocalNode(tmp_path)
        news: list[str] = []
        node.resources.updated.connect(news.append)
        node.capabilities.add(Lamp())
        for _ in range(20):
            await node.tools.call(call("lamp.look"))

        listed = [spec for spec in await node.resources.list(ANYBODY) if "/captures/" in spec.uri]
        contents = await node.resources.read(ResourceRead(caller=ANYBODY, uri=listed[0].uri, context=NULL_CONTEXT))

        assert len(listed) == 16
        assert contents[0].blob == PICTURE
        assert "openclaw://node/captures" in news

    asyncio.run(scenario())


# ---- settings ----


def wait_for(node: RunningNode, start: str) -> str:
    while not (line := node.line()).startswith(start):
        pass
    return line


def change(node: RunningNode, **settings: Any) -> None:
    fresh = node.state / "fresh.json"
    fresh.write_text(json.dumps(settings))
    fresh.replace(node.state / "node.json")


def tools(address: str, node: RunningNode) -> set[str]:
    answer = send(address, "POST", rpc("tools/list"), **node.bearer)
    return {tool["name"] for tool in answer.json["result"]["tools"]}


def test_listeners_open_and_close_as_the_settings_say_while_it_runs(tmp_path: Path) -> None:
    with running_node(tmp_path, enableMcpServer=False) as node:
        assert node.address == ""
        assert not (tmp_path / "mcp-token.txt").exists()

        change(node, enableMcpServer=True)
        address = wait_for(node, "mcp: http").split()[-1]
        assert "system.run" in tools(address, node)

        change(node, enableMcpServer=False)
        wait_for(node, "mcp: closed")
        with pytest.raises(ConnectionError):
            send(address, "GET")

        change(node, enableMcpServer=True, runSystemTools=False, capabilities={"device": False})
        address = wait_for(node, "mcp: http").split()[-1]
        assert not tools(address, node) & {"system.run", "system.run.prepare", "device.info"}
        assert "system.which" in tools(address, node)


def test_settings_with_a_mistake_change_nothing_and_say_so(tmp_path: Path) -> None:
    with running_node(tmp_path) as node:
        change(node, enableMcpServer="yes")

        reply = wait_for(node, "settings:")

        assert "enableMcpServer" in reply
        assert "system.run" in tools(node.address, node)


def test_it_stops_on_request_and_leaves_no_socket(tmp_path: Path) -> None:
    with running_node(tmp_path) as node:
        node.child.terminate()

        assert node.child.wait(WAIT) == 0
        assert not list(tmp_path.glob("*.sock"))


def test_an_older_name_of_a_setting_is_understood_and_not_written_again(tmp_path: Path) -> None:
    path = tmp_path / "node.json"
    path.write_text('{"mcpOnlyMode": true, "enableNodeMode": true, "enableMcpServer": false}')

    settings = load_settings(path)
    save_settings(path, settings)

    assert (settings.enable_mcp_server, settings.enable_node_mode) == (True, False)
    assert "mcpOnlyMode" not in path.read_text()
    assert load_settings(path) == NodeSettings(enable_mcp_server=True, enable_node_mode=False)


@pytest.mark.parametrize("text", ["{", "[]", '{"mcpPort": 70000}', '{"mcpPort": "8765"}', '{"askSeconds": 0}'])
def test_a_settings_file_with_a_mistake_is_an_error_never_the_defaults(tmp_path: Path, text: str) -> None:
    (tmp_path / "node.json").write_text(text)

    with pytest.raises(BadSettings, match=r"node\.json"):
        load_settings(tmp_path / "node.json")


# ---- doctor and wizard ----


def openclaw(*words: str, state: Path, reply: str = "") -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith(("DBUS", "XDG", "OPENCLAW"))}
    return subprocess.run(
        [OPENCLAW, *words, "--state-dir", str(state)],
        input=reply,
        capture_output=True,
        text=True,
        timeout=WAIT,
        check=False,
        env=env,
    )


def test_the_doctor_says_why_something_is_missing_and_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "node.json").write_text('{"runSystemTools": false}')

    report = json.loads(openclaw("node", "doctor", "--json", state=tmp_path).stdout)
    missing = {row["name"]: row["missing"] for row in report["commands"] if row["missing"]}

    assert "session bus" in missing["system.notify"]["reason"]
    assert "runSystemTools" in missing["system.run"]["remedy"]
    assert report["problems"] == []
    assert "no   system.notify" in openclaw("node", "doctor", state=tmp_path).stdout


def test_the_doctor_fails_on_what_is_broken(tmp_path: Path) -> None:
    (tmp_path / "exec-policy.json").write_text("{")

    ended = openclaw("node", "doctor", state=tmp_path)

    assert ended.returncode == 1
    assert "exec-policy.json" in ended.stdout


def test_the_wizard_writes_what_was_answered(tmp_path: Path) -> None:
    reply = "\n9999\nno\n" + "yes\n" * 3 + "no\n" + "perhaps\nyes\n" + "no\nno\n"

    ended = openclaw("node", "setup", state=tmp_path, reply=reply)
    settings = load_settings(tmp_path / "node.json")

    assert ended.returncode == 0
    assert settings.mcp_port == 9999
    assert not settings.enable_node_mode
    assert (settings.is_enabled("screen"), settings.is_enabled("canvas"), settings.is_enabled("camera")) == (
        True,
        False,
        True,
    )
    assert "http://127.0.0.1:9999/" in ended.stdout
    assert (tmp_path / "mcp-token.txt").read_text() not in ended.stdout


def test_an_end_of_input_is_no_consent(tmp_path: Path) -> None:
    ended = openclaw("node", "setup", state=tmp_path, reply="yes\n")

    assert ended.returncode == 1
    assert "--yes" in ended.stderr
    assert not (tmp_path / "node.json").exists()


def test_the_wizard_can_take_every_default(tmp_path: Path) -> None:
    assert openclaw("node", "setup", "--yes", state=tmp_path).returncode == 0
    assert load_settings(tmp_path / "node.json").enable_mcp_server
