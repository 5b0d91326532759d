"""A gateway at the other end of a WebSocket, as orders and agents reach it."""

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from ... import __version__
from ...core.errors import ToolUnavailable
from ...core.gateway_port import Hear
from ...core.model import Json
from ...core.rpc import ADMIN, READ, WRITE
from ...core.signal import Bell
from ...protocol.gateway_frames import News
from ..state_dir import known_gateway_token
from .client import CannotConnect, Client, on_this_machine
from .handshake import ClientInfo, Credentials, Introduction, Signer

BACK_WITHIN: Final = 10.0  # seconds a lost gateway has to come back: a restart of ours, a moment without network
FRAME_SPARE: Final = 4096  # bytes of a frame that are not its attachments


class Remote:
    """Whoever answers there. Entering raises ToolUnavailable when nobody does."""

    near = False
    gone = False

    def __init__(
        self, url: str, token: str | None, *, signer: Signer | None = None, scopes: tuple[str, ...] = (READ, WRITE)
    ) -> None:
        me = ClientInfo(id="gateway-client", mode="backend", version=__version__, platform=sys.platform)
        introduction = Introduction(client=me, scopes=scopes, caps=("tool-events",))
        self._url = url
        self._client = Client(url, introduction, credentials=Credentials(token=token), signer=signer)
        self._left: Bell[str] = Bell()
        self._leaving: asyncio.TimerHandle | None = None
        self._client.lost.listen(self._lost)
        self._client.greeted.listen(self._back)

    async def __aenter__(self) -> "Remote":
        try:
            await self._client.__aenter__()
        except CannotConnect as exc:
            raise ToolUnavailable(f"the gateway at {self._url} can't be used: {exc}") from exc
        return self

    async def __aexit__(self, *ending: Any) -> None:
        await self._client.__aexit__(*ending)
        self._back({})

    def _lost(self, reason: str) -> None:
        self._leaving = asyncio.get_running_loop().call_later(BACK_WITHIN, self._given_up, reason)

    def _back(self, _: Json) -> None:
        self.gone = False
        if self._leaving is not None:
            self._leaving.cancel()

    def _given_up(self, reason: str) -> None:
        self.gone = True
        self._left.ring(
            f"{reason}; it did not come back within {BACK_WITHIN:g} s, and what became of this is not known"
        )

    async def call(self, method: str, params: Json, *, within: float) -> Any:
        size = sum(len(item["content"]) for item in params.get("attachments", ()))
        most = ((self._client.hello or {}).get("policy") or {}).get("maxPayload")
        if type(most) is int and size + FRAME_SPARE > most:
            reason = f"the attachments are larger than the gateway takes in one message ({most} bytes as base64)"
            raise ToolUnavailable(f"{reason}; send fewer or smaller ones")
        return await self._client.call(method, params, within=within)

    def listen(self, hear: Hear) -> Callable[[], None]:
        def news(event: News) -> None:
            hear(event.event, event.payload)

        deaf = self._client.events.listen(news)
        quiet = self._client.greeted.listen(lambda hello: hear("hello", hello))
        alone = self._left.listen(lambda reason: hear("gone", reason))

        def stop() -> None:
            deaf()
            quiet()
            alone()

        return stop


def dialled(url: str, token: str | None, folder: Path) -> Remote:
    """A gateway to be entered: this machine's by the token kept here, another one as a device too."""
    if on_this_machine(url):
        # Who holds this machine's token owns it, and an order of theirs may do what they may.
        return Remote(url, token or known_gateway_token(folder), scopes=(READ, WRITE, ADMIN))
    # Here for start-up: only a gateway elsewhere wants a device, and with it cryptography.
    from .identity import Identity

    return Remote(url, token, signer=Identity.load(folder / "device.json"))
