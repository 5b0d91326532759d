"""Where JavaScript runs in our tests: Node, and a page in a headless Chromium. Both report as JSON."""

import contextlib
import http.server
import json
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlencode, urlsplit

import openclaw_mcp
from tests.programs import need, need_node
from tests.running import process

HERE = Path(__file__).parent
CLIENT = Path(openclaw_mcp.__file__).parent / "apps" / "client.js"
WAIT = 30.0
TYPES = {".html": "text/html", ".js": "text/javascript", ".mjs": "text/javascript"}


class Reports:
    """What a script said, in order."""

    def __init__(self) -> None:
        self._said: queue.Queue[Any] = queue.Queue()
        self.seen: list[Any] = []

    def put(self, line: bytes) -> None:
        self._said.put(json.loads(line))

    def read(self, lines: IO[bytes]) -> None:
        for line in lines:
            self.put(line)

    def wait_for(self, type: str) -> Any:
        """The next report of this type; others before it are kept in `seen`."""
        while True:
            try:
                report = self._said.get(timeout=WAIT)
            except queue.Empty:
                raise AssertionError(f"no {type!r} within {WAIT} s; seen {self.seen}") from None
            self.seen.append(report)
            if report["type"] == type:
                return report


Start = Callable[[str, str], contextlib.AbstractContextManager[Reports]]


@contextlib.contextmanager
def in_node(url: str, token: str) -> Iterator[Reports]:
    node = need_node()
    reports = Reports()
    with tempfile.TemporaryDirectory() as folder:
        for source in (CLIENT, *(HERE / "js").glob("*.mjs")):
            shutil.copy(source, folder)
        (Path(folder) / "package.json").write_text('{"type": "module"}')
        with process(node, f"{folder}/node.mjs", url, token, stdout=subprocess.PIPE) as child:
            assert child.stdout is not None
            reader = threading.Thread(target=reports.read, args=(child.stdout,), daemon=True)
            reader.start()
            yield reports
            child.kill()
            reader.join(WAIT)


@contextlib.contextmanager
def in_chromium(url: str, token: str) -> Iterator[Reports]:
    files = {"/client.js": CLIENT, **{f"/{path.name}": path for path in (HERE / "js").iterdir()}}
    with served(files) as (address, reports):
        query = urlencode({"url": url, "token": token})
        with chromium(f"{address}/page.html?{query}"):
            yield reports


@contextlib.contextmanager
def chromium(page: str) -> Iterator[subprocess.Popen[bytes]]:
    """A page open in a browser with a profile of its own."""
    browser = need("chromium", package="chromium")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        flags = [
            "--headless",
            "--disable-gpu",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--disable-dev-shm-usage",  # containers give it 64 MB, and a full one crashes the page
            "--remote-debugging-port=0",  # without it a headless browser leaves once the page is loaded
            f"--user-data-dir={profile}",
        ]
        if sys.platform == "linux" and os.geteuid() == 0:
            flags.append("--no-sandbox")  # root's Chromium refuses to start with it
        env = {**os.environ, "TMPDIR": profile}  # where it leaves files when it is killed
        with process(browser, *flags, page, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as child:
            yield child


@contextlib.contextmanager
def served(files: dict[str, Path]) -> Iterator[tuple[str, Reports]]:
    """A web server on loopback for these files, and what pages POST to /said."""
    reports = Reports()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = files.get(urlsplit(self.path).path)
            self.send_response(200 if path else 404)
            if path:
                self.send_header("Content-Type", TYPES[path.suffix])
            self.end_headers()
            self.wfile.write(path.read_bytes() if path else b"")

        def do_POST(self) -> None:
            reports.put(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(204)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", reports
        finally:
            server.shutdown()
            thread.join(WAIT)
