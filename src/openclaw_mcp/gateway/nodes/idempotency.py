"""The same order twice is carried out once: answers by idempotency key, for a while."""

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec

from ...core.model import Json
from ...core.rpc import Fault

KEPT_FOR: Final = 600.0  # seconds; whoever retries does so within minutes
MOST_KEPT: Final = 1000  # answers
LARGEST_KEPT: Final = 64 << 10  # bytes of an answer; a picture is not kept, and taking another one does no harm


class Repeats:
    """Remembers what was answered, and joins whoever asks again while the first still waits."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._kept: dict[tuple[str, str], _Kept] = {}

    async def once(self, node_id: str, key: str, order: Any, run: Callable[[], Awaitable[tuple[Json, int]]]) -> Json:
        """`run`'s answer (it tells the size too), or the one already given to this key. Raises Fault, and again if
        it did so the first time."""
        self._sweep()
        digest = hashlib.sha256(msgspec.json.encode(order)).digest()
        before = self._kept.get((node_id, key))
        if before is not None:
            if before.digest != digest:
                raise Fault("idempotencyKey was used for another order; give each order a key of its own")
            return await asyncio.shield(before.answer)
        kept = self._kept[node_id, key] = _Kept(digest, self._clock())
        try:
            answer, size = await run()
        except Fault as fault:
            kept.answer.set_exception(fault)
            kept.answer.exception()  # somebody has seen it: the one who asked
            if not _was_sent(fault):
                del self._kept[node_id, key]
            raise
        except BaseException:
            kept.answer.cancel()
            del self._kept[node_id, key]
            raise
        kept.answer.set_result(answer)
        if size > LARGEST_KEPT:
            del self._kept[node_id, key]
        return answer

    def _sweep(self) -> None:
        """Forget the oldest, but never one that still waits."""
        oldest = self._clock() - KEPT_FOR
        for key, kept in list(self._kept.items()):
            if kept.at >= oldest and len(self._kept) < MOST_KEPT:
                break
            if kept.answer.done():
                del self._kept[key]


class _Kept:
    __slots__ = ("answer", "at", "digest")

    def __init__(self, digest: bytes, at: float) -> None:
        self.digest = digest
        self.at = at
        self.answer: asyncio.Future[Json] = asyncio.get_running_loop().create_future()


def _was_sent(fault: Fault) -> bool:
    return isinstance(fault.details, dict) and fault.details.get("nodeCommandDispatched") is True
