"""A gateway over WebSocket, as orders and agents use it."""

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from ... import __version__
from ...core.errors import ToolUnavailable
from ...core.gateway_port import GatewayEventHandler
from ...core.model import Json
from ...core.rpc import ADMIN, READ, WRITE
from ...core.signal import Signal
from .address import is_local_gateway
from .client import CannotConnect, GatewayClient
from .handshake import ClientInfo, ClientProfile, Credentials, Signer

RECONNECT_TIMEOUT: Final = 10.0  # seconds a lost gateway has to come back: a restart, a moment without network
FRAME_OVERHEAD: Final = 4096  # bytes of a frame that are not its attachments


class WebSocketGateway:
    """The gateway at an address. Entering raises ToolUnavailable when none answers."""

    is_local = False
    is_lost = False

    def __init__(
        self, url: str, token: str | None, *, signer: Signer | None = None, scopes: tuple[str, ...] = (READ, WRITE)
    ) -> None:
        client_info = ClientInfo(id="gateway-client", mode="backend", version=__version__, platform=sys.platform)
        profile = ClientProfile(client=client_info, scopes=scopes, caps=("tool-events",))
        self._url = url
        self._client = GatewayClient(url, profile, credentials=Credentials(token=token), signer=signer)
        self._gone_signal: Signal[str] = Signal()
        self._give_up_timer: asyncio.TimerHandle | None = None
        self._client.disconnected.connect(self._on_connection_loss)
        self._client.connected.connect(self._on_hello)

    async def __aenter__(self) -> "WebSocketGateway":
        try:
            await self._client.__aenter__()
        except CannotConnect as exc:
            raise ToolUnavailable(str(exc)) from exc
        return self

    async def __aexit__(self, *ending: Any) -> None:
        await self._client.__aexit__(*ending)
        self._on_hello({})

    def _on_connection_loss(self, reason: str) -> None:
        self._give_up_timer = asyncio.get_running_loop().call_later(RECONNECT_TIMEOUT, self._give_up, reason)

    def _on_hello(self, _: Json) -> None:
        self.is_lost = False
        if self._give_up_timer is not None:
            self._give_up_timer.cancel()

    def _give_up(self, reason: str) -> None:
        self.is_lost = True
        self._gone_signal.emit(
            f"{reason}; it did not come back within {RECONNECT_TIMEOUT:g} s, and what became of this is not known"
        )

    async def call(self, method: str, params: Json, *, within: float) -> Any:
        size = sum(len(item["content"]) for item in params.get("attachments", ()))
        most = ((self._client.hello or {}).get("policy") or {}).get("maxPayload")
        if type(most) is int and size + FRAME_OVERHEAD > most:
            reason = f"the attachments are larger than the gateway takes in one message ({most} bytes as base64)"
            raise ToolUnavailable(f"{reason}; send fewer or smaller ones")
        return await self._client.call(method, params, within=within)

    def subscribe(self, handler: GatewayEventHandler) -> Callable[[], None]:
        disconnects = (
            self._client.events.connect(lambda event: handler(event.event, event.payload)),
            self._client.connected.connect(lambda hello: handler("hello", hello)),
            self._gone_signal.connect(lambda reason: handler("gone", reason)),
        )

        def stop() -> None:
            for disconnect in disconnects:
                disconnect()

        return stop


def make_gateway_client(url: str, token: str | None, folder: Path) -> WebSocketGateway:
    """A gateway to be entered: this machine's by its token, another one also as a device."""
    if is_local_gateway(url):
        # A holder of this machine's token owns it, and so do its orders.
        return WebSocketGateway(url, token, scopes=(READ, WRITE, ADMIN))
    # Here for start-up: only a gateway on another machine needs a device key.
    from .identity import DeviceIdentity

    return WebSocketGateway(url, token, signer=DeviceIdentity.load(folder / "device.json"))
