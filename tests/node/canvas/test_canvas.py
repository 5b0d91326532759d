"""The canvas capability with a real Chromium, without a screen and in a window."""

import asyncio
import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
from base64 import b64decode
from collections.abc import AsyncIterator, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from openclaw_mcp.core.errors import ToolArguments, ToolError, ToolTimeout, ToolUnavailable
from openclaw_mcp.node.canvas import browser_page
from openclaw_mcp.node.canvas.canvas import CanvasCapability
from openclaw_mcp.node.canvas.temporary_folder import remove_temporary_folder
from openclaw_mcp.node.settings import NodeSettings
from tests.node.calling import call, children, image_data, result_json, running, virtual_screen
from tests.programs import need

NO_SCREEN = {name: value for name, value in os.environ.items() if name not in ("DISPLAY", "WAYLAND_DISPLAY")}
RED = "<!doctype html><body style='margin:0;background:#ff0000'>"

PANEL = [
    {
        "surfaceUpdate": {
            "surfaceId": "main",
            "components": [
                {
                    "id": "root",
                    "component": {"Column": {"children": {"explicitList": ["title", "name", "list", "go"]}}},
                },
                {"id": "title", "component": {"Text": {"text": {"literalString": "Guests"}, "usageHint": "h1"}}},
                {
                    "id": "name",
                    "component": {"TextField": {"label": {"literalString": "Name"}, "text": {"path": "/new"}}},
                },
                {
                    "id": "list",
                    "component": {
                        "List": {"children": {"template": {"componentId": "guest", "dataBinding": "/guests"}}}
                    },
                },
                {"id": "guest", "component": {"Text": {"text": {"path": "name"}}}},
                {
                    "id": "go",
                    "component": {
                        "Button": {
                            "child": "label",
                            "action": {"name": "add", "context": [{"key": "who", "value": {"path": "/new"}}]},
                        }
                    },
                },
                {"id": "label", "component": {"Text": {"text": {"literalString": "Add"}}}},
            ],
        }
    },
    {
        "dataModelUpdate": {
            "surfaceId": "main",
            "contents": [
                {"key": "new", "valueString": "Zoe"},
                {
                    "key": "guests",
                    "valueMap": [
                        {"key": "0", "valueMap": [{"key": "name", "valueString": "<b>Ada</b>"}]},
                        {"key": "1", "valueMap": [{"key": "name", "valueString": "Bob"}]},
                    ],
                },
            ],
        }
    },
    {"beginRendering": {"surfaceId": "main", "root": "root"}},
]


def lines(*messages: Any) -> str:
    return "\n".join(json.dumps(message) for message in messages)


@contextlib.asynccontextmanager
async def canvas(
    tmp_path: Path, *, environ: dict[str, str] | None = None, trusted: Sequence[str] = ()
) -> AsyncIterator[CanvasCapability]:
    need("chromium", package="chromium")
    settings = NodeSettings(canvas_trusted=tuple(trusted))
    capability = CanvasCapability(state_dir=tmp_path, settings=lambda: settings, environ=environ or NO_SCREEN)
    try:
        yield capability
    finally:
        await capability.aclose()


async def value(capability: CanvasCapability, script: str) -> Any:
    return json.loads(result_json(await call(capability, "canvas.eval", script=script))["result"])


def pixel(data: bytes, place: tuple[int, int]) -> Any:
    return Image.open(io.BytesIO(data)).convert("RGB").getpixel(place)


def command_line(pid: int | None) -> list[bytes]:
    return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")


@pytest.fixture
def site() -> Iterator[tuple[str, list[str]]]:
    """A web site on the loopback, and the paths it was asked for."""
    requests: list[str] = []

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            requests.append(self.path)
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.send_header("Access-Control-Allow-Origin", "*")
            self.end_headers()
            self.wfile.write(b"<title>Site</title><body>hello")

        def log_message(self, format: str, *arguments: Any) -> None:
            return

    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}", requests
        finally:
            server.shutdown()
            thread.join(10)


def test_html_is_shown_scripted_photographed_and_taken_away(tmp_path: Path) -> None:
    async def scenario() -> None:
        before = children()
        async with canvas(tmp_path) as capability:
            presented = await call(capability, "canvas.present", html=RED, width=400, height=300, title="Red <one>")
            assert result_json(presented) == {"presented": True}
            assert await value(capability, "[document.title, innerWidth, innerHeight]") == ["Red <one>", 400, 300]

            result = await call(capability, "canvas.snapshot")
            assert result_json(result) == {"format": "png", "width": 400, "height": 300}
            assert isinstance(result.structured, dict)
            assert b64decode(result.structured["base64"]) == image_data(result)
            assert pixel(image_data(result), (5, 5)) == pixel(image_data(result), (390, 290)) == (255, 0, 0)

            assert result_json(await call(capability, "canvas.hide")) == {"hidden": True}
            assert not children() - before
            with pytest.raises(ToolError, match="CANVAS_NOT_OPEN"):
                await call(capability, "canvas.eval", script="1")
            with pytest.raises(ToolError, match="CANVAS_NOT_OPEN"):
                await call(capability, "canvas.snapshot")

    asyncio.run(scenario())


def test_in_a_desktop_session_it_is_a_window_of_the_size_and_place_asked_for(tmp_path: Path) -> None:
    async def scenario(environ: dict[str, str]) -> None:
        async with canvas(tmp_path, environ=environ) as capability:
            await call(capability, "canvas.present", html=RED, width=600, height=400, x=40, y=30)
            assert await value(capability, "[innerWidth, innerHeight, screenX, screenY]") == [600, 400, 40, 30]
            result = await call(capability, "canvas.snapshot", format="jpg", maxWidth=300)
            assert result_json(result) == {"format": "jpeg", "width": 300, "height": 200}
            assert pixel(image_data(result), (5, 5))[0] > 250

    with virtual_screen(1000, 700) as environ:
        asyncio.run(scenario(environ))


def test_scripts_give_json_text_wait_for_promises_and_report_their_failures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(browser_page, "EVAL_WAIT", 1.0)

    async def scenario() -> None:
        async with canvas(tmp_path) as capability:
            await call(capability, "canvas.present", html=RED)

            async def result(**arguments: str) -> object:
                return result_json(await call(capability, "canvas.eval", **arguments))["result"]

            assert await result(script="'T'") == '"T"'
            assert await result(javaScript="({a: [1, null]})") == '{"a":[1,null]}'
            assert await result(javascript="undefined") == "null"
            assert await result(script="new Promise(done => setTimeout(() => done(7), 20))") == "7"
            assert await result(script="alert('nobody is here'); 3") == "3"
            with pytest.raises(ToolError, match="CANVAS_EVAL_FAILED: Error: my own fault"):
                await result(script="throw new Error('my own fault')")
            with pytest.raises(ToolTimeout, match="CANVAS_TIMEOUT"):
                await result(script="new Promise(() => {})")
            with pytest.raises(ToolTimeout, match="CANVAS_TIMEOUT"):
                await result(script="for (;;) {}")
            assert await result(script="1 + 1") == "2"
            with pytest.raises(ToolArguments, match="Missing script"):
                await result(script=" ")

    asyncio.run(scenario())


def test_a_page_of_this_machine_opens_only_from_a_trusted_origin(tmp_path: Path, site: tuple[str, list[str]]) -> None:
    origin, requests = site

    async def scenario() -> None:
        async with canvas(tmp_path / "trusting", trusted=[origin]) as capability:
            result = await call(capability, "canvas.navigate", url=origin)
            assert result_json(result) == {"navigated": True, "opener": "canvas", "url": origin + "/"}
            assert await value(capability, "document.body.innerText.trim()") == "hello"
        assert "/" in requests
        requests.clear()

        async with canvas(tmp_path / "wary") as capability:
            with pytest.raises(ToolArguments, match="not trusted"):
                await call(capability, "canvas.present", url=origin)
            refused = result_json(await call(capability, "canvas.navigate", url=origin))
            assert (refused["navigated"], refused["opener"]) == (False, "unsupported_in_canvas")
            await call(capability, "canvas.present", html=RED)
            port = origin.rpartition(":")[2]
            for host in ("127.0.0.1", "localhost", "x.localhost", "2130706433", "0x7f.1", "[::ffff:127.0.0.1]", "0"):
                script = f"fetch('http://{host}:{port}/in', {{mode: 'no-cors'}}).then(() => 'in', () => 'out')"
                assert await value(capability, script) == "out", host
            await value(capability, f"void (location = '{origin}/moved')")
            with contextlib.suppress(ToolError):  # the page goes away under it, to an error page
                await value(capability, "new Promise(done => setTimeout(done, 300))")
            assert await value(capability, "location.protocol") == "chrome-error:"
        assert requests == []

    asyncio.run(scenario())


def test_a_page_reads_no_files_and_opens_no_other_windows_or_frames(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with canvas(tmp_path) as capability:
            await call(capability, "canvas.present", html=RED + "<iframe src='https://canvas.invalid/a2ui'></iframe>")
            # Of our own origin, so it could be looked into if it had been loaded.
            look = "(() => { try { return frames[0].document.title } catch { return 'shut' } })()"
            assert await value(capability, look) == "shut"
            before = children()
            await value(capability, "void window.open('about:blank')")
            await value(capability, "void (location = 'file:///etc/passwd')")
            await value(capability, "new Promise(done => setTimeout(done, 300))")
            assert await value(capability, "location.href") == "https://canvas.invalid/"
            assert capability.browser_pid in before

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/passwd",
        "javascript:alert(1)",
        "chrome://version",
        "data:image/svg+xml,<svg/>",
        "//example.com/",
        "http://user:pw@example.com/",
        "http://127.1/",
        "http://0x7f000001/",
        "http://017700000001/",
        "http://[::1]/",
        "http://[::ffff:10.0.0.1]/",
        "http://169.254.169.254/latest/",
        "http://100.64.0.1/",
        "http://[fd00::1]/",
        "http://\uff11\uff12\uff17.0.0.1/",
        "http://127.0.0.1./",
        "http://127%2e0.0.1/",
        "http://localhost:3000/",
        "https://exa mple.com/",
        "https:///path",
    ],
)
def test_addresses_the_canvas_does_not_show_are_refused_without_a_browser(tmp_path: Path, url: str) -> None:
    need("chromium", package="chromium")
    capability = CanvasCapability(state_dir=tmp_path, environ=NO_SCREEN)

    with pytest.raises(ToolArguments, match="Invalid url"):
        asyncio.run(call(capability, "canvas.present", url=url))

    assert capability.browser_pid is None


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("http://example.com", "not https"),
        ("https://localhost/", "this machine"),
        ("https://93.184.216.34/", "bare address"),
        ("https://intranet/", "no dot"),
        ("https://bücher.example/", "plain letters"),
    ],
)
def test_navigate_leaves_risky_addresses_alone_and_says_why(tmp_path: Path, url: str, reason: str) -> None:
    need("chromium", package="chromium")
    capability = CanvasCapability(state_dir=tmp_path, environ=NO_SCREEN)

    result = result_json(asyncio.run(call(capability, "canvas.navigate", url=url)))

    assert (result["navigated"], result["opener"]) == (False, "unsupported_in_canvas")
    assert reason in result["reason"]
    assert capability.browser_pid is None


def test_the_canvass_own_files_are_shown_and_nothing_outside_their_folder(tmp_path: Path) -> None:
    files = tmp_path / "canvas" / "files"
    files.mkdir(parents=True)
    (tmp_path / "secret.txt").write_text("secret")
    (files / "link.txt").symlink_to(tmp_path / "secret.txt")
    (files / "page.html").write_text("<title>Mine</title><script src='page.js'></script>")
    (files / "page.js").write_text("window.ran = true")

    async def scenario() -> None:
        async with canvas(tmp_path) as capability:
            await call(capability, "canvas.present", url="/page.html")
            assert await value(capability, "[document.title, window.ran]") == ["Mine", True]
            for path in ("link.txt", "..%2f..%2fsecret.txt", "%2fetc%2fpasswd", "nowhere"):
                assert await value(capability, f"fetch('/files/{path}').then(found => found.status)") == 404

    asyncio.run(scenario())


def test_a_browser_that_died_is_back_with_what_it_showed_at_the_next_call(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with canvas(tmp_path) as capability:
            await call(capability, "canvas.present", html=RED, width=300, height=200)
            first = capability.browser_pid
            assert first is not None
            os.kill(first, signal.SIGKILL)
            result = await call(capability, "canvas.snapshot")
            assert pixel(image_data(result), (5, 5)) == (255, 0, 0)
            assert capability.browser_pid != first

            await call(capability, "canvas.a2ui.push", jsonl=lines(*PANEL))
            waiting = asyncio.ensure_future(call(capability, "canvas.eval", script="new Promise(() => {})"))
            await asyncio.sleep(0.2)  # until the script is on its way; nothing says so
            os.kill(capability.browser_pid or 0, signal.SIGKILL)
            with pytest.raises(ToolError, match="CANVAS_CRASHED"):
                await waiting
            assert "Guests" in await value(capability, "document.body.innerText")

    asyncio.run(scenario())


def test_a_call_cancelled_at_any_moment_leaves_a_canvas_that_works(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with canvas(tmp_path) as capability:
            for moment in (0.05, 0.3, 0.6):
                opening = asyncio.ensure_future(call(capability, "canvas.present", html=RED))
                await asyncio.wait((opening,), timeout=moment)
                opening.cancel()
                await asyncio.gather(opening, return_exceptions=True)
            await call(capability, "canvas.present", html=RED)
            looping = asyncio.ensure_future(call(capability, "canvas.eval", script="for (;;) {}"))
            await asyncio.wait((looping,), timeout=0.3)
            looping.cancel()
            await asyncio.gather(looping, return_exceptions=True)
            assert await value(capability, "6 * 7") == 42

    asyncio.run(scenario())


def test_a_browser_does_not_outlive_a_node_that_is_killed_outright(tmp_path: Path) -> None:
    need("chromium", package="chromium")
    code = (
        "import asyncio, sys\nfrom pathlib import Path\nfrom tests.node.calling import call\n"
        "from openclaw_mcp.node.canvas.canvas import CanvasCapability\n"
        "async def main():\n"
        "    made = CanvasCapability(state_dir=Path(sys.argv[1]))\n"
        "    await call(made, 'canvas.present', html='x')\n"
        "    print(made.browser_pid, flush=True)\n"
        "    await asyncio.Event().wait()\n"
        "asyncio.run(main())"
    )
    root = Path(__file__).parents[3]
    with running(sys.executable, "-c", code, str(tmp_path), cwd=root, env=NO_SCREEN, stdout=subprocess.PIPE) as node:
        assert node.stdout is not None
        browser = int(node.stdout.readline())
        node.kill()
        node.wait(10)
        node.stdout.close()
        end = time.monotonic() + 10
        while Path(f"/proc/{browser}").exists() and b"Z" not in Path(f"/proc/{browser}/stat").read_bytes().split()[2:3]:
            assert time.monotonic() < end, "the browser lives on"
            time.sleep(0.05)
    remove_temporary_folder(tmp_path / "canvas" / "profile")  # as the next node does


def test_a_page_that_crashes_its_process_fails_at_once_and_the_next_call_works(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with canvas(tmp_path) as capability:
            with pytest.raises(ToolError, match="CANVAS"):
                await call(capability, "canvas.present", url="about:blank")
                await capability._page._require_browser().call("Page.crash")  # what a bug in the renderer does
            assert await value(capability, "location.href") == "about:blank"

    asyncio.run(scenario())


def test_a2ui_lines_become_a_page_whose_fields_and_buttons_work(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with canvas(tmp_path) as capability:
            pushed = await call(capability, "canvas.a2ui.push", jsonl=lines(*PANEL) + "\n\nnot json\n")
            assert result_json(pushed) == {"pushed": True, "applied": 3, "skipped": 1}
            assert await value(capability, "document.querySelector('h1').textContent") == "Guests"
            texts = "[...document.querySelectorAll('.List .Text')].map(one => one.textContent)"
            assert await value(capability, texts) == ["<b>Ada</b>", "Bob"]
            await value(
                capability,
                "{const f = document.querySelector('input'); f.value = 'Eve'; f.dispatchEvent(new Event('change'))}",
            )
            await value(capability, "document.querySelector('button').click()")
            actions = await value(
                capability, "openclaw.actions.map(({name, surfaceId, context}) => ({name, surfaceId, context}))"
            )
            assert actions == [{"name": "add", "surfaceId": "main", "context": {"who": "Eve"}}]
            shot = image_data(await call(capability, "canvas.snapshot"))
            assert len(Image.open(io.BytesIO(shot)).convert("RGB").getcolors(1 << 20) or ()) > 10

            changed = {
                "dataModelUpdate": {
                    "surfaceId": "main",
                    "path": "/guests/1",
                    "contents": [{"key": "name", "valueString": "Cid"}],
                }
            }
            await call(capability, "canvas.a2ui.pushJSONL", jsonl=lines(changed))
            assert await value(capability, texts) == ["<b>Ada</b>", "Cid"]
            assert result_json(await call(capability, "canvas.a2ui.dump"))["surfaceCount"] == 1

            assert result_json(await call(capability, "canvas.a2ui.reset")) == {"reset": True}
            assert await value(capability, "document.querySelectorAll('.surface').length") == 0

    asyncio.run(scenario())


def test_every_component_of_the_catalogue_is_drawn(tmp_path: Path) -> None:
    text = {"literalString": "x"}
    parts: dict[str, dict[str, Any]] = {
        "Text": {"text": text},
        "Image": {"url": {"literalString": "data:image/gif;base64,R0lGODlhAQABAAAAACwAAAAAAQABAAA="}},
        "Icon": {"name": text},
        "Video": {"url": {"literalString": "https://example.com/v.mp4"}},
        "AudioPlayer": {"url": {"literalString": "https://example.com/a.mp3"}, "description": text},
        "Row": {"children": {"explicitList": ["leaf"]}},
        "Column": {"children": {"explicitList": ["leaf"]}},
        "List": {"children": {"explicitList": ["leaf"]}},
        "Card": {"child": "leaf"},
        "Tabs": {"tabItems": [{"title": text, "child": "leaf"}]},
        "Divider": {},
        "Modal": {"entryPointChild": "leaf", "contentChild": "leaf"},
        "Button": {"child": "leaf", "action": {"name": "a"}},
        "CheckBox": {"label": text, "value": {"literalBoolean": True}},
        "TextField": {"label": text, "text": text},
        "DateTimeInput": {"value": {"literalString": "2026-01-02"}},
        "MultipleChoice": {"selections": {"literalArray": ["a"]}, "options": [{"label": text, "value": "a"}]},
        "Slider": {"value": {"literalNumber": 5}, "minValue": 0, "maxValue": 10},
    }
    components = [{"id": kind, "component": {kind: properties}} for kind, properties in parts.items()]
    components += [
        {"id": "leaf", "component": {"Text": {"text": {"literalString": "leaf"}}}},
        {"id": "root", "component": {"Column": {"children": {"explicitList": [*parts, "circle"]}}}},
        {"id": "circle", "component": {"Card": {"child": "circle"}}},
    ]
    update = {"surfaceUpdate": {"surfaceId": "s", "components": components}}

    async def scenario() -> None:
        async with canvas(tmp_path) as capability:
            begin = {"beginRendering": {"surfaceId": "s", "root": "root"}}
            assert result_json(await call(capability, "canvas.a2ui.push", jsonl=lines(update, begin)))["applied"] == 2
            drawn = await value(
                capability, f"{json.dumps([*parts])}.filter(id => document.querySelector(`[data-id=${{id}}].${{id}}`))"
            )
            assert drawn == [*parts]
            assert await value(capability, "document.querySelectorAll('.unknown').length") == 0

    asyncio.run(scenario())


def test_a2ui_lines_that_are_too_many_too_new_or_out_of_reach_are_refused(tmp_path: Path) -> None:
    need("chromium", package="chromium")
    capability = CanvasCapability(state_dir=tmp_path, environ=NO_SCREEN)
    outside = Path("/etc/passwd")  # never below a temporary directory, wherever these tests are
    link = tmp_path / "link.jsonl"
    link.symlink_to(outside)
    refusals: list[tuple[dict[str, str], str]] = [
        ({}, "Missing jsonl or jsonlPath"),
        ({"jsonl": "{}\n" * 4097}, "maximum of 4096 lines"),
        ({"jsonl": "x" * (4 << 20) + "y"}, "maximum size of 4194304 bytes"),
        ({"jsonl": '{"createSurface":{"surfaceId":"s"}}'}, "speaks 0.8"),
        ({"jsonlPath": str(outside)}, "temporary directory"),
        ({"jsonlPath": str(link)}, "temporary directory"),
        ({"jsonlPath": str(tmp_path / "nowhere")}, "Failed to read jsonlPath"),
    ]
    for arguments, sentence in refusals:
        with pytest.raises(ToolArguments, match=sentence):
            asyncio.run(call(capability, "canvas.a2ui.push", **arguments))
    assert capability.browser_pid is None


def test_without_a_browser_every_command_is_missing_with_a_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    capability = CanvasCapability(state_dir=tmp_path, environ=NO_SCREEN)

    for command in capability.commands():
        missing = capability.unavailable_reason(command.spec.name)
        assert missing is not None
        assert "chromium" in missing.remedy
    with pytest.raises(ToolUnavailable, match="CANVAS_NOT_AVAILABLE"):
        asyncio.run(call(capability, "canvas.present", html="x"))


def test_no_port_is_opened_and_only_root_runs_without_the_sandbox(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with canvas(tmp_path) as capability:
            await call(capability, "canvas.present", html=RED)
            words = command_line(capability.browser_pid)
            assert b"--remote-debugging-pipe" in words
            assert not [word for word in words if word.startswith(b"--remote-debugging-port")]
            assert (b"--no-sandbox" in words) == (os.geteuid() == 0)
            assert (tmp_path / "canvas" / "profile").stat().st_mode & 0o077 == 0

    asyncio.run(scenario())
