"""Calls between instances: one that has no bridge to an app asks the one that has."""

import asyncio
import logging
import os
from collections.abc import Callable
from typing import Any, Final, Literal

import msgspec
from msgspec import Raw, Struct

from ...core.errors import BY_CODE, OpenClawError, ToolBusy, ToolError, ToolUnavailable
from .app_session import StoreDown
from .bridge import Bridge, Tell, Waiting
from .frames import NOT_CONNECTED, Frame
from .redis_store import PREFIX, Store

MOST_QUEUED: Final = 64 << 20  # bytes waiting to be told to one instance
PARCEL: Final = 256 << 10  # bytes above which a message is left in the store to be fetched: channels have small buffers
LARGEST_BATCH: Final = 1 << 20
CHECK: Final = 0.5  # seconds between two looks whether the instances we wait for still listen

Kind = Literal["call", "done", "fail", "tell", "cancel", "probe", "parcel"]

logger = logging.getLogger(__name__)

_frame = msgspec.json.Decoder(Frame).decode


class Note(Struct, array_like=True):
    """One message from instance to instance."""

    kind: Kind
    sender: str
    number: int
    session: str = ""
    name: str = ""
    """The tool, an error's code, or a parcel's name."""
    data: bytes = b""
    """JSON: arguments, a frame; or an error's text."""
    sent: int = 0


_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(list[Note]).decode
_unpack_one = msgspec.msgpack.Decoder(Note).decode


class _Asked(Waiting[tuple[Frame, int]]):
    __slots__ = ("target",)

    def __init__(self, target: str, tell: Tell | None) -> None:
        super().__init__(tell, asyncio.get_running_loop())
        self.target = target


class _Outbox(Struct):
    notes: list[bytes]
    size: int = 0
    task: asyncio.Task[None] | None = None


Find = Callable[[str], Bridge | None]


def channel(instance: str) -> str:
    return f"{PREFIX}to:{instance}"


class Relay:
    """Both ends of the calls between this instance and the others."""

    def __init__(self, store: Store, find: Find) -> None:
        self.instance = os.urandom(8).hex()
        self._store = store
        self._find = find
        self._number = 0
        self._waiting: dict[int, _Asked] = {}
        self._outboxes: dict[str, _Outbox] = {}
        self._serving: dict[tuple[str, int], asyncio.Task[None]] = {}
        self._watch: asyncio.Task[None] | None = None

    async def aclose(self) -> None:
        tasks = [*self._serving.values(), *(box.task for box in self._outboxes.values() if box.task)]
        if self._watch is not None:
            tasks.append(self._watch)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    # ---- asking ----

    async def invoke(
        self, target: str, session: str, tool: str, arguments: Any, tell: Tell | None
    ) -> tuple[Frame, int]:
        data = msgspec.json.encode(arguments)
        return await self._ask(target, "call", session, tool, data, tell)

    async def probe(self, target: str, session: str) -> bool:
        """Whether the app on the other instance's bridge still answers."""
        try:
            frame, _ = await self._ask(target, "probe", session, "", b"", None)
        except ToolError:
            return False
        return bool(frame.ok)

    async def _ask(
        self, target: str, kind: Kind, session: str, name: str, data: bytes, tell: Tell | None
    ) -> tuple[Frame, int]:
        self._number += 1
        number = self._number
        waiting = _Asked(target, tell)
        self._waiting[number] = waiting
        try:
            self._put(target, Note(kind, self.instance, number, session, name, data))
            if self._watch is None:
                self._watch = asyncio.get_running_loop().create_task(self._look())
            return await waiting.outcome()
        except asyncio.CancelledError:
            self._put(target, Note("cancel", self.instance, number))
            raise
        finally:
            self._waiting.pop(number, None)

    def fail(self, reason: OpenClawError, target: str | None = None) -> None:
        """End every call that waits for `target`, or for anybody."""
        for waiting in self._waiting.values():
            if target in (None, waiting.target):
                waiting.fail(type(reason)(str(reason)))

    async def _look(self) -> None:
        """While calls wait: are the instances they wait for still there?"""
        try:
            while self._waiting:
                await asyncio.sleep(CHECK)
                for target in {waiting.target for waiting in self._waiting.values()}:
                    try:
                        if not await self._store.listens(channel(target)):
                            self.fail(_gone(), target)
                    except StoreDown as exc:
                        self.fail(exc)
        finally:
            self._watch = None

    # ---- hearing ----

    async def hear(self, data: bytes) -> None:
        """Raises ValueError for what is no message of ours."""
        for note in _unpack(data):
            if note.kind != "parcel":
                self._serve(note)
                continue
            parcel = await self._store.fetch_parcel(note.name)
            if parcel is not None:
                self._serve(_unpack_one(parcel))

    def _serve(self, note: Note) -> None:
        key = (note.sender, note.number)
        match note.kind:
            case "call":
                self._begin(key, self._call(note))
            case "probe":
                self._begin(key, self._probe(note))
            case "cancel":
                task = self._serving.get(key)
                if task is not None:
                    task.cancel()
            case _:
                self._answered(note)

    def _begin(self, key: tuple[str, int], work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._serving[key] = task
        task.add_done_callback(lambda _: self._serving.pop(key, None))

    def _answered(self, note: Note) -> None:
        waiting = self._waiting.get(note.number)
        if waiting is None or waiting.answer.done():
            return
        if note.kind == "fail":
            kind = BY_CODE.get(note.name, ToolError)
            error = kind if issubclass(kind, ToolError) else ToolError
            waiting.fail(error(note.data.decode(errors="replace")))
            return
        try:
            frame = _frame(note.data)
        except (ValueError, RecursionError):  # that call alone fails: others in the same message go on
            waiting.fail(ToolError("The app's answer could not be read by the instance that was asked"))
            return
        if note.kind == "done":
            waiting.answer.set_result((frame, note.sent))
        else:
            waiting.progress(frame)

    async def _call(self, note: Note) -> None:
        bridge = self._find(note.session)

        async def tell(frame: Frame) -> None:
            self._put(note.sender, Note("tell", self.instance, note.number, data=msgspec.json.encode(frame)))

        try:
            if bridge is None:
                raise ToolUnavailable(f"{NOT_CONNECTED}: the app has just left")
            frame, sent = await bridge.invoke(note.name, Raw(note.data), tell)
            answer = Note("done", self.instance, note.number, data=msgspec.json.encode(frame), sent=sent)
        except OpenClawError as exc:
            answer = Note("fail", self.instance, note.number, name=exc.code, data=str(exc).encode())
        except Exception:
            logger.exception("a call from another instance failed")
            answer = Note("fail", self.instance, note.number, data=b"The proxy failed; its log says more")
        self._put(note.sender, answer)

    async def _probe(self, note: Note) -> None:
        bridge = self._find(note.session)
        alive = bridge is not None and await bridge.probe()
        frame = Frame(type="probe", ok=alive)
        self._put(note.sender, Note("done", self.instance, note.number, data=msgspec.json.encode(frame)))

    # ---- telling ----

    def _put(self, target: str, note: Note) -> None:
        """Queue a note; all that gather while one batch is on its way go out as the next."""
        box = self._outboxes.get(target)
        if box is None:
            box = self._outboxes[target] = _Outbox([])
        data = _pack(note)
        if box.size + len(data) > MOST_QUEUED:
            raise ToolBusy("Too much is on its way to the instance that has the app; try again shortly")
        box.notes.append(data)
        box.size += len(data)
        if box.task is None:
            box.task = asyncio.get_running_loop().create_task(self._send(target, box))

    async def _send(self, target: str, box: _Outbox) -> None:
        try:
            while box.notes:
                batch, size = [], 0
                while box.notes and size < LARGEST_BATCH:
                    data = box.notes.pop(0)
                    box.size -= len(data)
                    if len(data) > PARCEL:
                        name = os.urandom(16).hex()
                        await self._store.leave_parcel(name, data)
                        data = _pack(Note("parcel", self.instance, 0, name=name))
                    batch.append(data)
                    size += len(data)
                if not await self._store.publish(channel(target), _array(batch)):
                    self.fail(_gone(), target)
        except StoreDown as exc:
            box.notes.clear()
            box.size = 0
            self.fail(exc, target)
        finally:
            box.task = None
            if not box.notes:
                self._outboxes.pop(target, None)


class Far:
    """A bridge at another instance: a `Carrier`."""

    __slots__ = ("_relay", "_session", "_target")

    def __init__(self, relay: Relay, target: str, session: str) -> None:
        self._relay = relay
        self._target = target
        self._session = session

    async def invoke(self, tool: str, arguments: Any, tell: Tell | None) -> tuple[Frame, int]:
        return await self._relay.invoke(self._target, self._session, tool, arguments, tell)


def _array(notes: list[bytes]) -> bytes:
    """Packed notes as one packed list."""
    return b"\xdd" + len(notes).to_bytes(4, "big") + b"".join(notes)


def _gone() -> ToolUnavailable:
    return ToolUnavailable(f"{NOT_CONNECTED}: the instance that had the app has gone")
