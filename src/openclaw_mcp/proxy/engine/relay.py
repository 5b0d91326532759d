"""Calls between instances: one that has no bridge to an app sends the call to the one that has."""

import asyncio
import logging
import os
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal

import msgspec
from msgspec import Raw, Struct

from ...core.errors import ERRORS_BY_CODE, OpenClawError, ToolBusy, ToolError, ToolUnavailable
from ...net.tasks import Tasks
from ...protocol.bridge import NOT_CONNECTED
from .app_session import StoreDown
from .bridge import PROBE_WAIT, Bridge, PendingBridgeCall, ProgressHandler
from .frames import Frame
from .redis_store import PREFIX, RedisSessionStore

MAX_QUEUED: Final = 64 << 20  # bytes waiting to be sent to one instance
PARCEL_FROM: Final = 256 << 10  # bytes above which a message is put into the store to be fetched: channels are small
MAX_BATCH_BYTES: Final = 1 << 20
WATCH_INTERVAL: Final = 0.5  # seconds between two checks whether the instances we wait for still listen
RELAY_WAIT: Final = (
    3.0  # seconds more than the bridge itself gets that the answer to a probe may take between instances
)

RelayKind = Literal["call", "done", "fail", "tell", "cancel", "probe", "parcel"]

logger = logging.getLogger(__name__)

_decode_frame = msgspec.json.Decoder(Frame).decode


class RelayMessage(Struct, array_like=True):
    """One message from instance to instance."""

    kind: RelayKind
    sender: str
    number: int
    session_id: str = ""
    name: str = ""
    """The tool, an error's code, or a parcel's name."""
    data: bytes = b""
    """JSON: arguments, a frame; or an error's text."""
    sent: int = 0


_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(list[RelayMessage]).decode
_unpack_one = msgspec.msgpack.Decoder(RelayMessage).decode


class _PendingRequest(PendingBridgeCall[tuple[Frame, int]]):
    __slots__ = ("target",)

    def __init__(self, target: str, on_progress: ProgressHandler | None) -> None:
        super().__init__(on_progress, asyncio.get_running_loop())
        self.target = target


class _Outbox(Struct):
    messages: list[bytes]
    size: int = 0
    is_sending: bool = False


FindBridge = Callable[[str], Bridge | None]


def channel_name(instance: str) -> str:
    return f"{PREFIX}to:{instance}"


class InstanceRelay:
    """Both ends of the calls between this instance and the others."""

    def __init__(self, store: RedisSessionStore, find_bridge: FindBridge) -> None:
        self.instance = os.urandom(8).hex()
        self._store = store
        self._find_bridge = find_bridge
        self._last_number = 0
        self._pending: dict[int, _PendingRequest] = {}
        self._outboxes: dict[str, _Outbox] = {}
        self._tasks = Tasks("proxy relay")
        self._serving: dict[tuple[str, int], asyncio.Task[None]] = {}
        self._is_watching = False

    async def aclose(self) -> None:
        await self._tasks.aclose()

    # ---- requests to others ----

    async def invoke(
        self, target: str, session_id: str, tool: str, arguments: Any, on_progress: ProgressHandler | None
    ) -> tuple[Frame, int]:
        data = msgspec.json.encode(arguments)
        return await self._request(target, "call", session_id, tool, data, on_progress)

    async def probe(self, target: str, session_id: str) -> bool:
        """Whether the app on the other instance's bridge still answers."""
        try:
            async with asyncio.timeout(PROBE_WAIT + RELAY_WAIT):
                frame, _ = await self._request(target, "probe", session_id, "", b"", None)
        except (ToolError, TimeoutError):
            return False
        return bool(frame.ok)

    async def _request(
        self, target: str, kind: RelayKind, session_id: str, name: str, data: bytes, on_progress: ProgressHandler | None
    ) -> tuple[Frame, int]:
        self._last_number += 1
        number = self._last_number
        pending = self._pending[number] = _PendingRequest(target, on_progress)
        try:
            self._enqueue(target, RelayMessage(kind, self.instance, number, session_id, name, data))
            if not self._is_watching:
                self._is_watching = True
                self._tasks.spawn(self._watch_instances(), name="watching other instances")
            return await pending.wait()
        except asyncio.CancelledError:
            self._enqueue(target, RelayMessage("cancel", self.instance, number), bounded=False)
            raise
        finally:
            self._pending.pop(number, None)

    def fail_pending(self, error: OpenClawError, target: str | None = None) -> None:
        """End every call that waits for `target`, or for any instance."""
        for pending in self._pending.values():
            if target in (None, pending.target):
                pending.fail(type(error)(str(error)))

    async def _watch_instances(self) -> None:
        """While calls wait: are the instances they wait for still there?"""
        try:
            while self._pending:
                await asyncio.sleep(WATCH_INTERVAL)
                for target in {pending.target for pending in self._pending.values()}:
                    try:
                        if not await self._store.has_subscribers(channel_name(target)):
                            self.fail_pending(_instance_lost_error(), target)
                    except StoreDown as exc:
                        self.fail_pending(exc)
        finally:
            self._is_watching = False

    # ---- messages from others ----

    async def handle_data(self, data: bytes) -> None:
        """Raises ValueError for what is no message of ours."""
        for message in _unpack(data):
            if message.kind != "parcel":
                self._handle_message(message)
                continue
            parcel = await self._store.fetch_parcel(message.name)
            if parcel is not None:
                self._handle_message(_unpack_one(parcel))

    def _handle_message(self, message: RelayMessage) -> None:
        key = (message.sender, message.number)
        match message.kind:
            case "call" | "probe":
                task = self._tasks.spawn(self._serve(message), name=f"{message.kind} for another instance")
                self._serving[key] = task
                task.add_done_callback(lambda _: self._serving.pop(key, None))
            case "cancel":
                if key in self._serving:
                    self._serving[key].cancel()
            case _:
                self._handle_answer(message)

    def _handle_answer(self, message: RelayMessage) -> None:
        pending = self._pending.get(message.number)
        if pending is None or pending.is_done:
            return
        if message.kind == "fail":
            kind = ERRORS_BY_CODE.get(message.name, ToolError)
            error = kind if issubclass(kind, ToolError) else ToolError
            pending.fail(error(message.data.decode(errors="replace")))
            return
        try:
            frame = _decode_frame(message.data)
        except (ValueError, RecursionError):  # that call alone fails: others in the same message are handled
            pending.fail(ToolError("The app's answer could not be read by the instance that was asked"))
            return
        if message.kind == "done":
            pending.resolve((frame, message.sent))
        else:
            pending.report_progress(frame)

    async def _serve(self, message: RelayMessage) -> None:
        """Answer another instance, also after a failure: it waits."""
        try:
            frame, sent = await (self._serve_probe(message) if message.kind == "probe" else self._serve_call(message))
            self._answer(message, "done", data=msgspec.json.encode(frame), sent=sent)
        except OpenClawError as exc:
            self._answer(message, "fail", name=exc.code, data=str(exc).encode(), bounded=False)
        except Exception:
            logger.exception("proxy relay: a call from another instance failed")
            self._answer(message, "fail", data=b"The proxy failed; its log says more", bounded=False)

    async def _serve_call(self, message: RelayMessage) -> tuple[Frame, int]:
        async def on_progress(frame: Frame) -> None:
            self._answer(message, "tell", data=msgspec.json.encode(frame))

        bridge = self._find_bridge(message.session_id)
        if bridge is None:
            raise ToolUnavailable(f"{NOT_CONNECTED}: the app has just left")
        return await bridge.invoke(message.name, Raw(message.data), on_progress)

    async def _serve_probe(self, message: RelayMessage) -> tuple[Frame, int]:
        bridge = self._find_bridge(message.session_id)
        return Frame(type="probe", ok=bridge is not None and await bridge.probe()), 0

    # ---- sending ----

    def _answer(
        self,
        request: RelayMessage,
        kind: RelayKind,
        *,
        name: str = "",
        data: bytes = b"",
        sent: int = 0,
        bounded: bool = True,
    ) -> None:
        """Raises ToolBusy when it is `bounded` and there is no room for it."""
        answer = RelayMessage(kind, self.instance, request.number, name=name, data=data, sent=sent)
        self._enqueue(request.sender, answer, bounded=bounded)

    def _enqueue(self, target: str, message: RelayMessage, *, bounded: bool = True) -> None:
        """Queue a message; all that gather while one batch is on its way are sent as the next. Raises ToolBusy.

        Small messages that another instance must get, such as a failure, are not `bounded`.
        """
        outbox = self._outboxes.setdefault(target, _Outbox([]))
        data = _pack(message)
        if bounded and outbox.size + len(data) > MAX_QUEUED:
            raise ToolBusy("Too much is on its way to the instance that has the app; try again shortly")
        outbox.messages.append(data)
        outbox.size += len(data)
        if not outbox.is_sending:
            outbox.is_sending = True
            self._tasks.spawn(self._send_all(target, outbox), name="sending to another instance")

    async def _send_all(self, target: str, outbox: _Outbox) -> None:
        try:
            while outbox.messages:
                if not await self._store.publish(channel_name(target), _pack_list(await self._next_batch(outbox))):
                    self.fail_pending(_instance_lost_error(), target)
        except Exception as exc:
            if not isinstance(exc, StoreDown):
                logger.exception("proxy relay: messages to another instance were lost, its calls fail")
            self.fail_pending(exc if isinstance(exc, StoreDown) else _instance_lost_error(), target)
            outbox.messages.clear()
        finally:
            outbox.is_sending = False
            del self._outboxes[target]

    async def _next_batch(self, outbox: _Outbox) -> Sequence[bytes]:
        batch: list[bytes] = []
        size = 0
        while outbox.messages and size < MAX_BATCH_BYTES:
            data = outbox.messages.pop(0)
            outbox.size -= len(data)
            if len(data) > PARCEL_FROM:
                name = os.urandom(16).hex()
                await self._store.put_parcel(name, data)
                data = _pack(RelayMessage("parcel", self.instance, 0, name=name))
            batch.append(data)
            size += len(data)
        return batch


class RemoteBridge:
    """A bridge at another instance: a `ToolInvoker`."""

    __slots__ = ("_relay", "_session_id", "_target")

    def __init__(self, relay: InstanceRelay, target: str, session_id: str) -> None:
        self._relay = relay
        self._target = target
        self._session_id = session_id

    async def invoke(self, tool: str, arguments: Any, on_progress: ProgressHandler | None) -> tuple[Frame, int]:
        return await self._relay.invoke(self._target, self._session_id, tool, arguments, on_progress)


def _pack_list(messages: Sequence[bytes]) -> bytes:
    """Packed messages as one packed list."""
    return b"\xdd" + len(messages).to_bytes(4, "big") + b"".join(messages)


def _instance_lost_error() -> ToolUnavailable:
    return ToolUnavailable(f"{NOT_CONNECTED}: the instance that had the app has gone")
