"""The caretaker of machines: devices kept in the store, nodes at the intercom, their tools on the menu."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import msgspec

from ...core.config.config import Config
from ...core.model import Json
from ...core.repositories import PairingRepository
from ...core.rpc import APPROVALS
from ...net.files import StateBroken
from ...protocol.mcp_results import read_result
from ..nodes import permissions
from ..nodes.approval_methods import ExecApprovals
from ..nodes.approval_queue import SHARED_TOKEN, device_credential
from ..nodes.exec_rules import ExecApprovalsMethods
from ..nodes.registry import NodeRegistry
from ..nodes.reports import NodeReports
from ..nodes.rpc_methods import MAX_NAME_LENGTH, NodeService
from ..nodes.tools import NodeToolSources
from ..nodes.values import NodeConnection, NodeDescription
from ..rpc.connection import RpcConnection
from ..rpc.pairing import DeviceRevocation, FilePairingStorage, PairedDevice, PairingState
from .gateway import GatewayServer

KEY_ROW: Final = "(key)"
"""Under this id stands the key device tokens are derived from; devices are 64 hexadecimal digits."""


class DatabasePairingStorage:
    """The book of devices, in the store once `book` is set. What an older version kept in a file is taken over."""

    def __init__(self, file: Path) -> None:
        self.repository: PairingRepository | None = None
        self._file = file
        self._saved_rows: dict[str, Json] = {}

    async def load(self) -> PairingState | None:
        assert self.repository is not None
        self._saved_rows = await self.repository.all()
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
        assert self.repository is not None
        rows: dict[str, Json] = {KEY_ROW: {"key": state.key}}
        rows |= {id: msgspec.to_builtins(device) for id, device in state.devices.items()}
        for id, row in rows.items():
            if self._saved_rows.get(id) != row:
                await self.repository.put(id, row)
        for id in self._saved_rows.keys() - rows.keys():
            await self.repository.remove(id)
        self._saved_rows = rows

    async def _import_file(self) -> PairingState | None:
        book = await FilePairingStorage(self._file).load()
        if book is not None:
            await self.save(book)
            self._file.rename(self._file.with_suffix(".json.in-store"))
        return book


@asynccontextmanager
async def open_nodes(
    gateway: GatewayServer, repository: PairingRepository, *, config: Callable[[], Config]
) -> AsyncIterator[NodeToolSources]:
    """Nodes join this gateway, are approved, asked and listed while the block runs. Open it before it serves."""
    async with NodeRegistry(
        repository, deny_patterns=lambda: permissions.read_deny_patterns(config().gateway.nodes)
    ) as roll:
        telling = NodeReports(roll, gateway.publish)
        nodes = NodeService(
            roll,
            gateway.publish,
            unpair=_make_unpair(gateway),
            extra_view=telling.extra_view,
            credentials=lambda connection: _credentials(gateway, connection),
        )
        approvals = ExecApprovals(
            gateway.publish,
            count_reviewers=lambda but: _count_reviewers(gateway, but),
            credentials=lambda connection: _credentials(gateway, connection),
            is_silent=lambda connection: _is_silent_operator(gateway, connection),
            callers_of=nodes.callers,
        )
        registry = gateway.registry
        stalls = NodeToolSources(
            roll, telling, nodes, add_source=registry.add, remove_source=registry.remove, read_mcp=read_result
        )

        def came(connection: RpcConnection) -> None:
            if connection.is_node:
                nodes.on_connect(node_connection(connection, silent=_is_silent_device(gateway, connection)))

        def went(connection: RpcConnection) -> None:
            approvals.on_disconnect(connection.id)
            if connection.is_node:
                nodes.on_disconnect(connection.caller.name, connection.id)
                telling.on_disconnect(connection.caller.name, connection.id)

        def cut(news: DeviceRevocation) -> None:
            if news.role is None:
                nodes.forget_node(news.device_id)

        stops = [
            gateway.rpc_server.connected.connect(came),
            gateway.rpc_server.disconnected.connect(went),
            gateway.pairing.revoked.connect(cut),
        ]
        for room in (nodes, telling, approvals, ExecApprovalsMethods(gateway.folder, nodes)):
            gateway.add_module(room)
        try:
            yield stalls
        finally:
            approvals.close()
            for stop in stops:
                stop()


def node_connection(connection: RpcConnection, *, silent: bool) -> NodeConnection:
    admitted = connection.auth
    assert admitted is not None
    connect, client = admitted.connect, admitted.connect.client
    return NodeConnection(
        connection_id=connection.id,
        node_id=admitted.caller.name,
        description=NodeDescription(
            client_id=client.id,
            client_mode=client.mode,
            platform=client.platform,
            version=client.version,
            display_name=_printable_name(client.display_name),
            device_family=client.device_family,
            caps=connect.caps,
            commands=connect.commands,
            permissions=connect.permissions,
        ),
        since=connection.since_ms,
        send_event=connection.send_event,
        path_env=connect.path_env,
        remote_ip=None if connection.peer_info.is_local else connection.peer_info.address,
        silent=silent,
    )


def _printable_name(name: str | None) -> str | None:
    """A node's name as it may be shown in a terminal: whoever joins chooses it."""
    plain = "".join(char for char in name or "" if char.isprintable()).strip()
    return plain[:MAX_NAME_LENGTH] or None


def _is_silent_device(gateway: GatewayServer, connection: RpcConnection) -> bool:
    device = gateway.pairing.find(connection.caller.name)
    return device is not None and device.approved_via == "silent"


def _is_silent_operator(gateway: GatewayServer, connection_id: str) -> bool:
    guest = gateway.rpc_server.connections.get(connection_id)
    return guest is not None and not guest.is_node and _is_silent_device(gateway, guest)


def _make_unpair(gateway: GatewayServer) -> Callable[[str], Awaitable[None]]:
    async def dismiss(node_id: str) -> None:
        """End the device's standing as a node; one that is also an operator's stays that."""
        device = gateway.pairing.find(node_id)
        if device is None:
            return
        if set(device.roles) <= {"node"}:
            await gateway.pairing.remove(node_id)
        else:
            await gateway.pairing.revoke(node_id, "node")

    return dismiss


def _credentials(gateway: GatewayServer, connection_id: str) -> tuple[str, ...]:
    """What a connection proved itself by; what it alone holds comes first. Empty: a call from within."""
    guest = gateway.rpc_server.connections.get(connection_id)
    if guest is None or guest.auth is None:
        return ()
    admitted = guest.auth
    if admitted.grant is not None:
        return (f"grant {admitted.grant}",)
    shared = (SHARED_TOKEN,) if admitted.method == "token" else ()
    if admitted.connect.device is None:
        return shared
    device = (device_credential(admitted.connect.device.id),)
    if guest.is_node:
        return device
    # A key nobody has paired is one that anybody with the token can make.
    return device + shared if admitted.device_token is not None else shared + device


def _count_reviewers(gateway: GatewayServer, except_id: str) -> int:
    return sum(
        guest.may_receive(APPROVALS) for guest in gateway.rpc_server.connections.values() if guest.id != except_id
    )
