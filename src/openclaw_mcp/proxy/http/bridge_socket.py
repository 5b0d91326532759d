"""An app's WebSocket at the proxy's door: who it is, which session it serves, and the bridge it becomes."""

import asyncio
import base64
import binascii
import logging
from typing import Any, Final

from websockets.http11 import Request, Response
from websockets.server import ServerProtocol

from ...core.errors import OpenClawError
from ...mcp.server.http_gate import Refusal
from ...mcp.server.http_request import Scope
from ...net.websocket_server import TRY_LATER, Accepted
from ..engine import bridge as bridges
from ..engine.app_session import BridgeTaken, SessionGone
from ..engine.bridge import Bridge
from ..state import House

SESSIONS: Final = "/v1/chat/sessions/"
BRIDGE: Final = "/bridge"
PROTOCOL: Final = "openclaw-bridge"
FORBIDDEN: Final = 4403
COUNTED: Final = 65_536  # bytes of a message that is not whole from which on they count against all bridges' bound
HARD_LIMIT: Final = 2  # times the largest frame: beyond it a message is not even read, below it the call alone fails

logger = logging.getLogger(__name__)


class BridgeSocket(Accepted):
    """Reads nothing from the app until its bridge is attached."""

    def __init__(self, house: House, connections: set[Any], tasks: set[Any]) -> None:
        largest = HARD_LIMIT * house.settings.bridge.result
        codec = ServerProtocol(max_size=largest, select_subprotocol=_chosen)
        super().__init__(codec, connections, house.strangers)
        self._house = house
        self._tasks = tasks
        self._counted = False

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.received > COUNTED and self.is_open:
            self._house.half_said.set(self, self.received)
            self._counted = True
        elif self._counted:
            self._house.half_said.remove(self)
            self._counted = False

    def make_way(self) -> None:
        if not self.known:
            super().make_way()
            return
        self.close(TRY_LATER, "apps say more at once than the proxy can hold; say this again later, or in parts")

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._house.half_said.remove(self)

    def _opening(self, event: Request | Response) -> None:
        assert isinstance(event, Request)
        path = event.path.partition("?")[0]
        id = path[len(SESSIONS) : -len(BRIDGE)]
        if not path.startswith(SESSIONS) or not path.endswith(BRIDGE) or "/" in id:
            self.answer(self._server_codec.reject(404, f"a bridge is at {SESSIONS}{{id}}{BRIDGE}\n"))
            return
        given = [(name.lower(), value) for name, value in event.headers.raw_items()]
        scope = {"client": self.address, "method": "GET", "headers": [(name.encode(), b"") for name, _ in given]}
        headers = dict(given)
        try:
            self._house.app_gate.check_source(scope, headers)
        except Refusal as refusal:
            self._house.metrics.refused("forbidden")
            self.answer(self._server_codec.reject(refusal.status, f"{refusal.reason}\n"))
            return
        # Accepted before the rest is looked at: a refusal before that has no close code the app could see.
        response = self._server_codec.accept(event)
        self.answer(response)
        if response.status_code != 101:
            return
        self.pause()
        task = asyncio.get_running_loop().create_task(self._serve(id, scope, {**_carried(headers), **headers}))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, id: str, scope: Scope, headers: dict[str, str]) -> None:
        try:
            await self._lend(id, scope, headers)
        except Refusal as refusal:
            codes = {401: bridges.BAD_TOKEN, 404: bridges.NO_SESSION, 403: FORBIDDEN}
            self.close(codes.get(refusal.status, TRY_LATER), refusal.reason)
        except BridgeTaken as exc:
            self.close(bridges.ALREADY_ATTACHED, str(exc))
        except SessionGone:
            self.close(bridges.SESSION_DELETED, "the session was deleted")
        except OpenClawError as exc:
            self.close(TRY_LATER, str(exc))
        except Exception:
            logger.exception("a bridge failed")
            self.close(bridges.SERVER_FAILED, "the proxy failed; its log says more")

    async def _lend(self, id: str, scope: Scope, headers: dict[str, str]) -> None:
        house = self._house
        house.app_gate.admit(scope, headers)
        await house.admit(("app", house.settings.app_rate))
        guest = await house.find(id)

        async def retool(raw: bytes) -> int:
            return await house.retool(guest, raw)

        bridge = Bridge(id, self, limits=house.settings.bridge, retool=retool)
        await house.attach(guest, bridge)
        self.know()
        try:
            await bridge.run()
        finally:
            house.metrics.bad_frames += bridge.bad_frames
            await house.engine.detach(guest, bridge)


def _chosen(_: object, offered: Any) -> Any:
    return PROTOCOL if PROTOCOL in offered else None


def _carried(headers: dict[str, str]) -> dict[str, str]:
    """The token a browser carries in a subprotocol, as the header it could not send."""
    for word in headers.get("sec-websocket-protocol", "").split(","):
        encoded = word.strip().removeprefix("bearer.")
        if encoded != word.strip():
            try:
                token = base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4)).decode()
            except (binascii.Error, ValueError):
                return {}
            return {"authorization": f"Bearer {token}"}
    return {}
