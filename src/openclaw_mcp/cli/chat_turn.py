"""A line of a chat from being typed until it is answered."""

import asyncio
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final

from ..core.chat_commands import is_for_agent, parse_command
from .chat_conversation import RunOutcome

SEND_WAIT: Final = 10.0  # seconds a line has to be with the gateway before what it began is stopped
REPLY_GRACE: Final = 3.0  # seconds from a run's end until its reply is in the conversation, and from `/new` to its run


class ChatTurn:
    """A line that was sent, and what has come of it."""

    def __init__(self, text: str, on_over: Callable[[], None]) -> None:
        """`on_over` is called when it turns out to be over without a further event."""
        command = parse_command(text)
        self.text = text
        self.is_command = not is_for_agent(text)
        self.key = str(uuid.uuid4())
        self.run_id: str | None = None
        self.outcome: RunOutcome | None = None
        self.is_over = asyncio.Event()
        self.is_sent = asyncio.Event()
        """Set when the gateway has it, or it is known that it will not."""
        self._has_notice = command is not None and bool(command.rest)
        """Whether it is `/new` with words after it: a notice comes before the agent's reply."""
        self._started = False
        self._replies = 0
        self._on_over = on_over

    @property
    def is_working(self) -> bool:
        """Whether the agent has it, or will: a command without words after it is the gateway's."""
        return not self.is_over.is_set() and self.outcome is None and (self._has_notice or not self.is_command)

    def on_start(self) -> None:
        self._started = True

    def on_end(self, outcome: RunOutcome) -> None:
        """With a reply to come, unless it was stopped or another run replies."""
        self._started, self.outcome = True, outcome
        if outcome in ("aborted", "merged"):
            self.is_over.set()
        else:
            self._check()

    def on_reply(self) -> None:
        self._replies += 1
        self._check()

    def _check(self) -> None:
        """Over when its run has ended and the reply is shown; or when a reply is shown without a run, as to a command.

        A run may end without a reply, and `/new` be refused: then it is over after a while.
        """
        expected = 2 if self._has_notice else 1
        if self._replies >= expected and (self.outcome is not None or not self._started):
            self.is_over.set()
        elif self.outcome is not None or (self._has_notice and self._replies and not self._started):
            asyncio.get_running_loop().call_later(REPLY_GRACE, self._give_up)

    def _give_up(self) -> None:
        if self.outcome is not None or not self._started:
            self.is_over.set()
            self._on_over()


class EarlyUpdates:
    """Ends and replies of runs that no line is known to have begun, while one is sent.

    Only the gateway's answer says which run is that line's, and what the run does may be read before the answer is.
    """

    def __init__(self, limit: int, on_released: Callable[[], None]) -> None:
        """`on_released` is called whenever what was held has been handled."""
        self._limit = limit
        self._on_released = on_released
        self._lines = 0
        self._held: list[Callable[[], None]] = []

    @contextmanager
    def held(self) -> Iterator[None]:
        """From before a line is sent until its run is known."""
        self._lines += 1
        try:
            yield
        finally:
            self._lines -= 1
            held, self._held = self._held, []
            for handle in held:  # what may be another line's is held again
                handle()
            self._on_released()

    def hold(self, handle: Callable[[], None]) -> bool:
        """Whether it will be called, once the runs are known; else none is sent, or too much is held."""
        if self._lines == 0 or len(self._held) >= self._limit:
            return False
        self._held.append(handle)
        return True


async def wait_until_sent(turns: Sequence[ChatTurn]) -> None:
    """Until the gateway has every line that the agent is to work on, so that it can be stopped; within bounds."""
    with suppress(TimeoutError):
        async with asyncio.timeout(SEND_WAIT):
            for turn in turns:
                if turn.is_working:
                    await turn.is_sent.wait()
