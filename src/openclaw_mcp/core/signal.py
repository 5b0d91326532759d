"""A bell: whoever listens is called when something changed."""

from collections.abc import Callable
from typing import Generic, TypeVar

News = TypeVar("News")


class Bell(Generic[News]):
    """Listeners are called in order, at once, in the ringer's task; they must not block."""

    __slots__ = ("_listeners",)

    def __init__(self) -> None:
        self._listeners: dict[object, Callable[[News], None]] = {}

    def listen(self, hear: Callable[[News], None]) -> Callable[[], None]:
        """Call `hear` at each ring until the returned function is called."""
        ticket = object()
        self._listeners[ticket] = hear
        return lambda: self._listeners.pop(ticket, None) and None

    def ring(self, news: News) -> None:
        for hear in list(self._listeners.values()):
            hear(news)
