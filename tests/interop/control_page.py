"""The real Control UI: its files on a site of their own, opened in a real Chromium, driven over the debugging pipe."""

import asyncio
import contextlib
import functools
import http.server
import json
import os
import threading
from base64 import b64decode
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from openclaw_mcp.node.canvas.chromium import CdpError, CdpMessage, Chromium

from ..programs import need
from . import real

WAIT = 60.0  # seconds for the page to show something, cold, on a busy machine
LOOK_PAUSE = 0.2  # seconds between two looks at the page
SIZE = (1280, 900)
FLAGS = (
    "--headless=new", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-extensions", "--password-store=basic",
    "--proxy-server=direct://", "--host-resolver-rules=MAP control.example 127.0.0.1",
    f"--window-size={SIZE[0]},{SIZE[1]}", "about:blank",
)  # fmt: skip

# The text of the page; its elements that can be seen, in every shadow root, by selector and by what they say.
FINDERS = """
window.__all = (root = document) => {
  const found = [];
  const walk = node => { for (const one of node.querySelectorAll("*")) {
    found.push(one); if (one.shadowRoot) walk(one.shadowRoot); } };
  walk(root); return found; };
window.__seen = one => one.checkVisibility() && one.getClientRects().length > 0;
window.__find = (selector, text) => __all().find(one => one.matches(selector) && __seen(one) &&
  (!text || (one.innerText || one.getAttribute("aria-label") || one.title || "").includes(text) ||
   (one.getAttribute("aria-label") || "").includes(text)));
window.__place = async (selector, text) => {
  const one = __find(selector, text);
  if (!one) return null;
  one.scrollIntoView({block: "center"});
  const box = one.getBoundingClientRect();
  await new Promise(done => setTimeout(done, 100));
  const later = one.getBoundingClientRect(), x = box.x + box.width / 2, y = box.y + box.height / 2;
  let top = document.elementFromPoint(x, y);
  while (top && top.shadowRoot && top !== one) {
    const inner = top.shadowRoot.elementFromPoint(x, y);
    if (!inner || inner === top) break;
    top = inner;
  }
  const reached = top && (one === top || one.contains(top) || top.contains(one));
  return box.x === later.x && box.y === later.y && reached ? [x, y] : null; };
window.__text = () => document.body?.innerText ?? "";
"""


class _Site(http.server.SimpleHTTPRequestHandler):
    """The page's files. The paths of its views are all the page itself, whose files are beside the first of them."""

    def do_GET(self) -> None:
        path = urlsplit(self.path).path
        if Path(self.translate_path(path)).is_file():
            super().do_GET()
            return
        page = Path(self.directory, "index.html").read_bytes().replace(b"<head>", b'<head><base href="/">', 1)
        is_view = "." not in path.rpartition("/")[2]
        self.send_response(200 if is_view else 404)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.end_headers()
        self.wfile.write(page if is_view else b"")

    def log_message(self, format: str, *args: object) -> None:
        return


@contextlib.contextmanager
def site() -> Iterator[str]:
    """The address at which the page's files are served."""
    folder = Path(real.program()[1]).parent / "dist" / "control-ui"
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Site, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class ControlPage:
    """A tab with the page in it, and everything that went over its WebSocket."""

    def __init__(self, chromium: Chromium, session: str) -> None:
        self._chromium, self._session = chromium, session
        self.asked: dict[str, tuple[str, Any]] = {}
        """Method and parameters by the id of the request."""
        self.answers: list[tuple[str, Any, bool, Any]] = []
        """Method, parameters, whether it was answered, and the answer or the error."""
        self.problems: list[str] = []
        """Exceptions that the page's own code did not handle."""
        chromium.events.connect(self._on_event)

    def refused(self) -> dict[str, str]:
        """What each method that was refused was last refused with."""
        return {method: answer["message"] for method, _, ok, answer in self.answers if not ok}

    async def open(self, url: str) -> None:
        await self._call("Page.navigate", url=url)

    async def evaluate(self, script: str) -> Any:
        """The script's value; None when the page was left meanwhile."""
        try:
            answer = await self._call(
                "Runtime.evaluate", expression=FINDERS + script, returnByValue=True, awaitPromise=True
            )
        except CdpError:
            return None
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    async def text(self) -> str:
        return str(await self.evaluate("__text()"))

    async def until(self, script: str, *, within: float = WAIT) -> Any:
        """The script's value once it is true."""
        end = asyncio.get_running_loop().time() + within
        while not (value := await self.evaluate(script)):
            late = asyncio.get_running_loop().time() > end
            assert not late, f"not within {within} s: {script}; the page says {await self.text()!r}"
            await asyncio.sleep(LOOK_PAUSE)
        return value

    async def until_says(self, words: str, *, within: float = WAIT) -> None:
        await self.until(f"__text().includes({json.dumps(words)})", within=within)

    async def click(self, selector: str, text: str = "") -> None:
        """With the mouse, once the element has come to rest with nothing over it."""
        place = await self.until(f"__place({json.dumps(selector)}, {json.dumps(text)})")
        for kind in ("mousePressed", "mouseReleased"):
            await self._call("Input.dispatchMouseEvent", type=kind, x=place[0], y=place[1], button="left", clickCount=1)

    async def write(self, selector: str, text: str) -> None:
        """Put the text in place of what a field holds."""
        await self.click(selector)
        await self.evaluate(f"(() => {{ const one = __find({json.dumps(selector)}); one.focus(); one.select(); }})()")
        await self.insert(text)

    async def insert(self, text: str) -> None:
        """Where the cursor is."""
        await self._call("Input.insertText", text=text)

    async def press(self, key: str) -> None:
        code = {"Enter": 13, "Escape": 27}[key]
        for kind in ("keyDown", "keyUp"):
            text = {"text": "\r"} if key == "Enter" and kind == "keyDown" else {}
            await self._call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **text)

    async def picture(self) -> bytes:
        """What it looks like now, as PNG."""
        answer = await self._call("Page.captureScreenshot", format="png")
        return b64decode(answer["data"])

    async def reload(self) -> None:
        await self._call("Page.reload")

    async def _call(self, method: str, **params: object) -> Any:
        return await self._chromium.call(method, session=self._session, wait=WAIT, **params)

    def _on_event(self, event: CdpMessage) -> None:
        if event.method == "Runtime.exceptionThrown":
            self.problems.append(str(event.params["exceptionDetails"].get("exception", {}).get("description")))
        elif event.method in ("Network.webSocketFrameSent", "Network.webSocketFrameReceived"):
            with contextlib.suppress(ValueError):
                self._on_frame(json.loads(event.params["response"]["payloadData"]))

    def _on_frame(self, frame: Any) -> None:
        if frame.get("type") == "req":
            self.asked[frame["id"]] = (frame["method"], frame.get("params"))
        elif frame.get("type") == "res" and frame["id"] in self.asked:
            method, params = self.asked[frame["id"]]
            self.answers.append((method, params, frame["ok"], frame.get("payload") if frame["ok"] else frame["error"]))


@asynccontextmanager
async def tab(profile: Path) -> AsyncIterator[ControlPage]:
    """An empty tab of a fresh Chromium."""
    options = [*FLAGS, f"--user-data-dir={profile}", *(["--no-sandbox"] if os.geteuid() == 0 else [])]
    browser = need("chromium", package="chromium")
    chromium = await Chromium.launch(browser, options, on_close=lambda: None, environ=dict(os.environ))
    try:
        targets = (await chromium.call("Target.getTargets"))["targetInfos"]
        target = next(one["targetId"] for one in targets if one["type"] == "page")
        session = (await chromium.call("Target.attachToTarget", targetId=target, flatten=True))["sessionId"]
        page = ControlPage(chromium, session)
        for domain in ("Page", "Runtime", "Network"):
            await chromium.call(f"{domain}.enable", session=session)
        yield page
    finally:
        await chromium.aclose()


def address(site: str, view: str, gateway: str, token: str) -> str:
    """Where the page shows this view of that gateway."""
    return f"{site}/{view}#gatewayUrl={quote(gateway, safe='')}&token={quote(token, safe='')}"
