"""The roll of nodes: which are known, which are here, what each may be asked to do, and who waits for approval."""

import asyncio
import logging
import uuid
from collections.abc import Callable, Coroutine, Iterable, Sequence
from types import TracebackType
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from ...core.errors import OpenClawError
from ...core.repositories import PairingBook
from ...core.rpc import Fault, covers, missing_scope
from ...core.sessions import now_ms
from ...core.signal import Bell
from ...net.files import StateBroken
from . import permissions
from .tool_names import alias_for
from .values import Arrival, Decision, Known, Settled, Wish

MOST_WISHES: Final = 256  # each needs a device somebody let in; more is a runaway

logger = logging.getLogger(__name__)


class Roll:
    """`async with` it while nodes come and go. What is approved, renamed or removed is on disk before it is told."""

    def __init__(self, book: PairingBook, *, denied: Callable[[], Sequence[str]] = tuple) -> None:
        self.asked: Bell[Wish] = Bell()
        self.settled: Bell[Settled] = Bell()
        """Rings when a person has decided."""
        self.withdrawn: Bell[Settled] = Bell()
        """Rings when a wish has become needless or was replaced by another: nobody said no to the node."""
        self.changed: Bell[str] = Bell()
        """Rings with the id of a node whose standing or presence changed."""
        self._book = book
        self._denied = denied
        self._known: dict[str, Known] = {}
        self._wishes: dict[str, Wish] = {}
        self._here: dict[str, dict[str, Arrival]] = {}
        self._seen: dict[str, tuple[int, str]] = {}
        self._writing = asyncio.Lock()
        self._later: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> "Roll":
        for node_id, record in (await self._book.all()).items():
            try:
                self._known[node_id] = msgspec.convert(record, Known)
            except msgspec.ValidationError as exc:
                raise StateBroken(f"the store's record of node {node_id[:12]} can't be read: {exc}") from exc
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._later:
            await asyncio.wait(self._later)

    # ---- looking ---------------------------------------------------------------------------------------------------

    def find(self, node_id: str) -> Known | None:
        return self._known.get(node_id)

    def all(self) -> Iterable[Known]:
        return self._known.values()

    def here(self, node_id: str) -> Arrival | None:
        """The node's newest connection: that is the one which is asked."""
        return next(reversed(self._here.get(node_id, {}).values()), None)

    def holds(self, node_id: str, connection: str) -> bool:
        return connection in self._here.get(node_id, {})

    def wish_of(self, node_id: str) -> Wish | None:
        return next((wish for wish in self._wishes.values() if wish.node_id == node_id), None)

    def wishes(self) -> Sequence[Wish]:
        return list(self._wishes.values())

    def seen(self, node_id: str) -> tuple[int | None, str | None]:
        """When and how the node was last heard of."""
        if node_id in self._seen:
            return self._seen[node_id]
        known = self._known.get(node_id)
        return (known.last_seen_at_ms, known.last_seen_reason) if known else (None, None)

    def commands(self, node_id: str) -> tuple[str, ...]:
        """What it may be asked to do right now: approved, still offered by it, and not denied by the config."""
        known, arrival = self._known.get(node_id), self.here(node_id)
        if known is None or known.approved_at_ms is None:
            return ()
        approved = permissions.declared(known.face.commands, self._denied())
        if arrival is None:
            return approved
        offered = set(arrival.face.commands)
        return tuple(name for name in approved if name in offered)

    def may(self, node_id: str, command: str) -> bool:
        """Whether it may be asked to do this right now."""
        known, arrival = self._known.get(node_id), self.here(node_id)
        if known is None or arrival is None or known.approved_at_ms is None:
            return False
        named = command in known.face.commands and command in arrival.face.commands
        return named and not permissions.matches(command, self._denied())

    # ---- coming and going ------------------------------------------------------------------------------------------

    def came(self, arrival: Arrival) -> None:
        node_id = arrival.node_id
        self._here.setdefault(node_id, {})[arrival.connection] = arrival
        if node_id not in self._known:
            bare = replace(arrival.face, caps=(), commands=(), permissions=None)
            self._known[node_id] = Known(node_id=node_id, face=bare, created_at_ms=now_ms())
        self.heard_of(node_id, "connect")
        self._own(self._keep(node_id))
        self._want(arrival)
        self.changed.ring(node_id)

    def went(self, node_id: str, connection: str) -> None:
        here = self._here.get(node_id, {})
        if here.pop(connection, None) is None:
            return
        if not here:
            del self._here[node_id]
            self.heard_of(node_id, "disconnect")
            self._own(self._keep(node_id))
        self.changed.ring(node_id)

    def heard_of(self, node_id: str, reason: str) -> None:
        self._seen[node_id] = (now_ms(), reason)

    def _want(self, arrival: Arrival) -> None:
        """File a wish for what is offered beyond what is approved; drop one that has become needless."""
        known, pending = self._known[arrival.node_id], self.wish_of(arrival.node_id)
        commands = permissions.declared(arrival.face.commands, self._denied())
        face = replace(arrival.face, commands=commands)
        new = known.approved_at_ms is None or not set(commands) <= set(known.face.commands)
        if pending is not None:
            if new and pending.face == face:
                return  # it asks for the same again, after a reconnect
            self._withdraw(pending)
        if not new:
            return
        while len(self._wishes) >= MOST_WISHES:
            self._withdraw(next(iter(self._wishes.values())))
        wish = Wish(
            request_id=str(uuid.uuid4()),
            node_id=arrival.node_id,
            face=face,
            ts=now_ms(),
            scopes=permissions.scopes_to_approve(commands),
            remote_ip=arrival.remote_ip,
            silent=arrival.silent,
        )
        self._wishes[wish.request_id] = wish
        self.asked.ring(wish)

    # ---- deciding --------------------------------------------------------------------------------------------------

    async def approve(self, request_id: str, *, by: frozenset[str]) -> Known:
        """Let the node's commands be used, at once and on its open connection. Raises Fault."""
        wish = self._wish(request_id)
        for scope in wish.scopes:
            if not covers(by, scope):
                raise missing_scope(scope)
        async with self._writing:
            known = self._require(wish.node_id)
            others = {other.alias for other in self.all() if other.alias and other.node_id != known.node_id}
            name = known.label or wish.face.display_name or known.node_id[:12]
            alias = known.alias or alias_for(name, others)
            known = replace(known, face=wish.face, approved_at_ms=now_ms(), alias=alias)
            await self._put(known)
        self._settle(wish, "approved")
        self.changed.ring(wish.node_id)
        return known

    def reject(self, request_id: str) -> Wish:
        wish = self._wish(request_id)
        self._settle(wish, "rejected")
        self.changed.ring(wish.node_id)
        return wish

    async def rename(self, node_id: str, label: str, *, tools: bool) -> Known:
        """Call it `label` from now on; with `tools` its tools are called after the new name too, and rules go by that.
        Raises Fault."""
        async with self._writing:
            known = self._require(node_id)
            others = {other.alias for other in self.all() if other.alias and other.node_id != node_id}
            alias = alias_for(label, others) if known.alias and tools else known.alias
            known = replace(known, label=label, alias=alias)
            await self._put(known)
        self.changed.ring(node_id)
        return known

    async def remove(self, node_id: str) -> None:
        """Forget the node and what was approved of it. Raises Fault."""
        async with self._writing:
            self._require(node_id)
            await self._book.remove(node_id)
            self._known.pop(node_id, None)
            self._seen.pop(node_id, None)
        wish = self.wish_of(node_id)
        if wish is not None:
            self._wishes.pop(wish.request_id, None)
        self.settled.ring(Settled(request_id="", node_id=node_id, decision="removed", ts=now_ms()))
        self.changed.ring(node_id)

    def forget(self, node_id: str) -> None:
        """The node's device is no longer paired: nothing of it counts any more."""
        if node_id in self._known:
            self._own(self._gone(node_id))

    # ---- within ----------------------------------------------------------------------------------------------------

    async def _gone(self, node_id: str) -> None:
        if node_id in self._known:
            await self.remove(node_id)

    async def _keep(self, node_id: str) -> None:
        async with self._writing:
            known = self._known.get(node_id)
            if known is not None:
                await self._put(known)

    async def _put(self, known: Known) -> None:
        at, reason = self.seen(known.node_id)
        known = replace(known, last_seen_at_ms=at, last_seen_reason=reason)
        await self._book.put(known.node_id, msgspec.to_builtins(known))
        self._known[known.node_id] = known

    def _require(self, node_id: str) -> Known:
        known = self._known.get(node_id)
        if known is None:
            raise Fault("unknown nodeId")
        return known

    def _wish(self, request_id: str) -> Wish:
        wish = self._wishes.get(request_id)
        if wish is None:
            raise Fault("unknown requestId")
        return wish

    def _settle(self, wish: Wish, decision: Decision) -> None:
        if self._wishes.pop(wish.request_id, None) is not None:
            self.settled.ring(_end(wish, decision))

    def _withdraw(self, wish: Wish) -> None:
        del self._wishes[wish.request_id]
        self.withdrawn.ring(_end(wish, "rejected"))

    def _own(self, work: Coroutine[Any, Any, None]) -> None:
        """Written soon; nobody was promised it."""

        async def logged() -> None:
            try:
                await work
            except OpenClawError as exc:
                logger.warning("a node's record was not written: %s", exc)

        task = asyncio.get_running_loop().create_task(logged())
        self._later.add(task)
        task.add_done_callback(self._later.discard)


def _end(wish: Wish, decision: Decision) -> Settled:
    return Settled(request_id=wish.request_id, node_id=wish.node_id, decision=decision, ts=now_ms())
