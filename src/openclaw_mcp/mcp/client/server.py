"""One server named in the config, as a tool source: started when first needed, shared, started again."""

import asyncio
import logging
import random
from collections.abc import Sequence
from typing import Final

import msgspec

from ...core.errors import OpenClawError, ToolNotFound, ToolUnavailable
from ...core.model import ToolCall, ToolResult, ToolSpec
from ...core.signal import Bell
from ...net.orphan_reaper import Watchman
from .client import Client, DiedOfProbe
from .entry import Entry, Era, Program
from .http import Http
from .names import tool_names
from .outgoing_call import PERSON_WAIT
from .stdio import Pipe
from .transport import SessionLost, Transport

logger = logging.getLogger(__name__)

FIRST_PAUSE: Final = 0.5  # seconds before a server that died is started again; doubles each time, with jitter
LONGEST_PAUSE: Final = 60.0
PATIENCE: Final = 5.0  # seconds a call waits for the next start; when that is further off it is refused at once
STEADY: Final = 30.0  # seconds a server must have run for its earlier deaths to be forgotten


class Server:
    """A `ToolSource`. `ready` starts it; so does a call. Its tools stay known while it is down."""

    def __init__(self, entry: Entry, *, prefix: str, watchman: Watchman) -> None:
        self.entry = entry
        self.changed: Bell[None] = Bell()
        self.prefix = prefix
        self._watchman = watchman
        self._client: Client | None = None
        self._opening: asyncio.Task[Client] | None = None
        self._opened_at = 0.0
        self._deaths = 0
        self._not_before = 0.0
        self._reason = ""
        self._era: Era = entry.era
        self._specs: Sequence[ToolSpec] = ()
        self._own_names: dict[str, str] = {}
        self._closed = False
        self._retiring: dict[asyncio.Task[None], Client] = {}
        """Connections given up, kept for the calls still under way on them."""

    # ---- ToolSource ----

    def specs(self) -> Sequence[ToolSpec]:
        return self._specs

    async def call(self, call: ToolCall) -> ToolResult:
        """Raises ToolError; what the server itself calls a failure is a result."""
        client = await self._connected()
        try:
            return await self._call(client, call)
        except SessionLost:
            # Nothing was begun there, so nothing is done twice. Others may be about to learn the same.
            self._retire(client)
            return await self._call(await self._connected(), call)

    async def _call(self, client: Client, call: ToolCall) -> ToolResult:
        name = self._own_names.get(call.name)
        if name is None:
            raise ToolNotFound(f"{self.entry.name} has no tool {call.name!r} any more")
        return await client.call(name, call.arguments, line=call.line, caller=call.caller)

    def called(self, tool: str) -> str:
        """What a tool goes by here, given the server's own name for it or ours."""
        return next((ours for ours, own in self._own_names.items() if tool == own), tool)

    # ---- its life ----

    async def ready(self) -> Client:
        """Start or connect it, unless it is. Raises ToolUnavailable with the reason."""
        return await self._connected()

    @property
    def connected(self) -> bool:
        return self._client is not None and self._client.gone is None

    @property
    def resting(self) -> bool:
        """It died or would not start, and is not tried again before a while has passed."""
        return self._not_before > asyncio.get_running_loop().time()

    async def aclose(self) -> None:
        self._closed = True
        opening, self._opening = self._opening, None
        if opening is not None:
            opening.cancel()
            await asyncio.wait([opening])
        for task, client in list(self._retiring.items()):
            task.cancel()
            await client.aclose()
        if self._client is not None:
            await self._drop(self._client)

    async def _connected(self) -> Client:
        if self._closed:
            raise ToolUnavailable(f"{self.entry.name} was stopped")
        client = self._client
        if client is not None:
            if client.gone is None:
                return client
            await self._drop(client)
        if self._opening is None:
            self._opening = asyncio.ensure_future(self._open())
            self._opening.add_done_callback(self._opening_done)
        # Shielded: a caller who gives up does not take the server from the others.
        return await asyncio.shield(self._opening)

    def _opening_done(self, task: "asyncio.Task[Client]") -> None:
        self._opening = None
        if not task.cancelled():
            task.exception()  # everybody who waited has been told; perhaps nobody waits any more

    async def _open(self) -> Client:
        loop = asyncio.get_running_loop()
        wait = self._not_before - loop.time()
        if wait > PATIENCE:
            raise ToolUnavailable(f"{self._reason}; it is tried again in {wait:.0f} s")
        if wait > 0:
            await asyncio.sleep(wait)
        try:
            client = await self._opened()
        except OpenClawError as exc:
            self._mourn(str(exc))
            raise
        except Exception as exc:  # a fault of ours is no reason to start it anew for every turn
            self._mourn(f"{self.entry.name} can't be used: {type(exc).__name__}")
            raise
        self._client = client
        self._opened_at = loop.time()
        client.changed.listen(lambda _: self._take(client))
        self._take(client)
        return client

    async def _opened(self) -> Client:
        try:
            client = self._new(self._era)
            await client.open()
        except DiedOfProbe:
            client = self._new("handshake")
            await client.open()
        if self._era == "auto" and not client.stateless and isinstance(self.entry.where, Program):
            self._era = "handshake"  # a program does not change its era while we run; an address may
        return client

    def _new(self, era: Era) -> Client:
        entry = self.entry
        transport: Transport
        if isinstance(entry.where, Program):
            transport = Pipe(entry.name, entry.where, self._watchman, masked=entry.masked, lost=self._lost)
        else:
            transport = Http(entry.name, entry.where, connect_wait=entry.connect_wait)
        return Client(
            entry.name,
            transport,
            era=era,
            connect_wait=entry.connect_wait,
            request_wait=entry.request_wait,
            masked=entry.masked,
        )

    def _retire(self, client: Client) -> None:
        if self._client is client:
            self._client = None
            task = asyncio.ensure_future(client.retire())
            self._retiring[task] = client
            task.add_done_callback(lambda _: self._retiring.pop(task, None))

    async def _drop(self, client: Client) -> None:
        if self._client is client:
            self._client = None
        await client.aclose()

    def _lost(self, reason: str) -> None:
        if self._client is not None and not self._closed:  # a death while opening is its opener's to tell
            self._mourn(f"{self.entry.name} is gone: {reason}")

    def _mourn(self, reason: str) -> None:
        """Count a death, and put the next start off: longer each time, unless it had run steadily."""
        now = asyncio.get_running_loop().time()
        if self._opened_at and now - self._opened_at > STEADY:
            self._deaths = 0
        self._opened_at = 0.0
        pause = min(FIRST_PAUSE * 2**self._deaths, LONGEST_PAUSE) * random.uniform(0.5, 1)  # noqa: S311  mere jitter
        self._deaths = min(self._deaths + 1, 16)
        self._not_before = now + pause
        self._reason = reason
        logger.info("MCP server %s is down (%d in a row)", self.entry.name, self._deaths)

    def _take(self, client: Client) -> None:
        """The server's tools under our names for them."""
        tools = {spec.name: spec for spec in client.tools if self.entry.offers(spec.name)}
        names = tool_names(self.prefix, tools)
        deadline = self.entry.connect_wait + self.entry.request_wait + PERSON_WAIT
        specs = tuple(msgspec.structs.replace(tools[own], name=full, deadline=deadline) for full, own in names.items())
        if specs != self._specs:
            self._specs, self._own_names = specs, names
            self.changed.ring(None)
