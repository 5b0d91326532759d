"""The one gateway client: connects, introduces itself, calls methods, hears events, redials. Light to import."""

import asyncio
import logging
import random
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any, Final

from ...core.errors import OpenClawError
from ...core.model import Json
from ...core.signal import Bell
from ...protocol.gateway_frames import News
from .address import gateway_url, on_this_machine
from .connection import NO_HEADERS, CannotConnect, ConnectionGone, Outgoing
from .handshake import Credentials, Introduction, Signer

__all__ = ["CallTimeout", "CannotConnect", "Client", "ConnectionGone", "gateway_url", "on_this_machine"]

DIAL_WITHIN: Final = 20.0  # seconds from dialling to hello; the real gateway starts in about as many
CALL_WITHIN: Final = 60.0  # seconds a call may take unless the caller says otherwise
FIRST_WAIT: Final = 0.5  # seconds before the first redial; doubles with each failure
LONGEST_WAIT: Final = 30.0
GOODBYE: Final = 1.0  # seconds a gateway gets to answer our goodbye

logger = logging.getLogger(__name__)


class CallTimeout(OpenClawError):
    code = "call_timeout"


class Client:
    """`async with` it: entering dials once and raises CannotConnect; from then on it redials until the block ends.

    `redial=False` is for one errand: when the connection ends, so does the client.
    """

    def __init__(
        self,
        url: str,
        introduction: Introduction,
        *,
        credentials: Credentials = Credentials(),
        signer: Signer | None = None,
        redial: bool = True,
        dial_within: float = DIAL_WITHIN,
        headers: Mapping[str, str] = NO_HEADERS,
    ) -> None:
        """`headers` go with the upgrade; a gateway that does not know them passes them over."""
        self.url = url
        self.events: Bell[News] = Bell()
        self.greeted: Bell[Json] = Bell()
        """Rings with each hello: what a connection subscribed to must be asked for again."""
        self.lost: Bell[str] = Bell()
        """Rings with the reason when a connection that is to be kept has ended."""
        self._introduction = introduction
        self._credentials = credentials
        self._signer = signer
        self._redial = redial
        self._dial_within = dial_within
        self._headers = headers
        self._session: Outgoing | None = None
        self._dialling: asyncio.Task[Outgoing] | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._hurry = asyncio.Event()
        self._closed = False

    async def __aenter__(self) -> "Client":
        await self._connected()
        self._keeper = asyncio.get_running_loop().create_task(self._keep())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closed = True
        tasks = [task for task in (self._keeper, self._dialling) if task is not None]
        for task in tasks:
            task.cancel()
        if self._session is not None:
            self._session.end(ConnectionGone("the connection was closed on this side"))
            self._session.socket.close()
            await self._session.socket.ended(GOODBYE)
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def hello(self) -> Json | None:
        """The gateway's latest hello; None while there is no connection."""
        return self._session.hello if self._session is not None and self._session.is_open else None

    async def call(
        self,
        method: str,
        params: Json | None = None,
        *,
        within: float = CALL_WITHIN,
        final: bool = False,
        accepted: Callable[[Any], None] | None = None,
    ) -> Any:
        """The method's answer. Raises Fault when it is refused, CannotConnect, ConnectionGone or CallTimeout.

        `final`: the method answers twice (`agent`); `accepted` hears the first answer, the second is returned.
        """
        try:
            async with asyncio.timeout(within) as bound:
                session = await self._connected()
                return await session.call(method, params or {}, final=final, accepted=accepted)
        except TimeoutError:
            if not bound.expired():
                raise
            raise CallTimeout(f"{method} was not answered within {within:g} s") from None

    # ---- dialling ------------------------------------------------------------------------------------------------

    async def _connected(self) -> Outgoing:
        """The open session; else the outcome of the attempt under way, or of one made now."""
        session = self._session
        if session is not None and session.is_open:
            return session
        if self._closed or (session is not None and not self._redial):
            raise ConnectionGone(f"the connection to {self.url} has ended")
        if self._dialling is None:
            self._dialling = asyncio.get_running_loop().create_task(self._dial())
            self._dialling.add_done_callback(self._dialled)
        return await asyncio.shield(self._dialling)

    def _dialled(self, task: asyncio.Task[Outgoing]) -> None:
        self._dialling = None
        if task.cancelled():
            return
        if task.exception() is None:
            self._session = task.result()
            self._hurry.set()
            self.greeted.ring(self._session.hello)

    async def _dial(self) -> Outgoing:
        session = Outgoing(self.events, self.url, self._headers)
        try:
            async with asyncio.timeout(self._dial_within):
                await session.open(self._introduction, self._credentials, self._signer)
        except TimeoutError:
            await self._give_up(session)
            raise CannotConnect(
                f"the gateway at {self.url} did not answer within {self._dial_within:g} s; is it a gateway, and awake?"
            ) from None
        except BaseException:
            await self._give_up(session)
            raise
        return session

    async def _give_up(self, session: Outgoing) -> None:
        session.socket.cut()
        await session.socket.ended(GOODBYE)

    async def _keep(self) -> None:
        """Mind the connection; when it ends, dial until there is one again."""
        failures = 0
        while True:
            session = self._session
            if session is not None and session.is_open:
                failures = 0
                await session.ended.wait()
                if not self._redial:
                    return
                logger.info("connection to %s ended: %s", self.url, session.reason)
                self.lost.ring(session.reason)
            try:
                await self._connected()
            except CannotConnect as exc:
                failures += 1
                logger.info("cannot connect: %s", exc)
                await self._back_off(exc, failures)
            except ConnectionGone:
                return

    async def _back_off(self, exc: CannotConnect, failures: int) -> None:
        """Wait longer each time, never all clients in step; somebody's call cuts it short by dialling itself."""
        wait = LONGEST_WAIT if exc.lasting else min(LONGEST_WAIT, FIRST_WAIT * 2 ** min(failures - 1, 10))
        if exc.retry_after is not None:
            wait = min(LONGEST_WAIT, max(exc.retry_after, 0.05))
        self._hurry.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(wait * random.uniform(0.5, 1.0)):  # noqa: S311 - spreads load, guards nothing
                await self._hurry.wait()
