"""The page the canvas shows: a Chromium window of its own, launched when needed and shown again after a crash."""

import asyncio
import contextlib
import logging
import mimetypes
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from ...core.errors import ToolError, ToolTimeout, ToolUnavailable
from ...core.model import Json
from ...net.file_access import FileAccess, FileRefused, read_file
from .. import desktop_session
from . import urls
from .chromium import ANSWER_WAIT, BrowserGone, CdpError

if TYPE_CHECKING:
    from .open_browser import OpenBrowser, PageResponse

NO_BROWSER: Final = "No Chromium, Chrome, Edge or Brave was found."
LOAD_WAIT: Final = 10.0  # seconds for a page to finish loading; it continues to load afterwards
LOAD_TRIES: Final = 20  # times a page that was cut short is asked for again
READY_WAIT: Final = 30.0  # seconds until a page's own script is there, which comes late on a busy machine
PAINT_WAIT: Final = 1.0  # seconds for its first picture; a window that is not visible may never paint one
PAINT_SCRIPT: Final = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
SCREEN_SCRIPT: Final = "[screen.availWidth, screen.availHeight, outerWidth - innerWidth, outerHeight - innerHeight]"
NAVIGATION_ABORTED: Final = "net::ERR_ABORTED"
EVAL_WAIT: Final = 15.0
SCREENSHOT_TRIES: Final = 3  # a page that is just changing refuses the first picture
RETRY_PAUSE: Final = 0.2
MAX_FILE: Final = 16 << 20  # bytes of one of our own files
MAX_REASON_LENGTH: Final = 300  # characters of a page's own error text
A2UI_PAGE: Final = Path(__file__).with_name("a2ui.html")
HTML_POLICY: Final = "frame-src 'none'; object-src 'none'; base-uri 'none'"  # no page inside the page
A2UI_POLICY: Final = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "img-src https: data:; media-src https: data:; base-uri 'none'; form-action 'none'"
)

logger = logging.getLogger(__name__)


class Window(Struct, frozen=True, kw_only=True):
    width: int = 800
    height: int = 600
    x: int = -1
    y: int = -1
    """-1 = in the middle."""
    title: str = "Canvas"


class PageContent(Struct, frozen=True, kw_only=True):
    """The content: an address, or one of our own pages."""

    url: str
    html: str | None = None
    window: Window = Window()


class Screenshot(Struct, frozen=True):
    base64: str
    width: int
    height: int


class BrowserPage:
    """One window. One task at a time may call its methods; the canvas sees to that."""

    def __init__(
        self,
        folder: Path,
        *,
        browser: Callable[[], str | None],
        trusted: Callable[[], frozenset[urls.WebOrigin]],
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        """`browser` is the one to launch, None when there is none; `trusted` origins may be in this network."""
        self._profile = folder / "profile"
        self._files = folder / "files"
        self._find_browser = browser
        self._trusted, self._environ = trusted, environ
        self._browser: OpenBrowser | None = None
        self.content: PageContent | None = None

    @property
    def pid(self) -> int | None:
        return self._browser.chromium.pid if self._browser else None

    @property
    def is_headless(self) -> bool:
        return desktop_session.desktop_kind(self._environ) == "none"

    async def show(self, content: PageContent) -> None:
        """Show a page, in a new window if there is none. Raises ToolError when it can't be loaded."""
        opened = self._browser
        if opened is None or not opened.is_usable:
            opened = await self._launch(content.window)
        self.content = content
        await self._place_window(opened, content.window)
        await self._load_page(opened, content)

    async def restore(self) -> None:
        """Make sure that the page is shown: after a crash it is shown again."""
        if self.content is not None and not (self._browser and await self._browser.is_responsive()):
            logger.warning("canvas: the browser ended unexpectedly, starting it again")
            await self.show(self.content)

    async def close(self) -> None:
        """Close the window, and end everything Chromium runs."""
        self.content = None
        browser, self._browser = self._browser, None
        if browser is not None:
            await browser.aclose()

    async def evaluate(self, script: str) -> Any:
        """The value of a script, promises waited for."""
        page = self._require_browser()
        try:
            answer = await page.call(
                "Runtime.evaluate",
                wait=EVAL_WAIT,
                expression=script,
                returnByValue=True,
                awaitPromise=True,
                userGesture=True,
            )
        except (TimeoutError, asyncio.CancelledError) as exc:
            page.send("Runtime.terminateExecution")  # or the next call would wait for it
            if isinstance(exc, TimeoutError):
                raise ToolTimeout(f"CANVAS_TIMEOUT: the script took longer than {EVAL_WAIT:g} s") from None
            raise
        except CdpError as exc:  # the page went away under the script, or its value is no JSON
            raise ToolError(f"CANVAS_EVAL_FAILED: {str(exc)[:MAX_REASON_LENGTH]}") from None
        if "exceptionDetails" in answer:
            details = answer["exceptionDetails"]
            text = details.get("exception", {}).get("description") or details.get("text", "it failed")
            raise ToolError(f"CANVAS_EVAL_FAILED: {text.splitlines()[0][:MAX_REASON_LENGTH]}")
        return answer.get("result", {}).get("value")

    async def evaluate_with_retry(self, script: str) -> Any:
        """As `evaluate`, tried again for a while: a page may not be loaded yet, or go away under the script."""
        end = asyncio.get_running_loop().time() + READY_WAIT
        while True:
            try:
                return await self.evaluate(script)
            except ToolTimeout:
                raise
            except ToolError:
                if asyncio.get_running_loop().time() > end:
                    raise
                await asyncio.sleep(RETRY_PAUSE)

    async def capture_screenshot(self, *, form: str, width: int, quality: int) -> Screenshot:
        tries = SCREENSHOT_TRIES
        while True:
            tries -= 1
            try:
                return await _capture_once(self._require_browser(), form, width, quality)
            except CdpError:
                if not tries:
                    raise ToolError("Snapshot failed: the page is not ready for a picture; try again") from None
                await asyncio.sleep(RETRY_PAUSE)
            except TimeoutError:
                raise ToolTimeout("CANVAS_TIMEOUT: the page gave no picture") from None

    # ---- the browser ------------------------------------------------------------------------------------------------

    def _require_browser(self) -> "OpenBrowser":
        if self._browser is None:
            raise ToolError("CANVAS_NOT_OPEN: call canvas.present first")
        return self._browser

    async def _launch(self, window: Window) -> "OpenBrowser":
        from .open_browser import OpenBrowser  # here for start-up: most nodes never show a page

        program = self._find_browser()
        if program is None:
            raise ToolUnavailable(f"CANVAS_NOT_AVAILABLE: {NO_BROWSER}")
        previous, self._browser = self._browser, None
        if previous is not None:
            await previous.kill()
        self._browser = await OpenBrowser.launch(
            program,
            profile=self._profile,
            size=(window.width, window.height),
            headless=self.is_headless,
            trusted=self._trusted,
            environ=self._environ,
            respond=self._respond,
        )
        return self._browser

    async def _place_window(self, page: "OpenBrowser", window: Window) -> None:
        if self.is_headless:
            size = {"width": window.width, "height": window.height}
            await _call_page(page, "Emulation.setDeviceMetricsOverride", **size, deviceScaleFactor=1, mobile=False)
            return
        # The screen, and the frame around the page: it belongs to the window, so it is to be added.
        wide, high, more_width, more_height = await self.evaluate_with_retry(SCREEN_SCRIPT)
        width, height = window.width + more_width, window.height + more_height
        left = window.x if window.x != -1 else max(0, (wide - width) // 2)
        top = window.y if window.y != -1 else max(0, (high - height) // 2)
        # A desktop may not let windows be moved; a browser that is gone is reported when the page is loaded.
        with contextlib.suppress(CdpError, BrowserGone, TimeoutError):
            number = (await page.chromium.call("Browser.getWindowForTarget", targetId=page.target))["windowId"]
            bounds = {"left": left, "top": top, "width": width, "height": height}
            await page.chromium.call("Browser.setWindowBounds", windowId=number, bounds=bounds)

    async def _load_page(self, page: "OpenBrowser", content: PageContent) -> None:
        answer = await _call_page(page, "Page.navigate", url=content.url)
        for _ in range(LOAD_TRIES):
            if answer.get("errorText") != NAVIGATION_ABORTED:
                break
            # By the page before, which was still loading: a new window brings one of its own.
            await asyncio.sleep(RETRY_PAUSE)
            answer = await _call_page(page, "Page.navigate", url=content.url)
        if answer.get("errorText"):
            raise ToolError(f"CANVAS_LOAD_FAILED: the page can't be loaded ({answer['errorText'][:MAX_REASON_LENGTH]})")
        if loader := answer.get("loaderId"):  # absent when only the fragment changed: nothing is loaded then
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOAD_WAIT):
                    await page.wait_loaded(loader)
        if not page.is_usable:
            raise ToolError("CANVAS_CRASHED: the page took its browser down")
        # Loaded is not yet painted: a picture taken now could be of the white before.
        with contextlib.suppress(TimeoutError, CdpError):
            await page.call("Runtime.evaluate", wait=PAINT_WAIT, expression=PAINT_SCRIPT, awaitPromise=True)

    # ---- the canvas's own pages --------------------------------------------------------------------------------------

    def _respond(self, path: str) -> "PageResponse":
        from .open_browser import PageResponse  # here for start-up, as above

        content = self.content
        if path == "/" and content is not None and content.html is not None:
            return PageResponse(200, "text/html; charset=utf-8", HTML_POLICY, content.html.encode())
        if path == "/a2ui":
            return PageResponse(200, "text/html; charset=utf-8", A2UI_POLICY, A2UI_PAGE.read_bytes())
        if path.startswith("/files/") and (data := self._read_file(path.removeprefix("/files/"))) is not None:
            return PageResponse(200, mimetypes.guess_type(path)[0] or "application/octet-stream", HTML_POLICY, data)
        return PageResponse(404, "text/plain", HTML_POLICY, b"not found")

    def _read_file(self, name: str) -> bytes | None:
        """One of the canvas's own files; None for a link that leads out of its folder."""
        try:
            return read_file(name, FileAccess(folders=(self._files,), allows_hidden=True), max_bytes=MAX_FILE).data
        except FileRefused:
            return None


async def _capture_once(page: "OpenBrowser", form: str, width: int, quality: int) -> Screenshot:
    view = (await page.call("Page.getLayoutMetrics"))["cssVisualViewport"]
    across, down = view["clientWidth"], view["clientHeight"]
    scale = min(1.0, width / across)
    clip = {"x": view["pageX"], "y": view["pageY"], "width": across, "height": down, "scale": scale}
    answer = await page.call("Page.captureScreenshot", format=form, clip=clip, quality=quality)
    return Screenshot(answer["data"], round(across * scale), round(down * scale))


async def _call_page(page: "OpenBrowser", method: str, *, wait: float = ANSWER_WAIT, **params: Any) -> Json:
    try:
        return await page.call(method, wait=wait, **params)
    except CdpError as exc:
        raise ToolError(f"CANVAS_REFUSED: {str(exc)[:MAX_REASON_LENGTH]}") from exc
    except TimeoutError:
        raise ToolTimeout(f"CANVAS_TIMEOUT: {method} was not answered") from None
