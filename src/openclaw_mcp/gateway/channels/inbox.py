"""Messages in: on disk, then judged, routed and given to an agent, in order for each conversation."""

import asyncio
import contextlib
import hashlib
import logging
import secrets
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Self

import msgspec
from msgspec import Struct

from ...core.agent import Attachment
from ...core.agents import AgentRoster
from ...core.channel import ChannelError, ChannelRefused, ChatAddress, InboundMessage
from ...core.config.channels import ChannelRules
from ...core.config.config import Config
from ...core.errors import StoreError
from ...core.mail import Inbox, InboxEntry, SenderApproval, SenderApprovalRepository
from ...core.model import Grant
from ...core.owner import is_owner
from ...core.ports import RunExecutor
from ...core.repositories import SessionRepository
from ...core.rpc import RpcError
from ...core.sessions import NewSession, QueueMode, RunOptions, RunRequest, now_ms
from . import access, coalescing, commands
from .routing import session_for

logger = logging.getLogger(__name__)

MAX_IN_MEMORY: Final = 5000  # arrivals in memory; beyond it channels wait, and what they hear is on disk already
QUEUE_RETRY_DELAY: Final = 0.5  # seconds before a session whose queue is full is asked again
STORE_RETRY_DELAY: Final = 1.0  # seconds before the disk is asked again
PURGE_INTERVAL: Final = 3600.0  # seconds between looks at what may be forgotten
RETENTION_MS: Final = (
    14 * 24 * 3600 * 1000
)  # milliseconds an id stays known; no messenger tells a message again that late
PAIRING_CODE_ALPHABET: Final = "ABCDEFGHJKLMNPQRSTUVWXYZ23456789"  # none that look like another
PAIRING_CODE_LENGTH: Final = 8
PAIRING_CODE_TTL_MS: Final = 3600 * 1000  # milliseconds a pairing code is good for
MAX_PENDING_PAIRINGS: Final = 3  # unknown senders that may wait for one account: codes are not to be fished for
MAX_RUN_ID_LENGTH: Final = 200

InboundKey = tuple[str, str, str]


class InboundDependencies(Struct, frozen=True, kw_only=True):
    """What the inbound path needs of the house."""

    inbox: Inbox
    sender_approvals: SenderApprovalRepository
    sessions: SessionRepository
    runner: RunExecutor
    roster: Callable[[], AgentRoster]
    config: Callable[[], Config]
    rules_for: Callable[[ChatAddress], ChannelRules | None]
    """What an account follows; None: it is no longer there."""
    reset_session: Callable[[str], Awaitable[object]]
    """Begin a session anew."""
    send_notice: Callable[[ChatAddress, str, str], Awaitable[None]]
    """Send a text of our own: address, text, idempotency key."""
    send_reply: Callable[[InboxEntry, asyncio.Event | None], Awaitable[None]]
    """Wait for an asked run and send its answer, not before the event; returns when that is in the outbox."""
    fetch_attachments: Callable[[InboundMessage], Awaitable[tuple[Attachment, ...]]]
    """The files a message named; asked for only once its sender was let in."""
    save_route: Callable[[str, ChatAddress], Awaitable[None]]
    """Remember where the person behind a session is."""


def run_id_of(message: InboundMessage) -> str:
    """The run that answers a message: the same however often it is told."""
    id = f"{message.address.channel}:{message.address.account}:{message.id}"
    return (
        id if len(id) <= MAX_RUN_ID_LENGTH else f"{message.address.channel}:{hashlib.sha256(id.encode()).hexdigest()}"
    )


class _ConversationQueue:
    """What waits in one conversation."""

    def __init__(self) -> None:
        self.entries: deque[InboxEntry] = deque()
        self._available = asyncio.Event()

    def add(self, entry: InboxEntry) -> None:
        self.entries.append(entry)
        self._available.set()

    async def wait_for_entry(self, seconds: float) -> bool:
        """Whether something waits, now or within these seconds."""
        if not self.entries:
            self._available.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._available.wait(), seconds)
        return bool(self.entries)


class InboundProcessor:
    """`async with` it: what a crash left is taken up first."""

    def __init__(self, dependencies: InboundDependencies) -> None:
        self._dependencies = dependencies
        self._queues: dict[InboundKey, _ConversationQueue] = {}
        self._capacity = asyncio.Semaphore(MAX_IN_MEMORY)
        self._tasks: set[asyncio.Task[None]] = set()
        self._done_ids: list[int] = []
        self._flush_due = asyncio.Event()
        self._approved_senders: dict[tuple[str, str], set[str]] = {}
        self._pending_replies: dict[str, asyncio.Event] = {}
        self._is_resuming, self._resume_position, self._has_new_entries = True, 0, False

    async def __aenter__(self) -> Self:
        await self.reload_approved_senders()
        self._start_task(self._resume())
        self._start_task(self._flush_done_ids())
        self._start_task(self._purge_periodically())
        return self

    async def __aexit__(self, *_exc: object) -> None:
        """What is not done stays on disk for the next start."""
        self._is_resuming = True  # from here on what is heard is stored and no more
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._done_ids:
            try:
                await self._dependencies.inbox.mark_complete(self._done_ids)
            except StoreError as exc:  # they are judged again at the next start, to the same end
                logger.warning("inbox: what is done can't be noted: %s", exc)

    async def reload_approved_senders(self) -> None:
        """Read anew who was let in."""
        approved: dict[tuple[str, str], set[str]] = {}
        for person in await self._dependencies.sender_approvals.all():
            if person.approved:
                approved.setdefault((person.channel, person.account), set()).add(person.sender)
        self._approved_senders = approved

    async def receive(self, message: InboundMessage) -> None:
        """A channel's `Hear`."""
        arrival = await self._dependencies.inbox.add(message)
        if arrival is None:
            logger.debug("%s told message %s again", message.address.channel, message.id)
            return
        if (
            self._is_resuming or arrival.id <= self._resume_position
        ):  # older ones have their turn first; then it is read back
            self._has_new_entries = True
            return
        await self._capacity.acquire()
        if commands.is_urgent(message.text):  # must not wait behind what it is to stop
            self._start_task(self._process(arrival))
        else:
            self._enqueue(arrival)

    async def _resume(self) -> None:
        """Take up what the last process left, in order, as fast as it is worked off."""
        while self._is_resuming:
            self._has_new_entries = False
            try:
                page = await self._dependencies.inbox.pending(after=self._resume_position)
            except StoreError as exc:
                logger.warning("inbox: can't be read now: %s", exc)
                await asyncio.sleep(STORE_RETRY_DELAY)
                continue
            for arrival in page:
                await self._capacity.acquire()
                self._resume_position = arrival.id
                self._enqueue(arrival)
            self._is_resuming = bool(page) or self._has_new_entries

    # ---- lanes ---------------------------------------------------------------------------------------------------

    def _start_task(self, coroutine: "asyncio._CoroutineLike[None]") -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _enqueue(self, entry: InboxEntry) -> None:
        address = entry.message.address
        place = address.channel, address.account, address.to
        if place in self._queues:
            self._queues[place].add(entry)
            return
        self._queues[place] = _ConversationQueue()
        self._queues[place].add(entry)
        self._start_task(self._process_queue(place))

    async def _process_queue(self, key: InboundKey) -> None:
        lane = self._queues[key]
        while lane.entries:
            await self._process(await self._coalesce_next(lane))
        del self._queues[key]

    async def _coalesce_next(self, queue: "_ConversationQueue") -> InboxEntry:
        """The next one, with what the same person adds before they pause, and before an order or somebody else."""
        waiting = queue.entries
        first = waiting.popleft()
        wait = coalescing.debounce_seconds(self._dependencies.config().messages.inbound, first.message.address.channel)
        # What a crash left may be with an agent already: nothing is added to it.
        if not wait or first.id <= self._resume_position or not coalescing.accepts_more(first.message):
            return first
        parts = [first]
        while len(parts) < coalescing.MAX_COALESCED and await queue.wait_for_entry(wait):
            if not coalescing.is_continuation(first.message, waiting[0].message):
                break
            parts.append(waiting.popleft())
        return await self._join_entries(parts, waiting)

    async def _join_entries(self, parts: Sequence[InboxEntry], waiting: deque[InboxEntry]) -> InboxEntry:
        """Joined, on disk too."""
        first, *others = parts
        if not others:
            return first
        whole = coalescing.coalesce_messages([part.message for part in parts])
        try:
            await self._dependencies.inbox.merge(first.id, whole, others=[part.id for part in others])
        except StoreError as exc:
            logger.warning("inbox: messages can't be joined now, each is taken by itself: %s", exc)
            waiting.extendleft(reversed(others))
            return first
        for _ in others:
            self._capacity.release()
        return InboxEntry(id=first.id, message=whole, status="new")

    async def _process(self, entry: InboxEntry) -> None:
        """Judge it and hand it on; whatever is wrong with one message, the next has its turn."""
        try:
            while True:
                try:
                    await self._handle(entry)
                except StoreError as exc:
                    logger.warning("inbox %d: can't be worked on now: %s", entry.id, exc)
                    await asyncio.sleep(STORE_RETRY_DELAY)
                else:
                    return
        except Exception:
            # Kept as it is: the next start tries again.
            logger.exception("inbox %d: could not be worked on", entry.id)
        finally:
            self._capacity.release()

    def _mark_done(self, entry: InboxEntry) -> None:
        self._done_ids.append(entry.id)
        self._flush_due.set()

    async def _flush_done_ids(self) -> None:
        """Note what is done, as many as there are by now in one write."""
        while True:
            await self._flush_due.wait()
            self._flush_due.clear()
            ids, self._done_ids = self._done_ids, []
            try:
                await self._dependencies.inbox.mark_complete(ids)
            except StoreError as exc:
                logger.warning("inbox: what is done can't be noted now: %s", exc)
                self._done_ids = ids + self._done_ids
                self._flush_due.set()
                await asyncio.sleep(STORE_RETRY_DELAY)

    async def _purge_periodically(self) -> None:
        while True:
            try:
                await self._dependencies.inbox.prune(before=now_ms() - RETENTION_MS)
            except StoreError as exc:
                logger.warning("inbox: can't be looked after now: %s", exc)
            await asyncio.sleep(PURGE_INTERVAL)

    # ---- one message ---------------------------------------------------------------------------------------------

    async def _handle(self, entry: InboxEntry) -> None:
        heard = entry.message
        if entry.status == "asked":
            self._schedule_reply(entry)
            return
        rules = self._dependencies.rules_for(heard.address)
        if rules is None:
            logger.info("a message for %s, which is no longer configured", heard.address.channel)
            self._mark_done(entry)
            return
        owners = self._dependencies.config().commands.owner_allow_from
        owner = is_owner(heard.sender, owners, channel=heard.address.channel, vouched=heard.vouched)
        approved = self._approved_senders.get((heard.address.channel, heard.address.account), set())
        verdict = access.check_access(heard, rules, owner=owner, approved=approved)
        if verdict.outcome == "in":
            await self._submit_to_agent(entry, owner=owner)
            return
        if verdict.outcome == "pair":
            await self._send_pairing_code(heard)
        if verdict.outcome != "listen":
            logger.info("%s message not taken: %s", heard.address.channel, verdict.reason)
        self._mark_done(entry)

    async def _submit_to_agent(self, entry: InboxEntry, *, owner: bool) -> None:
        heard = entry.message
        session = session_for(heard, self._dependencies.config(), self._dependencies.roster(), owner=owner)
        run_id = run_id_of(heard)
        command = commands.parse_command(heard.text)
        if (
            command is not None
            and command.name in commands.OWNER_COMMANDS
            and _is_shared_session(heard, session, owner=owner)
        ):
            await self._dependencies.send_notice(heard.address, commands.OWNER_ONLY_REPLY, f"command:{run_id}")
            self._mark_done(entry)
            return
        if command is not None:
            said = await commands.execute_command(
                command, heard, session.key, self._dependencies.runner, self._dependencies.reset_session
            )
            await self._dependencies.send_notice(heard.address, said, f"command:{run_id}")
            if not command.rest:
                self._mark_done(entry)
                return
        text = heard.text if command is None else command.rest
        if not text.strip() and not heard.attachments and not heard.files:
            self._mark_done(entry)
            return
        run_id = await self._submit_run(heard, session, text, run_id, owner=owner)
        await self._dependencies.save_route(session.key, heard.address)
        await self._dependencies.inbox.link_run(entry.id, run_id=run_id, session=session.key)
        asked = InboxEntry(id=entry.id, message=heard, status="asked", run_id=run_id, session=session.key)
        self._schedule_reply(asked)

    async def _submit_run(
        self, message: InboundMessage, session: NewSession, text: str, run_id: str, *, owner: bool
    ) -> str:
        """Once: the run's id, returned, is the message's. While the session's queue is full, all behind waits too."""
        mode = self._dependencies.config().messages.queue_mode
        sent_mode: QueueMode = mode if mode in ("steer", "followup", "interrupt") else "collect"
        options = RunOptions(
            sender=message.sender.name or message.sender.id,
            grant=message_grant(message, owner=owner),
            answers_in_conversation=True,
        )
        files = (
            (*message.attachments, *await self._dependencies.fetch_attachments(message))
            if message.files
            else message.attachments
        )
        request = RunRequest(
            run_id=run_id, session=session, attachments=files, mode=sent_mode, options=options,
            message=_with_sender_name(message, text, shared=_is_shared_session(message, session, owner=owner)),
        )  # fmt: skip
        while True:
            try:
                admission = await self._dependencies.runner.submit(request)
            except RpcError as fault:
                if not fault.retryable:
                    raise
                await asyncio.sleep(QUEUE_RETRY_DELAY)
                continue
            if admission.run.session_key == session.key:
                return request.run_id
            # Somebody else's run has the id: the message is answered all the same.
            request = msgspec.structs.replace(request, run_id=f"{run_id[:MAX_RUN_ID_LENGTH]}:{secrets.token_hex(8)}")

    def _schedule_reply(self, entry: InboxEntry) -> None:
        """Have it answered. Answers of one session leave in the order of the questions."""
        session = entry.session or ""
        before, mine = self._pending_replies.get(session), asyncio.Event()
        self._pending_replies[session] = mine
        self._start_task(self._reply_in_order(entry, before, mine))

    async def _reply_in_order(
        self, entry: InboxEntry, previous_reply: asyncio.Event | None, this_reply: asyncio.Event
    ) -> None:
        try:
            await self._reply(entry, previous_reply)
        finally:
            this_reply.set()
            if self._pending_replies.get(entry.session or "") is this_reply:
                del self._pending_replies[entry.session or ""]

    async def _reply(self, entry: InboxEntry, previous_reply: asyncio.Event | None) -> None:
        while True:
            try:
                await self._dependencies.send_reply(entry, previous_reply)
            except ChannelRefused as exc:
                logger.error("inbox %d: its answer can't be sent: %s", entry.id, exc)  # noqa: TRY400  (a sentence)
                self._mark_done(entry)
                return
            except (StoreError, ChannelError) as exc:
                logger.warning("inbox %d: its answer can't be stored now: %s", entry.id, exc)
                await asyncio.sleep(STORE_RETRY_DELAY)
            except Exception:
                logger.exception("inbox %d: could not be answered", entry.id)
                return
            else:
                self._mark_done(entry)
                return

    async def _send_pairing_code(self, message: InboundMessage) -> None:
        if message.sender.id is None:
            return
        code = "".join(secrets.choice(PAIRING_CODE_ALPHABET) for _ in range(PAIRING_CODE_LENGTH))
        where = message.address
        who = SenderApproval(
            channel=where.channel, account=where.account, sender=message.sender.id,
            name=message.sender.name or message.sender.username, code=code, at=now_ms(),
        )  # fmt: skip
        stands, fresh = await self._dependencies.sender_approvals.request(
            who, max_pending=MAX_PENDING_PAIRINGS, since=now_ms() - PAIRING_CODE_TTL_MS
        )
        if stands is not None and fresh:
            words = (
                f"I don't know you yet. Your pairing code is {stands.code}. The owner lets you in with\n"
                f"openclaw channels pairing approve {where.channel} {stands.code}"
            )
            await self._dependencies.send_notice(where, words, f"pairing:{where.channel}:{where.account}:{stands.code}")


def message_grant(message: InboundMessage, *, owner: bool) -> Grant:
    """For whom and where a run answers a message."""
    where = message.address
    return Grant(
        channel=where.channel, account=where.account, to=where.to, thread=where.thread, space=message.space,
        group=None if message.chat == "direct" else where.to, sender=message.sender, owner=owner,
    )  # fmt: skip


def _is_shared_session(message: InboundMessage, session: NewSession, *, owner: bool) -> bool:
    """Whether somebody else speaks in the owner's own session."""
    return not owner and message.chat == "direct" and ":direct:" not in session.key


def _with_sender_name(message: InboundMessage, text: str, *, shared: bool) -> str:
    """In a group, and in a session `shared` with the owner, the agent must know who speaks."""
    if message.chat == "direct" and not shared:
        return text
    return f"{message.sender.name or message.sender.username or message.sender.id or 'somebody'}: {text}"
