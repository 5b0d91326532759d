"""Nodes in the gateway: devices stored, nodes connected over RPC, their commands offered as tools."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import msgspec

from ...core.approvals import QuestionOrigin
from ...core.config.config import Config
from ...core.model import Json
from ...core.repositories import PairingRepository
from ...core.rpc import APPROVALS
from ...net.files import StateBroken
from ...protocol.mcp_results import read_result
from ..nodes import permissions
from ..nodes.approval_methods import ExecApprovals
from ..nodes.approval_queue import SHARED_TOKEN, ExecApprovalQueue, device_credential
from ..nodes.exec_rules import ExecApprovalsMethods
from ..nodes.registry import NodeRegistry
from ..nodes.reports import NodeReports
from ..nodes.rpc_methods import MAX_NAME_LENGTH, NodeService
from ..nodes.tools import NodeToolSources
from ..nodes.values import NodeConnection, NodeDescription
from ..rpc.connection import RpcConnection
from ..rpc.pairing import DevicePairing, DeviceRevocation, FilePairingStorage, PairedDevice, PairingState
from .gateway import GatewayServer

KEY_ROW: Final = "(key)"
"""The id of the row with the key that device tokens are derived from; device ids are 64 hexadecimal digits."""


class DatabasePairingStorage:
    """A `PairingStorage` in the store. The file of an older version is imported."""

    def __init__(self, repository: PairingRepository, file: Path) -> None:
        self._repository = repository
        self._file = file
        self._saved_rows: dict[str, Json] = {}

    async def load(self) -> PairingState | None:
        self._saved_rows = await self._repository.all()
        rows = dict(self._saved_rows)
        key = rows.pop(KEY_ROW, {}).get("key")
        if key is None:
            if rows:
                raise StateBroken("the store knows devices but not the key of their tokens; restore it from a backup")
            return await self._import_file()
        try:
            return PairingState(
                version=1, key=key, devices={id: msgspec.convert(row, PairedDevice) for id, row in rows.items()}
            )
        except msgspec.ValidationError as exc:
            raise StateBroken(f"the store's record of a device can't be read: {exc}") from exc

    async def save(self, state: PairingState) -> None:
        rows: dict[str, Json] = {KEY_ROW: {"key": state.key}}
        rows |= {id: msgspec.to_builtins(device) for id, device in state.devices.items()}
        for id, row in rows.items():
            if self._saved_rows.get(id) != row:
                await self._repository.put(id, row)
        for id in self._saved_rows.keys() - rows.keys():
            await self._repository.remove(id)
        self._saved_rows = rows

    async def _import_file(self) -> PairingState | None:
        state = await FilePairingStorage(self._file).load()
        if state is not None:
            await self.save(state)
            self._file.rename(self._file.with_suffix(".json.in-store"))
        return state


@asynccontextmanager
async def open_nodes(
    gateway: GatewayServer,
    repository: PairingRepository,
    *,
    config: Callable[[], Config],
    approval_queue: ExecApprovalQueue | None = None,
    is_reachable: Callable[[QuestionOrigin], bool] = lambda _: False,
    find_active_run: Callable[[str], str | None] = lambda _: None,
) -> AsyncIterator[NodeToolSources]:
    """Nodes connect, are approved, called and listed while the block runs. Open it before the gateway serves.

    `is_reachable`: whether the owner is asked in a question's conversation; `find_active_run`: by session.
    """
    peers = _Peers(gateway)
    async with NodeRegistry(
        repository, deny_patterns=lambda: permissions.read_deny_patterns(config().gateway.nodes)
    ) as registry:
        reports = NodeReports(registry, gateway.publish)
        nodes = NodeService(
            registry, reports, gateway.publish, unpair=lambda node_id: _unpair(gateway.pairing, node_id),
            credentials=peers.credentials, find_active_run=find_active_run,
        )  # fmt: skip
        queue = ExecApprovalQueue() if approval_queue is None else approval_queue
        approvals = ExecApprovals(
            gateway.publish, count_reviewers=peers.count_reviewers, credentials=peers.credentials,
            is_silent=peers.is_silent_operator, callers_of=nodes.callers, queue=queue, is_reachable=is_reachable,
            find_origin=nodes.find_origin, node_name=nodes.node_name,
        )  # fmt: skip
        sources = NodeToolSources(
            nodes, add_source=gateway.registry.add, remove_source=gateway.registry.remove,
            read_mcp=read_result,
        )  # fmt: skip

        def on_connect(connection: RpcConnection) -> None:
            if connection.is_node:
                registry.on_connect(node_connection(connection, silent=peers.is_silent(connection)))

        def on_disconnect(connection: RpcConnection) -> None:
            approvals.on_disconnect(connection.id)
            if connection.is_node:
                nodes.on_disconnect(connection.caller.name, connection.id)
                reports.on_disconnect(connection.caller.name, connection.id)

        def on_revocation(revocation: DeviceRevocation) -> None:
            if revocation.role is None:
                nodes.forget_node(revocation.device_id)

        disconnects = [
            gateway.connections.connected.connect(on_connect),
            gateway.connections.disconnected.connect(on_disconnect),
            gateway.pairing.revoked.connect(on_revocation),
            nodes.call_ended.connect(queue.on_invocation_end),
        ]
        for module in (nodes, reports, approvals, ExecApprovalsMethods(gateway.folder, nodes)):
            gateway.add_module(module)
        try:
            yield sources
        finally:
            approvals.close()
            for disconnect in disconnects:
                disconnect()


class _Peers:
    """What nodes and approvals ask about the gateway's connections, by connection id."""

    def __init__(self, gateway: GatewayServer) -> None:
        self._connections = gateway.connections
        self._pairing = gateway.pairing

    def credentials(self, id: str) -> tuple[str, ...]:
        """Empty for a call from within this process."""
        connection = self._connections.get(id)
        return () if connection is None else _credentials(connection)

    def is_silent(self, connection: RpcConnection) -> bool:
        """Whether its device was paired without an operator's approval."""
        device = self._pairing.find(connection.caller.name)
        return device is not None and device.approved_via == "silent"

    def is_silent_operator(self, id: str) -> bool:
        connection = self._connections.get(id)
        return connection is not None and not connection.is_node and self.is_silent(connection)

    def count_reviewers(self, except_id: str) -> int:
        return sum(each.may_receive(APPROVALS) for each in self._connections.values() if each.id != except_id)


def node_connection(connection: RpcConnection, *, silent: bool) -> NodeConnection:
    connect, client = connection.auth.connect, connection.auth.connect.client
    return NodeConnection(
        connection_id=connection.id,
        node_id=connection.caller.name,
        description=NodeDescription(
            client_id=client.id, client_mode=client.mode, platform=client.platform, version=client.version,
            display_name=_printable_name(client.display_name), device_family=client.device_family, caps=connect.caps,
            commands=connect.commands, permissions=connect.permissions,
        ),
        since=connection.since_ms,
        send_event=connection.send_event,
        path_env=connect.path_env,
        remote_ip=None if connection.peer_info.is_local else connection.peer_info.address,
        silent=silent,
    )  # fmt: skip


def _printable_name(name: str | None) -> str | None:
    """A node's name as a terminal may show it: the node chooses it freely."""
    plain = "".join(char for char in name or "" if char.isprintable()).strip()
    return plain[:MAX_NAME_LENGTH] or None


async def _unpair(pairing: DevicePairing, node_id: str) -> None:
    """Take the device its role as a node; one that is also an operator's keeps that role."""
    device = pairing.find(node_id)
    if device is None:
        return
    if set(device.roles) <= {"node"}:
        await pairing.remove(node_id)
    else:
        await pairing.revoke(node_id, "node")


def _credentials(connection: RpcConnection) -> tuple[str, ...]:
    """The credentials a connection has shown; one that it alone has comes first."""
    auth = connection.auth
    if auth.grant is not None:
        return (f"grant {auth.grant}",)
    shared = (SHARED_TOKEN,) if auth.method == "token" else ()
    if auth.connect.device is None:
        return shared
    device = (device_credential(auth.connect.device.id),)
    if connection.is_node:
        return device
    # A key that was never paired is one that any holder of the token can make.
    return device + shared if auth.device_token is not None else shared + device
