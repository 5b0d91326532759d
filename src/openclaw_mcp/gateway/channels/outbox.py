"""Messages out: stored, then sent, in order for each conversation, and tried again until they are too old.

What is in memory is bounded (`MAX_QUEUED`). Messages on disk that are not in memory yet are a backlog: while there is
one, new messages stay on disk too, so that none overtakes an older one of its conversation.
"""

import asyncio
import logging
import random
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Final, Self

from msgspec.structs import replace

from ...core.channel import ChannelBusy, ChannelError, ChannelRefused, ConversationKey, DeliveryReceipt
from ...core.errors import StoreError
from ...core.mail import NewOutboxMessage, Outbox, OutboxMessage, OutboxStatus
from ...core.sessions import now_ms
from ...net.tasks import Tasks
from .accounts import AccountKey, ChannelAccounts

logger = logging.getLogger(__name__)

RETRY_DELAYS: Final = (5.0, 25.0, 120.0, 600.0)  # seconds before the second and later attempts
MAX_ATTEMPTS: Final = len(RETRY_DELAYS) + 1
MAX_AGE_MS: Final = 24 * 3600 * 1000  # milliseconds: a message a day late confuses more than one that failed
MAX_QUEUED: Final = 5000  # messages in memory; beyond it the channels are down and a person must look
SEND_TIMEOUT: Final = 120.0  # seconds one part may take; a wedged connection must not hold a conversation
MAX_CONCURRENT_CONVERSATIONS: Final = 16  # conversations of one account that are sent to at the same time
REFILL_THRESHOLD: Final = 1000  # free places in memory before more is read from disk: not one query for each message
SWEEP_INTERVAL: Final = 30.0  # seconds between looks for what a dead process left
RETENTION_MS: Final = 30 * 24 * 3600 * 1000  # milliseconds an ended message, and its key, are kept
STORE_RETRY_DELAY: Final = 1.0  # seconds before the store is tried again


class OutboxSender:
    """`async with` it: the backlog of a crash is taken up first, and what is unsent stays on disk for the next start.

    `on_sent` is awaited before a message counts as ended.
    """

    def __init__(
        self, repository: Outbox, accounts: ChannelAccounts, *, on_sent: Callable[[OutboxMessage], Awaitable[None]]
    ) -> None:
        self._repository = repository
        self._accounts = accounts
        self._on_sent = on_sent
        self._tasks = Tasks("outbox")
        self._disconnect = accounts.available.connect(self._retry_account)
        self._queues: dict[ConversationKey, deque[OutboxMessage]] = {}
        self._queued_uids: set[str] = set()
        self._has_backlog = True
        self._deferred_count = 0
        """New messages left on disk since the backlog was last read."""
        self._refill_due = asyncio.Event()
        self._retry_now: dict[ConversationKey, asyncio.Event] = {}
        self._paused_until: dict[AccountKey, float] = {}
        self._slots: dict[AccountKey, asyncio.Semaphore] = {}
        self._waiters: dict[str, set[asyncio.Future[OutboxMessage]]] = {}

    async def __aenter__(self) -> Self:
        await self._load_backlog()
        self._tasks.loop(self._sweep, name="sweep", on_failure="restart")
        return self

    async def __aexit__(self, *_exc: object) -> None:
        self._disconnect()
        await self._tasks.aclose()

    @property
    def queue_length(self) -> int:
        return len(self._queued_uids) + self._deferred_count

    async def put(self, new: NewOutboxMessage) -> OutboxMessage:
        """Store a message and have it sent; returns the one of that key. Raises ChannelError when too many wait."""
        if self.queue_length >= MAX_QUEUED:
            raise ChannelError(f"{MAX_QUEUED} messages wait to be sent; see openclaw outbox")
        message, is_new = await self._repository.put(new)
        if not is_new:  # queued already, ended, or another process's
            return message
        if self._has_backlog:
            self._deferred_count += 1
        else:
            self._enqueue(message)
        return message

    async def wait_for_outcome(self, message: OutboxMessage, *, seconds: float) -> OutboxMessage:
        """The message once it is sent, failed or postponed; as it is when the time is up."""
        if message.status != "queued" or seconds <= 0:
            return message
        future: asyncio.Future[OutboxMessage] = asyncio.get_running_loop().create_future()
        self._waiters.setdefault(message.uid, set()).add(future)
        try:
            current = await self._repository.get(message.uid)
            # While it is queued here it has not ended, even if stored as sent: `on_sent` may still run.
            if current is None or (current.status != "queued" and message.uid not in self._queued_uids):
                return current or message
            await asyncio.wait({future}, timeout=seconds)
            return future.result() if future.done() else message
        finally:
            waiting = self._waiters.get(message.uid, set())
            waiting.discard(future)
            if not waiting:
                self._waiters.pop(message.uid, None)

    async def page(self, *, status: OutboxStatus | None, limit: int) -> Sequence[OutboxMessage]:
        """The newest messages first, without the bytes of attachments."""
        return await self._repository.page(status=status, limit=limit)

    async def retry(self, uid: str) -> OutboxMessage | None:
        """Try again now, with all its attempts before it. None: there is no such message, or it is sent."""
        message = await self._repository.get(uid)
        if message is None or message.status == "sent":
            return None
        if uid in self._queued_uids:
            self._retry_now[message.address.conversation].set()
            return message
        if self._has_backlog and message.status == "queued":
            return message  # still on disk, behind others of its conversation
        now = now_ms()
        again = replace(message, status="queued", tries=0, due_at=now, created_at=now, error=None)
        await self._repository.update(again)
        self._enqueue(again)
        return again

    async def drop(self, uid: str) -> bool:
        for queue in self._queues.values():
            waiting = next((message for message in list(queue)[1:] if message.uid == uid), None)
            if waiting is not None:
                queue.remove(waiting)
                self._queued_uids.discard(uid)
        return await self._repository.drop(uid)

    def _retry_account(self, account: AccountKey) -> None:
        """The channel is back: what was postponed is tried now."""
        self._paused_until.pop(account, None)
        for conversation, event in self._retry_now.items():
            if conversation[:2] == account:
                event.set()

    # ---- queues --------------------------------------------------------------------------------------------------

    def _enqueue(self, message: OutboxMessage) -> None:
        if message.uid in self._queued_uids:
            return
        self._queued_uids.add(message.uid)
        conversation = message.address.conversation
        if conversation in self._queues:
            self._queues[conversation].append(message)
            return
        self._queues[conversation] = deque([message])
        self._retry_now[conversation] = asyncio.Event()
        self._tasks.spawn(self._process_queue(conversation), name=f"conversation on {conversation[0]}")

    async def _process_queue(self, conversation: ConversationKey) -> None:
        """Send what waits for one conversation, oldest first; the next only when the one before has ended.

        No failure may end this task: messages are only appended to a queue that exists, so its conversation would get
        nothing until the next start.
        """
        waiting = self._queues[conversation]
        slot = self._slots.setdefault(conversation[:2], asyncio.Semaphore(MAX_CONCURRENT_CONVERSATIONS))
        while waiting:
            message = waiting[0]
            await self._wait_until_due(message)
            try:
                async with slot:
                    tried = await self._attempt(message)
            except Exception as exc:  # noqa: BLE001  (logged there)
                await _pause_after(exc, "message %s not processed", message)
                continue
            if tried is not None and tried.status == "queued":
                waiting[0] = tried
                self._notify_waiters(tried)
                continue
            waiting.popleft()
            self._queued_uids.discard(message.uid)
            if self._has_backlog and len(self._queued_uids) <= MAX_QUEUED - REFILL_THRESHOLD:
                self._refill_due.set()
            if tried is not None:
                self._notify_waiters(tried)
        del self._queues[conversation], self._retry_now[conversation]

    async def _wait_until_due(self, message: OutboxMessage) -> None:
        conversation = message.address.conversation
        retry_now = self._retry_now[conversation]
        retry_now.clear()
        pause = self._paused_until.get(conversation[:2], 0.0) - asyncio.get_running_loop().time()
        wait = max((message.due_at - now_ms()) / 1000, pause)
        if wait > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await retry_now.wait()

    def _notify_waiters(self, message: OutboxMessage) -> None:
        for future in self._waiters.get(message.uid, ()):
            if not future.done():
                future.set_result(message)

    # ---- one message ---------------------------------------------------------------------------------------------

    async def _attempt(self, message: OutboxMessage) -> OutboxMessage | None:
        """The message as it is after the attempt. None: it was dropped meanwhile."""
        if message.tries and await self._repository.get(message.uid) is None:
            return None
        parts = 1 if message.poll is not None else len(message.parts)
        try:
            while len(message.receipts) < parts:
                receipt = await self._send_part(message, len(message.receipts))
                message = replace(message, receipts=(*message.receipts, receipt))
                if len(message.receipts) < parts:
                    await self._save_progress(message)
            message = replace(message, status="sent", error=None)
        except ChannelBusy as exc:
            pause = asyncio.get_running_loop().time() + exc.retry_after
            self._paused_until[message.address.conversation[:2]] = pause
            message = _postpone(message, str(exc), seconds=exc.retry_after, tries=message.tries)
        except ChannelRefused as exc:
            message = _give_up(message, str(exc))
        except Exception as exc:  # noqa: BLE001  (a channel's bug must not stop the messages of others)
            # While the channel itself does not work, failing to send does not count as an attempt.
            tries = message.tries + int(self._accounts.is_stable(message.address))
            message = _postpone(message, _error_text(exc), seconds=_retry_delay(message.tries), tries=tries)
        await self._save_progress(message)
        if message.status == "sent":
            try:
                await self._on_sent(message)
            except Exception:  # it is delivered: another attempt would send it twice
                logger.exception("outbox: message %s is sent, but not copied to its transcript", message.uid)
        return message

    async def _send_part(self, message: OutboxMessage, number: int) -> DeliveryReceipt:
        channel = self._accounts.find_channel(message.address)
        if channel is None:
            raise ChannelError(f"channel {message.address.channel}, account {message.address.account}, is not running")
        key = f"{message.uid}.{number}"
        async with asyncio.timeout(SEND_TIMEOUT):
            if message.poll is not None:
                return await channel.send_poll(message.address, message.poll, key=key)
            return await channel.send(message.address, message.parts[number], key=key)

    async def _save_progress(self, message: OutboxMessage) -> None:
        """Nothing more is sent before this is on disk: a crash would send the part, or the message, again."""
        while True:
            try:
                return await self._repository.update(message)
            except Exception as exc:  # noqa: BLE001  (logged there)
                await _pause_after(exc, "progress of message %s not stored", message)

    # ---- the backlog ---------------------------------------------------------------------------------------------

    async def _sweep(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(SWEEP_INTERVAL):
                await self._refill_due.wait()
        try:
            await self._load_backlog()
            await self._repository.prune(before=now_ms() - RETENTION_MS)
        except Exception:
            self._refill_due.set()  # the next sweep must not wait for its interval
            raise

    async def _load_backlog(self) -> None:
        """Read what waits on disk, as far as there is room; until all is read, new messages wait there too."""
        self._refill_due.clear()
        after = 0
        while True:
            self._deferred_count = 0
            page = await self._repository.adopt(after=after)
            for message in page:
                self._enqueue(message)
                after = message.id
            if len(self._queued_uids) >= MAX_QUEUED:
                self._has_backlog = True
                return
            if not page and not self._deferred_count:
                self._has_backlog = False
                self._refill_due.clear()
                return


def _postpone(message: OutboxMessage, reason: str, *, seconds: float, tries: int) -> OutboxMessage:
    if tries >= MAX_ATTEMPTS:
        return _give_up(message, f"{reason} (tried {tries} times)")
    if now_ms() - message.created_at > MAX_AGE_MS:
        return _give_up(message, f"{reason} (a day old)")
    logger.info("outbox: message %s postponed (%s), next attempt in %.0f s", message.uid, reason, seconds)
    return replace(message, tries=tries, due_at=now_ms() + int(seconds * 1000), error=reason)


def _give_up(message: OutboxMessage, reason: str) -> OutboxMessage:
    logger.warning("outbox: message %s failed (%s), see openclaw outbox", message.uid, reason)
    return replace(message, status="failed", tries=message.tries + 1, error=reason)


async def _pause_after(exc: Exception, event: str, message: OutboxMessage) -> None:
    text = f"outbox: {event} (%s), next attempt in %g s"
    logger.warning(text, message.uid, exc, STORE_RETRY_DELAY, exc_info=not isinstance(exc, StoreError))
    await asyncio.sleep(STORE_RETRY_DELAY)


def _retry_delay(tries: int) -> float:
    wait = RETRY_DELAYS[min(tries, len(RETRY_DELAYS) - 1)]
    return wait * random.uniform(0.8, 1.2)  # noqa: S311 - spreads load, guards nothing


def _error_text(exc: Exception) -> str:
    if isinstance(exc, ChannelError):
        return str(exc)
    if isinstance(exc, TimeoutError):
        return f"no answer within {SEND_TIMEOUT:g} s"
    logger.error("outbox: a channel failed to send", exc_info=exc)
    return f"an internal error of the channel ({type(exc).__name__}); see the log"
