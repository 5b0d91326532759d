"""A Chromium of the canvas while it runs: its one page, its profile, the proxy it must use, and its events."""

import asyncio
import contextlib
import os
from base64 import b64encode
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import unquote, urlsplit

import msgspec
from msgspec import Struct

from ...core.errors import ToolError
from ...core.model import Json
from ..exec.environment import browser_environment
from ..private_files import make_private_folder, read_private, write_private
from . import urls
from .chromium import ANSWER_WAIT, BrowserGone, CdpError, CdpMessage, Chromium
from .forward_proxy import ForwardProxy
from .temporary_folder import make_temporary_folder, remove_temporary_folder

PAGE_WAIT: Final = 10.0  # seconds for the first window to appear
RETRY_PAUSE: Final = 0.2
START_HINT: Final = "try it from a terminal; in a container it may lack the right to build its sandbox"
PROXY_NOT_USED: Final = "the browser does not use the canvas's proxy; a policy of this machine may name another"
PROFILE_NAME: Final = "Default"
MAX_PREFERENCES: Final = 16 << 20  # bytes; larger ones are written again from nothing

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
ALLOWED_SCHEMES: Final = ("http:", "https:", "data:", "about:", "chrome-error:", "blob:")
_URL_POLICY: Final = {"url_blocklist": ["*"], "url_allowlist": ["http://*", "https://*", "data:*", "about:*", "blob:*"]}
"""Which addresses a page may lead to. For any other, `mailto:` first of all, Chromium would start a program."""


class PageResponse(Struct, frozen=True):
    """The answer to a request for the canvas's own origin."""

    status: int
    content_type: str
    policy: str
    body: bytes


class OpenBrowser:
    """Made by `launch`; `aclose` or `kill` ends it and its proxy, and removes its temporary files."""

    def __init__(
        self,
        chromium: Chromium,
        proxy: ForwardProxy,
        *,
        profile: Path,
        target: str,
        session: str,
        respond: Callable[[str], PageResponse],
    ) -> None:
        """`respond` answers a request for a path of the canvas's own origin."""
        self.chromium, self.proxy, self.target, self._session = chromium, proxy, target, session
        self._profile = profile
        self._respond = respond
        self._has_crashed = False
        self._load_event = asyncio.Event()
        self._last_loader_id = ""
        """The loader of the page that loaded last."""
        chromium.events.connect(self._on_event)

    @classmethod
    async def launch(
        cls,
        browser: str,
        *,
        profile: Path,
        size: tuple[int, int],
        headless: bool,
        trusted: Callable[[], frozenset[urls.WebOrigin]],
        environ: Mapping[str, str],
        respond: Callable[[str], PageResponse],
    ) -> Self:
        """Raises ToolError."""
        prepare_profile(profile)
        options = [*CHROMIUM_FLAGS, f"--user-data-dir={profile}", f"--profile-directory={PROFILE_NAME}"]
        options += [f"--window-size={size[0]},{size[1]}"]
        options += ["--headless=new", "--hide-scrollbars", "--mute-audio"] if headless else []
        if hasattr(os, "geteuid") and os.geteuid() == 0:
            options.append("--no-sandbox")  # Chromium refuses to run as root with it
        # Also when the call is cancelled: a browser without its page is of no use to the next one.
        async with AsyncExitStack() as stack:
            try:
                proxy = ForwardProxy(trusted)
                stack.push_async_callback(proxy.aclose)
                await proxy.start()
                stack.callback(remove_temporary_folder, profile)
                variables = browser_environment(environ) | {"TMPDIR": str(make_temporary_folder(profile))}
                chromium = await Chromium.launch(
                    browser, [*options, *proxy.options()], on_close=proxy.stop, environ=variables
                )
                stack.push_async_callback(chromium.kill)
                target, session = await _attach(chromium)
                opened = cls(chromium, proxy, profile=profile, target=target, session=session, respond=respond)
                await opened._enable_events()
                await opened._sign_in()
            except (BrowserGone, CdpError, TimeoutError) as exc:
                raise ToolError(f"CANVAS_NOT_AVAILABLE: {Path(browser).name} did not start; {START_HINT}") from exc
            stack.pop_all()
            return opened

    @property
    def is_usable(self) -> bool:
        return self.chromium.is_alive and not self._has_crashed

    async def is_responsive(self) -> bool:
        # A browser killed a moment ago still looks alive until its end of the pipe is seen to close.
        if self.is_usable:
            with contextlib.suppress(BrowserGone, TimeoutError):
                await self.chromium.call("Browser.getVersion")
                return self.is_usable
        return False

    async def aclose(self) -> None:
        """Let it save its profile first."""
        try:
            await self.chromium.aclose()
        finally:
            await self._clean_up()

    async def kill(self) -> None:
        try:
            await self.chromium.kill()
        finally:
            await self._clean_up()

    async def _clean_up(self) -> None:
        remove_temporary_folder(self._profile)
        await self.proxy.aclose()

    async def call(self, method: str, *, wait: float = ANSWER_WAIT, **params: object) -> Json:
        """The page's answer. Raises ToolError when the browser ended, CdpError, TimeoutError."""
        try:
            return await self.chromium.call(method, session=self._session, wait=wait, **params)
        except BrowserGone:
            raise ToolError("CANVAS_CRASHED: the browser ended; the next call starts it again") from None

    def send(self, method: str, **params: object) -> None:
        """Send the page a command whose answer does not matter."""
        with contextlib.suppress(BrowserGone):
            self.chromium.send(method, session=self._session, **params)

    async def wait_loaded(self, loader_id: str) -> None:
        """Wait until that loader has loaded its page, or the page has crashed."""
        while self._last_loader_id != loader_id and not self._has_crashed:
            self._load_event.clear()
            await self._load_event.wait()

    async def _enable_events(self) -> None:
        patterns = [{"urlPattern": urls.CANVAS_ORIGIN + "/*"}, {"urlPattern": urls.PROXY_SIGN_IN_URL}]
        try:
            async with asyncio.TaskGroup() as group:
                for work in (
                    self.chromium.call("Target.setDiscoverTargets", discover=True),
                    self.chromium.call("Browser.setDownloadBehavior", behavior="deny"),
                    self.call("Page.enable"),
                    self.call("Page.setLifecycleEventsEnabled", enabled=True),
                    self.call("Runtime.enable"),
                    self.call("Inspector.enable"),
                    self.call("Fetch.enable", patterns=patterns, handleAuthRequests=True),
                ):
                    group.create_task(work)
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None

    async def _sign_in(self) -> None:
        """Have Chromium learn the proxy's secret: asked for it later, with a page there, it would open a dialog."""
        try:
            async with asyncio.timeout(PAGE_WAIT):
                while not self.proxy.is_signed_in:
                    await self.call("Page.navigate", url=urls.PROXY_SIGN_IN_URL)
                    await asyncio.sleep(0 if self.proxy.is_signed_in else RETRY_PAUSE)
        except TimeoutError:
            raise ToolError(f"CANVAS_NOT_AVAILABLE: {PROXY_NOT_USED}") from None

    # ---- events of the browser ---------------------------------------------------------------------------------------

    def _on_event(self, event: CdpMessage) -> None:
        method, params = event.method, event.params
        if method == "Target.targetCreated":
            found = params["targetInfo"]
            if found["type"] == "page" and found["targetId"] != self.target:
                self.chromium.send("Target.closeTarget", targetId=found["targetId"])  # one page, no other
        elif event.session_id != self._session:
            return
        elif method == "Fetch.requestPaused":
            self._answer_request(params["requestId"], params["request"]["url"])
        elif method == "Fetch.authRequired":
            challenge = params["authChallenge"]
            answer = self.proxy.credentials(challenge.get("source"), challenge.get("origin"))
            self.send("Fetch.continueWithAuth", requestId=params["requestId"], authChallengeResponse=answer)
        elif method == "Page.lifecycleEvent" and params["name"] == "load":
            # By its id: the page before may still be loading when the next one is asked for.
            self._last_loader_id = params["loaderId"]
            self._load_event.set()
        elif method == "Page.javascriptDialogOpening":
            # There may be no person to press the button; a page that does not want to be left is left.
            self.send("Page.handleJavaScriptDialog", accept=params.get("type") == "beforeunload")
        elif method in ("Inspector.targetCrashed", "Inspector.detached"):
            self._on_crash()
        elif method == "Page.frameNavigated" and _is_disallowed_page(params["frame"]):
            self.send("Page.navigate", url="about:blank")

    def _on_crash(self) -> None:
        """The page's process is gone: calls that wait for it fail at once, and the rest of the browser ends too."""
        self._has_crashed = True
        self._load_event.set()
        self.chromium.disconnect()

    def _answer_request(self, request_id: str, url: str) -> None:
        """Answer a request to our own origin; it never reaches the network."""
        if url == urls.PROXY_SIGN_IN_URL:
            self.send("Fetch.continueRequest", requestId=request_id)  # the proxy answers it
            return
        answer = self._respond(unquote(urlsplit(url).path))
        headers = {
            "Content-Type": answer.content_type,
            "Content-Security-Policy": answer.policy,
            "Cache-Control": "no-store",
        }
        self.send(
            "Fetch.fulfillRequest",
            requestId=request_id,
            responseCode=answer.status,
            responseHeaders=[{"name": name, "value": value} for name, value in headers.items()],
            body=b64encode(answer.body).decode(),
        )


async def _attach(chromium: Chromium) -> tuple[str, str]:
    """The window's page: its target and the session with it."""
    target = ""
    async with asyncio.timeout(PAGE_WAIT):
        while not target:
            targets = (await chromium.call("Target.getTargets"))["targetInfos"]
            target = next((one["targetId"] for one in targets if one["type"] == "page"), "")
            await asyncio.sleep(0 if target else RETRY_PAUSE)
    return target, (await chromium.call("Target.attachToTarget", targetId=target, flatten=True))["sessionId"]


def _is_disallowed_page(frame: Json) -> bool:
    """Whether the page itself, not one inside it, has an address that the canvas does not show."""
    return "parentId" not in frame and not frame["url"].startswith(ALLOWED_SCHEMES)


def prepare_profile(folder: Path) -> None:
    """Write the settings that must hold before the browser starts; what else it keeps there stays."""
    make_private_folder(folder)
    path = folder / PROFILE_NAME / "Preferences"
    try:
        kept = msgspec.json.decode(read_private(path, largest=MAX_PREFERENCES), type=dict[str, Any])
    except (OSError, msgspec.DecodeError):
        kept = {}
    policy = kept.get("policy")
    kept["policy"] = {**(policy if type(policy) is dict else {}), **_URL_POLICY}
    write_private(path, msgspec.json.encode(kept))
