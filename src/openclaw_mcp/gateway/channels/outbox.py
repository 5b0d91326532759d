"""Letters out: stored, then sent, in order for each conversation, tried again while there is hope."""

import asyncio
import logging
import random
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final, Self

import msgspec

from ...core.channel import Channel, ChannelBusy, ChannelError, ChannelRefused, ChatAddress, DeliveryReceipt
from ...core.errors import OpenClawError, StoreError
from ...core.mail import NewOutboxMessage, Outbox, OutboxMessage
from ...core.sessions import now_ms
from ...core.signal import Signal

logger = logging.getLogger(__name__)

RETRY_DELAYS: Final = (5.0, 25.0, 120.0, 600.0)  # seconds before the second and later tries
MAX_ATTEMPTS: Final = len(RETRY_DELAYS) + 1
MAX_AGE_MS: Final = 24 * 3600 * 1000  # milliseconds: a message a day late confuses more than one that failed
MAX_QUEUED: Final = 5000  # letters in memory; beyond it the channels are down and a person must look
SEND_TIMEOUT: Final = 120.0  # seconds one part may take; a wedged connection must not hold a conversation
MAX_CONCURRENT_CONVERSATIONS: Final = 16  # conversations of one account that are sent to at the same time
REFILL_THRESHOLD: Final = 1000  # places free in memory before more is read from disk: one by one would be a look each
SWEEP_INTERVAL: Final = 30.0  # seconds between looks for what a dead process left
RETENTION_MS: Final = 30 * 24 * 3600 * 1000  # milliseconds what has ended, and its key, are remembered
STORE_RETRY_DELAY: Final = 1.0  # seconds before the disk is asked again

FindChannel = Callable[[ChatAddress], Channel | None]
OutboundKey = tuple[str, str, str]


class OutboxSender:
    """`async with` it: what a crash left is taken up first. `over` rings with each letter that was sent or failed."""

    def __init__(
        self,
        repository: Outbox,
        find_channel: FindChannel,
        *,
        is_stable: Callable[[ChatAddress], bool] = lambda address: True,
        on_sent: Callable[[OutboxMessage], Awaitable[None]] | None = None,
    ) -> None:
        """`steady` tells whether a channel works: while it does not, failing to send uses up no try."""
        self._repository = repository
        self._find_channel = find_channel
        self._is_stable = is_stable
        self._on_sent = on_sent
        self.completed: Signal[OutboxMessage] = Signal()
        self._queues: dict[OutboundKey, deque[OutboxMessage]] = {}
        self._queued_uids: set[str] = set()
        self._has_backlog = True
        """There may be letters on disk that are not in their lanes: a newer one must not overtake them."""
        self._deferred_count = 0
        """Letters put since the last look began that were left on disk for that reason."""
        self._refill_due = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._retry_now: dict[OutboundKey, asyncio.Event] = {}
        self._paused_until: dict[tuple[str, str], float] = {}
        self._slots: dict[tuple[str, str], asyncio.Semaphore] = {}
        self._waiters: dict[str, set[asyncio.Future[OutboxMessage]]] = {}

    async def __aenter__(self) -> Self:
        await self._load_backlog()
        self._start_task(self._sweep_periodically())
        return self

    async def __aexit__(self, *_exc: object) -> None:
        """What waits stays on disk for the next start."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def queue_length(self) -> int:
        return len(self._queued_uids) + self._deferred_count

    async def put(self, new: NewOutboxMessage) -> tuple[OutboxMessage, bool]:
        """Keep a letter and have it sent. Raises ChannelError when too many wait."""
        if self.queue_length >= MAX_QUEUED:
            raise ChannelError(f"{MAX_QUEUED} messages wait to be sent; see openclaw outbox")
        mail, fresh = await self._repository.put(new)
        if not fresh:  # in its lane already, or another process's
            return mail, fresh
        if self._has_backlog:
            self._deferred_count += 1
        else:
            self._enqueue(mail)
        return mail, fresh

    async def wait_for_outcome(self, message: OutboxMessage, *, seconds: float) -> OutboxMessage:
        """The letter once it is sent, failed or put off; as it is when the time is up."""
        if message.status != "queued" or seconds <= 0:
            return message
        future: asyncio.Future[OutboxMessage] = asyncio.get_running_loop().create_future()
        self._waiters.setdefault(message.uid, set()).add(future)
        try:
            current = await self._repository.get(message.uid)
            # What is in our hands yet is over only when its transcript tells of it too.
            if current is None or (current.status != "queued" and message.uid not in self._queued_uids):
                return current or message
            await asyncio.wait({future}, timeout=seconds)
            return future.result() if future.done() else message
        finally:
            waiting = self._waiters.get(message.uid, set())
            waiting.discard(future)
            if not waiting:
                self._waiters.pop(message.uid, None)

    async def retry(self, uid: str) -> OutboxMessage | None:
        """Try again now, with all its tries before it. None: there is no such letter, or it is sent."""
        mail = await self._repository.get(uid)
        if mail is None or mail.status == "sent":
            return None
        for lane in self._queues.values():
            if any(waiting.uid == uid for waiting in lane):
                self._retry_now[_conversation_key(mail)].set()
                return mail
        if self._has_backlog and mail.status == "queued":
            return mail  # on disk yet, behind others of its conversation
        again = msgspec.structs.replace(mail, status="queued", tries=0, due_at=now_ms(), error=None)
        again = msgspec.structs.replace(again, created_at=now_ms())
        await self._repository.update(again)
        self._enqueue(again)
        return again

    async def drop(self, uid: str) -> bool:
        for lane in self._queues.values():
            for mail in lane:
                if mail.uid == uid and mail is not lane[0]:
                    lane.remove(mail)
                    self._queued_uids.discard(uid)
                    break
        return await self._repository.drop(uid)

    def retry_account(self, channel: str, account: str) -> None:
        """The channel is back: what was put off is tried now."""
        self._paused_until.pop((channel, account), None)
        for lane, event in self._retry_now.items():
            if lane[:2] == (channel, account):
                event.set()

    # ---- lanes ---------------------------------------------------------------------------------------------------

    def _start_task(self, coroutine: "asyncio._CoroutineLike[None]") -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _enqueue(self, message: OutboxMessage) -> None:
        if message.uid in self._queued_uids:
            return
        self._queued_uids.add(message.uid)
        lane = _conversation_key(message)
        if lane in self._queues:
            self._queues[lane].append(message)
            return
        self._queues[lane] = deque([message])
        self._retry_now[lane] = asyncio.Event()
        self._start_task(self._process_queue(lane))

    async def _process_queue(self, key: OutboundKey) -> None:
        """Send what waits for one conversation, first in first; the next only when the one before has ended."""
        waiting = self._queues[key]
        slot = self._slots.setdefault(key[:2], asyncio.Semaphore(MAX_CONCURRENT_CONVERSATIONS))
        while waiting:
            mail = waiting[0]
            await self._wait_until_due(key, mail)
            try:
                async with slot:
                    tried = await self._attempt(mail)
            except StoreError as exc:
                logger.warning("outbox %s: can't be worked on now: %s", mail.uid, exc)
                await asyncio.sleep(STORE_RETRY_DELAY)
                continue
            if tried is not None and tried.status == "queued":
                waiting[0] = tried
                self._notify_waiters(tried)
                continue
            waiting.popleft()
            self._queued_uids.discard(mail.uid)
            if self._has_backlog and len(self._queued_uids) <= MAX_QUEUED - REFILL_THRESHOLD:
                self._refill_due.set()
            if tried is not None:
                self.completed.emit(tried)
                self._notify_waiters(tried)
        del self._queues[key], self._retry_now[key]

    async def _wait_until_due(self, key: OutboundKey, message: OutboxMessage) -> None:
        loop = asyncio.get_running_loop()
        hurry = self._retry_now[key]
        hurry.clear()
        wait = max((message.due_at - now_ms()) / 1000, self._paused_until.get(key[:2], 0.0) - loop.time())
        if wait > 0:
            try:
                async with asyncio.timeout(wait):
                    await hurry.wait()
            except TimeoutError:
                return

    def _notify_waiters(self, message: OutboxMessage) -> None:
        for future in self._waiters.get(message.uid, ()):
            if not future.done():
                future.set_result(message)

    # ---- one letter ----------------------------------------------------------------------------------------------

    async def _attempt(self, message: OutboxMessage) -> OutboxMessage | None:
        """The letter as it is now. None: it was dropped meanwhile."""
        if message.tries and await self._repository.get(message.uid) is None:
            return None
        parts = 1 if message.poll is not None else len(message.parts)
        try:
            while len(message.receipts) < parts:
                receipt = await self._deliver_part(message, len(message.receipts))
                message = msgspec.structs.replace(message, receipts=(*message.receipts, receipt))
                if len(message.receipts) < parts:
                    await self._save_progress(message)
            message = msgspec.structs.replace(message, status="sent", error=None)
        except ChannelBusy as exc:
            pause = asyncio.get_running_loop().time() + exc.retry_after
            self._paused_until[message.address.channel, message.address.account] = pause
            message = self._postpone(message, str(exc), seconds=exc.retry_after, counts_as_attempt=False)
        except ChannelRefused as exc:
            message = _give_up(message, str(exc))
        except Exception as exc:  # noqa: BLE001  (a channel's bug must not stop the others' letters)
            message = self._postpone(
                message,
                _error_text(exc),
                seconds=_retry_delay(message.tries),
                counts_as_attempt=self._is_stable(message.address),
            )
        await self._save_progress(message)
        if message.status == "sent" and self._on_sent is not None:
            try:
                await self._on_sent(message)
            except OpenClawError as exc:  # delivered it is, whatever the transcript knows of it
                logger.warning("outbox %s: sent, but not mirrored: %s", message.uid, exc)
        return message

    async def _deliver_part(self, message: OutboxMessage, number: int) -> DeliveryReceipt:
        channel = self._find_channel(message.address)
        if channel is None:
            raise ChannelError(f"channel {message.address.channel}, account {message.address.account}, is not running")
        async with asyncio.timeout(SEND_TIMEOUT):
            return await self._send_part(channel, message, number)

    async def _send_part(self, channel: Channel, message: OutboxMessage, number: int) -> DeliveryReceipt:
        key = f"{message.uid}.{number}"
        if message.poll is not None:
            poll = message.poll
            return await channel.send_poll(
                message.address, poll["question"], poll["options"], many=poll["many"], key=key
            )
        return await channel.send(message.address, message.parts[number], key=key)

    def _postpone(
        self, message: OutboxMessage, reason: str, *, seconds: float, counts_as_attempt: bool
    ) -> OutboxMessage:
        tries = message.tries + counts_as_attempt
        if tries >= MAX_ATTEMPTS:
            return _give_up(message, f"{reason} (tried {tries} times)")
        if now_ms() - message.created_at > MAX_AGE_MS:
            return _give_up(message, f"{reason} (a day old)")
        logger.info("outbox %s: put off: %s", message.uid, reason)
        due = now_ms() + int(seconds * 1000)
        return msgspec.structs.replace(message, tries=tries, due_at=due, error=reason)

    async def _save_progress(self, message: OutboxMessage) -> None:
        """Nothing goes on before it is on disk: the next part, or the next letter, would be lost sight of."""
        while True:
            try:
                await self._repository.update(message)
            except StoreError as exc:
                logger.warning("outbox %s: can't be noted now: %s", message.uid, exc)
                await asyncio.sleep(STORE_RETRY_DELAY)
            else:
                return

    async def _sweep_periodically(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(SWEEP_INTERVAL):
                    await self._refill_due.wait()
            try:
                await self._load_backlog()
                await self._repository.prune(before=now_ms() - RETENTION_MS)
            except StoreError as exc:
                logger.warning("outbox: can't be looked after now: %s", exc)
                await asyncio.sleep(STORE_RETRY_DELAY)
                self._refill_due.set()

    async def _load_backlog(self) -> None:
        """Read what waits on disk, as far as there is room; until all is read, what is new waits there as well."""
        self._refill_due.clear()
        after = 0
        while True:
            self._deferred_count = 0
            page = await self._repository.adopt(after=after)
            for mail in page:
                self._enqueue(mail)
                after = mail.id
            if len(self._queued_uids) >= MAX_QUEUED:
                self._has_backlog = True
                return
            if not page and not self._deferred_count:
                self._has_backlog = False
                self._refill_due.clear()
                return


def _conversation_key(message: OutboxMessage) -> OutboundKey:
    return message.address.channel, message.address.account, message.address.to


def _give_up(message: OutboxMessage, reason: str) -> OutboxMessage:
    logger.warning("outbox %s: given up: %s", message.uid, reason)
    return msgspec.structs.replace(message, status="failed", tries=message.tries + 1, error=reason)


def _retry_delay(tries: int) -> float:
    wait = RETRY_DELAYS[min(tries, len(RETRY_DELAYS) - 1)]
    return wait * random.uniform(0.8, 1.2)  # noqa: S311 - spreads load, guards nothing


def _error_text(exc: Exception) -> str:
    if isinstance(exc, ChannelError):
        return str(exc)
    if isinstance(exc, TimeoutError):
        return f"no answer within {SEND_TIMEOUT:g} s"
    logger.error("a channel failed to send", exc_info=exc)
    return f"an internal error of the channel ({type(exc).__name__}); see the log"
