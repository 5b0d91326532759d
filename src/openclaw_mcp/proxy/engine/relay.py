"""Calls between instances: one that has no bridge to an app asks the one that has."""

import asyncio
import logging
import os
from collections.abc import Callable
from typing import Any, Final, Literal

import msgspec
from msgspec import Raw, Struct

from ...core.errors import ERRORS_BY_CODE, OpenClawError, ToolBusy, ToolError, ToolUnavailable
from .app_session import StoreDown
from .bridge import Bridge, PendingBridgeCall, ProgressHandler
from .frames import NOT_CONNECTED, Frame
from .redis_store import PREFIX, RedisSessionStore

MAX_QUEUED: Final = 64 << 20  # bytes waiting to be told to one instance
PARCEL_FROM: Final = (
    256 << 10
)  # bytes above which a message is left in the store to be fetched: channels have small buffers
MAX_BATCH_BYTES: Final = 1 << 20
WATCH_INTERVAL: Final = 0.5  # seconds between two looks whether the instances we wait for still listen

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
    task: asyncio.Task[None] | None = None


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
        self._serving_tasks: dict[tuple[str, int], asyncio.Task[None]] = {}
        self._watcher: asyncio.Task[None] | None = None

    async def aclose(self) -> None:
        tasks = [*self._serving_tasks.values(), *(box.task for box in self._outboxes.values() if box.task)]
        if self._watcher is not None:
            tasks.append(self._watcher)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    # ---- asking ----

    async def invoke(
        self, target: str, session_id: str, tool: str, arguments: Any, on_progress: ProgressHandler | None
    ) -> tuple[Frame, int]:
        data = msgspec.json.encode(arguments)
        return await self._request(target, "call", session_id, tool, data, on_progress)

    async def probe(self, target: str, session_id: str) -> bool:
        """Whether the app on the other instance's bridge still answers."""
        try:
            frame, _ = await self._request(target, "probe", session_id, "", b"", None)
        except ToolError:
            return False
        return bool(frame.ok)

    async def _request(
        self, target: str, kind: RelayKind, session_id: str, name: str, data: bytes, on_progress: ProgressHandler | None
    ) -> tuple[Frame, int]:
        self._last_number += 1
        number = self._last_number
        waiting = _PendingRequest(target, on_progress)
        self._pending[number] = waiting
        try:
            self._enqueue(target, RelayMessage(kind, self.instance, number, session_id, name, data))
            if self._watcher is None:
                self._watcher = asyncio.get_running_loop().create_task(self._watch_instances())
            return await waiting.wait()
        except asyncio.CancelledError:
            self._enqueue(target, RelayMessage("cancel", self.instance, number))
            raise
        finally:
            self._pending.pop(number, None)

    def fail_pending(self, error: OpenClawError, target: str | None = None) -> None:
        """End every call that waits for `target`, or for anybody."""
        for waiting in self._pending.values():
            if target in (None, waiting.target):
                waiting.fail(type(error)(str(error)))

    async def _watch_instances(self) -> None:
        """While calls wait: are the instances they wait for still there?"""
        try:
            while self._pending:
                await asyncio.sleep(WATCH_INTERVAL)
                for target in {waiting.target for waiting in self._pending.values()}:
                    try:
                        if not await self._store.has_subscribers(channel_name(target)):
                            self.fail_pending(_instance_lost_error(), target)
                    except StoreDown as exc:
                        self.fail_pending(exc)
        finally:
            self._watcher = None

    # ---- hearing ----

    async def handle_data(self, data: bytes) -> None:
        """Raises ValueError for what is no message of ours."""
        for note in _unpack(data):
            if note.kind != "parcel":
                self._handle_message(note)
                continue
            parcel = await self._store.fetch_parcel(note.name)
            if parcel is not None:
                self._handle_message(_unpack_one(parcel))

    def _handle_message(self, message: RelayMessage) -> None:
        key = (message.sender, message.number)
        match message.kind:
            case "call":
                self._start_serving(key, self._serve_call(message))
            case "probe":
                self._start_serving(key, self._serve_probe(message))
            case "cancel":
                task = self._serving_tasks.get(key)
                if task is not None:
                    task.cancel()
            case _:
                self._handle_answer(message)

    def _start_serving(self, key: tuple[str, int], work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._serving_tasks[key] = task
        task.add_done_callback(lambda _: self._serving_tasks.pop(key, None))

    def _handle_answer(self, message: RelayMessage) -> None:
        waiting = self._pending.get(message.number)
        if waiting is None or waiting.answer.done():
            return
        if message.kind == "fail":
            kind = ERRORS_BY_CODE.get(message.name, ToolError)
            error = kind if issubclass(kind, ToolError) else ToolError
            waiting.fail(error(message.data.decode(errors="replace")))
            return
        try:
            frame = _decode_frame(message.data)
        except (ValueError, RecursionError):  # that call alone fails: others in the same message go on
            waiting.fail(ToolError("The app's answer could not be read by the instance that was asked"))
            return
        if message.kind == "done":
            waiting.answer.set_result((frame, message.sent))
        else:
            waiting.forward_progress(frame)

    async def _serve_call(self, message: RelayMessage) -> None:
        bridge = self._find_bridge(message.session_id)

        async def tell(frame: Frame) -> None:
            self._enqueue(
                message.sender, RelayMessage("tell", self.instance, message.number, data=msgspec.json.encode(frame))
            )

        try:
            if bridge is None:
                raise ToolUnavailable(f"{NOT_CONNECTED}: the app has just left")
            frame, sent = await bridge.invoke(message.name, Raw(message.data), tell)
            answer = RelayMessage("done", self.instance, message.number, data=msgspec.json.encode(frame), sent=sent)
        except OpenClawError as exc:
            answer = RelayMessage("fail", self.instance, message.number, name=exc.code, data=str(exc).encode())
        except Exception:
            logger.exception("a call from another instance failed")
            answer = RelayMessage("fail", self.instance, message.number, data=b"The proxy failed; its log says more")
        self._enqueue(message.sender, answer)

    async def _serve_probe(self, message: RelayMessage) -> None:
        bridge = self._find_bridge(message.session_id)
        alive = bridge is not None and await bridge.probe()
        frame = Frame(type="probe", ok=alive)
        self._enqueue(
            message.sender, RelayMessage("done", self.instance, message.number, data=msgspec.json.encode(frame))
        )

    # ---- telling ----

    def _enqueue(self, target: str, message: RelayMessage) -> None:
        """Queue a note; all that gather while one batch is on its way go out as the next."""
        box = self._outboxes.get(target)
        if box is None:
            box = self._outboxes[target] = _Outbox([])
        data = _pack(message)
        if box.size + len(data) > MAX_QUEUED:
            raise ToolBusy("Too much is on its way to the instance that has the app; try again shortly")
        box.messages.append(data)
        box.size += len(data)
        if box.task is None:
            box.task = asyncio.get_running_loop().create_task(self._send_batches(target, box))

    async def _send_batches(self, target: str, outbox: _Outbox) -> None:
        try:
            while outbox.messages:
                batch, size = [], 0
                while outbox.messages and size < MAX_BATCH_BYTES:
                    data = outbox.messages.pop(0)
                    outbox.size -= len(data)
                    if len(data) > PARCEL_FROM:
                        name = os.urandom(16).hex()
                        await self._store.put_parcel(name, data)
                        data = _pack(RelayMessage("parcel", self.instance, 0, name=name))
                    batch.append(data)
                    size += len(data)
                if not await self._store.publish(channel_name(target), _pack_list(batch)):
                    self.fail_pending(_instance_lost_error(), target)
        except StoreDown as exc:
            outbox.messages.clear()
            outbox.size = 0
            self.fail_pending(exc, target)
        finally:
            outbox.task = None
            if not outbox.messages:
                self._outboxes.pop(target, None)


class RemoteBridge:
    """A bridge at another instance: a `Carrier`."""

    __slots__ = ("_relay", "_session_id", "_target")

    def __init__(self, relay: InstanceRelay, target: str, session_id: str) -> None:
        self._relay = relay
        self._target = target
        self._session_id = session_id

    async def invoke(self, tool: str, arguments: Any, on_progress: ProgressHandler | None) -> tuple[Frame, int]:
        return await self._relay.invoke(self._target, self._session_id, tool, arguments, on_progress)


def _pack_list(messages: list[bytes]) -> bytes:
    """Packed notes as one packed list."""
    return b"\xdd" + len(messages).to_bytes(4, "big") + b"".join(messages)


def _instance_lost_error() -> ToolUnavailable:
    return ToolUnavailable(f"{NOT_CONNECTED}: the instance that had the app has gone")
