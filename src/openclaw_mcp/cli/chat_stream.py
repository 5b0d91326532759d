"""Replies on the screen while they are written: of one run at a time, and each part of a reply once."""

from collections.abc import Collection
from typing import Final

from msgspec import Struct

from .chat_conversation import ShownMessage
from .chat_screen import ChatScreen

MAX_UNCLAIMED: Final = 20  # replies that wait for their messages; one at a time, unless the gateway is killed often


class _StreamedReply(Struct):
    run_id: str
    text: str = ""
    """What is shown of it."""
    is_interrupted: bool = False
    """Whether something else was shown after it: what is added begins with a mark."""
    gives_way: bool = False
    """Whether another reply may be shown now, before its message has come."""


class ReplyStream:
    def __init__(self, screen: ChatScreen) -> None:
        self._screen = screen
        self._current: _StreamedReply | None = None
        self._unclaimed: dict[str, str] = {}
        """By run: replies that were shown as they were written, and whose messages have not come."""

    def add(self, run_id: str, text: str) -> None:
        """The reply of a run so far. Shown unless another one is being shown: two replies are not mixed."""
        if not self._screen.shows_partial_text:
            return
        if self._current is not None and self._current.run_id != run_id:
            if not self._current.gives_way:
                return
            self._end()
        if self._current is None:
            self._current = _StreamedReply(run_id)
        if text.startswith(self._current.text) and text != self._current.text:
            self._show_more(self._current, text[len(self._current.text) :])
            self._current.text = text

    def interrupt(self) -> None:
        """Something else is shown next. The reply goes on after it."""
        if self._current is not None:
            self._screen.end_text()
            self._current.is_interrupted = bool(self._current.text)

    def give_way(self, run_id: str) -> None:
        """The run has ended, and it is not known whether a message of it comes: the next reply need not wait."""
        if self._current is not None and self._current.run_id == run_id:
            self._current.gives_way = True

    def drop(self, run_ids: Collection[str | None]) -> None:
        """No message comes of these runs any more."""
        if self._current is not None and self._current.run_id in run_ids:
            self._end()

    def show_rest(self, message: ShownMessage, run_ids: Collection[str], *, is_late: bool) -> bool:
        """Whether the message was shown while it was written; what is missing of it is shown now.

        `run_ids`: those that it may be of; none where the gateway does not say. `is_late`: it came while we were away.
        """
        current = self._current
        is_current = current is not None and (not run_ids or current.run_id in run_ids)
        if current is not None and is_current and (shown := current.text.strip()) and message.text.startswith(shown):
            if message.text != shown:
                self._show_more(current, message.text[len(shown) :])
            self._screen.end_text()
            self._current = None
            return True
        for run_id, text in self._unclaimed.items():
            if text == message.text and (is_late or run_id in run_ids):
                del self._unclaimed[run_id]
                return True
        if is_current:
            self._end()  # it was sent with another text than it was written
        else:
            self.interrupt()
        return False

    def _show_more(self, reply: _StreamedReply, text: str) -> None:
        self._screen.add_text(f"…{text}" if reply.is_interrupted else text)
        reply.is_interrupted = False

    def _end(self) -> None:
        self._screen.end_text()
        if self._current is not None and self._current.text.strip():
            self._unclaimed[self._current.run_id] = self._current.text.strip()
            if len(self._unclaimed) > MAX_UNCLAIMED:
                del self._unclaimed[next(iter(self._unclaimed))]
        self._current = None
