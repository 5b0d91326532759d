"""The whole node: every capability behind one endpoint, as a client sees it on a machine with a screen."""

import base64
import json
import subprocess
from pathlib import Path
from typing import Any

from tests.node.calling import virtual_screen
from tests.programs import need
from tests.running import OPENCLAW, process, read_line
from tests.web_client import rpc, send

from .running import running_node

WAIT = 60.0
EVERYTHING = dict.fromkeys(("screen", "canvas", "camera", "location", "tts"), True)


def test_a_screen_shot_comes_as_json_as_a_picture_and_as_a_resource(tmp_path: Path) -> None:
    xvfb = need("Xvfb", package="xvfb")
    words = (xvfb, "-displayfd", "1", "-nolisten", "tcp", "-screen", "0", "640x480x24")
    with process(*words, stdout=subprocess.PIPE) as x:
        display = f":{read_line(x, WAIT).decode().strip()}"
        with running_node(tmp_path / "state", env={"DISPLAY": display}, capabilities=EVERYTHING) as node:
            tools = send(node.address, "POST", rpc("tools/list"), **node.bearer).json["result"]["tools"]
            assert {"screen.snapshot", "system.run", "device.info"} <= {tool["name"] for tool in tools}

            call = rpc("tools/call", {"name": "screen.snapshot", "arguments": {}})
            shot = send(node.address, "POST", call, **node.bearer).json["result"]
            picture = base64.b64decode(shot["content"][1]["data"])
            assert picture.startswith(b"\x89PNG")
            reported = json.loads(shot["content"][0]["text"])
            assert (reported["width"], reported["height"]) == (640, 480)
            assert "structuredContent" not in shot, "a client that shows it instead of the blocks would show base64"

            read = rpc("resources/read", {"uri": "openclaw://node/captures/1"})
            resource = send(node.address, "POST", read, **node.bearer).json["result"]["contents"][0]
            assert base64.b64decode(resource["blob"]) == picture

            filming = rpc("tools/call", {"name": "screen.record", "arguments": {"durationMs": 500}})
            refused = send(node.address, "POST", filming, **node.bearer).json["result"]
            assert refused["isError"]
            assert "openclaw approvals grant screen.record" in json.dumps(refused)


def test_the_programs_it_drives_are_started_by_the_server_as_it_is_run(tmp_path: Path) -> None:
    """The server's event loop is another one than a test's own, and stricter about what a child is given."""
    need("ffmpeg", package="ffmpeg")
    need("chromium", package="chromium")
    state = tmp_path / "state"
    with virtual_screen(320, 240) as environ:
        display = {"DISPLAY": environ["DISPLAY"]}
        with running_node(state, env=display, capabilities=EVERYTHING, cameraSource="lavfi:testsrc2") as node:
            for thing in ("camera", "screen.record"):
                subprocess.run([OPENCLAW, "approvals", "--state-dir", str(state), "grant", thing], check=True)

            def called(name: str, **arguments: object) -> list[dict[str, Any]]:
                call = rpc("tools/call", {"name": name, "arguments": arguments})
                result = send(node.address, "POST", call, **node.bearer).json["result"]
                assert not result.get("isError"), result["content"][0]["text"]
                content: list[dict[str, Any]] = result["content"]
                return content

            called("canvas.present", html="<p>Good day")
            for name in ("screen.record", "camera.clip"):
                film = called(name, durationMs=500)[1]["resource"]
                assert b"ftyp" in base64.b64decode(film["blob"])[:32]
            called("canvas.hide")  # so that nothing of it is left in the temporary directory when the node is killed


def test_without_a_screen_the_doctor_says_what_to_do(tmp_path: Path) -> None:
    with running_node(tmp_path / "state", capabilities=EVERYTHING) as node:
        tools = {
            tool["name"]
            for tool in send(node.address, "POST", rpc("tools/list"), **node.bearer).json["result"]["tools"]
        }
        call = rpc("tools/call", {"name": "screen.snapshot", "arguments": {}})
        reported = send(node.address, "POST", call, **node.bearer).json["result"]

    assert "screen.snapshot" not in tools
    assert reported["isError"]
    assert "screen.snapshot is not available" in reported["content"][0]["text"]
