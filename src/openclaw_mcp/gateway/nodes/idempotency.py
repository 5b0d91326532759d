"""The same request twice is carried out once: answers by idempotency key, for a while."""

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final, Generic, TypeVar

import msgspec

from ...core.rpc import RpcError
from .calls import NodeCallError

CACHE_SECONDS: Final = 600.0  # seconds; retries come within minutes
MAX_CACHED_ANSWERS: Final = 1000  # answers
MAX_CACHED_BYTES: Final = 64 << 10  # bytes of an answer; a picture is not kept, and taking another one does no harm

Answer = TypeVar("Answer")


class IdempotencyCache(Generic[Answer]):
    """Caches answers, and lets a repeated request wait for the first one's answer."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._entries: dict[tuple[str, str], _CachedAnswer[Answer]] = {}

    async def run_once(
        self, node_id: str, key: str, request: Any, run: Callable[[], Awaitable[tuple[Answer, int]]]
    ) -> Answer:
        """`run`'s answer (it returns the size too), or the one already given to this key. Raises RpcError, and again
        if it did so the first time."""
        self._sweep()
        digest = hashlib.sha256(msgspec.json.encode(request)).digest()
        before = self._entries.get((node_id, key))
        if before is not None:
            if before.digest != digest:
                raise RpcError("idempotencyKey was used for another request; give each request a key of its own")
            return await asyncio.shield(before.answer)
        entry = self._entries[node_id, key] = _CachedAnswer(digest, self._clock())
        try:
            answer, size = await run()
        except RpcError as fault:
            entry.answer.set_exception(fault)
            entry.answer.exception()  # retrieved: it is raised to the caller below
            if not isinstance(fault, NodeCallError) or not fault.dispatched:
                del self._entries[node_id, key]
            raise
        except BaseException:
            entry.answer.cancel()
            del self._entries[node_id, key]
            raise
        entry.answer.set_result(answer)
        if size > MAX_CACHED_BYTES:
            del self._entries[node_id, key]
        return answer

    def _sweep(self) -> None:
        """Drop the oldest, but never one that still waits."""
        oldest = self._clock() - CACHE_SECONDS
        for key, entry in list(self._entries.items()):
            if entry.at >= oldest and len(self._entries) < MAX_CACHED_ANSWERS:
                break
            if entry.answer.done():
                del self._entries[key]


class _CachedAnswer(Generic[Answer]):
    __slots__ = ("answer", "at", "digest")

    def __init__(self, digest: bytes, at: float) -> None:
        self.digest, self.at = digest, at
        self.answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
