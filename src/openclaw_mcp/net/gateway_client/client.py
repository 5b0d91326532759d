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
from ...core.signal import Signal
from ...protocol.gateway_frames import EventFrame
from .address import gateway_url, is_local_gateway
from .connection import NO_HEADERS, CannotConnect, ClientConnection, ConnectionGone
from .handshake import ClientProfile, Credentials, Signer

__all__ = ["CallTimeout", "CannotConnect", "ConnectionGone", "GatewayClient", "gateway_url", "is_local_gateway"]

DIAL_TIMEOUT: Final = 20.0  # seconds from dialling to hello; the real gateway starts in about as many
CALL_TIMEOUT: Final = 60.0  # seconds a call may take unless the caller says otherwise
FIRST_REDIAL_WAIT: Final = 0.5  # seconds before the first redial; doubles with each failure
MAX_REDIAL_WAIT: Final = 30.0
CLOSE_GRACE: Final = 1.0  # seconds a gateway gets to answer our goodbye

logger = logging.getLogger(__name__)


class CallTimeout(OpenClawError):
    code = "call_timeout"


class GatewayClient:
    """`async with` it: entering dials once and raises CannotConnect; from then on it redials until the block ends.

    `redial=False` is for one errand: when the connection ends, so does the client.
    """

    def __init__(
        self,
        url: str,
        profile: ClientProfile,
        *,
        credentials: Credentials = Credentials(),
        signer: Signer | None = None,
        redial: bool = True,
        dial_timeout: float = DIAL_TIMEOUT,
        headers: Mapping[str, str] = NO_HEADERS,
    ) -> None:
        """`headers` go with the upgrade; a gateway that does not know them passes them over."""
        self.url = url
        self.events: Signal[EventFrame] = Signal()
        self.connected: Signal[Json] = Signal()
        """Rings with each hello: what a connection subscribed to must be asked for again."""
        self.disconnected: Signal[str] = Signal()
        """Rings with the reason when a connection that is to be kept has ended."""
        self._profile = profile
        self._credentials = credentials
        self._signer = signer
        self._redial = redial
        self._dial_timeout = dial_timeout
        self._headers = headers
        self._connection: ClientConnection | None = None
        self._dial_task: asyncio.Task[ClientConnection] | None = None
        self._keeper_task: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._closed = False

    async def __aenter__(self) -> "GatewayClient":
        await self._get_connection()
        self._keeper_task = asyncio.get_running_loop().create_task(self._reconnect_forever())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closed = True
        tasks = [task for task in (self._keeper_task, self._dial_task) if task is not None]
        for task in tasks:
            task.cancel()
        if self._connection is not None:
            self._connection.end(ConnectionGone("the connection was closed on this side"))
            self._connection.socket.close()
            await self._connection.socket.wait_closed(CLOSE_GRACE)
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def hello(self) -> Json | None:
        """The gateway's latest hello; None while there is no connection."""
        return self._connection.hello if self._connection is not None and self._connection.is_open else None

    async def call(
        self,
        method: str,
        params: Json | None = None,
        *,
        within: float = CALL_TIMEOUT,
        final: bool = False,
        on_accepted: Callable[[Any], None] | None = None,
    ) -> Any:
        """The method's answer. Raises Fault when it is refused, CannotConnect, ConnectionGone or CallTimeout.

        `final`: the method answers twice (`agent`); `accepted` hears the first answer, the second is returned.
        """
        try:
            async with asyncio.timeout(within) as bound:
                session = await self._get_connection()
                return await session.call(method, params or {}, final=final, on_accepted=on_accepted)
        except TimeoutError:
            if not bound.expired():
                raise
            raise CallTimeout(f"{method} was not answered within {within:g} s") from None

    # ---- dialling ------------------------------------------------------------------------------------------------

    async def _get_connection(self) -> ClientConnection:
        """The open session; else the outcome of the attempt under way, or of one made now."""
        session = self._connection
        if session is not None and session.is_open:
            return session
        if self._closed or (session is not None and not self._redial):
            raise ConnectionGone(f"the connection to {self.url} has ended")
        if self._dial_task is None:
            self._dial_task = asyncio.get_running_loop().create_task(self._dial())
            self._dial_task.add_done_callback(self._on_dial_end)
        return await asyncio.shield(self._dial_task)

    def _on_dial_end(self, task: asyncio.Task[ClientConnection]) -> None:
        self._dial_task = None
        if task.cancelled():
            return
        if task.exception() is None:
            self._connection = task.result()
            self._wake.set()
            self.connected.emit(self._connection.hello)

    async def _dial(self) -> ClientConnection:
        session = ClientConnection(self.events, self.url, self._headers)
        try:
            async with asyncio.timeout(self._dial_timeout):
                await session.open(self._profile, self._credentials, self._signer)
        except TimeoutError:
            await self._give_up(session)
            raise CannotConnect(
                f"the gateway at {self.url} did not answer within {self._dial_timeout:g} s; is it a gateway, and awake?"
            ) from None
        except BaseException:
            await self._give_up(session)
            raise
        return session

    async def _give_up(self, connection: ClientConnection) -> None:
        connection.socket.abort()
        await connection.socket.wait_closed(CLOSE_GRACE)

    async def _reconnect_forever(self) -> None:
        """Mind the connection; when it ends, dial until there is one again."""
        failures = 0
        while True:
            session = self._connection
            if session is not None and session.is_open:
                failures = 0
                await session.ended.wait()
                if not self._redial:
                    return
                logger.info("connection to %s ended: %s", self.url, session.reason)
                self.disconnected.emit(session.reason)
            try:
                await self._get_connection()
            except CannotConnect as exc:
                failures += 1
                logger.info("cannot connect: %s", exc)
                await self._back_off(exc, failures)
            except ConnectionGone:
                return

    async def _back_off(self, exc: CannotConnect, failures: int) -> None:
        """Wait longer each time, never all clients in step; somebody's call cuts it short by dialling itself."""
        wait = (
            MAX_REDIAL_WAIT if exc.permanent else min(MAX_REDIAL_WAIT, FIRST_REDIAL_WAIT * 2 ** min(failures - 1, 10))
        )
        if exc.retry_after is not None:
            wait = min(MAX_REDIAL_WAIT, max(exc.retry_after, 0.05))
        self._wake.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(wait * random.uniform(0.5, 1.0)):  # noqa: S311 - spreads load, guards nothing
                await self._wake.wait()
