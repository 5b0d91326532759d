"""An MCP client of our own: one connection to one server, in whichever era the two understand."""

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from ... import __version__
from ...core.errors import CannotAsk, OpenClawError, ToolError, ToolTimeout, ToolUnavailable
from ...core.model import Caller, Json, ToolResult, ToolSpec
from ...core.ports import SILENCE, Line
from ...core.signal import Bell
from ...protocol import header_params, mcp
from ...protocol.jsonrpc import RpcError
from ...protocol.mcp_results import read_result, read_tool
from .entry import CONNECT_WAIT, REQUEST_WAIT, Era
from .http import Refused
from .outgoing_call import REFUSED, Talk, declined, plain_answer
from .transport import Outgoing, SessionLost, Transport, is_news_of_tools

logger = logging.getLogger(__name__)

MOST_PAGES: Final = 200  # pages of one list
MOST_TOOLS: Final = 5000  # tools of one server
MOST_ROUNDS: Final = 16  # times a stateless server may want a call again
LONGEST_REASON: Final = 500  # characters of a server's own words in an error
PROBE_SHARE: Final = 0.5  # of the time to connect: what an old server may spend on not answering `server/discover`
FIRST_PAUSE: Final = 1.0  # seconds before a lost news stream is opened again; doubles, with jitter
LONGEST_PAUSE: Final = 60.0
LISTEN_WAIT: Final = 2.0  # seconds a news stream may take to open before we go on without waiting for it
NEWS_AT_ONCE: Final = 0.05  # seconds in which several changes of a list count as one

INFO: Final = {"name": "openclaw-mcp", "version": __version__}
ALWAYS_ABLE: Final[Json] = {"elicitation": {"form": {}, "url": {}}}
"""Declared in a handshake, which comes before any call: a caller who can't be asked makes the answer `cancel`."""


class DiedOfProbe(ToolUnavailable):
    """The server ended when it was asked for the stateless era: it may bear the handshake."""


class Client:
    """Open it, list, call, close it. `changed` rings after `tools` is another list."""

    def __init__(
        self,
        name: str,
        transport: Transport,
        *,
        era: Era = "auto",
        connect_wait: float = CONNECT_WAIT,
        request_wait: float = REQUEST_WAIT,
        masked: Callable[[str], str] = lambda text: text,
    ) -> None:
        """`masked` takes secrets out of the server's own words."""
        self.name = name
        self.changed: Bell[None] = Bell()
        self.tools: Sequence[ToolSpec] = ()
        self.stateless = False
        self.version = ""
        self.info: Json = {}
        self.capabilities: Json = {}
        self._transport = transport
        self._era: Era = era
        self._connect_wait = connect_wait
        self._request_wait = request_wait
        self._masked = masked
        self._sequence = 0
        self._talks: dict[Talk, None] = {}
        self._listening: asyncio.Task[None] | None = None
        self._renewing: asyncio.Task[None] | None = None
        self._stale = False
        self._quiet = asyncio.Event()
        self._hearing = asyncio.Event()
        """The news stream is open, or there is none."""
        self._mirrored: dict[str, header_params.Mirrored] = {}

    @property
    def gone(self) -> str | None:
        return self._transport.gone

    async def open(self) -> None:
        """Connect, introduce ourselves, list the tools, follow their changes. Raises ToolError; then it is closed."""
        try:
            async with asyncio.timeout(self._connect_wait):
                await self._transport.open(self)
                await self._introduce()
                await self._begin_listening()
                await self._list()
        except TimeoutError:
            await self.aclose()
            raise ToolUnavailable(f"{self.name} did not introduce itself within {self._connect_wait:g} s") from None
        except RpcError as exc:
            await self.aclose()
            raise self._error(exc) from exc
        except BaseException:
            await self.aclose()
            raise

    async def call(
        self, tool: str, arguments: Json, *, line: Line = SILENCE, caller: Caller | None = None
    ) -> ToolResult:
        """Raises ToolError; SessionLost when the server has not begun it and we must open anew."""
        talk = Talk(line, caller or _NOBODY)
        base: Json = {"name": tool, "arguments": arguments}
        params = base
        with self._talking(talk):
            for _ in range(MOST_ROUNDS):
                result = await self._call(params, talk)
                kind = result.get("resultType", "complete") if self.stateless else "complete"
                if kind == "complete":
                    await talk.settle()
                    return read_result(result)
                if kind != "input_required":
                    raise ToolError(f"{self.name} answered with a kind of result we do not know: {str(kind)[:40]!r}")
                params = await self._again(base, result, talk)
        raise ToolError(f"{self.name} wanted the call again more than {MOST_ROUNDS} times")

    async def retire(self) -> None:
        """Close once the calls under way have ended, as each of them does in its own time."""
        while self._talks:
            self._quiet.clear()
            await self._quiet.wait()
        await self.aclose()

    async def aclose(self) -> None:
        for task in (self._listening, self._renewing):
            if task is not None:
                task.cancel()
                await asyncio.wait([task])
        await self._transport.aclose()

    # ---- opening ----

    async def _introduce(self) -> None:
        if self._era == "handshake" or not await self._discover():
            await self._shake_hands()

    async def _discover(self) -> bool:
        """Whether the server speaks the stateless era. Raises when it must and does not."""
        probing = self._era == "auto"
        self.stateless, self.version = True, mcp.STATELESS_VERSIONS[-1]
        try:
            async with asyncio.timeout(self._connect_wait * PROBE_SHARE if probing else None):
                found = await self._discovered()
        except (RpcError, TimeoutError, ToolUnavailable) as exc:
            # Anything but a plain no of the network's is how some older server says that it does not know the method.
            if probing and self.gone:
                raise DiedOfProbe(str(exc)) from exc
            if not probing or not _may_be_old(exc):
                raise
            found = None
        versions = found.get("supportedVersions") if found is not None else None
        # Some older servers say yes to whatever they do not know: only the version in the list counts.
        if found is not None and type(versions) is list and self.version in versions:
            self.info = _object(_object(found.get("_meta")).get(mcp.SERVER_INFO) or found.get("serverInfo"))
            self.capabilities = _object(found.get("capabilities"))
            return True
        if not probing:
            raise ToolUnavailable(f"{self.name} does not speak {self.version}; set its `protocol` to auto")
        self.stateless = False
        return False

    async def _discovered(self) -> Json:
        try:
            return await self._request("server/discover", {}, Talk(SILENCE, _NOBODY))
        except RpcError as exc:
            supported = exc.data.get("supported") if type(exc.data) is dict else None
            if exc.code != mcp.UNSUPPORTED_VERSION or type(supported) is not list or self.version not in supported:
                raise
            return await self._request("server/discover", {}, Talk(SILENCE, _NOBODY))

    async def _shake_hands(self) -> None:
        self.stateless = False
        params = {"protocolVersion": mcp.NEWEST_HANDSHAKE, "capabilities": ALWAYS_ABLE, "clientInfo": INFO}
        answer = await self._request("initialize", params, Talk(SILENCE, _NOBODY))
        version = answer.get("protocolVersion")
        if version not in mcp.HANDSHAKE_VERSIONS:
            raise ToolUnavailable(f"{self.name} speaks MCP {str(version)[:40]!r}, which we do not know")
        self.version = version
        self.info = _object(answer.get("serverInfo"))
        self.capabilities = _object(answer.get("capabilities"))
        await self._transport.introduced(version)
        await self._transport.notify("notifications/initialized", {})

    # ---- the list, and its changes ----

    async def _list(self) -> None:
        tools: list[ToolSpec] = []
        params: Json = {}
        if "tools" in self.capabilities or not self.capabilities:
            for _ in range(MOST_PAGES):
                page = await self._request("tools/list", params, Talk(SILENCE, _NOBODY))
                tools += self._usable(page.get("tools"))
                cursor = page.get("nextCursor")
                if type(cursor) is not str or len(tools) >= MOST_TOOLS:
                    break
                params = {"cursor": cursor}
        self.tools = tuple({spec.name: spec for spec in tools[:MOST_TOOLS]}.values())

    def _usable(self, listed: Any) -> list[ToolSpec]:
        found = [read_tool(value) for value in listed] if type(listed) is list else []
        tools = [spec for spec in found if spec is not None]
        if not self.stateless:
            return tools
        for spec in tools:
            if not header_params.mirrors_well(spec.input_schema):
                logger.warning("%s: tool %r is left out, its x-mcp-header marks are wrong", self.name, spec.name)
        tools = [spec for spec in tools if header_params.mirrors_well(spec.input_schema)]
        self._mirrored.update((spec.name, header_params.mirrored_arguments(spec.input_schema)) for spec in tools)
        return tools

    async def _begin_listening(self) -> None:
        """Before the first list, so that no change is missed, and no question: those, too, may come on that stream."""
        changes = _object(self.capabilities.get("tools")).get("listChanged") is True
        if self.stateless and not changes:
            return
        self._listening = asyncio.ensure_future(self._listen())
        self._listening.add_done_callback(lambda _: self._hearing.set())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LISTEN_WAIT):
                await self._hearing.wait()

    async def _listen(self) -> None:
        """Keep a stream of news open. A server without one is left alone; a lost one is opened again."""
        pause = FIRST_PAUSE
        while True:
            begun = asyncio.get_running_loop().time()
            try:
                if not await self._hear_news():
                    return
            except SessionLost:
                return  # the next call opens anew, and lists anew
            except (RpcError, OpenClawError) as exc:
                logger.debug("%s: its news stream broke: %s", self.name, type(exc).__name__)
            if self.gone:
                return
            if asyncio.get_running_loop().time() - begun > LONGEST_PAUSE:
                pause = FIRST_PAUSE
            await asyncio.sleep(pause * random.uniform(0.5, 1))  # noqa: S311  jitter is no secret
            pause = min(pause * 2, LONGEST_PAUSE)
            self._renew()  # we may have missed something

    async def _hear_news(self) -> bool:
        if not self.stateless:
            return await self._transport.listen(self, self._hearing.set)
        params = {"notifications": {"toolsListChanged": True}}
        try:
            await self._transport.request(self._outgoing("subscriptions/listen", params, _SILENT), self)
        except RpcError as exc:
            logger.debug("%s: no news stream: %d", self.name, exc.code)
            return False
        return True

    def _renew(self) -> None:
        self._stale = True
        if self._renewing is None or self._renewing.done():
            self._renewing = asyncio.ensure_future(self._renewed())

    async def _renewed(self) -> None:
        while self._stale:
            await asyncio.sleep(NEWS_AT_ONCE)
            self._stale = False  # a change from here on needs another look
            try:
                await self._list()
            except (RpcError, OpenClawError, TimeoutError) as exc:
                logger.debug("%s: its tools can't be listed now: %s", self.name, type(exc).__name__)
            else:
                self.changed.ring(None)

    # ---- Ear: what belongs to no call we know of ----

    def hear(self, method: str, params: Json) -> None:
        if is_news_of_tools(method):
            self._renew()
        elif method == "notifications/subscriptions/acknowledged":
            self._hearing.set()

    async def answer(self, method: str, params: Json) -> Json:
        """A pipe does not say which call a question belongs to: it is put only where it can't reach a stranger."""
        if method == "ping":
            return {}
        callers = {talk.caller for talk in self._talks}
        if len(callers) == 1:
            return await next(reversed(self._talks)).answer(method, params)
        if not callers:
            return (
                declined(method) if method.startswith(("elicitation/", "sampling/", "roots/")) else plain_answer(method)
            )
        raise RpcError(REFUSED, "Several callers are waiting, and the question does not say whose it is")

    @contextlib.contextmanager
    def _talking(self, talk: Talk) -> Iterator[None]:
        self._talks[talk] = None
        try:
            yield
        finally:
            del self._talks[talk]
            self._quiet.set()

    # ---- requests ----

    async def _call(self, params: Json, talk: Talk) -> Json:
        try:
            return await self._request("tools/call", params, talk)
        except RpcError as exc:
            raise self._error(exc) from exc
        except TimeoutError:
            raise ToolTimeout(f"{self.name} did not answer within {self._request_wait:g} s") from None

    async def _again(self, base: Json, result: Json, talk: Talk) -> Json:
        """The call with what the server wants to know."""
        params = dict(base)
        questions = result.get("inputRequests")
        if type(questions) is dict and questions:
            params["inputResponses"] = await talk.ask(questions)
        if "requestState" in result:
            params["requestState"] = result["requestState"]
        return params

    async def _request(self, method: str, params: Json, talk: Talk) -> Json:
        """Raises RpcError, ToolError, TimeoutError."""
        out = self._outgoing(method, params, talk)
        work = talk.work = asyncio.ensure_future(self._transport.request(out, _Heard(talk, self)))
        try:
            async with asyncio.timeout(self._request_wait) as talk.clock:
                talk.wait = self._request_wait
                return await work
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if talk.refusal is not None and task is not None and not task.cancelling():
                raise talk.refusal from None
            raise
        finally:
            talk.clock = None
            if not work.done():
                work.cancel()
                await asyncio.wait([work])

    def _outgoing(self, method: str, params: Json, talk: Talk) -> Outgoing:
        self._sequence += 1
        id = self._sequence
        meta: Json = {"progressToken": id} if method == "tools/call" else {}
        if not self.stateless:
            return Outgoing(id, method, {**params, "_meta": meta} if meta else params, handshake=True)
        meta[mcp.PROTOCOL_VERSION] = self.version
        meta[mcp.CLIENT_INFO] = INFO
        meta[mcp.CLIENT_CAPABILITIES] = talk.capabilities()
        headers = {"mcp-protocol-version": self.version, **header_params.headers_for(method, params)}
        if method == "tools/call" and (mirrored := self._mirrored.get(params["name"])):
            headers.update(header_params.headers_for_arguments(mirrored, params["arguments"]))
        return Outgoing(id, method, {**params, "_meta": meta}, headers)

    def _error(self, exc: RpcError) -> ToolError:
        """The server's refusal in its own words, bounded."""
        if exc.code == mcp.MISSING_CAPABILITY and type(exc.data) is dict:
            needed = _object(exc.data.get("requiredCapabilities"))
            capability = next(iter(needed), "elicitation")
            return CannotAsk(f"{self.name} needs a client that declares {capability!r}", capability=capability)
        return ToolError(f"{self.name}: {self._masked(exc.message)[:LONGEST_REASON]} (MCP error {exc.code})")


class _Heard:
    """News on a call's own stream: the call's, unless it is about the server's tools."""

    __slots__ = ("_client", "_talk")

    def __init__(self, talk: Talk, client: Client) -> None:
        self._talk = talk
        self._client = client

    def hear(self, method: str, params: Json) -> None:
        (self._client if is_news_of_tools(method) else self._talk).hear(method, params)

    async def answer(self, method: str, params: Json) -> Json:
        return await self._talk.answer(method, params)


_NOBODY = Caller(kind="local", name="")
_SILENT = Talk(SILENCE, _NOBODY)


def _may_be_old(exc: Exception) -> bool:
    if isinstance(exc, Refused):
        return exc.status not in (401, 403) and not 300 <= exc.status < 400
    return not isinstance(exc, ToolUnavailable)


def _object(value: Any) -> Json:
    return value if type(value) is dict else {}
