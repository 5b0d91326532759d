"""The gateway's RPC: methods that modules offer, and events they publish.

A module lists its methods; the RPC server checks the caller's scope, runs them and writes the answer. A module also
publishes events; the server decides which connections may receive them.
"""

import re
from collections.abc import Awaitable, Callable, Sequence, Set
from functools import cache
from typing import Any, Final, Protocol, TypeVar, cast

import msgspec
from msgspec import Struct, structs

from .accepted_params import ACCEPTED_PARAMS, METHODS_WITH_ANY_PARAMS
from .errors import OpenClawError
from .model import Caller, Json

READ: Final = "operator.read"
WRITE: Final = "operator.write"
ADMIN: Final = "operator.admin"
APPROVALS: Final = "operator.approvals"
PAIRING: Final = "operator.pairing"
QUESTIONS: Final = "operator.questions"
TALK: Final = "operator.talk"


class RpcError(OpenClawError):
    """A method's refusal, on the wire `{code, message, details?, retryable?, retryAfterMs?}`."""

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


class RpcPeer(Protocol):
    """The connection a method was called over."""

    @property
    def id(self) -> str: ...

    def send_event(self, event: str, payload: Any) -> None:
        """Send an event to this connection alone."""

    def subscriptions(self) -> set[str]:
        """The topics this connection subscribed to; modules add and remove their own."""

    async def acknowledge(self, payload: Any) -> None:
        """Answer the running request a first time; the method's result is sent as a second answer."""


class _NullPeer:
    """The peer of a call from within this process: what is sent to it is dropped."""

    id = "within"

    def send_event(self, event: str, payload: Any) -> None:
        return

    def subscriptions(self) -> set[str]:
        return set()

    async def acknowledge(self, payload: Any) -> None:
        return


NULL_PEER: Final[RpcPeer] = _NullPeer()


class RpcCall(Struct, frozen=True, kw_only=True):
    method: str
    params: Json
    caller: Caller
    """`caller.scopes` holds gateway scopes such as `operator.read`; `operator.admin` implies all."""
    peer: RpcPeer

    @property
    def policy_caller(self) -> Caller | None:
        """The caller that tool rules bind: a run, or a client that acts in a session; None: an operator for itself."""
        return self.caller if self.caller.acts_in_session else None


class RpcMethod(Struct, frozen=True):
    name: str
    scope: str | None
    """The scope a caller needs; None = any authenticated connection."""
    handle: Callable[[RpcCall], Awaitable[Any]]
    role: str = "operator"
    """`operator`, `node`, or `any`."""
    per_minute: int | None = None
    """Calls one caller may make in a minute; None = no limit. For writes to the control plane."""
    advertised: bool = True
    """Whether `hello-ok` names it."""


class RpcModule(Protocol):
    """A part of the gateway that offers methods."""

    def methods(self) -> Sequence[RpcMethod]: ...


class RpcEvent(Struct, frozen=True, kw_only=True):
    name: str
    payload: Any
    scope: str | None = "operator.read"
    topic: str | None = None
    """When set, only connections subscribed to this topic receive it."""
    other_topic: str | None = None
    """A second topic: connections subscribed to either receive it, once."""
    except_for: str | None = None
    """The id of a connection that does not receive it."""
    state_version: Json | None = None


Publish = Callable[[RpcEvent], None]
"""Publish an event. Never blocks: the server closes connections that do not read."""


def has_scope(scopes: Set[str], needed: str) -> bool:
    """Whether these scopes satisfy `needed`: admin covers all, write covers read and talk."""
    if needed in scopes or ADMIN in scopes:
        return True
    return WRITE in scopes and needed in (READ, TALK)


def scope_error(needed: str) -> RpcError:
    """The refusal of a caller who lacks `needed`, for methods whose scope depends on their parameters."""
    details = {"code": "MISSING_SCOPE", "missingScope": needed, "requiredScopes": [needed]}
    return RpcError(f"missing scope: {needed}", kind="FORBIDDEN", details=details)


Params = TypeVar("Params")


SAFE_INTEGER: Final = 2**53 - 1  # the largest integer that every reader of JSON reads exactly
MAX_NAME_LENGTH: Final = 200  # characters of a parameter's name that an error repeats
MAX_PROBLEMS: Final = 10  # that one error names


def read_params(params: Any, kind: type[Params], method: str) -> Params:
    """The parameters as `kind`. Raises RpcError with the texts OpenClaw's clients know, also for unknown ones."""
    if not isinstance(params, dict):
        raise RpcError(f"invalid {method} params: must be object")
    problems = []
    try:
        value = msgspec.convert(params, kind)
    except msgspec.ValidationError as exc:
        problems.append(schema_message(str(exc)))
    names = _names_of(cast(Any, kind))
    if not params.keys() <= names and method not in METHODS_WITH_ANY_PARAMS:
        known = names | ACCEPTED_PARAMS.get(method, frozenset())
        problems += [_unexpected(name) for name in params if name not in known]
    if problems:
        raise RpcError(f"invalid {method} params: {'; '.join(dict.fromkeys(problems[:MAX_PROBLEMS]))}")
    return value


def refuse_params(params: Json, method: str) -> None:
    """For a method that reads none. Raises RpcError that names the first one OpenClaw does not take either."""
    for name in params.keys() - ACCEPTED_PARAMS.get(method, frozenset()):
        raise RpcError(f"invalid {method} params: {_unexpected(name)}")


def _unexpected(name: str) -> str:
    return f"at root: unexpected property '{name[:MAX_NAME_LENGTH]}'"


@cache
def _names_of(kind: Any) -> frozenset[str]:
    """The names of a struct's fields on the wire."""
    return frozenset(field.encode_name for field in structs.fields(kind))


def make_method(
    name: str,
    scope: str,
    params: type[Params],
    handle: Callable[[RpcCall, Params], Awaitable[Any]],
    *,
    advertised: bool = True,
) -> RpcMethod:
    """A method that gets its parameters read and checked, as `params`."""

    async def read_and_handle(call: RpcCall) -> Any:
        return await handle(call, read_params(call.params, params, call.method))

    return RpcMethod(name, scope, read_and_handle, advertised=advertised)


def schema_message(message: str) -> str:
    """A msgspec error as JSON Schema validators put it: `at /client/id: must be integer`."""
    problem, _, place = message.partition(" - at `")
    path = place.rstrip("`").removeprefix("$").replace("[...]", "").replace("[", "/").replace("]", "").replace(".", "/")
    where = f"at {path}: " if path else ""
    if problem.startswith("Object missing required field"):
        return f"{where}must have required property '{problem.split('`')[1]}'"
    if problem.startswith("Object contains unknown field"):
        return f"{where or 'at root: '}unexpected property '{problem.split('`')[1]}'"
    if problem.startswith("Invalid enum value"):
        return f"{where}must be equal to one of the allowed values"
    if found := _LENGTH.match(problem):
        return (
            f"{where}must not have {_BOUND_WORDS[found[2]]} than {found[3]} {_ITEM_WORDS.get(found[1], 'characters')}"
        )
    if found := _PATTERN.match(problem):
        pattern = found[1].replace("\\\\", "\\")  # it is quoted as Python quotes
        return f'{where}must match pattern "{pattern}"'
    for bound in (">=", "<="):
        if f"` {bound} " in problem:
            return f"{where}must be {bound} {problem.rsplit(' ', 1)[-1]}"
    wanted = problem.removeprefix("Expected `").partition("`")[0].partition(" |")[0]
    return f"{where}must be {_SCHEMA_TYPES.get(wanted, wanted)}"


_LENGTH: Final = re.compile(r"Expected `(\w+)` of length (>=|<=) (\d+)")
_PATTERN: Final = re.compile(r"Expected `str` matching regex .(.*).$")
_BOUND_WORDS: Final = {">=": "fewer", "<=": "more"}
_ITEM_WORDS: Final = {"array": "items", "object": "properties"}
_SCHEMA_TYPES: Final = {"int": "integer", "str": "string", "bool": "boolean", "float": "number", "dict": "object"}
