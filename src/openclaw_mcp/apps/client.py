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
import ssl
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Any, Final, Self, TypeVar, overload

from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus

from ..core.errors import BadRequest, OpenClawError, ToolError, ToolNotFound
from ..core.model import Audio, Contents, Embedded, Image, Link, Text, ToolResult
from ..net.write_coalescing import corked
from . import function_schema
from .calls import PING, Call, Calls
from .connection import Dialled
from .function_schema import Tool
from .registrar import ProxyRefused, ProxyUnreachable, Registrar, Session

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

DEFAULT_URL: Final = "http://127.0.0.1:8000"
FIRST_CONNECTION: Final = 15.0  # seconds `async with` tries to get through before it says that it can't
DIAL_WAIT: Final = 10.0  # seconds one attempt at a bridge may take
FIRST_PAUSE: Final = 0.25  # seconds before the first redial; doubles up to the longest
LONGEST_PAUSE: Final = 15.0  # a proxy that comes back is found again within this
STEADY: Final = 10.0  # seconds a bridge must have lived for the pauses to start small again
LAST_WORDS: Final = 3.0  # seconds leaving may take to delete the session
LARGEST_FRAME: Final = 16 << 20  # bytes of one call; the proxy takes bodies of 4 MiB unless told otherwise
AT_ONCE: Final = 32  # calls that run at the same time unless told otherwise

NO_SESSION: Final = 4404
SESSION_DELETED: Final = 4410
FINAL: Final = {4401: "the app token is wrong", 4403: "this origin or host is not admitted"}

Function = TypeVar("Function", bound=Callable[..., Any])

logger = logging.getLogger(__name__)


class SessionDeleted(OpenClawError):
    """Somebody deleted the session; the app must not come back unasked."""

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
        at_once: int = AT_ONCE,
        on_session: Callable[[Session], None] | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """`url` and `token` default to OPENCLAW_PROXY_SERVER_URL and OPENCLAW_PROXY_APP_TOKEN.

        `about` is registered beside the tools (`device_name`, `app_version`, `chat_id`, …). `on_session` hears of every
        session made: the first, and a new one, with a new `mcp_url`, after the proxy forgot the old.
        """
        if at_once < 1:
            raise BadRequest(f"at_once is {at_once}; at least one call must be able to run")
        url = url or os.environ.get("OPENCLAW_PROXY_SERVER_URL") or DEFAULT_URL
        token = os.environ.get("OPENCLAW_PROXY_APP_TOKEN", "") if token is None else token
        self._registrar = Registrar(url, token=token, tls=tls)
        self._about = {**(about or {}), **({"device_id": device} if device else {})}
        self._on_session = on_session
        self._tools: dict[str, Tool] = {}
        self._changed = False
        self._at_once = at_once
        self._session: Session | None = None
        self._owner: asyncio.Task[None] | None = None
        self._trouble = "no attempt was made"

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
    def tool(self, function: Any = None, /, **more: Any) -> Any:
        """Lend a function: `@app.tool` or `@app.tool(name=…, description=…)`. A plain `def` runs in a thread.

        The function itself stays as it is. Lent later than the session began, it is known after `await update()`.
        """
        if function is None:
            return lambda later: self._add(later, more)
        return self._add(function, more)

    def remove(self, name: str) -> None:
        """Lend this one no longer; clients know after `await update()`."""
        if self._tools.pop(name, None) is None:
            raise ToolNotFound(f"no tool {name!r} is lent here")
        self._changed = True

    async def update(self) -> None:
        """Make the proxy's list of tools the present one. Raises ProxyRefused, ProxyUnreachable."""
        self._changed = True
        if self._session is not None:
            await self._put_tools(self._session)

    def _add(self, function: Function, more: dict[str, Any]) -> Function:
        tool = function_schema.tool_from(function, more)
        if tool.name in self._tools:
            raise BadRequest(f"a tool {tool.name!r} is lent already; give this one another name")
        self._tools[tool.name] = tool
        self._changed = True
        return function

    # ---- life ----

    @property
    def session(self) -> Session:
        """The present session, whose `mcp_url` is what an MCP client needs."""
        if self._session is None:
            raise ProxyUnreachable("there is no session yet; use this inside `async with`")
        return self._session

    async def __aenter__(self) -> Self:
        """Return once calls can arrive. Raises ProxyRefused, ProxyUnreachable."""
        self._begin()
        assert self._owner is not None
        ready = asyncio.create_task(self._ready.wait())
        try:
            await asyncio.wait((self._owner, ready), timeout=FIRST_CONNECTION, return_when=asyncio.FIRST_COMPLETED)
            if not self._ready.is_set():
                trouble = f"no proxy took the bridge within {FIRST_CONNECTION:g} s: {self._trouble}"
                await self._leave()
                raise ProxyUnreachable(trouble)
        except asyncio.CancelledError:
            await self._leave()
            raise
        finally:
            ready.cancel()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, _: TracebackType | None
    ) -> None:
        try:
            await self._leave()
        except OpenClawError:
            if exc is None:
                raise

    async def run_forever(self) -> None:
        """Lend until cancelled, however often the proxy goes away. Raises ProxyRefused, SessionDeleted."""
        self._begin()
        try:
            await self.wait()
        finally:
            await self._leave()

    async def wait(self) -> None:
        """Wait for the end. Raises what ended it: ProxyRefused, SessionDeleted."""
        if self._owner is None:
            raise BadRequest("nothing is lent; wait inside `async with`")
        owner = self._owner
        await asyncio.wait((owner,))
        if not owner.cancelled():
            owner.result()

    def _begin(self) -> None:
        if self._owner is not None:
            raise BadRequest("this is lent already; make a second AppTools for a second session")
        self._ready = asyncio.Event()
        self._calls = Calls(self._tools, at_once=self._at_once)
        self._owner = asyncio.create_task(self._live())

    async def _leave(self) -> None:
        owner, self._owner = self._owner, None
        if owner is None:
            return
        owner.cancel()
        try:
            await owner
        except asyncio.CancelledError:
            if not owner.cancelled():
                raise
        finally:
            self._calls.close()

    async def _live(self) -> None:
        """Register, hold the bridge, and come back when it breaks, until cancelled or refused for good."""
        clock = asyncio.get_running_loop().time
        pause = FIRST_PAUSE
        try:
            while True:
                began, wait = clock(), 0.0
                try:
                    self._trouble = await self._attempt()
                except ProxyUnreachable as exc:
                    self._trouble, wait = str(exc), exc.retry_after
                if clock() - began > STEADY:
                    pause = FIRST_PAUSE
                # Spread out, so that a thousand apps do not all come back in the moment a proxy does.
                wait = max(wait, random.uniform(0.5, 1.0) * pause)  # noqa: S311  not a secret
                pause = min(2 * pause, LONGEST_PAUSE)
                logger.warning("bridge lost, next try in %.1f s: %s", wait, self._trouble)
                await asyncio.sleep(wait)
        finally:
            await self._forget()

    async def _attempt(self) -> str:
        """One bridge from dialling to its end, and why it ended."""
        if self._session is None:
            self._changed = False
            self._session = await self._registrar.register({**self._about, "tools": self._described()})
            if self._on_session is not None:
                self._on_session(self._session)
        elif self._changed:
            try:
                await self._put_tools(self._session)
            except ProxyRefused as exc:
                if exc.status != 404:
                    raise
                self._session = None
                return str(exc)
        return await self._hold_bridge(self._session)

    async def _hold_bridge(self, session: Session) -> str:
        dial = connect(
            self._registrar.bridge_url(session.id),
            additional_headers=self._registrar.headers,
            compression=None,
            max_size=LARGEST_FRAME,
            open_timeout=DIAL_WAIT,
            ssl=self._registrar.tls,
            create_connection=partial(Dialled, heard=self._heard),  # type: ignore[arg-type]  # all it does is call it
        )
        try:
            async with dial as socket:
                # Calls come in batches; so may their answers.
                socket.transport = corked(socket.transport, asyncio.get_running_loop())
                try:
                    # A refusal comes as a close code after the handshake, so only an answer says that we are in.
                    await socket.send(PING)
                    await socket.wait_closed()
                except ConnectionClosed:
                    pass
                finally:
                    self._calls.drop()
                    await socket.close()  # by ourselves: leaving the block when cancelled would say 1011, an error
                return self._ended(socket.close_code or 1006, socket.close_reason or "the connection broke")
        except InvalidStatus as exc:
            raise self._registrar.refusal(exc.response.status_code) from None
        except (OSError, TimeoutError, InvalidHandshake, EOFError) as exc:
            raise ProxyUnreachable(f"the bridge can't be opened: {exc or type(exc).__name__}") from None

    def _heard(self, message: bytes, socket: Dialled) -> None:
        self._ready.set()
        self._calls.take(message, socket)

    def _ended(self, code: int, reason: str) -> str:
        if code in FINAL:
            raise ProxyRefused(f"the proxy refused the bridge: {FINAL[code]} ({reason})")
        if code == SESSION_DELETED:
            self._session = None
            raise SessionDeleted("the session was deleted at the proxy; register again only if you are asked to")
        if code == NO_SESSION:
            self._session = None
        return f"closed with {code}, {reason}"

    async def _forget(self) -> None:
        """Take the session back; one that stays behind for want of a proxy expires by itself."""
        session, self._session = self._session, None
        self._calls.drop()
        if session is None:
            return
        try:
            async with asyncio.timeout(LAST_WORDS):
                await self._registrar.delete(session)
        except (OpenClawError, TimeoutError) as exc:
            logger.info("the session could not be deleted: %s", exc or "no answer in time")

    async def _put_tools(self, session: Session) -> None:
        self._changed = False
        try:
            await self._registrar.put_tools(session, self._described())
        except BaseException:
            self._changed = True
            raise

    def _described(self) -> list[dict[str, Any]]:
        return [tool.described for tool in self._tools.values()]
