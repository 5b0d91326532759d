"""An app's WebSocket at the proxy: authentication, the session it serves, and the bridge it becomes."""

import base64
import binascii
import logging
from functools import partial
from typing import Any, Final

from websockets.http11 import Request, Response
from websockets.server import ServerProtocol

from ...core.errors import OpenClawError
from ...mcp.server.http_gate import HttpRefusal
from ...net.asgi import Scope as AsgiScope
from ...net.websocket_server import TRY_LATER, AcceptedWebSocket
from ...protocol import bridge as wire
from ..engine.app_session import BridgeTaken, SessionGone
from ..engine.bridge import Bridge
from ..state import ProxyState

SESSIONS_PREFIX: Final = f"{wire.SESSIONS_PATH}/"
COUNT_PARTIAL_FROM: Final = 65_536  # bytes of a message that is not whole from which on they count for all bridges
HARD_LIMIT: Final = 2  # times the largest frame: beyond it a message is not even read, below it the call alone fails

logger = logging.getLogger(__name__)


class BridgeSocket(AcceptedWebSocket):
    """Reads nothing from the app until its bridge is attached."""

    def __init__(self, state: ProxyState, connections: set[Any]) -> None:
        largest = HARD_LIMIT * state.settings.bridge.result
        codec = ServerProtocol(max_size=largest, select_subprotocol=_select_subprotocol)
        super().__init__(codec, connections, state.unauthenticated)
        self._state = state
        self._is_counted = False

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.partial_bytes > COUNT_PARTIAL_FROM and self.is_open:
            self._state.partial_messages.set(self, self.partial_bytes)
            self._is_counted = True
        elif self._is_counted:
            self._state.partial_messages.remove(self)
            self._is_counted = False

    def evict(self) -> None:
        if not self.trusted:
            super().evict()
            return
        self.close(TRY_LATER, "apps say more at once than the proxy can hold; say this again later, or in parts")

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._state.partial_messages.remove(self)

    def _handle_handshake(self, event: Request | Response) -> None:
        assert isinstance(event, Request)
        path = event.path.partition("?")[0].rstrip("/")
        id = path[len(SESSIONS_PREFIX) : -len(wire.BRIDGE_SUFFIX)]
        if not path.startswith(SESSIONS_PREFIX) or not path.endswith(wire.BRIDGE_SUFFIX) or "/" in id:
            hint = f"a bridge is at {SESSIONS_PREFIX}{{id}}{wire.BRIDGE_SUFFIX}\n"
            self.send_handshake(self._server_codec.reject(404, hint))
            return
        given = [(name.lower(), value) for name, value in event.headers.raw_items()]
        scope = {"client": self.address, "method": "GET", "headers": [(name.encode(), b"") for name, _ in given]}
        headers = dict(given)
        try:
            self._state.app_gate.check_source(scope, headers)
        except HttpRefusal as refusal:
            self._state.metrics.count_refusal("forbidden")
            self.send_handshake(self._server_codec.reject(refusal.status, f"{refusal.reason}\n"))
            return
        # Accepted before the rest is checked: a refusal before that has no close code the app could see.
        response = self._server_codec.accept(event)
        self.send_handshake(response)
        if response.status_code != 101:
            return
        self.pause()
        work = self._serve(id, scope, {**_credentials_from_subprotocols(headers), **headers})
        self._state.bridge_tasks.spawn(work, name="bridge")

    async def _serve(self, id: str, scope: AsgiScope, headers: dict[str, str]) -> None:
        try:
            await self._run_bridge(id, scope, headers)
        except HttpRefusal as refusal:
            if refusal.status == 403:
                self._state.metrics.count_refusal("forbidden")
            codes = {401: wire.BAD_TOKEN, 404: wire.NO_SESSION, 403: wire.FORBIDDEN}
            self.close(codes.get(refusal.status, TRY_LATER), refusal.reason)
        except BridgeTaken as exc:
            self.close(wire.ALREADY_ATTACHED, str(exc))
        except SessionGone:
            self.close(wire.SESSION_DELETED, "the session was deleted")
        except OpenClawError as exc:
            self.close(TRY_LATER, str(exc))
        except Exception:
            logger.exception("bridge: serving it failed, it is closed")
            self.close(wire.SERVER_FAILED, "the proxy failed; its log says more")

    async def _run_bridge(self, id: str, scope: AsgiScope, headers: dict[str, str]) -> None:
        state = self._state
        state.app_gate.authenticate(scope, headers)
        await state.check_rate(("app", state.settings.app_rate))
        session = await state.find_own_session(id, headers.get(wire.SECRET_HEADER.lower(), ""))
        bridge = Bridge(id, self, limits=state.settings.bridge, replace_tools=partial(state.replace_tools, session))
        await state.attach(session, bridge)
        self.trust()
        try:
            await bridge.run()
        finally:
            state.metrics.count_bad_frames(bridge.bad_frames)
            await state.engine.detach(session, bridge)


def _select_subprotocol(_: object, offered: Any) -> Any:
    return wire.SUBPROTOCOL if wire.SUBPROTOCOL in offered else None


def _credentials_from_subprotocols(headers: dict[str, str]) -> dict[str, str]:
    """The credentials a browser carries in subprotocols, as the headers it could not send."""
    offered = [word.strip() for word in headers.get("sec-websocket-protocol", "").split(",")]
    token, secret = _read_encoded("bearer.", offered), _read_encoded("secret.", offered)
    found = {"authorization": f"Bearer {token}"} if token else {}
    return {**found, wire.SECRET_HEADER.lower(): secret} if secret else found


def _read_encoded(prefix: str, offered: list[str]) -> str:
    """The text in base64url behind `prefix`; empty when there is none."""
    for word in offered:
        encoded = word.removeprefix(prefix)
        if encoded != word:
            try:
                return base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4)).decode()
            except (binascii.Error, ValueError):
                return ""
    return ""
