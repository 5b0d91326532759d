"""The caretaker of machines: devices kept in the store, nodes at the intercom, their tools on the menu."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import msgspec

from ...core.model import Json
from ...core.repositories import PairingBook
from ...core.rpc import APPROVALS
from ...net.files import StateBroken
from ...protocol.mcp_results import read_result
from ..nodes import permissions
from ..nodes.approval_methods import Approvals
from ..nodes.approval_queue import SHARED, device_credential
from ..nodes.exec_rules import ExecRules
from ..nodes.registry import Roll
from ..nodes.reports import Telling
from ..nodes.rpc_methods import LONGEST_NAME, Nodes
from ..nodes.tools import Stalls
from ..nodes.values import Arrival, Face
from ..rpc.connection import Connection
from ..rpc.pairing import Book, Cut, Device, FileShelf
from .gateway import Gateway

KEY_ROW: Final = "(key)"
"""Under this id stands the key device tokens are derived from; devices are 64 hexadecimal digits."""


class StoreShelf:
    """The book of devices, in the store once `book` is set. What an older version kept in a file is taken over."""

    def __init__(self, file: Path) -> None:
        self.book: PairingBook | None = None
        self._file = file
        self._kept: dict[str, Json] = {}

    async def load(self) -> Book | None:
        assert self.book is not None
        self._kept = await self.book.all()
        rows = dict(self._kept)
        key = rows.pop(KEY_ROW, {}).get("key")
        if key is None:
            if rows:
                raise StateBroken("the store knows devices but not the key of their tokens; restore it from a backup")
            return await self._taken_over()
        try:
            return Book(version=1, key=key, devices={id: msgspec.convert(row, Device) for id, row in rows.items()})
        except msgspec.ValidationError as exc:
            raise StateBroken(f"the store's record of a device can't be read: {exc}") from exc

    async def save(self, book: Book) -> None:
        assert self.book is not None
        rows: dict[str, Json] = {KEY_ROW: {"key": book.key}}
        rows |= {id: msgspec.to_builtins(device) for id, device in book.devices.items()}
        for id, row in rows.items():
            if self._kept.get(id) != row:
                await self.book.put(id, row)
        for id in self._kept.keys() - rows.keys():
            await self.book.remove(id)
        self._kept = rows

    async def _taken_over(self) -> Book | None:
        book = await FileShelf(self._file).load()
        if book is not None:
            await self.save(book)
            self._file.rename(self._file.with_suffix(".json.in-store"))
        return book


@asynccontextmanager
async def machine_room(gateway: Gateway, book: PairingBook, *, config: Callable[[], Json]) -> AsyncIterator[Stalls]:
    """Nodes join this gateway, are approved, asked and listed while the block runs. Open it before it serves."""
    async with Roll(book, denied=lambda: permissions.denied_in(config())) as roll:
        telling = Telling(roll, gateway.publish)
        nodes = Nodes(
            roll,
            gateway.publish,
            dismiss=_dismissal(gateway),
            describe=telling.view,
            credentials=lambda connection: _credentials(gateway, connection),
        )
        approvals = Approvals(
            gateway.publish,
            listeners=lambda but: _listeners(gateway, but),
            credentials=lambda connection: _credentials(gateway, connection),
            silent=lambda connection: _is_silent_operator(gateway, connection),
            callers=nodes.callers,
        )
        registry = gateway.registry
        stalls = Stalls(roll, telling, nodes, add=registry.add, remove=registry.remove, read_mcp=read_result)

        def came(connection: Connection) -> None:
            if connection.is_node:
                nodes.came(arrival(connection, silent=_was_silent(gateway, connection)))

        def went(connection: Connection) -> None:
            approvals.went(connection.id)
            if connection.is_node:
                nodes.went(connection.caller.name, connection.id)
                telling.went(connection.caller.name, connection.id)

        def cut(news: Cut) -> None:
            if news.role is None:
                nodes.unpaired(news.device_id)

        stops = [
            gateway.intercom.came.listen(came),
            gateway.intercom.went.listen(went),
            gateway.pairing.cut.listen(cut),
        ]
        for room in (nodes, telling, approvals, ExecRules(gateway.folder, nodes)):
            gateway.add(room)
        try:
            yield stalls
        finally:
            approvals.close()
            for stop in stops:
                stop()


def arrival(connection: Connection, *, silent: bool) -> Arrival:
    admitted = connection.admitted
    assert admitted is not None
    connect, client = admitted.connect, admitted.connect.client
    return Arrival(
        connection=connection.id,
        node_id=admitted.caller.name,
        face=Face(
            client_id=client.id,
            client_mode=client.mode,
            platform=client.platform,
            version=client.version,
            display_name=_visible(client.display_name),
            device_family=client.device_family,
            caps=connect.caps,
            commands=connect.commands,
            permissions=connect.permissions,
        ),
        since=connection.since,
        tell=connection.tell,
        path_env=connect.path_env,
        remote_ip=None if connection.visitor.local else connection.visitor.address,
        silent=silent,
    )


def _visible(name: str | None) -> str | None:
    """A node's name as it may be shown in a terminal: whoever joins chooses it."""
    plain = "".join(char for char in name or "" if char.isprintable()).strip()
    return plain[:LONGEST_NAME] or None


def _was_silent(gateway: Gateway, connection: Connection) -> bool:
    device = gateway.pairing.find(connection.caller.name)
    return device is not None and device.approved_via == "silent"


def _is_silent_operator(gateway: Gateway, connection: str) -> bool:
    guest = gateway.intercom.guests.get(connection)
    return guest is not None and not guest.is_node and _was_silent(gateway, guest)


def _dismissal(gateway: Gateway) -> Callable[[str], Awaitable[None]]:
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


def _credentials(gateway: Gateway, connection: str) -> tuple[str, ...]:
    """What a connection proved itself by; what it alone holds comes first. Empty: a call from within."""
    guest = gateway.intercom.guests.get(connection)
    if guest is None or guest.admitted is None:
        return ()
    admitted = guest.admitted
    if admitted.grant is not None:
        return (f"grant {admitted.grant}",)
    shared = (SHARED,) if admitted.method == "token" else ()
    if admitted.connect.device is None:
        return shared
    device = (device_credential(admitted.connect.device.id),)
    if guest.is_node:
        return device
    # A key nobody has paired is one that anybody with the token can make.
    return device + shared if admitted.device_token is not None else shared + device


def _listeners(gateway: Gateway, but: str) -> int:
    return sum(guest.may_hear(APPROVALS) for guest in gateway.intercom.guests.values() if guest.id != but)
