"""The machine room: the gateway's methods about nodes, and the one way a node is asked to do something."""

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Any, Final

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from ...core.json_nesting import TooDeep, decode
from ...core.model import Json
from ...core.rpc import (
    ADMIN,
    PAIRING,
    READ,
    SAFE_INTEGER,
    Event,
    Fault,
    Method,
    Publish,
    RpcCall,
    covers,
    missing_scope,
    read_params,
)
from ...core.sessions import now_ms
from . import permissions
from .calls import Calls, Order, Payload, Progress, not_connected
from .idempotency import Repeats
from .pending import Errands
from .registry import Roll
from .values import Arrival, Settled, Wish
from .views import node_view, paired_view, wish_view

DEFAULT_SECONDS: Final = 30.0  # when the caller names no time
LONGEST_SECONDS: Final = 3600.0  # the longest a node's own commands may take
SMALL: Final = 1 << 20  # bytes; a larger payload goes out once, not also as `payloadJSON`: frames end at 25 MiB
NOT_READY_TRIES: Final = 4  # a node that has just woken may say so for a moment
NOT_READY_PAUSE: Final = 0.25  # seconds, times the tries so far
LONGEST_NAME: Final = 64
SPOKEN_FOR: Final = frozenset({"approved", "approvalDecision", "approvalSource"})
"""Words by which a gateway vouches for a command. Nobody may put them into ours."""

Text = Annotated[str, Meta(min_length=1)]


class _Node(Struct, frozen=True, rename="camel"):
    node_id: Text


class _Request(Struct, frozen=True, rename="camel"):
    request_id: Text


class _Rename(Struct, frozen=True, rename="camel"):
    node_id: Text
    display_name: Annotated[str, Meta(min_length=1, max_length=LONGEST_NAME)]


class _Invoke(Struct, frozen=True, rename="camel"):
    node_id: Text
    command: Text
    idempotency_key: Annotated[str, Meta(min_length=1, max_length=256)]
    params: Any = None
    timeout_ms: Annotated[int, Meta(ge=0, le=SAFE_INTEGER)] | None = None


class _Error(Struct, frozen=True):
    code: str = "FAILED"
    message: str = "the node gave no reason"


class _Result(Struct, frozen=True, kw_only=True):
    id: Text
    node_id: str | None = msgspec.field(default=None, name="nodeId")
    ok: bool
    payload: Any | UnsetType = UNSET
    payload_json: str | None = msgspec.field(default=None, name="payloadJSON")
    error: _Error | None = None


class _Progress(Struct, frozen=True, rename="camel"):
    invoke_id: Text
    seq: Annotated[int, Meta(ge=0, le=SAFE_INTEGER)]
    chunk: Annotated[str, Meta(max_length=16_384)]


class Nodes:
    """A `Room`. `dismiss` takes a node's device its pairing, which ends its connections."""

    def __init__(
        self,
        roll: Roll,
        publish: Publish,
        *,
        dismiss: Callable[[str], Awaitable[None]],
        describe: Callable[[str], Json] = lambda _: {},
        credentials: Callable[[str], tuple[str, ...]] = lambda _: (),
    ) -> None:
        """`credentials` tells what a connection proved itself by."""
        self._credentials = credentials
        self._roll = roll
        self._publish = publish
        self._dismiss = dismiss
        self._describe = describe
        self._calls = Calls()
        self._repeats = Repeats()
        self._errands = Errands(roll)
        roll.asked.listen(self._on_asked)
        roll.settled.listen(self._on_settled)
        roll.withdrawn.listen(self._publish_end)

    def methods(self) -> Sequence[Method]:
        return (
            Method("node.list", READ, self._list),
            Method("node.describe", READ, self._describe_one),
            Method("node.invoke", None, self._invoke),
            Method("node.rename", PAIRING, self._rename),
            Method("node.pair.list", PAIRING, self._pairs),
            Method("node.pair.approve", PAIRING, self._approve),
            Method("node.pair.reject", PAIRING, self._reject),
            Method("node.pair.remove", PAIRING, self._remove),
            Method("node.invoke.result", None, self._result, role="node"),
            Method("node.invoke.progress", None, self._progress, role="node"),
            *self._errands.methods(),
        )

    # ---- coming and going ------------------------------------------------------------------------------------------

    def came(self, arrival: Arrival) -> None:
        self._roll.came(arrival)

    def went(self, node_id: str, connection: str) -> None:
        self._calls.left(connection)
        self._roll.went(node_id, connection)

    def callers(self, connection: str) -> frozenset[str]:
        """The credentials of those a node's connection is at work for."""
        return self._calls.callers(connection)

    def unpaired(self, node_id: str) -> None:
        """The device is no longer known at the door."""
        self._errands.forget(node_id)
        self._roll.forget(node_id)

    # ---- asking a node ---------------------------------------------------------------------------------------------

    async def ask(
        self, node_id: str, command: str, params: Any, *, seconds: float, progress: Progress | None = None,
        key: str | None = None, by: tuple[str, ...] = (),
    ) -> Any:  # fmt: skip
        """The payload of an approved command. Raises Fault; nothing is sent unless both gates are open."""
        arrival = self._permitted(node_id, command)
        order = Order(command=command, params=_cleaned(command, params), seconds=seconds, key=key, by=by)
        for attempt in range(1, NOT_READY_TRIES):
            try:
                return await self._calls.make(arrival, order, progress)
            except Fault as fault:
                if not _says(fault, "NODE_NOT_READY"):
                    raise
            await asyncio.sleep(NOT_READY_PAUSE * attempt)
            arrival = self._permitted(node_id, command)
        return await self._calls.make(arrival, order, progress)

    def _permitted(self, node_id: str, command: str) -> Arrival:
        known = self._roll.find(node_id)
        if known is None or known.approved_at_ms is None:
            words = f"node {node_id[:12]} is unknown here or nobody has approved it yet; see node.pair.list"
            raise Fault(words, kind="UNAVAILABLE", retryable=True, details={"code": "PAIRING_CHANGED"})
        arrival = self._roll.here(node_id)
        if arrival is None:
            raise not_connected(node_id)
        if not self._roll.may(node_id, command):
            details = {"reason": _why_not(command, arrival, known.face.commands), "command": command}
            raise Fault(f'node command not allowed: "{command}" {details["reason"]}', details=details)
        return arrival

    async def _invoke(self, call: RpcCall) -> Json:
        wanted = read_params(call.params, _Invoke, call.method)
        scope = permissions.scope_to_invoke(wanted.command)
        if not covers(call.caller.scopes, scope):
            raise missing_scope(scope)
        if wanted.command in permissions.RULES:
            words = "node.invoke does not allow system.execApprovals.*; use exec.approvals.node.*"
            raise Fault(words, details={"command": wanted.command})
        seconds = min((wanted.timeout_ms or DEFAULT_SECONDS * 1000) / 1000, LONGEST_SECONDS)

        async def run() -> tuple[Json, int]:
            payload = await self.ask(
                wanted.node_id,
                wanted.command,
                wanted.params,
                seconds=seconds,
                key=wanted.idempotency_key,
                by=self._credentials(call.link.id),
            )
            return _answer(wanted.node_id, wanted.command, payload), len(payload.text)

        order = (wanted.command, wanted.params)
        return await self._repeats.once(wanted.node_id, wanted.idempotency_key, order, run)

    # ---- what nodes say --------------------------------------------------------------------------------------------

    async def _result(self, call: RpcCall) -> Json:
        said = read_params(call.params, _Result, call.method)
        if said.node_id not in (None, call.caller.name):
            raise Fault("nodeId mismatch: a node answers for itself alone")
        if not said.ok:
            error = said.error or _Error()
            taken = self._calls.failed(call.link.id, said.id, error.code, error.message)
        else:
            try:
                taken = self._calls.answered(call.link.id, said.id, _payload(said))
            except msgspec.DecodeError as exc:
                words = (
                    f"payloadJSON can't be passed on: {exc}" if isinstance(exc, TooDeep) else "payloadJSON is no JSON"
                )
                taken = self._calls.failed(call.link.id, said.id, "BAD_PAYLOAD", words)
        return {"ok": True} if taken else {"ok": True, "ignored": True}

    async def _progress(self, call: RpcCall) -> Json:
        said = read_params(call.params, _Progress, call.method)
        taken = self._calls.progressed(call.link.id, said.invoke_id, said.seq, said.chunk)
        return {"ok": True} if taken else {"ok": True, "ignored": True}

    # ---- what operators see and decide -----------------------------------------------------------------------------

    async def _list(self, call: RpcCall) -> Json:
        return {"ts": now_ms(), "nodes": [self._view(known.node_id) for known in self._roll.all()]}

    async def _describe_one(self, call: RpcCall) -> Json:
        node_id = read_params(call.params, _Node, call.method).node_id
        if self._roll.find(node_id) is None:
            raise Fault("unknown nodeId")
        return {"ts": now_ms(), **self._view(node_id)}

    def _view(self, node_id: str) -> Json:
        known = self._roll.find(node_id)
        assert known is not None
        return node_view(
            known,
            self._roll.here(node_id),
            self._roll.wish_of(node_id),
            commands=self._roll.commands(node_id),
            seen=self._roll.seen(node_id),
            more=self._describe(node_id),
        )

    async def _pairs(self, call: RpcCall) -> Json:
        paired = [known for known in self._roll.all() if known.approved_at_ms is not None]
        return {
            "pending": [wish_view(wish) for wish in self._roll.wishes()],
            "paired": [paired_view(known, name=known.name, seen=self._roll.seen(known.node_id)) for known in paired],
        }

    async def _approve(self, call: RpcCall) -> Json:
        request_id = read_params(call.params, _Request, call.method).request_id
        known = await self._roll.approve(request_id, by=call.caller.scopes)
        node = paired_view(known, name=known.name, seen=self._roll.seen(known.node_id))
        return {"requestId": request_id, "node": node}

    async def _reject(self, call: RpcCall) -> Json:
        wish = self._roll.reject(read_params(call.params, _Request, call.method).request_id)
        return {"requestId": wish.request_id, "nodeId": wish.node_id}

    async def _remove(self, call: RpcCall) -> Json:
        node_id = read_params(call.params, _Node, call.method).node_id
        await self._roll.remove(node_id)
        self._errands.forget(node_id)
        await self._dismiss(node_id)
        return {"nodeId": node_id}

    async def _rename(self, call: RpcCall) -> Json:
        wanted = read_params(call.params, _Rename, call.method)
        name = wanted.display_name.strip()
        if not name or not name.isprintable():
            raise Fault("displayName must be one line of visible characters")
        await self._roll.rename(wanted.node_id, name, tools=covers(call.caller.scopes, ADMIN))
        return {"nodeId": wanted.node_id, "displayName": name}

    def _on_asked(self, wish: Wish) -> None:
        self._publish(Event(name="node.pair.requested", payload=wish_view(wish), scope=PAIRING))

    def _on_settled(self, end: Settled) -> None:
        self._publish_end(end)
        arrival = self._roll.here(end.node_id)
        if arrival is not None:
            arrival.tell("node.pair.resolved", msgspec.to_builtins(end))

    def _publish_end(self, end: Settled) -> None:
        self._publish(Event(name="node.pair.resolved", payload=msgspec.to_builtins(end), scope=PAIRING))


def _payload(said: _Result) -> Payload:
    """Raises msgspec.DecodeError: what is passed on as it came must be JSON."""
    if said.payload_json is not None:
        return Payload(decode(said.payload_json), said.payload_json.encode())
    value = None if said.payload is UNSET else said.payload
    return Payload(value, msgspec.json.encode(value))


def _answer(node_id: str, command: str, payload: Payload) -> Json:
    answer: Json = {"ok": True, "nodeId": node_id, "command": command, "payload": msgspec.Raw(payload.text)}
    return answer | ({"payloadJSON": payload.text.decode()} if len(payload.text) <= SMALL else {})


def _cleaned(command: str, params: Any) -> Any:
    """A command's parameters as they go to the node: nobody but us says that a person approved it."""
    if command not in ("system.run", "system.run.prepare") or not isinstance(params, dict):
        return params
    kept = {key: value for key, value in params.items() if key not in SPOKEN_FOR}
    return {"runId": str(uuid.uuid4()), **kept} if command == "system.run" else kept


def _why_not(command: str, arrival: Arrival, approved: tuple[str, ...]) -> str:
    if command not in arrival.face.commands:
        return "is not offered by the node now" if command in approved else "is not a command of this node"
    return (
        "is denied by gateway.nodes.commands.deny" if command in approved else "has not been approved: node.pair.list"
    )


def _says(fault: Fault, code: str) -> bool:
    details: Any = fault.details
    error: Any = details.get("nodeError") if isinstance(details, dict) else None
    return isinstance(error, dict) and error.get("code") == code
