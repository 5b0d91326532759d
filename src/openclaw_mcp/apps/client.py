"""For app builders: lend Python functions as tools through an `openclaw proxy`.

app = AppTools("https://proxy.example.com", token="…", device="my-laptop")

@app.tool
def add(a: int, b: int = 1) -> int:
    "Add two numbers."
    return a + b

asyncio.run(app.run_forever())
"""

import asyncio
import logging
import os
import random
import secrets
import ssl
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Any, Final, NamedTuple, Self, TypeVar, overload

from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus

from ..core.errors import BadRequest, OpenClawError, ToolError, ToolNotFound
from ..core.model import Audio, Contents, Embedded, Image, Link, Text, ToolResult
from ..net.tasks import Tasks
from ..net.write_coalescing import coalesce_writes
from ..protocol.bridge import BAD_TOKEN, DEFAULT_URL, FORBIDDEN, NO_SESSION, SERVICE_RESTART, SESSION_DELETED
from . import function_schema
from .calls import PING, Call, CallRunner
from .connection import BridgeConnection
from .function_schema import FunctionTool
from .registrar import ProxyApiClient, ProxyRefused, ProxyUnreachable
from .registrar import ProxySession as Session

__all__ = [
    "AppTools",
    "Audio",
    "BadRequest",
    "Call",
    "Contents",
    "Embedded",
    "Image",
    "Link",
    "ProxyRefused",
    "ProxyUnreachable",
    "Session",
    "SessionDeleted",
    "Text",
    "ToolError",
    "ToolResult",
]

FIRST_CONNECTION: Final = 15.0  # seconds `async with` tries to get through before it fails
DIAL_WAIT: Final = 10.0  # seconds one attempt at a bridge may take
FIRST_PAUSE: Final = 0.25  # seconds before the first redial; doubles up to the longest
MAX_PAUSE: Final = 5.0  # a proxy that comes back is found again within this
STABLE_AFTER: Final = 10.0  # seconds a bridge must have lived for the pauses to start small again
DELETE_WAIT: Final = 3.0  # seconds leaving may take to delete the session
MAX_FRAME_BYTES: Final = 16 << 20  # bytes of one call; the proxy takes bodies of 4 MiB by default
DEFAULT_CONCURRENCY: Final = 32  # calls that run at the same time by default

FATAL_CLOSE_CODES: Final = {
    BAD_TOKEN: "the app token is wrong",
    FORBIDDEN: "this origin, host or secret is not admitted",
}

Function = TypeVar("Function", bound=Callable[..., Any])

logger = logging.getLogger(__name__)


class _Run(NamedTuple):
    """An app's tools while they are lent."""

    ready: "asyncio.Future[None]"
    """Done once calls can arrive."""
    calls: CallRunner
    tasks: Tasks
    task: "asyncio.Task[None]"


class SessionDeleted(OpenClawError):
    """The session was deleted at the proxy; the app must not come back unasked."""

    code = "session_deleted"


class AppTools:
    """An app's tools, lent for as long as the block or `run_forever` lasts."""

    def __init__(
        self,
        url: str | None = None,
        *,
        token: str | None = None,
        device: str | None = None,
        about: dict[str, Any] | None = None,
        secret: str | None = None,
        at_once: int = DEFAULT_CONCURRENCY,
        on_session: Callable[[Session], None] | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """`url` and `token` default to OPENCLAW_PROXY_SERVER_URL and OPENCLAW_PROXY_APP_TOKEN.

        `about` is registered beside the tools (`device_name`, `app_version`, `chat_id`, …). The `secret` decides the
        session's `mcp_url`: it is the same however often the proxy starts again, and with a secret that the app keeps
        (`secrets.token_hex(32)`) however often the app does. `on_session` gets the session, and another one should the
        proxy give one.
        """
        if at_once < 1:
            raise BadRequest(f"at_once is {at_once}; at least one call must be able to run")
        url = url or os.environ.get("OPENCLAW_PROXY_SERVER_URL") or DEFAULT_URL
        token = os.environ.get("OPENCLAW_PROXY_APP_TOKEN", "") if token is None else token
        secret = secrets.token_hex(32) if secret is None else secret
        self._proxy = ProxyApiClient(url, token=token, secret=secret, tls=tls)
        self._about = {**(about or {}), **({"device_id": device} if device else {})}
        self._on_session = on_session
        self._tools: dict[str, FunctionTool] = {}
        self._tools_changed = False
        self._at_once = at_once
        self._session: Session | None = None
        self._last_session: Session | None = None
        """The last that was registered: still ours while the proxy, which lost it, is asked again."""
        self._run: _Run | None = None
        self._pause = FIRST_PAUSE
        self._is_lost = False
        self._last_error = "no attempt was made"

    # ---- tools ----

    @overload
    def tool(self, function: Function, /) -> Function: ...
    @overload
    def tool(
        self,
        /,
        *,
        name: str | None = None,
        description: str | None = None,
        title: str | None = None,
        annotations: dict[str, Any] | None = None,
        input_schema: dict[str, Any] | None = None,
    ) -> Callable[[Function], Function]: ...
    def tool(self, function: Any = None, /, **overrides: Any) -> Any:
        """Lend a function: `@app.tool` or `@app.tool(name=…, description=…)`. A plain `def` runs in a thread.

        The function itself stays as it is. Lent later than the session began, it is known after `await update()`.
        """
        if function is None:
            return lambda later: self._add_tool(later, overrides)
        return self._add_tool(function, overrides)

    def remove(self, name: str) -> None:
        """Lend this one no longer; clients know after `await update()`."""
        if self._tools.pop(name, None) is None:
            raise ToolNotFound(f"no tool {name!r} is lent here")
        self._tools_changed = True

    async def update(self) -> None:
        """Make the proxy's list of tools the present one. Raises ProxyRefused, ProxyUnreachable."""
        self._tools_changed = True
        if self._session is not None:
            await self._put_tools(self._session)

    def _add_tool(self, function: Function, overrides: dict[str, Any]) -> Function:
        tool = function_schema.make_tool(function, overrides)
        if tool.name in self._tools:
            raise BadRequest(f"a tool {tool.name!r} is lent already; give this one another name")
        self._tools[tool.name] = tool
        self._tools_changed = True
        return function

    # ---- life ----

    @property
    def session(self) -> Session:
        """The present session, whose `mcp_url` is what an MCP client needs."""
        session = self._session or self._last_session
        if session is None:
            raise ProxyUnreachable("there is no session yet; use this inside `async with`")
        return session

    async def __aenter__(self) -> Self:
        """Return once calls can arrive. Raises ProxyRefused, ProxyUnreachable."""
        run = self._start()
        try:
            await asyncio.wait((run.task, run.ready), timeout=FIRST_CONNECTION, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            await self._stop()
            raise
        if not run.ready.done():
            reason = f"no proxy took the bridge within {FIRST_CONNECTION:g} s: {self._last_error}"
            await self._stop()
            raise ProxyUnreachable(reason)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, _: TracebackType | None
    ) -> None:
        try:
            await self._stop()
        except OpenClawError:
            if exc is None:
                raise

    async def run_forever(self) -> None:
        """Lend until cancelled, however often the proxy goes away. Raises ProxyRefused, SessionDeleted."""
        self._start()
        try:
            await self.wait()
        finally:
            await self._stop()

    async def wait(self) -> None:
        """Wait for the end. Raises what ended it: ProxyRefused, SessionDeleted."""
        if self._run is None:
            raise BadRequest("nothing is lent; wait inside `async with`")
        task = self._run.task
        await asyncio.wait((task,))
        if not task.cancelled():
            task.result()

    def _start(self) -> "_Run":
        if self._run is not None:
            raise BadRequest("this is lent already; make a second AppTools for a second session")
        ready = asyncio.get_running_loop().create_future()
        calls, tasks = CallRunner(self._tools, at_once=self._at_once), Tasks("app tools")
        task = tasks.spawn(self._hold_bridge(calls, ready), name="bridge", on_failure="raise")
        self._run = _Run(ready, calls, tasks, task)
        return self._run

    async def _stop(self) -> None:
        run, self._run = self._run, None
        if run is None:
            return
        try:
            await run.tasks.aclose()
            if not run.task.cancelled():
                run.task.result()
        finally:
            await run.calls.aclose()

    async def _hold_bridge(self, calls: CallRunner, ready: "asyncio.Future[None]") -> None:
        """Register, hold the bridge, and come back when it breaks, until cancelled or refused for good."""
        clock = asyncio.get_running_loop().time
        self._pause = FIRST_PAUSE
        try:
            while True:
                began, wait = clock(), 0.0
                try:
                    self._last_error = await self._connect_once(calls, ready)
                except ProxyUnreachable as exc:
                    self._last_error, wait = str(exc), exc.retry_after
                if clock() - began > STABLE_AFTER:
                    self._pause = FIRST_PAUSE
                # Spread out, so that a thousand apps do not all come back in the moment a proxy does.
                wait = max(wait, random.uniform(0.5, 1.0) * self._pause)  # noqa: S311  not a secret
                self._pause = min(2 * self._pause, MAX_PAUSE)
                self._is_lost = True
                logger.warning("app bridge: lost (%s), next attempt in %.1f s", self._last_error, wait)
                await asyncio.sleep(wait)
        finally:
            calls.cancel_all()
            await self._delete_session()

    async def _connect_once(self, calls: CallRunner, ready: "asyncio.Future[None]") -> str:
        """One bridge from its opening to its end, and why it ended."""
        if self._session is not None:
            reason = await self._resume(self._session, calls, ready)
            if self._session is not None:
                return reason
        # At once also when the proxy has just said that it has no such session: that is an answer, not a failure.
        session = await self._register()
        return await self._run_bridge(session, calls, ready)

    async def _resume(self, session: Session, calls: CallRunner, ready: "asyncio.Future[None]") -> str:
        """A bridge of the session that there was; it is forgotten when the proxy does not have it any more."""
        if self._tools_changed:
            try:
                await self._put_tools(session)
            except ProxyRefused as exc:
                if exc.status != 404:
                    raise
                self._session = None
                return str(exc)
        return await self._run_bridge(session, calls, ready)

    async def _register(self) -> Session:
        self._tools_changed = False
        session = await self._proxy.register({**self._about, "tools": self._tool_definitions()})
        self._session = session
        is_new = session != self._last_session
        self._last_session = session
        if is_new and self._on_session is not None:
            self._on_session(session)
        return session

    async def _run_bridge(self, session: Session, calls: CallRunner, ready: "asyncio.Future[None]") -> str:
        def on_message(message: bytes, socket: BridgeConnection) -> None:
            if not ready.done():
                ready.set_result(None)
            if self._is_lost:
                self._is_lost = False
                logger.warning("app bridge: connected again")  # as loud as the loss
            calls.handle_frame(message, socket)

        opening = connect(
            self._proxy.bridge_url(session.id),
            additional_headers=self._proxy.headers,
            compression=None,
            max_size=MAX_FRAME_BYTES,
            open_timeout=DIAL_WAIT,
            ssl=self._proxy.tls,
            create_connection=partial(BridgeConnection, on_message=on_message),  # type: ignore[arg-type]  # all it does is call it
        )
        try:
            async with opening as socket:
                # Calls come in batches; so may their answers.
                socket.transport = coalesce_writes(socket.transport, asyncio.get_running_loop())
                try:
                    # A refusal comes as a close code after the handshake, so only an answer shows that it is open.
                    await socket.send(PING)
                    await socket.wait_closed()
                except ConnectionClosed:
                    pass
                finally:
                    calls.cancel_all()
                    await socket.close()  # by ourselves: leaving the block when cancelled would send 1011, an error
                return self._handle_close(socket.close_code or 1006, socket.close_reason or "the connection broke")
        except InvalidStatus as exc:
            raise self._proxy.error_for_status(exc.response.status_code) from None
        except (OSError, TimeoutError, InvalidHandshake, EOFError) as exc:
            reason = "connection refused" if isinstance(exc, ConnectionRefusedError) else exc or type(exc).__name__
            raise ProxyUnreachable(f"the bridge can't be opened: {reason}") from None

    def _handle_close(self, code: int, reason: str) -> str:
        if code in FATAL_CLOSE_CODES:
            raise ProxyRefused(f"the proxy refused the bridge: {FATAL_CLOSE_CODES[code]} ({reason})")
        if code == SESSION_DELETED:
            self._session = None
            raise SessionDeleted("the session was deleted at the proxy; register again only if you are asked to")
        if code == NO_SESSION:
            self._session = None
        elif code == SERVICE_RESTART:  # it comes back soon, whatever was before
            self._pause = FIRST_PAUSE
        return f"closed with {code}, {reason}"

    async def _delete_session(self) -> None:
        """Delete the session; one that stays behind because no proxy answers expires by itself."""
        session, self._session, self._last_session = self._session, None, None
        if session is None:
            return
        try:
            async with asyncio.timeout(DELETE_WAIT):
                await self._proxy.delete(session)
        except (OpenClawError, TimeoutError) as exc:
            logger.info("app bridge: the session could not be deleted (%s), it will expire", exc or "no answer in time")

    async def _put_tools(self, session: Session) -> None:
        self._tools_changed = False
        try:
            await self._proxy.put_tools(session, self._tool_definitions())
        except BaseException:
            self._tools_changed = True
            raise

    def _tool_definitions(self) -> list[dict[str, Any]]:
        return [tool.definition for tool in self._tools.values()]
