"""A bell: whoever listens is called when something changed."""

from collections.abc import Callable
from typing import Generic, TypeVar

Value = TypeVar("Value")


class Signal(Generic[Value]):
    """Listeners are called in order, at once, in the ringer's task; they must not block."""

    __slots__ = ("_listeners",)

    def __init__(self) -> None:
        self._listeners: dict[object, Callable[[Value], None]] = {}

    def connect(self, listener: Callable[[Value], None]) -> Callable[[], None]:
        """Call `hear` at each ring until the returned function is called."""
        ticket = object()
        self._listeners[ticket] = listener
        return lambda: self._listeners.pop(ticket, None) and None

    def emit(self, value: Value) -> None:
        for hear in list(self._listeners.values()):
            hear(value)
