"""Messages in: on disk, then handled, in order for each conversation.

`receive` returns when a message is stored: only then does its channel acknowledge it. What is in memory is bounded
(`MAX_IN_MEMORY`); beyond it channels wait. After a crash, entries that are not complete are read back in order; until
that is done, what arrives is only stored, so that it does not overtake them, and read back in its turn.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Self

from ...core.channel import ChannelError, ChannelRefused, ConversationKey, InboundMessage
from ...core.chat_commands import is_urgent
from ...core.config.config import Config
from ...core.errors import StoreError
from ...core.mail import Inbox, InboxEntry
from ...core.sessions import now_ms
from ...net.tasks import Tasks
from . import inbound_rules
from .inbound_handler import InboundHandler
from .replying import PendingReply, ReplySender

logger = logging.getLogger(__name__)

MAX_IN_MEMORY: Final = 5000  # entries in memory; beyond it channels wait, and what they received is on disk already
STORE_RETRY_DELAY: Final = 1.0  # seconds before the store is tried again
PRUNE_INTERVAL: Final = 3600.0  # seconds between deletions of old ids
RETENTION_MS: Final = 14 * 24 * 3600 * 1000  # milliseconds an id stays known; no messenger repeats a message that late


class _ConversationQueue:
    """What waits in one conversation."""

    def __init__(self) -> None:
        self.entries: deque[InboxEntry] = deque()
        self._available = asyncio.Event()

    def add(self, entry: InboxEntry) -> None:
        self.entries.append(entry)
        self._available.set()

    async def wait_for_entry(self, seconds: float) -> bool:
        """Whether an entry waits, now or within these seconds."""
        if not self.entries:
            self._available.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._available.wait()
        return bool(self.entries)


class InboundProcessor:
    """`async with` it: what a crash left is taken up first; what is not complete stays on disk for the next start."""

    def __init__(
        self, inbox: Inbox, handler: InboundHandler, replies: ReplySender, *, config: Callable[[], Config]
    ) -> None:
        self._inbox = inbox
        self._handler = handler
        self._replies = replies
        self._config = config
        self._tasks = Tasks("inbox")
        self._queues: dict[ConversationKey, _ConversationQueue] = {}
        self._capacity = asyncio.Semaphore(MAX_IN_MEMORY)
        self._completed_ids: list[int] = []
        self._flush_due = asyncio.Event()
        self._last_replies: dict[str, asyncio.Event] = {}
        self._stores_only = True
        """Whether `receive` leaves messages on disk: until what a crash left is read, and from closing on."""
        self._has_stored = False
        self._resume_position = 0
        self._last_id_before = 0
        """The last entry from before this start."""

    async def __aenter__(self) -> Self:
        self._last_id_before = await self._inbox.last_id()
        self._tasks.spawn(self._resume(), name="resume")
        self._tasks.loop(self._flush_completed, name="completion writer", on_failure="restart")
        self._tasks.loop(self._prune, name="pruning", on_failure="restart")
        return self

    async def __aexit__(self, *_exc: object) -> None:
        self._stores_only = True
        await self._tasks.aclose()
        if self._completed_ids:
            try:
                await self._inbox.mark_complete(self._completed_ids)
            except StoreError as exc:  # the next start handles them again, to the same end
                logger.warning("inbox: completed entries not stored (%s), the next start repeats them", exc)

    async def receive(self, message: InboundMessage) -> None:
        """A channel's `OnMessage`."""
        entry = await self._inbox.add(message)
        if entry is None:
            logger.debug("inbox: message %s of %s was received before", message.id, message.address.channel)
            return
        if self._stores_only or entry.id <= self._resume_position:
            self._has_stored = True
            return
        await self._capacity.acquire()
        if is_urgent(message.text):  # must not wait behind what it is to stop
            self._tasks.spawn(self._process(entry), name=f"entry {entry.id}")
        else:
            self._enqueue(entry)

    async def _resume(self) -> None:
        """Read back what is not complete, in order, as fast as it is handled."""
        while self._stores_only:
            self._has_stored = False
            try:
                page = await self._inbox.pending(after=self._resume_position)
            except Exception as exc:  # noqa: BLE001  (if this ended, every later message would only be stored)
                await _pause_after(exc, "entries not read")
                continue
            for entry in page:
                await self._capacity.acquire()
                self._resume_position = entry.id
                self._enqueue(entry)
            self._stores_only = bool(page) or self._has_stored

    # ---- queues --------------------------------------------------------------------------------------------------

    def _enqueue(self, entry: InboxEntry) -> None:
        conversation = entry.message.address.conversation
        if conversation in self._queues:
            self._queues[conversation].add(entry)
            return
        self._queues[conversation] = _ConversationQueue()
        self._queues[conversation].add(entry)
        self._tasks.spawn(self._process_queue(conversation), name=f"conversation on {conversation[0]}")

    async def _process_queue(self, conversation: ConversationKey) -> None:
        """No failure may end this task: entries are only added to a queue that exists, so its conversation would get
        no answer until the next start."""
        queue = self._queues[conversation]
        while queue.entries:
            first = queue.entries.popleft()
            try:
                entry = await self._coalesce(first, queue)
            except Exception:
                logger.exception("inbox: entry %d not joined with later ones, it is handled alone", first.id)
                entry = first
            await self._process(entry)
        del self._queues[conversation]

    async def _coalesce(self, first: InboxEntry, queue: _ConversationQueue) -> InboxEntry:
        """`first`, with what the same person adds before a pause, a command or another person's message."""
        wait = inbound_rules.debounce_seconds(self._config().messages.inbound, first.message.address.channel)
        # What a crash left may be submitted already: nothing is added to it.
        if not wait or first.id <= self._last_id_before or not inbound_rules.accepts_more(first.message):
            return first
        others: list[InboxEntry] = []
        try:
            while len(others) + 1 < inbound_rules.MAX_COALESCED and await queue.wait_for_entry(wait):
                if not inbound_rules.is_continuation(first.message, queue.entries[0].message):
                    break
                others.append(queue.entries.popleft())
            if not others:
                return first
            whole = inbound_rules.coalesce_messages([first.message, *(other.message for other in others)])
            await self._inbox.merge(first.id, whole, others=[other.id for other in others])
        except Exception:
            queue.entries.extendleft(reversed(others))
            raise
        for _ in others:
            self._capacity.release()
        return InboxEntry(id=first.id, message=whole, status="new")

    async def _process(self, entry: InboxEntry) -> None:
        """Handle it; a failure of one message does not keep the next from its turn."""
        try:
            while True:
                try:
                    reply = await self._handler.handle(entry)
                    break
                except StoreError as exc:
                    await _pause_after(exc, f"entry {entry.id} not handled")
            if reply is None:
                self._complete(entry.id)
            else:
                self._schedule_reply(reply)
        except Exception:
            logger.exception("inbox: entry %d not handled, the next start tries again", entry.id)
        finally:
            self._capacity.release()

    # ---- replies -------------------------------------------------------------------------------------------------

    def _schedule_reply(self, reply: PendingReply) -> None:
        """Replies of one session are sent in the order of its messages."""
        previous, done = self._last_replies.get(reply.session), asyncio.Event()
        self._last_replies[reply.session] = done
        self._tasks.spawn(self._send_reply(reply, previous, done), name=f"reply of run {reply.run_id}")

    async def _send_reply(self, reply: PendingReply, previous: asyncio.Event | None, done: asyncio.Event) -> None:
        try:
            while True:
                try:
                    await self._replies.send(reply, after=previous)
                    break
                except ChannelRefused as exc:
                    logger.error("inbox: reply to entry %d refused (%s), dropped", reply.entry_id, exc)  # noqa: TRY400
                    break
                except (StoreError, ChannelError) as exc:
                    await _pause_after(exc, f"reply to entry {reply.entry_id} not stored")
            self._complete(reply.entry_id)
        finally:
            done.set()
            if self._last_replies.get(reply.session) is done:
                del self._last_replies[reply.session]

    # ---- the store -----------------------------------------------------------------------------------------------

    def _complete(self, entry_id: int) -> None:
        self._completed_ids.append(entry_id)
        self._flush_due.set()

    async def _flush_completed(self) -> None:
        """Store what is complete, as many as there are by now in one write."""
        await self._flush_due.wait()
        self._flush_due.clear()
        ids, self._completed_ids = self._completed_ids, []
        try:
            await self._inbox.mark_complete(ids)
        except BaseException:  # cancelled too: closing stores what is left
            self._completed_ids = ids + self._completed_ids
            self._flush_due.set()
            raise

    async def _prune(self) -> None:
        await self._inbox.prune(before=now_ms() - RETENTION_MS)
        await asyncio.sleep(PRUNE_INTERVAL)


async def _pause_after(exc: Exception, event: str) -> None:
    text = "inbox: %s (%s), next attempt in %g s"
    logger.warning(text, event, exc, STORE_RETRY_DELAY, exc_info=not isinstance(exc, StoreError))
    await asyncio.sleep(STORE_RETRY_DELAY)
