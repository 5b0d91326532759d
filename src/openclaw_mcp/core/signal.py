"""A signal: its listeners are called when something happened."""

import logging
from collections.abc import Callable
from typing import Generic, TypeVar

logger = logging.getLogger(__name__)

Value = TypeVar("Value")


class Signal(Generic[Value]):
    """Listeners are called in order, at once, in the emitter's task; they must not block."""

    __slots__ = ("_listeners",)

    def __init__(self) -> None:
        self._listeners: dict[object, Callable[[Value], None]] = {}

    def connect(self, listener: Callable[[Value], None]) -> Callable[[], None]:
        """Call `listener` at each `emit` until the returned function is called."""
        ticket = object()
        self._listeners[ticket] = listener

        def disconnect() -> None:
            self._listeners.pop(ticket, None)

        return disconnect

    def emit(self, value: Value) -> None:
        """Call every listener. One that fails is logged: the emitter and the other listeners are not to suffer."""
        for listener in list(self._listeners.values()):
            try:
                listener(value)
            except Exception:
                logger.exception("signal: listener %r failed", listener)
