"""Letters out: stored, then sent, in order for each conversation, tried again while there is hope."""

import asyncio
import logging
import random
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final, Self

import msgspec

from ...core.channel import Address, Channel, ChannelBusy, ChannelError, ChannelRefused, Receipt
from ...core.errors import OpenClawError, StoreError
from ...core.mail import Mail, NewMail, Outbox
from ...core.sessions import now_ms
from ...core.signal import Bell

logger = logging.getLogger(__name__)

BACK_OFF: Final = (5.0, 25.0, 120.0, 600.0)  # seconds before the second and later tries
MOST_TRIES: Final = len(BACK_OFF) + 1
OLDEST: Final = 24 * 3600 * 1000  # milliseconds: a message a day late confuses more than one that failed
MOST_WAITING: Final = 5000  # letters in memory; beyond it the channels are down and a person must look
SEND_LIMIT: Final = 120.0  # seconds one part may take; a wedged connection must not hold a conversation
AT_ONCE: Final = 16  # conversations of one account that are sent to at the same time
REFILLED: Final = 1000  # places free in memory before more is read from disk: one by one would be a look each
ROUND: Final = 30.0  # seconds between looks for what a dead process left
KEPT: Final = 30 * 24 * 3600 * 1000  # milliseconds what has ended, and its key, are remembered
DISK_WAIT: Final = 1.0  # seconds before the disk is asked again

Find = Callable[[Address], Channel | None]
Lane = tuple[str, str, str]


class Sending:
    """`async with` it: what a crash left is taken up first. `over` rings with each letter that was sent or failed."""

    def __init__(
        self, book: Outbox, find: Find, *, steady: Callable[[Address], bool] = lambda address: True,
        sent: Callable[[Mail], Awaitable[None]] | None = None,
    ) -> None:  # fmt: skip
        """`steady` tells whether a channel works: while it does not, failing to send uses up no try."""
        self._book = book
        self._find = find
        self._steady = steady
        self._sent = sent
        self.over: Bell[Mail] = Bell()
        self._lanes: dict[Lane, deque[Mail]] = {}
        self._known: set[str] = set()
        self._behind = True
        """There may be letters on disk that are not in their lanes: a newer one must not overtake them."""
        self._left = 0
        """Letters put since the last look began that were left on disk for that reason."""
        self._room = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._hurry: dict[Lane, asyncio.Event] = {}
        self._paused: dict[tuple[str, str], float] = {}
        self._slots: dict[tuple[str, str], asyncio.Semaphore] = {}
        self._waiters: dict[str, set[asyncio.Future[Mail]]] = {}

    async def __aenter__(self) -> Self:
        await self._look()
        self._own(self._rounds())
        return self

    async def __aexit__(self, *_exc: object) -> None:
        """What waits stays on disk for the next start."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def waiting(self) -> int:
        return len(self._known) + self._left

    async def put(self, new: NewMail) -> tuple[Mail, bool]:
        """Keep a letter and have it sent. Raises ChannelError when too many wait."""
        if self.waiting >= MOST_WAITING:
            raise ChannelError(f"{MOST_WAITING} messages wait to be sent; see openclaw outbox")
        mail, fresh = await self._book.put(new)
        if not fresh:  # in its lane already, or another process's
            return mail, fresh
        if self._behind:
            self._left += 1
        else:
            self._enqueue(mail)
        return mail, fresh

    async def settled(self, mail: Mail, *, seconds: float) -> Mail:
        """The letter once it is sent, failed or put off; as it is when the time is up."""
        if mail.status != "queued" or seconds <= 0:
            return mail
        future: asyncio.Future[Mail] = asyncio.get_running_loop().create_future()
        self._waiters.setdefault(mail.uid, set()).add(future)
        try:
            current = await self._book.get(mail.uid)
            # What is in our hands yet is over only when its transcript tells of it too.
            if current is None or (current.status != "queued" and mail.uid not in self._known):
                return current or mail
            await asyncio.wait({future}, timeout=seconds)
            return future.result() if future.done() else mail
        finally:
            waiting = self._waiters.get(mail.uid, set())
            waiting.discard(future)
            if not waiting:
                self._waiters.pop(mail.uid, None)

    async def retry(self, uid: str) -> Mail | None:
        """Try again now, with all its tries before it. None: there is no such letter, or it is sent."""
        mail = await self._book.get(uid)
        if mail is None or mail.status == "sent":
            return None
        for lane in self._lanes.values():
            if any(waiting.uid == uid for waiting in lane):
                self._hurry[_lane(mail)].set()
                return mail
        if self._behind and mail.status == "queued":
            return mail  # on disk yet, behind others of its conversation
        again = msgspec.structs.replace(mail, status="queued", tries=0, due_at=now_ms(), error=None)
        again = msgspec.structs.replace(again, created_at=now_ms())
        await self._book.note(again)
        self._enqueue(again)
        return again

    async def drop(self, uid: str) -> bool:
        for lane in self._lanes.values():
            for mail in lane:
                if mail.uid == uid and mail is not lane[0]:
                    lane.remove(mail)
                    self._known.discard(uid)
                    break
        return await self._book.drop(uid)

    def hurry(self, channel: str, account: str) -> None:
        """The channel is back: what was put off is tried now."""
        self._paused.pop((channel, account), None)
        for lane, event in self._hurry.items():
            if lane[:2] == (channel, account):
                event.set()

    # ---- lanes ---------------------------------------------------------------------------------------------------

    def _own(self, work: "asyncio._CoroutineLike[None]") -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _enqueue(self, mail: Mail) -> None:
        if mail.uid in self._known:
            return
        self._known.add(mail.uid)
        lane = _lane(mail)
        if lane in self._lanes:
            self._lanes[lane].append(mail)
            return
        self._lanes[lane] = deque([mail])
        self._hurry[lane] = asyncio.Event()
        self._own(self._drive(lane))

    async def _drive(self, lane: Lane) -> None:
        """Send what waits for one conversation, first in first; the next only when the one before has ended."""
        waiting = self._lanes[lane]
        slot = self._slots.setdefault(lane[:2], asyncio.Semaphore(AT_ONCE))
        while waiting:
            mail = waiting[0]
            await self._until_due(lane, mail)
            try:
                async with slot:
                    tried = await self._try(mail)
            except StoreError as exc:
                logger.warning("outbox %s: can't be worked on now: %s", mail.uid, exc)
                await asyncio.sleep(DISK_WAIT)
                continue
            if tried is not None and tried.status == "queued":
                waiting[0] = tried
                self._wake(tried)
                continue
            waiting.popleft()
            self._known.discard(mail.uid)
            if self._behind and len(self._known) <= MOST_WAITING - REFILLED:
                self._room.set()
            if tried is not None:
                self.over.ring(tried)
                self._wake(tried)
        del self._lanes[lane], self._hurry[lane]

    async def _until_due(self, lane: Lane, mail: Mail) -> None:
        loop = asyncio.get_running_loop()
        hurry = self._hurry[lane]
        hurry.clear()
        wait = max((mail.due_at - now_ms()) / 1000, self._paused.get(lane[:2], 0.0) - loop.time())
        if wait > 0:
            try:
                async with asyncio.timeout(wait):
                    await hurry.wait()
            except TimeoutError:
                return

    def _wake(self, mail: Mail) -> None:
        for future in self._waiters.get(mail.uid, ()):
            if not future.done():
                future.set_result(mail)

    # ---- one letter ----------------------------------------------------------------------------------------------

    async def _try(self, mail: Mail) -> Mail | None:
        """The letter as it is now. None: it was dropped meanwhile."""
        if mail.tries and await self._book.get(mail.uid) is None:
            return None
        parts = 1 if mail.poll is not None else len(mail.letters)
        try:
            while len(mail.receipts) < parts:
                receipt = await self._deliver(mail, len(mail.receipts))
                mail = msgspec.structs.replace(mail, receipts=(*mail.receipts, receipt))
                if len(mail.receipts) < parts:
                    await self._note(mail)
            mail = msgspec.structs.replace(mail, status="sent", error=None)
        except ChannelBusy as exc:
            pause = asyncio.get_running_loop().time() + exc.seconds
            self._paused[mail.address.channel, mail.address.account] = pause
            mail = self._put_off(mail, str(exc), seconds=exc.seconds, counts=False)
        except ChannelRefused as exc:
            mail = _failed(mail, str(exc))
        except Exception as exc:  # noqa: BLE001  (a channel's bug must not stop the others' letters)
            mail = self._put_off(mail, _words(exc), seconds=_back_off(mail.tries), counts=self._steady(mail.address))
        await self._note(mail)
        if mail.status == "sent" and self._sent is not None:
            try:
                await self._sent(mail)
            except OpenClawError as exc:  # delivered it is, whatever the transcript knows of it
                logger.warning("outbox %s: sent, but not mirrored: %s", mail.uid, exc)
        return mail

    async def _deliver(self, mail: Mail, number: int) -> Receipt:
        channel = self._find(mail.address)
        if channel is None:
            raise ChannelError(f"channel {mail.address.channel}, account {mail.address.account}, is not running")
        async with asyncio.timeout(SEND_LIMIT):
            return await self._hand_over(channel, mail, number)

    async def _hand_over(self, channel: Channel, mail: Mail, number: int) -> Receipt:
        key = f"{mail.uid}.{number}"
        if mail.poll is not None:
            poll = mail.poll
            return await channel.poll(mail.address, poll["question"], poll["options"], many=poll["many"], key=key)
        return await channel.send(mail.address, mail.letters[number], key=key)

    def _put_off(self, mail: Mail, why: str, *, seconds: float, counts: bool) -> Mail:
        tries = mail.tries + counts
        if tries >= MOST_TRIES:
            return _failed(mail, f"{why} (tried {tries} times)")
        if now_ms() - mail.created_at > OLDEST:
            return _failed(mail, f"{why} (a day old)")
        logger.info("outbox %s: put off: %s", mail.uid, why)
        due = now_ms() + int(seconds * 1000)
        return msgspec.structs.replace(mail, tries=tries, due_at=due, error=why)

    async def _note(self, mail: Mail) -> None:
        """Nothing goes on before it is on disk: the next part, or the next letter, would be lost sight of."""
        while True:
            try:
                await self._book.note(mail)
            except StoreError as exc:
                logger.warning("outbox %s: can't be noted now: %s", mail.uid, exc)
                await asyncio.sleep(DISK_WAIT)
            else:
                return

    async def _rounds(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(ROUND):
                    await self._room.wait()
            try:
                await self._look()
                await self._book.forget(before=now_ms() - KEPT)
            except StoreError as exc:
                logger.warning("outbox: can't be looked after now: %s", exc)
                await asyncio.sleep(DISK_WAIT)
                self._room.set()

    async def _look(self) -> None:
        """Read what waits on disk, as far as there is room; until all is read, what is new waits there as well."""
        self._room.clear()
        after = 0
        while True:
            self._left = 0
            page = await self._book.adopt(after=after)
            for mail in page:
                self._enqueue(mail)
                after = mail.id
            if len(self._known) >= MOST_WAITING:
                self._behind = True
                return
            if not page and not self._left:
                self._behind = False
                self._room.clear()
                return


def _lane(mail: Mail) -> Lane:
    return mail.address.channel, mail.address.account, mail.address.to


def _failed(mail: Mail, why: str) -> Mail:
    logger.warning("outbox %s: given up: %s", mail.uid, why)
    return msgspec.structs.replace(mail, status="failed", tries=mail.tries + 1, error=why)


def _back_off(tries: int) -> float:
    wait = BACK_OFF[min(tries, len(BACK_OFF) - 1)]
    return wait * random.uniform(0.8, 1.2)  # noqa: S311 - spreads load, guards nothing


def _words(exc: Exception) -> str:
    if isinstance(exc, ChannelError):
        return str(exc)
    if isinstance(exc, TimeoutError):
        return f"no answer within {SEND_LIMIT:g} s"
    logger.error("a channel failed to send", exc_info=exc)
    return f"an internal error of the channel ({type(exc).__name__}); see the log"
