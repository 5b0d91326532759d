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
from ...core.agents import Roster
from ...core.channel import Address, ChannelError, ChannelRefused, Heard
from ...core.errors import StoreError
from ...core.mail import Acquaintance, Arrival, Inbox, People
from ...core.model import Grant, Json
from ...core.owner import is_owner
from ...core.ports import Runner
from ...core.repositories import SessionBook
from ...core.rpc import Fault
from ...core.sessions import NewSession, QueueMode, RunRequest, now_ms
from ...core.transcript import ANSWERS_THERE
from . import access, coalescing, commands
from .routing import session_for
from .settings import Rules

logger = logging.getLogger(__name__)

MOST_IN_HAND: Final = 5000  # arrivals in memory; beyond it channels wait, and what they hear is on disk already
BUSY_WAIT: Final = 0.5  # seconds before a session whose queue is full is asked again
DISK_WAIT: Final = 1.0  # seconds before the disk is asked again
ROUND: Final = 3600.0  # seconds between looks at what may be forgotten
KEPT: Final = 14 * 24 * 3600 * 1000  # milliseconds an id stays known; no messenger tells a message again that late
CODE_LETTERS: Final = "ABCDEFGHJKLMNPQRSTUVWXYZ23456789"  # none that look like another
CODE_LENGTH: Final = 8
CODE_AGE: Final = 3600 * 1000  # milliseconds a pairing code is good for
MOST_ASKING: Final = 3  # unknown senders that may wait for one account: codes are not to be fished for
LONGEST_RUN_ID: Final = 200

Place = tuple[str, str, str]


class Around(Struct, frozen=True, kw_only=True):
    """What the inbound path needs of the house."""

    inbox: Inbox
    people: People
    sessions: SessionBook
    runner: Runner
    roster: Callable[[], Roster]
    config: Callable[[], Json]
    rules: Callable[[Address], Rules | None]
    """What an account follows; None: it is no longer there."""
    reset: Callable[[str], Awaitable[object]]
    """Begin a session anew."""
    tell: Callable[[Address, str, str], Awaitable[None]]
    """Send a text of our own: address, text, idempotency key."""
    answer: Callable[[Arrival, asyncio.Event | None], Awaitable[None]]
    """Wait for an asked run and send its answer, not before the event; returns when that is in the outbox."""
    fetch: Callable[[Heard], Awaitable[tuple[Attachment, ...]]]
    """The files a message named; asked for only once its sender was let in."""
    routed: Callable[[str, Address], Awaitable[None]]
    """Remember where the person behind a session is."""


def run_id_of(heard: Heard) -> str:
    """The run that answers a message: the same however often it is told."""
    id = f"{heard.address.channel}:{heard.address.account}:{heard.id}"
    return id if len(id) <= LONGEST_RUN_ID else f"{heard.address.channel}:{hashlib.sha256(id.encode()).hexdigest()}"


class _Lane:
    """What waits in one conversation."""

    def __init__(self) -> None:
        self.waiting: deque[Arrival] = deque()
        self._came = asyncio.Event()

    def add(self, arrival: Arrival) -> None:
        self.waiting.append(arrival)
        self._came.set()

    async def comes(self, seconds: float) -> bool:
        """Whether something waits, now or within these seconds."""
        if not self.waiting:
            self._came.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._came.wait(), seconds)
        return bool(self.waiting)


class Receiving:
    """`async with` it: what a crash left is taken up first."""

    def __init__(self, around: Around) -> None:
        self._around = around
        self._lanes: dict[Place, _Lane] = {}
        self._room = asyncio.Semaphore(MOST_IN_HAND)
        self._tasks: set[asyncio.Task[None]] = set()
        self._finished: list[int] = []
        self._finish = asyncio.Event()
        self._approved: dict[tuple[str, str], set[str]] = {}
        self._answering: dict[str, asyncio.Event] = {}
        self._resuming, self._resumed_to, self._came = True, 0, False

    async def __aenter__(self) -> Self:
        await self.look_at_people()
        self._own(self._resume())
        self._own(self._finishing())
        self._own(self._rounds())
        return self

    async def __aexit__(self, *_exc: object) -> None:
        """What is not done stays on disk for the next start."""
        self._resuming = True  # from here on what is heard is stored and no more
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._finished:
            try:
                await self._around.inbox.done(self._finished)
            except StoreError as exc:  # they are judged again at the next start, to the same end
                logger.warning("inbox: what is done can't be noted: %s", exc)

    async def look_at_people(self) -> None:
        """Read anew who was let in."""
        approved: dict[tuple[str, str], set[str]] = {}
        for person in await self._around.people.all():
            if person.approved:
                approved.setdefault((person.channel, person.account), set()).add(person.sender)
        self._approved = approved

    async def hear(self, heard: Heard) -> None:
        """A channel's `Hear`."""
        arrival = await self._around.inbox.hear(heard)
        if arrival is None:
            logger.debug("%s told message %s again", heard.address.channel, heard.id)
            return
        if self._resuming or arrival.id <= self._resumed_to:  # older ones have their turn first; then it is read back
            self._came = True
            return
        await self._room.acquire()
        if commands.is_urgent(heard.text):  # must not wait behind what it is to stop
            self._own(self._work_off(arrival))
        else:
            self._enqueue(arrival)

    async def _resume(self) -> None:
        """Take up what the last process left, in order, as fast as it is worked off."""
        while self._resuming:
            self._came = False
            try:
                page = await self._around.inbox.pending(after=self._resumed_to)
            except StoreError as exc:
                logger.warning("inbox: can't be read now: %s", exc)
                await asyncio.sleep(DISK_WAIT)
                continue
            for arrival in page:
                await self._room.acquire()
                self._resumed_to = arrival.id
                self._enqueue(arrival)
            self._resuming = bool(page) or self._came

    # ---- lanes ---------------------------------------------------------------------------------------------------

    def _own(self, work: "asyncio._CoroutineLike[None]") -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _enqueue(self, arrival: Arrival) -> None:
        address = arrival.heard.address
        place = address.channel, address.account, address.to
        if place in self._lanes:
            self._lanes[place].add(arrival)
            return
        self._lanes[place] = _Lane()
        self._lanes[place].add(arrival)
        self._own(self._drive(place))

    async def _drive(self, place: Place) -> None:
        lane = self._lanes[place]
        while lane.waiting:
            await self._work_off(await self._gathered(lane))
        del self._lanes[place]

    async def _gathered(self, lane: "_Lane") -> Arrival:
        """The next one, with what the same person adds before they pause, and before an order or somebody else."""
        waiting = lane.waiting
        first = waiting.popleft()
        wait = coalescing.patience(self._around.config(), first.heard.address.channel)
        # What a crash left may be with an agent already: nothing is added to it.
        if not wait or first.id <= self._resumed_to or not coalescing.opens(first.heard):
            return first
        parts = [first]
        while len(parts) < coalescing.MOST_JOINED and await lane.comes(wait):
            if not coalescing.follows(first.heard, waiting[0].heard):
                break
            parts.append(waiting.popleft())
        return await self._one(parts, waiting)

    async def _one(self, parts: Sequence[Arrival], waiting: deque[Arrival]) -> Arrival:
        """Joined, on disk too."""
        first, *others = parts
        if not others:
            return first
        whole = coalescing.joined([part.heard for part in parts])
        try:
            await self._around.inbox.join(first.id, whole, others=[part.id for part in others])
        except StoreError as exc:
            logger.warning("inbox: messages can't be joined now, each is taken by itself: %s", exc)
            waiting.extendleft(reversed(others))
            return first
        for _ in others:
            self._room.release()
        return Arrival(id=first.id, heard=whole, status="new")

    async def _work_off(self, arrival: Arrival) -> None:
        """Judge it and hand it on; whatever is wrong with one message, the next has its turn."""
        try:
            while True:
                try:
                    await self._take(arrival)
                except StoreError as exc:
                    logger.warning("inbox %d: can't be worked on now: %s", arrival.id, exc)
                    await asyncio.sleep(DISK_WAIT)
                else:
                    return
        except Exception:
            # Kept as it is: the next start tries again.
            logger.exception("inbox %d: could not be worked on", arrival.id)
        finally:
            self._room.release()

    def _done(self, arrival: Arrival) -> None:
        self._finished.append(arrival.id)
        self._finish.set()

    async def _finishing(self) -> None:
        """Note what is done, as many as there are by now in one write."""
        while True:
            await self._finish.wait()
            self._finish.clear()
            ids, self._finished = self._finished, []
            try:
                await self._around.inbox.done(ids)
            except StoreError as exc:
                logger.warning("inbox: what is done can't be noted now: %s", exc)
                self._finished = ids + self._finished
                self._finish.set()
                await asyncio.sleep(DISK_WAIT)

    async def _rounds(self) -> None:
        while True:
            try:
                await self._around.inbox.forget(before=now_ms() - KEPT)
            except StoreError as exc:
                logger.warning("inbox: can't be looked after now: %s", exc)
            await asyncio.sleep(ROUND)

    # ---- one message ---------------------------------------------------------------------------------------------

    async def _take(self, arrival: Arrival) -> None:
        heard = arrival.heard
        if arrival.status == "asked":
            self._expect(arrival)
            return
        rules = self._around.rules(heard.address)
        if rules is None:
            logger.info("a message for %s, which is no longer configured", heard.address.channel)
            self._done(arrival)
            return
        owners = self._around.config().get("commands", {}).get("ownerAllowFrom")
        owner = is_owner(heard.sender, owners, channel=heard.address.channel, vouched=heard.vouched)
        approved = self._approved.get((heard.address.channel, heard.address.account), set())
        verdict = access.judged(heard, rules, owner=owner, approved=approved)
        if verdict.outcome == "in":
            await self._give(arrival, owner=owner)
            return
        if verdict.outcome == "pair":
            await self._ask_to_pair(heard)
        if verdict.outcome != "listen":
            logger.info("%s message not taken: %s", heard.address.channel, verdict.reason)
        self._done(arrival)

    async def _give(self, arrival: Arrival, *, owner: bool) -> None:
        heard = arrival.heard
        session = session_for(heard, self._around.config(), self._around.roster(), owner=owner)
        run_id = run_id_of(heard)
        command = commands.read(heard.text)
        if command is not None and command.name in commands.OWNERS and _is_shared(heard, session, owner=owner):
            await self._around.tell(heard.address, commands.NOT_YOURS, f"command:{run_id}")
            self._done(arrival)
            return
        if command is not None:
            said = await commands.obey(command, heard, session.key, self._around.runner, self._around.reset)
            await self._around.tell(heard.address, said, f"command:{run_id}")
            if not command.rest:
                self._done(arrival)
                return
        text = heard.text if command is None else command.rest
        if not text.strip() and not heard.attachments and not heard.files:
            self._done(arrival)
            return
        run_id = await self._submit(heard, session, text, run_id, owner=owner)
        await self._around.routed(session.key, heard.address)
        await self._around.inbox.asked(arrival.id, run_id=run_id, session=session.key)
        asked = Arrival(id=arrival.id, heard=heard, status="asked", run_id=run_id, session=session.key)
        self._expect(asked)

    async def _submit(self, heard: Heard, session: NewSession, text: str, run_id: str, *, owner: bool) -> str:
        """Once: the run's id, returned, is the message's. While the session's queue is full, all behind waits too."""
        mode = self._around.config().get("messages", {}).get("queue", {}).get("mode", "collect")
        sent_mode: QueueMode = mode if mode in ("steer", "followup", "interrupt") else "collect"
        options: Json = {"sender": heard.sender.name or heard.sender.id, "grant": granted(heard, owner=owner)}
        options[ANSWERS_THERE] = True
        files = (*heard.attachments, *await self._around.fetch(heard)) if heard.files else heard.attachments
        request = RunRequest(
            run_id=run_id, session=session, attachments=files, mode=sent_mode, options=options,
            message=_worded(heard, text, shared=_is_shared(heard, session, owner=owner)),
        )  # fmt: skip
        while True:
            try:
                admission = await self._around.runner.submit(request)
            except Fault as fault:
                if not fault.retryable:
                    raise
                await asyncio.sleep(BUSY_WAIT)
                continue
            if admission.run.session_key == session.key:
                return request.run_id
            # Somebody else's run has the id: the message is answered all the same.
            request = msgspec.structs.replace(request, run_id=f"{run_id[:LONGEST_RUN_ID]}:{secrets.token_hex(8)}")

    def _expect(self, arrival: Arrival) -> None:
        """Have it answered. Answers of one session leave in the order of the questions."""
        session = arrival.session or ""
        before, mine = self._answering.get(session), asyncio.Event()
        self._answering[session] = mine
        self._own(self._answered_in_turn(arrival, before, mine))

    async def _answered_in_turn(self, arrival: Arrival, before: asyncio.Event | None, mine: asyncio.Event) -> None:
        try:
            await self._answered(arrival, before)
        finally:
            mine.set()
            if self._answering.get(arrival.session or "") is mine:
                del self._answering[arrival.session or ""]

    async def _answered(self, arrival: Arrival, before: asyncio.Event | None) -> None:
        while True:
            try:
                await self._around.answer(arrival, before)
            except ChannelRefused as exc:
                logger.error("inbox %d: its answer can't be sent: %s", arrival.id, exc)  # noqa: TRY400  (a sentence)
                self._done(arrival)
                return
            except (StoreError, ChannelError) as exc:
                logger.warning("inbox %d: its answer can't be stored now: %s", arrival.id, exc)
                await asyncio.sleep(DISK_WAIT)
            except Exception:
                logger.exception("inbox %d: could not be answered", arrival.id)
                return
            else:
                self._done(arrival)
                return

    async def _ask_to_pair(self, heard: Heard) -> None:
        if heard.sender.id is None:
            return
        code = "".join(secrets.choice(CODE_LETTERS) for _ in range(CODE_LENGTH))
        where = heard.address
        who = Acquaintance(
            channel=where.channel, account=where.account, sender=heard.sender.id,
            name=heard.sender.name or heard.sender.username, code=code, at=now_ms(),
        )  # fmt: skip
        stands, fresh = await self._around.people.ask(who, most=MOST_ASKING, since=now_ms() - CODE_AGE)
        if stands is not None and fresh:
            words = (
                f"I don't know you yet. Your pairing code is {stands.code}. The owner lets you in with\n"
                f"openclaw channels pairing approve {where.channel} {stands.code}"
            )
            await self._around.tell(where, words, f"pairing:{where.channel}:{where.account}:{stands.code}")


def granted(heard: Heard, *, owner: bool) -> Json:
    """For whom and where a run answers, as its options keep it."""
    where = heard.address
    return msgspec.to_builtins(  # type: ignore[no-any-return]  # a struct becomes an object
        Grant(
            channel=where.channel, account=where.account, to=where.to, thread=where.thread, space=heard.space,
            group=None if heard.chat == "direct" else where.to, sender=heard.sender, owner=owner,
        )
    )  # fmt: skip


def _is_shared(heard: Heard, session: NewSession, *, owner: bool) -> bool:
    """Whether somebody else speaks in the owner's own session."""
    return not owner and heard.chat == "direct" and ":direct:" not in session.key


def _worded(heard: Heard, text: str, *, shared: bool) -> str:
    """In a group, and in a session `shared` with the owner, the agent must know who speaks."""
    if heard.chat == "direct" and not shared:
        return text
    return f"{heard.sender.name or heard.sender.username or heard.sender.id or 'somebody'}: {text}"
