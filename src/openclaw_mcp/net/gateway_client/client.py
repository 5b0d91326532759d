"""The gateway client: connects, authenticates, calls methods, receives events, reconnects. Light to import."""

import asyncio
import logging
import random
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final

from ...core.errors import OpenClawError
from ...core.model import Json
from ...core.signal import Signal
from ...protocol.gateway_frames import EventFrame
from ..tasks import Tasks
from .connection import NO_HEADERS, CannotConnect, ClientConnection, ConnectionGone
from .handshake import ClientProfile, Credentials, Signer

__all__ = ["CallTimeout", "CannotConnect", "ConnectionGone", "GatewayClient"]

DIAL_TIMEOUT: Final = 20.0  # seconds from dialling to hello; the real gateway starts in about as many
CALL_TIMEOUT: Final = 60.0  # seconds a call may take unless the caller gives another limit
FIRST_REDIAL_WAIT: Final = 0.5  # seconds before the first redial; doubles with each failure
MAX_REDIAL_WAIT: Final = 30.0
CLOSE_GRACE: Final = 1.0  # seconds a gateway gets to answer our close frame

logger = logging.getLogger(__name__)


class CallTimeout(OpenClawError):
    code = "call_timeout"


class GatewayClient:
    """`async with` it: entering dials once and raises CannotConnect; from then on it redials until the block ends.

    With `redial=False` the client ends when its connection does.
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
        locate: Callable[[], tuple[str, Credentials]] | None = None,
    ) -> None:
        """`headers` are sent with the upgrade; a gateway that does not know them ignores them. `locate` is asked, in a
        thread, before each dial: a gateway that was restarted may have another address and token."""
        self.url = url
        self.events: Signal[EventFrame] = Signal()
        self.connected: Signal[Json] = Signal()
        """Emits each hello: what a connection subscribed to must be asked for again."""
        self.disconnected: Signal[str] = Signal()
        """Emits the reason when a connection has ended that will be dialled again."""
        self.dial_failed: Signal[CannotConnect] = Signal()
        """Emits why a lost gateway could not be dialled; it will be dialled again."""
        self._profile = profile
        self._credentials = credentials
        self._signer = signer
        self._redial = redial
        self._dial_timeout = dial_timeout
        self._headers = headers
        self._locate = locate
        self._connection: ClientConnection | None = None
        self._tasks = Tasks(f"gateway client {url}")
        self._dial_task: asyncio.Task[ClientConnection] | None = None
        self._failures = 0
        self._wake = asyncio.Event()
        self._closed = False

    async def __aenter__(self) -> "GatewayClient":
        try:
            await self._get_connection()
        except BaseException:
            await self._tasks.cancel_all()  # and no more: it may be entered again, once there is a gateway
            raise
        if self._redial:
            self._tasks.loop(self._keep_connected, name="redial", on_failure="restart")
        return self

    async def __aexit__(self, *_: object) -> None:
        self._closed = True
        connection = self._connection
        if connection is not None:
            connection.end(ConnectionGone("the connection was closed on this side"))
            connection.socket.close()
        await self._tasks.aclose()
        if connection is not None:
            await connection.socket.wait_closed(CLOSE_GRACE)

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
        """The method's answer. Raises RpcError when it is refused, CannotConnect, ConnectionGone or CallTimeout.

        `final`: the method answers twice (`agent`); `on_accepted` gets the first answer, the second is returned.
        """
        try:
            async with asyncio.timeout(within) as bound:
                connection = await self._get_connection()
                return await connection.call(method, params or {}, final=final, on_accepted=on_accepted)
        except TimeoutError:
            if not bound.expired():
                raise
            raise CallTimeout(f"{method} was not answered within {within:g} s") from None

    # ---- dialling ------------------------------------------------------------------------------------------------

    async def _get_connection(self) -> ClientConnection:
        """The open connection; else the outcome of the attempt in progress, or of one made now."""
        connection = self._connection
        if connection is not None and connection.is_open:
            return connection
        if self._closed or (connection is not None and not self._redial):
            raise ConnectionGone(f"the connection to {self.url} has ended")
        if self._dial_task is None:
            self._dial_task = self._tasks.spawn(self._dial(), name="dial", on_failure="raise")
            # Its failure is each waiter's; when all of them were cancelled, no one is left to retrieve it.
            self._dial_task.add_done_callback(lambda task: task.cancelled() or task.exception())
        return await asyncio.shield(self._dial_task)

    async def _dial(self) -> ClientConnection:
        try:
            if self._locate is not None:
                self.url, self._credentials = await asyncio.to_thread(self._locate)
            connection = ClientConnection(self.events, self.url, self._headers)
            try:
                async with asyncio.timeout(self._dial_timeout):
                    await connection.open(self._profile, self._credentials, self._signer)
            except BaseException:
                connection.socket.abort()
                await connection.socket.wait_closed(CLOSE_GRACE)
                raise
        except TimeoutError:
            reason = f"did not answer within {self._dial_timeout:g} s; is it a gateway, and awake?"
            raise CannotConnect(f"the gateway at {self.url} {reason}") from None
        finally:
            self._dial_task = None
        self._connection = connection
        self._wake.set()
        self.connected.emit(connection.hello)
        return connection

    async def _keep_connected(self) -> None:
        """Wait until the connection ends, then dial once; after a failure, wait."""
        connection = self._connection
        if connection is not None and connection.is_open:
            self._failures = 0
            await connection.ended.wait()
            logger.info("gateway client: connection to %s ended (%s), redialling", self.url, connection.reason)
            self.disconnected.emit(connection.reason)
        try:
            await self._get_connection()
        except CannotConnect as exc:
            self._failures += 1
            logger.info("gateway client: %s", exc)
            self.dial_failed.emit(exc)
            await self._back_off(exc)

    async def _back_off(self, exc: CannotConnect) -> None:
        """Wait longer each time, never all clients in step; a call cuts it short by dialling itself."""
        wait = MAX_REDIAL_WAIT
        if exc.retry_after is not None:
            wait = min(wait, max(exc.retry_after, 0.05))
        elif not exc.permanent:
            wait = min(wait, FIRST_REDIAL_WAIT * 2 ** min(self._failures - 1, 10))
        self._wake.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(wait * random.uniform(0.5, 1.0)):  # noqa: S311 - spreads load, guards nothing
                await self._wake.wait()
