"""The gateway's own words: methods rooms offer over the intercom, and events they publish.

A room lists its methods; the caretaker hands them to the intercom, which checks the caller's scope, runs them and
writes the answer. A room that has news publishes an event; the intercom decides who may hear it.
"""

from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from msgspec import Struct

from .errors import OpenClawError
from .model import Caller, Json


class Fault(OpenClawError):
    """A method's refusal, as it goes over the wire: `{code, message, details?, retryable?, retryAfterMs?}`."""

    code = "fault"

    def __init__(
        self,
        message: str,
        *,
        kind: str = "INVALID_REQUEST",
        details: Any = None,
        retryable: bool | None = None,
        retry_after_ms: int | None = None,
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.details = details
        self.retryable = retryable
        self.retry_after_ms = retry_after_ms


class Link(Protocol):
    """The connection a method was called over."""

    @property
    def id(self) -> str: ...

    def tell(self, event: str, payload: Any) -> None:
        """Send an event to this connection alone."""

    def interests(self) -> set[str]:
        """What this connection subscribed to, as topic names; rooms add and remove their own."""

    async def accepted(self, payload: Any) -> None:
        """Answer the running request a first time; what the method returns is sent as a second answer."""


class RpcCall(Struct, frozen=True, kw_only=True):
    method: str
    params: Json
    caller: Caller
    """`caller.scopes` holds gateway scopes such as `operator.read`; `operator.admin` implies all."""
    link: Link


class Method(Struct, frozen=True):
    name: str
    scope: str | None
    """The scope a caller needs; None = any authenticated connection."""
    run: Callable[[RpcCall], Awaitable[Any]]
    role: str = "operator"
    """`operator`, `node`, or `any`."""


class Event(Struct, frozen=True, kw_only=True):
    name: str
    payload: Any
    scope: str | None = "operator.read"
    topic: str | None = None
    """When set, only connections interested in this topic hear it."""
    state_version: Json | None = None


Publish = Callable[[Event], None]
"""Hand an event to the intercom. Never blocks; a slow consumer is the intercom's affair."""
