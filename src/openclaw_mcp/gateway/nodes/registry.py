"""The known nodes: which are connected, which commands each may run, and which wait for approval."""

import asyncio
import uuid
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, Final, Self

import msgspec
from msgspec.structs import replace

from ...core.repositories import PairingRepository
from ...core.rpc import RpcError, has_scope, scope_error
from ...core.sessions import now_ms
from ...core.signal import Signal
from ...net.files import StateBroken
from ...net.tasks import Tasks
from . import permissions
from .tool_names import alias_for
from .values import NodeConnection, NodePairDecision, NodePairRequest, NodePairResult, NodeRecord

WRITE_TIMEOUT: Final = 5.0  # seconds the last records get to be written when the gateway stops
MAX_PAIR_REQUESTS: Final = 256  # each needs a paired device; more is a runaway


class NodeRegistry:
    """`async with` it while nodes connect. What is approved, renamed or removed is stored before it is announced."""

    def __init__(self, repository: PairingRepository, *, deny_patterns: Callable[[], Sequence[str]] = tuple) -> None:
        self.pair_requested: Signal[NodePairRequest] = Signal()
        self.pair_settled: Signal[NodePairResult] = Signal()
        """Emitted when an operator has decided."""
        self.pair_withdrawn: Signal[NodePairResult] = Signal()
        """Emitted when a request has become needless or was replaced by another: no operator refused the node."""
        self.changed: Signal[str] = Signal()
        """Emits the id of a node whose approval or presence changed."""
        self._repository, self._deny_patterns = repository, deny_patterns
        self._records: dict[str, NodeRecord] = {}
        self._pair_requests: dict[str, NodePairRequest] = {}
        self._connections: dict[str, dict[str, NodeConnection]] = {}
        self._last_contacts: dict[str, tuple[int, str]] = {}
        self._write_lock = asyncio.Lock()
        self._tasks = Tasks("nodes")

    async def __aenter__(self) -> Self:
        for node_id, record in (await self._repository.all()).items():
            try:
                self._records[node_id] = msgspec.convert(record, NodeRecord)
            except msgspec.ValidationError as exc:
                raise StateBroken(f"the store's record of node {node_id[:12]} can't be read: {exc}") from exc
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self._tasks.finish(WRITE_TIMEOUT)

    # ---- reading ---------------------------------------------------------------------------------------------------

    def find(self, node_id: str) -> NodeRecord | None:
        return self._records.get(node_id)

    def all(self) -> Iterable[NodeRecord]:
        return self._records.values()

    def connection_of(self, node_id: str) -> NodeConnection | None:
        """The node's newest connection: that is the one which gets commands."""
        return next(reversed(self._connections.get(node_id, {}).values()), None)

    def has_connection(self, node_id: str, connection_id: str) -> bool:
        return connection_id in self._connections.get(node_id, {})

    def pair_request_of(self, node_id: str) -> NodePairRequest | None:
        return next((request for request in self._pair_requests.values() if request.node_id == node_id), None)

    def pair_requests(self) -> Sequence[NodePairRequest]:
        return list(self._pair_requests.values())

    def last_contact(self, node_id: str) -> tuple[int | None, str | None]:
        """When the node last sent something, and what."""
        if node_id in self._last_contacts:
            return self._last_contacts[node_id]
        known = self._records.get(node_id)
        return (known.last_seen_at_ms, known.last_seen_reason) if known else (None, None)

    def commands(self, node_id: str) -> tuple[str, ...]:
        """The commands it may run now: approved, still offered by it, and not denied by the config."""
        known, connection = self._records.get(node_id), self.connection_of(node_id)
        if known is None or known.approved_at_ms is None:
            return ()
        approved = permissions.filter_commands(known.face.commands, self._deny_patterns())
        if connection is None:
            return approved
        offered = set(connection.description.commands)
        return tuple(name for name in approved if name in offered)

    def may_invoke(self, node_id: str, command: str) -> bool:
        """Whether it may run this command now."""
        known, connection = self._records.get(node_id), self.connection_of(node_id)
        if known is None or connection is None or known.approved_at_ms is None:
            return False
        named = command in known.face.commands and command in connection.description.commands
        return named and not permissions.matches(command, self._deny_patterns())

    # ---- connections ----------------------------------------------------------------------------------------------

    def on_connect(self, connection: NodeConnection) -> None:
        node_id = connection.node_id
        self._connections.setdefault(node_id, {})[connection.connection_id] = connection
        if node_id not in self._records:
            bare = replace(connection.description, caps=(), commands=(), permissions=None)
            self._records[node_id] = NodeRecord(node_id=node_id, face=bare, created_at_ms=now_ms())
        self.record_contact(node_id, "connect")
        self._start_write(self._save_record(node_id))
        self._update_pair_request(connection)
        self.changed.emit(node_id)

    def on_disconnect(self, node_id: str, connection_id: str) -> None:
        connections = self._connections.get(node_id, {})
        if connections.pop(connection_id, None) is None:
            return
        if not connections:
            del self._connections[node_id]
            self.record_contact(node_id, "disconnect")
            self._start_write(self._save_record(node_id))
        self.changed.emit(node_id)

    def record_contact(self, node_id: str, reason: str) -> None:
        self._last_contacts[node_id] = (now_ms(), reason)

    def _update_pair_request(self, connection: NodeConnection) -> None:
        """File a request for commands beyond the approved ones; drop one that has become needless."""
        known, pending = self._records[connection.node_id], self.pair_request_of(connection.node_id)
        commands = permissions.filter_commands(connection.description.commands, self._deny_patterns())
        offered = replace(connection.description, commands=commands)
        new = known.approved_at_ms is None or not set(commands) <= set(known.face.commands)
        if pending is not None:
            if new and pending.description == offered:
                return  # the same request again, after a reconnect
            self._withdraw(pending)
        if not new:
            return
        while len(self._pair_requests) >= MAX_PAIR_REQUESTS:
            self._withdraw(next(iter(self._pair_requests.values())))
        request = NodePairRequest(
            request_id=str(uuid.uuid4()),
            node_id=connection.node_id,
            description=offered,
            ts=now_ms(),
            scopes=permissions.scopes_to_approve(commands),
            remote_ip=connection.remote_ip,
            silent=connection.silent,
        )
        self._pair_requests[request.request_id] = request
        self.pair_requested.emit(request)

    # ---- deciding --------------------------------------------------------------------------------------------------

    async def approve(self, request_id: str, *, scopes: frozenset[str]) -> NodeRecord:
        """Allow the node's commands, at once and on its open connection. Raises RpcError."""
        request = self._require_pair_request(request_id)
        for scope in request.scopes:
            if not has_scope(scopes, scope):
                raise scope_error(scope)
        async with self._write_lock:
            known = self._require_record(request.node_id)
            others = {other.alias for other in self.all() if other.alias and other.node_id != known.node_id}
            name = known.label or request.description.display_name or known.node_id[:12]
            alias = known.alias or alias_for(name, others)
            known = replace(known, face=request.description, approved_at_ms=now_ms(), alias=alias)
            await self._write_record(known)
        self._settle(request, "approved")
        self.changed.emit(request.node_id)
        return known

    def reject(self, request_id: str) -> NodePairRequest:
        request = self._require_pair_request(request_id)
        self._settle(request, "rejected")
        self.changed.emit(request.node_id)
        return request

    async def rename(self, node_id: str, label: str, *, rename_tools: bool) -> NodeRecord:
        """Give it another name; with `rename_tools` the names of its tools, and the rules about them, follow it.
        Raises RpcError."""
        async with self._write_lock:
            known = self._require_record(node_id)
            others = {other.alias for other in self.all() if other.alias and other.node_id != node_id}
            alias = alias_for(label, others) if known.alias and rename_tools else known.alias
            known = replace(known, label=label, alias=alias)
            await self._write_record(known)
        self.changed.emit(node_id)
        return known

    async def remove(self, node_id: str) -> None:
        """Forget the node and its approval. Raises RpcError."""
        async with self._write_lock:
            self._require_record(node_id)
            await self._repository.remove(node_id)
            self._records.pop(node_id, None)
            self._last_contacts.pop(node_id, None)
        request = self.pair_request_of(node_id)
        if request is not None:
            self._pair_requests.pop(request.request_id, None)
        self.pair_settled.emit(NodePairResult(request_id="", node_id=node_id, decision="removed", ts=now_ms()))
        self.changed.emit(node_id)

    def forget(self, node_id: str) -> None:
        """The node's device is no longer paired: its approval ends."""
        if node_id in self._records:
            self._start_write(self._remove_if_present(node_id))

    # ---- internal --------------------------------------------------------------------------------------------------

    async def _remove_if_present(self, node_id: str) -> None:
        if node_id in self._records:
            await self.remove(node_id)

    async def _save_record(self, node_id: str) -> None:
        async with self._write_lock:
            known = self._records.get(node_id)
            if known is not None:
                await self._write_record(known)

    async def _write_record(self, record: NodeRecord) -> None:
        at, reason = self.last_contact(record.node_id)
        record = replace(record, last_seen_at_ms=at, last_seen_reason=reason)
        await self._repository.put(record.node_id, msgspec.to_builtins(record))
        self._records[record.node_id] = record

    def _require_record(self, node_id: str) -> NodeRecord:
        known = self._records.get(node_id)
        if known is None:
            raise RpcError("unknown nodeId")
        return known

    def _require_pair_request(self, request_id: str) -> NodePairRequest:
        request = self._pair_requests.get(request_id)
        if request is None:
            raise RpcError("unknown requestId")
        return request

    def _settle(self, request: NodePairRequest, decision: NodePairDecision) -> None:
        if self._pair_requests.pop(request.request_id, None) is not None:
            self.pair_settled.emit(_pair_result(request, decision))

    def _withdraw(self, request: NodePairRequest) -> None:
        del self._pair_requests[request.request_id]
        self.pair_withdrawn.emit(_pair_result(request, "rejected"))

    def _start_write(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Written soon: no caller waits for it, and a failure is logged."""
        self._tasks.spawn(coroutine, name="write of a record")


def _pair_result(request: NodePairRequest, decision: NodePairDecision) -> NodePairResult:
    return NodePairResult(request_id=request.request_id, node_id=request.node_id, decision=decision, ts=now_ms())
