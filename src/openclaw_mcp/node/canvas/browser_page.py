"""The page the canvas shows: a Chromium window of its own, launched when needed and put back after a crash."""

import asyncio
import contextlib
import logging
import mimetypes
import os
from base64 import b64encode
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit

from msgspec import Struct

from ...core.errors import ToolError, ToolTimeout
from ...core.model import Json
from ...net.file_access import FileAccess, FileRefused, read_file
from .. import desktop_session
from ..exec.environment import browser_environment
from . import browser_profile as profile
from . import chromium as cdp
from . import urls

if TYPE_CHECKING:
    from .forward_proxy import ForwardProxy

LOAD_WAIT: Final = 10.0  # seconds for a page to finish loading; it goes on loading afterwards
LOAD_TRIES: Final = 20  # times a page that was cut short is asked for again
PAINT_WAIT: Final = 1.0  # seconds for its first picture; a window nobody can see may never paint one
PAINT_SCRIPT: Final = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
NAVIGATION_ABORTED: Final = "net::ERR_ABORTED"
PAGE_WAIT: Final = 10.0  # seconds for the first window to appear
EVAL_WAIT: Final = 15.0
SCREENSHOT_TRIES: Final = 3  # a page that is just changing refuses the first picture
RETRY_PAUSE: Final = 0.2
MAX_FILE: Final = 16 << 20  # bytes of one of our own files
MAX_REASON_LENGTH: Final = 300  # characters of a page's own error text
START_HINT: Final = "try it from a terminal; in a container it may lack the right to build its sandbox"
PROXY_NOT_USED: Final = "the browser does not use the canvas's proxy; a policy of this machine may name another"
A2UI_PAGE: Final = Path(__file__).with_name("a2ui.html")

CHROMIUM_FLAGS: Final = (
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--no-default-browser-check",
    "--disable-default-apps",
    "--disable-extensions",
    "--disable-breakpad",
    "--password-store=basic",
    "--use-mock-keychain",
    "--disable-features=Translate,MediaRouter,OptimizationHints",
    "--hide-crash-restore-bubble",
    "--test-type",  # no bar about unusual options across the page
    "--app=about:blank",
)
HTML_POLICY: Final = "frame-src 'none'; object-src 'none'; base-uri 'none'"  # no page inside the page
A2UI_POLICY: Final = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "img-src https: data:; media-src https: data:; base-uri 'none'; form-action 'none'"
)
ALLOWED_SCHEMES: Final = ("http:", "https:", "data:", "about:", "chrome-error:", "blob:")

logger = logging.getLogger(__name__)


class Window(Struct, frozen=True, kw_only=True):
    width: int = 800
    height: int = 600
    x: int = -1
    y: int = -1
    """-1 = in the middle."""
    title: str = "Canvas"


class PageContent(Struct, frozen=True, kw_only=True):
    """What is shown: an address, or one of our own pages."""

    url: str
    html: str | None = None
    window: Window = Window()


class Screenshot(Struct, frozen=True):
    base64: str
    width: int
    height: int


class BrowserPage:
    """One window. Every method may be called by one task at a time; the canvas sees to that."""

    def __init__(
        self,
        *,
        profile: Path,
        files: Path,
        browser: str | None,
        trusted: frozenset[urls.WebOrigin],
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        self._profile = profile
        self._files = files
        self._browser = browser
        self._trusted = trusted
        self._environ = environ
        self._chromium: cdp.Chromium | None = None
        self._proxy: ForwardProxy | None = None
        self._session = ""
        self._target = ""
        self._crashed = False
        self._load_event = asyncio.Event()
        self._last_loader_id = ""
        """The loader of the page that loaded last."""
        self.content: PageContent | None = None

    @property
    def pid(self) -> int | None:
        return self._chromium.pid if self._chromium else None

    @property
    def is_headless(self) -> bool:
        return desktop_session.desktop_kind(self._environ) == "none"

    async def show(self, content: PageContent) -> None:
        """Show a scene, in a new window if there is none. Raises ToolError when the page can't be loaded."""
        if not self._is_usable():
            await self._launch(content.window)
        self.content = content
        await self._place_window(content.window)
        await self._load_page(content)

    async def restore(self) -> None:
        """Make sure that the scene is on: after a crash it is shown again."""
        if self.content is not None and not await self._is_responsive():
            logger.warning("the canvas browser ended unexpectedly; starting it again")
            await self.show(self.content)

    async def close(self) -> None:
        """Take the window away, and everything Chromium runs."""
        self.content = None
        await self._close_browser(gracefully=True)

    async def evaluate(self, script: str) -> Any:
        """The value of a script, promises waited for."""
        try:
            answer = await self._call_page(
                "Runtime.evaluate",
                wait=EVAL_WAIT,
                expression=script,
                returnByValue=True,
                awaitPromise=True,
                userGesture=True,
            )
        except (TimeoutError, asyncio.CancelledError) as exc:
            self._send_to_page("Runtime.terminateExecution")  # or the next call would wait for it
            if isinstance(exc, TimeoutError):
                raise ToolTimeout(f"CANVAS_TIMEOUT: the script took longer than {EVAL_WAIT:g} s") from None
            raise
        except cdp.CdpError as exc:  # the page went away under the script, or its value is no JSON
            raise ToolError(f"CANVAS_EVAL_FAILED: {str(exc)[:MAX_REASON_LENGTH]}") from None
        if "exceptionDetails" in answer:
            details = answer["exceptionDetails"]
            text = details.get("exception", {}).get("description") or details.get("text", "it failed")
            raise ToolError(f"CANVAS_EVAL_FAILED: {text.splitlines()[0][:MAX_REASON_LENGTH]}")
        return answer.get("result", {}).get("value")

    async def capture_screenshot(self, *, form: str, width: int, quality: int) -> Screenshot:
        for attempt in range(SCREENSHOT_TRIES):
            try:
                return await self._capture_once(form, width, quality)
            except cdp.CdpError:
                if attempt == SCREENSHOT_TRIES - 1:
                    raise ToolError("Snapshot failed: the page is not ready for a picture; try again") from None
                await asyncio.sleep(RETRY_PAUSE)
            except TimeoutError:
                raise ToolTimeout("CANVAS_TIMEOUT: the page gave no picture") from None
        raise AssertionError("unreachable")

    # ---- the browser ------------------------------------------------------------------------------------------------

    def _is_usable(self) -> bool:
        return self._chromium is not None and self._chromium.is_alive and not self._crashed

    async def _is_responsive(self) -> bool:
        # A browser killed a moment ago still looks alive until its end of the pipe is heard to close.
        if self._is_usable() and self._chromium is not None:
            with contextlib.suppress(cdp.BrowserGone, TimeoutError):
                await self._chromium.call("Browser.getVersion")
                return self._is_usable()
        return False

    async def _close_browser(self, *, gracefully: bool = False) -> None:
        chromium, self._chromium = self._chromium, None
        proxy, self._proxy = self._proxy, None
        try:
            if chromium is not None:
                await (chromium.aclose() if gracefully else chromium.kill())
        finally:
            if proxy is not None:
                await proxy.aclose()

    async def _launch(self, window: Window) -> None:
        from .forward_proxy import ForwardProxy  # here for start-up: most nodes never show a page

        await self._close_browser()
        browser = cdp.find_browser(self._browser)
        assert browser is not None, "asked before"
        profile.prepare_profile(self._profile)
        options = [
            *CHROMIUM_FLAGS,
            *profile.profile_options(self._profile),
            f"--window-size={window.width},{window.height}",
        ]
        if self.is_headless:
            options += ["--headless=new", "--hide-scrollbars", "--mute-audio"]
        if hasattr(os, "geteuid") and os.geteuid() == 0:
            options.append("--no-sandbox")  # Chromium refuses to run as root with it
        self._crashed, self._target, self._session = False, "", ""
        try:
            self._proxy = proxy = ForwardProxy(self._trusted)
            await proxy.start()
            self._chromium = await cdp.Chromium.launch(
                browser,
                [*options, *proxy.options()],
                on_event=self._on_event,
                on_close=proxy.stop,
                environ=browser_environment(self._environ),
            )
            await self._attach()
            await self._sign_in(proxy)
        except BaseException as exc:
            # Also when the call was cancelled: a browser without its page is of no use to the next one.
            await self._close_browser()
            if isinstance(exc, cdp.BrowserGone | cdp.CdpError | TimeoutError):
                raise ToolError(f"CANVAS_NOT_AVAILABLE: {Path(browser).name} did not start; {START_HINT}") from exc
            raise

    async def _attach(self) -> None:
        """Hold the window's page, and see to it that no other opens."""
        assert self._chromium is not None
        call = self._chromium.call
        async with asyncio.timeout(PAGE_WAIT):
            while not self._target:
                targets = (await call("Target.getTargets"))["targetInfos"]
                self._target = next((one["targetId"] for one in targets if one["type"] == "page"), "")
                await asyncio.sleep(0 if self._target else RETRY_PAUSE)
        self._session = (await call("Target.attachToTarget", targetId=self._target, flatten=True))["sessionId"]
        await asyncio.gather(
            call("Target.setDiscoverTargets", discover=True),
            call("Browser.setDownloadBehavior", behavior="deny"),
            self._call_page("Page.enable"),
            self._call_page("Page.setLifecycleEventsEnabled", enabled=True),
            self._call_page("Runtime.enable"),
            self._call_page("Inspector.enable"),
            self._call_page(
                "Fetch.enable",
                patterns=[{"urlPattern": urls.CANVAS_ORIGIN + "/*"}, {"urlPattern": urls.PROXY_SIGN_IN_URL}],
                handleAuthRequests=True,
            ),
        )

    async def _sign_in(self, proxy: "ForwardProxy") -> None:
        """Have Chromium learn the proxy's secret: asked for it later, with a page there, it would open a dialog."""
        try:
            async with asyncio.timeout(PAGE_WAIT):
                while not proxy.is_signed_in:
                    await self._call_page("Page.navigate", url=urls.PROXY_SIGN_IN_URL)
                    await asyncio.sleep(0 if proxy.is_signed_in else RETRY_PAUSE)
        except TimeoutError:
            raise ToolError(f"CANVAS_NOT_AVAILABLE: {PROXY_NOT_USED}") from None

    async def _place_window(self, window: Window) -> None:
        if self.is_headless:
            size = {"width": window.width, "height": window.height}
            await self._call_or_raise("Emulation.setDeviceMetricsOverride", **size, deviceScaleFactor=1, mobile=False)
            return
        wide, high, more_width, more_height = await self._measure_screen()
        width, height = window.width + more_width, window.height + more_height
        left = window.x if window.x != -1 else max(0, (wide - width) // 2)
        top = window.y if window.y != -1 else max(0, (high - height) // 2)
        assert self._chromium is not None
        with contextlib.suppress(cdp.CdpError):  # a desktop may not let windows be moved
            number = (await self._chromium.call("Browser.getWindowForTarget", targetId=self._target))["windowId"]
            bounds = {"left": left, "top": top, "width": width, "height": height}
            await self._chromium.call("Browser.setWindowBounds", windowId=number, bounds=bounds)

    async def _measure_screen(self) -> list[int]:
        """The screen, and the frame around the page: it belongs to the window, so it is to be added."""
        script = "[screen.availWidth, screen.availHeight, outerWidth - innerWidth, outerHeight - innerHeight]"
        return list(await self.evaluate_with_retry(script))

    async def evaluate_with_retry(self, script: str) -> Any:
        """As `evaluate`, tried again for a while: a page may be on its way yet, or go away under the script."""
        for _ in range(LOAD_TRIES):
            try:
                return await self.evaluate(script)
            except ToolTimeout:
                raise
            except ToolError:
                await asyncio.sleep(RETRY_PAUSE)
        return await self.evaluate(script)

    async def _load_page(self, content: PageContent) -> None:
        answer = await self._call_or_raise("Page.navigate", url=content.url)
        for _ in range(LOAD_TRIES):
            if answer.get("errorText") != NAVIGATION_ABORTED:
                break
            # By the page before, which was still on its way: a new window brings one of its own.
            await asyncio.sleep(RETRY_PAUSE)
            answer = await self._call_or_raise("Page.navigate", url=content.url)
        if answer.get("errorText"):
            raise ToolError(f"CANVAS_LOAD_FAILED: the page can't be loaded ({answer['errorText'][:MAX_REASON_LENGTH]})")
        loader = answer.get("loaderId", "")  # absent when only the fragment changed: nothing is loaded then
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LOAD_WAIT):
                while loader and self._last_loader_id != loader and not self._crashed:
                    self._load_event.clear()
                    await self._load_event.wait()
        if self._crashed or not self._is_usable():
            raise ToolError("CANVAS_CRASHED: the page took its browser down")
        # Loaded is not yet painted: a picture taken now could be of the white before.
        with contextlib.suppress(TimeoutError, cdp.CdpError):
            await self._call_page("Runtime.evaluate", wait=PAINT_WAIT, expression=PAINT_SCRIPT, awaitPromise=True)

    async def _capture_once(self, form: str, width: int, quality: int) -> Screenshot:
        view = (await self._call_page("Page.getLayoutMetrics"))["cssVisualViewport"]
        across, down = view["clientWidth"], view["clientHeight"]
        scale = min(1.0, width / across)
        clip = {"x": view["pageX"], "y": view["pageY"], "width": across, "height": down, "scale": scale}
        answer = await self._call_page("Page.captureScreenshot", format=form, clip=clip, quality=quality)
        return Screenshot(answer["data"], round(across * scale), round(down * scale))

    async def _call_or_raise(self, method: str, **params: Any) -> Json:
        try:
            return await self._call_page(method, **params)
        except cdp.CdpError as exc:
            raise ToolError(f"CANVAS_REFUSED: {str(exc)[:MAX_REASON_LENGTH]}") from exc
        except TimeoutError:
            raise ToolTimeout(f"CANVAS_TIMEOUT: {method} was not answered") from None

    async def _call_page(self, method: str, *, wait: float = cdp.ANSWER_WAIT, **params: object) -> Json:
        if self._chromium is None:
            raise ToolError("CANVAS_NOT_OPEN: call canvas.present first")
        try:
            return await self._chromium.call(method, session=self._session, wait=wait, **params)
        except cdp.BrowserGone:
            raise ToolError("CANVAS_CRASHED: the browser ended; the next call starts it again") from None

    def _send_to_page(self, method: str, **params: object) -> None:
        if self._chromium is not None:
            with contextlib.suppress(cdp.BrowserGone):
                self._chromium.send(method, session=self._session, **params)

    # ---- what the browser says ---------------------------------------------------------------------------------------

    def _on_event(self, method: str, params: Json, session_id: str) -> None:
        if method == "Target.targetCreated":
            found = params["targetInfo"]
            if found["type"] == "page" and self._target and found["targetId"] != self._target and self._chromium:
                self._chromium.send("Target.closeTarget", targetId=found["targetId"])
        elif not session_id or session_id != self._session:
            return
        elif method == "Fetch.requestPaused":
            self._fulfill_request(params)
        elif method == "Fetch.authRequired" and self._proxy is not None:
            answer = self._proxy.credentials(params["authChallenge"])
            self._send_to_page("Fetch.continueWithAuth", requestId=params["requestId"], authChallengeResponse=answer)
        elif method == "Page.lifecycleEvent" and params["name"] == "load":
            # By its id: the page before may still be loading when the next one is asked for.
            self._last_loader_id = params["loaderId"]
            self._load_event.set()
        elif method == "Page.javascriptDialogOpening":
            # Nobody may be there to press the button; a page that does not want to be left is left.
            self._send_to_page("Page.handleJavaScriptDialog", accept=params.get("type") == "beforeunload")
        elif method in ("Inspector.targetCrashed", "Inspector.detached"):
            self._on_crash()
        elif method == "Page.frameNavigated" and _is_disallowed_page(params["frame"]):
            self._send_to_page("Page.navigate", url="about:blank")

    def _on_crash(self) -> None:
        """The page's process is gone: whoever waits for it hears so at once, and the rest of the browser goes too."""
        self._crashed = True
        self._load_event.set()
        if self._chromium is not None:
            self._chromium.disconnect()

    def _fulfill_request(self, paused: Json) -> None:
        """Answer a request to our own origin; the network never sees it."""
        if paused["request"]["url"] == urls.PROXY_SIGN_IN_URL:
            self._send_to_page("Fetch.continueRequest", requestId=paused["requestId"])  # the proxy answers it
            return
        path = unquote(urlsplit(paused["request"]["url"]).path)
        scene = self.content
        status, kind, policy, body = 404, "text/plain", HTML_POLICY, b"not found"
        if path == "/" and scene is not None and scene.html is not None:
            status, kind, body = 200, "text/html; charset=utf-8", scene.html.encode()
        elif path == "/a2ui":
            status, kind, policy, body = 200, "text/html; charset=utf-8", A2UI_POLICY, A2UI_PAGE.read_bytes()
        elif path.startswith("/files/") and (data := self._read_file(path.removeprefix("/files/"))) is not None:
            status, kind, body = 200, mimetypes.guess_type(path)[0] or "application/octet-stream", data
        headers = {"Content-Type": kind, "Content-Security-Policy": policy, "Cache-Control": "no-store"}
        self._send_to_page(
            "Fetch.fulfillRequest",
            requestId=paused["requestId"],
            responseCode=status,
            responseHeaders=[{"name": name, "value": value} for name, value in headers.items()],
            body=b64encode(body).decode(),
        )

    def _read_file(self, name: str) -> bytes | None:
        """One of the canvas's own files; links that lead out of its folder lead nowhere."""
        try:
            return read_file(name, FileAccess(folders=(self._files,), allows_hidden=True), max_bytes=MAX_FILE).data
        except FileRefused:
            return None


def _is_disallowed_page(frame: Json) -> bool:
    """Whether the page itself, not one inside it, has gone where the canvas does not go."""
    return "parentId" not in frame and not frame["url"].startswith(ALLOWED_SCHEMES)
