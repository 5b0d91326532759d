"""The examples do what their READMEs say."""

import base64
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from tests.apps.proxies import APP_TOKEN, api, call, proxy, text, tools
from tests.apps.scripts import CLIENT, Reports, chromium, served
from tests.running import END_WAIT, READY_WAIT, process, read_line

EXAMPLES = Path(__file__).parent.parent / "examples"
PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with proxy() as found:
        yield found


def connected(address: str, device: str) -> Any:
    """The session of a device once its bridge is open."""
    end = time.monotonic() + READY_WAIT
    while time.monotonic() < end:
        for session in api(address, "GET", "").json["sessions"]:
            if session["device_id"] == device and session["connected"]:
                return session
        time.sleep(0.05)
    raise AssertionError(f"{device} did not connect within {READY_WAIT} s")


@contextmanager
def lending(address: str, folder: Path) -> Iterator[str]:
    """The MCP address of the desktop script."""
    script = str(EXAMPLES / "desktop" / "lend_folder.py")
    environment = {**os.environ, "OPENCLAW_PROXY_APP_TOKEN": APP_TOKEN, "OPENCLAW_PROXY_SERVER_URL": address}
    with process(sys.executable, script, str(folder), env=environment, stdout=subprocess.PIPE) as child:
        url = read_line(child, READY_WAIT).decode().split()[-1]
        connected(address, "desktop")
        yield url
        child.send_signal(signal.SIGINT)
        assert child.wait(END_WAIT) == 0


def test_the_desktop_script_lends_a_folder_and_nothing_above_it(address: str, tmp_path: Path) -> None:
    folder = tmp_path / "lent"
    folder.mkdir()
    (folder / "note.txt").write_text("buy milk")
    (folder / "dot.png").write_bytes(PNG)
    (folder / "raw.bin").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "secret.txt").write_text("secret")
    (folder / "way-out").symlink_to(tmp_path / "secret.txt")

    with lending(address, folder) as url:
        found = call(url, "find_files", {"name": "*.txt"})
        assert '"path":"note.txt"' in text(found)
        assert "secret" not in text(call(url, "find_files"))

        assert text(call(url, "fetch_file", {"path": "note.txt"})) == "buy milk"
        (picture,) = call(url, "fetch_file", {"path": "dot.png"})["content"]
        assert base64.b64decode(picture["data"]) == PNG
        (raw,) = call(url, "fetch_file", {"path": "raw.bin"})["content"]
        assert base64.b64decode(raw["resource"]["blob"]) == b"\xff\xfe\x00"
        for outside in ("../secret.txt", "way-out", str(tmp_path / "secret.txt"), "nothing"):
            refused = call(url, "fetch_file", {"path": outside})
            assert refused["isError"]
            assert "there is no file" in text(refused)
    assert api(address, "GET", "").json["sessions"] == []


def test_the_desktop_script_tells_of_nothing_outside_its_folder(address: str, tmp_path: Path) -> None:
    folder = tmp_path / "lent"
    (folder / "below").mkdir(parents=True)
    (folder / "below" / "a ü.bin").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "secret.txt").write_text("secret")
    (folder / "way-out").symlink_to(tmp_path)

    with lending(address, folder) as url:
        for outside in ("../*", "/etc/*", "..", "below/../../*"):
            refused = call(url, "find_files", {"name": outside})
            assert refused["isError"]
            assert "is no pattern for a file's name" in text(refused)
        assert '"path":"below/a ü.bin"' in text(call(url, "find_files", {"name": "a*"}))
        assert "secret" not in text(call(url, "find_files"))
        (raw,) = call(url, "fetch_file", {"path": "below/a ü.bin"})["content"]
        assert raw["resource"]["uri"] == "lent:///below/a%20%C3%BC.bin"


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere every file name is Unicode")
def test_the_desktop_script_leaves_out_a_name_that_cannot_be_told(address: str, tmp_path: Path) -> None:
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/bad-\xff.txt")).write_text("odd")
    (tmp_path / "good.txt").write_text("fine")

    with lending(address, tmp_path) as url:
        found = text(call(url, "find_files"))
        assert "good.txt" in found
        assert "bad" not in found


def test_the_web_page_lends_its_canvas(address: str) -> None:
    page = EXAMPLES / "web-page" / "index.html"
    with served({"/index.html": page, "/client.js": CLIENT}) as (site, _):
        query = urlencode({"url": address, "token": APP_TOKEN})
        with chromium(f"{site}/index.html#{query}"):
            url = connected(address, "canvas-page")["mcp_url"]
            assert [tool["name"] for tool in tools(url)] == ["draw"]

            empty = call(url, "draw", {"shapes": []})["content"][0]["data"]
            disc = {"kind": "disc", "x": 50, "y": 50, "radius": 30, "colour": "rebeccapurple"}
            (picture,) = call(url, "draw", {"shapes": [disc]})["content"]
            assert base64.b64decode(picture["data"]).startswith(PNG)
            assert picture["data"] != empty
            assert call(url, "draw", {"shapes": [], "clear": True})["content"][0]["data"] == empty

            refused = call(url, "draw", {"shapes": [{**disc, "colour": "loud"}]})
            assert text(refused) == '"loud" is no CSS colour'


REPORTING = """
<script>
  const say = (type) => fetch("/said", { method: "POST", keepalive: true, body: JSON.stringify(
    { type, state: document.getElementById("state").value, form: !document.getElementById("form").hidden }) });
  const look = new MutationObserver(() => say("changed"));
  look.observe(document.getElementById("state"), { childList: true, characterData: true });
  look.observe(document.getElementById("form"), { attributes: true });
  addEventListener("pageshow", ({ persisted }) => say(persisted ? "back" : "shown"));
</script>
"""


@contextmanager
def reporting_page(address: str, folder: Path, more: str = "") -> Iterator[Reports]:
    """The web page in a browser, lent, and what it shows whenever that changes."""
    page = folder / "index.html"
    page.write_text((EXAMPLES / "web-page" / "index.html").read_text() + REPORTING + more)
    away = folder / "away.html"
    away.write_text("<script>setTimeout(() => history.back(), 100)</script>")
    with served({"/index.html": page, "/away.html": away, "/client.js": CLIENT}) as (site, reports):
        query = urlencode({"url": address, "token": APP_TOKEN})
        with chromium(f"{site}/index.html#{query}"):
            yield reports


def wait_for_words(reports: Reports, words: str) -> Any:
    """What the page shows once its state begins so."""
    while not (report := reports.wait_for("changed"))["state"].startswith(words):
        pass
    return report


def test_the_web_page_shows_its_form_again_when_the_session_was_deleted(address: str, tmp_path: Path) -> None:
    with reporting_page(address, tmp_path) as reports:
        assert not wait_for_words(reports, "Lent at ")["form"]
        api(address, "DELETE", f"/{connected(address, 'canvas-page')['mcpSessionId']}")
        assert wait_for_words(reports, "the session was deleted")["form"]


def test_the_web_page_lends_again_when_one_comes_back_to_it(address: str, tmp_path: Path) -> None:
    leaving = """<script>
      const state = document.getElementById("state");
      const leave = new MutationObserver(() => {
        if (!state.value.startsWith("Lent at ")) return;
        leave.disconnect();
        location.href = "/away.html";
      });
      leave.observe(state, { childList: true, characterData: true });
    </script>"""
    with reporting_page(address, tmp_path, leaving) as reports:
        before, after = (wait_for_words(reports, "Lent at ")["state"] for _ in range(2))
        assert after != before
        if not any(report["type"] == "back" for report in reports.seen):  # what it says may overtake what it said
            reports.wait_for("back")
        (picture,) = call(after.split()[-1], "draw", {"shapes": []})["content"]
        assert base64.b64decode(picture["data"]).startswith(PNG)


def test_the_readme_of_the_web_page_finds_the_module(tmp_path: Path) -> None:
    shutil.copytree(EXAMPLES, tmp_path / "examples")
    words = (EXAMPLES / "web-page" / "README.md").read_text()
    (command,) = [line.strip() for line in words.splitlines() if line.strip().startswith("cp ")]
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}

    subprocess.run(["sh", "-c", command], cwd=tmp_path, env=environment, check=True, timeout=READY_WAIT)

    assert (tmp_path / "examples" / "web-page" / "client.js").read_bytes() == CLIENT.read_bytes()
