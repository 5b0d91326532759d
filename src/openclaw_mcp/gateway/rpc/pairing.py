"""Which devices are known here, what each may do, and who asks to be let in."""

import asyncio
import base64
import hashlib
import hmac
import secrets
import time
import uuid
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, Literal, Protocol

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from ...core.rpc import Fault, covers, missing_scope
from ...core.signal import Bell
from ...net.files import StateBroken, read_whole, write_whole
from ...net.gateway_client.handshake import Connect

PENDING_FOR: Final = 300.0  # seconds a request waits for approval; a device that still wants in asks again
MOST_PENDING: Final = 256  # requests kept; each needed the shared token, so more is a runaway client
ISSUE_BITS: Final = 52  # of the number a count of tokens begins with; what is counted on stays exact in every JSON

Decision = Literal["approved", "rejected", "removed"]
Reason = Literal["not-paired", "role-upgrade", "scope-upgrade", "metadata-upgrade"]


class Grant(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What a device may do in one role. The token itself is not kept: it follows from the book's key and `issue`."""

    scopes: tuple[str, ...]
    created_at_ms: int
    issue: int = 1
    """Counts rotations; the tokens of earlier issues no longer fit."""
    revoked_at_ms: int | None = None


class Device(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    device_id: str
    public_key: str
    client_id: str
    client_mode: str
    platform: str
    device_family: str | None = None
    display_name: str | None = None
    label: str | None = None
    grants: dict[str, Grant]
    created_at_ms: int
    approved_at_ms: int
    approved_via: Literal["silent", "owner"]
    remote_ip: str | None = None

    @property
    def roles(self) -> tuple[str, ...]:
        return tuple(role for role, grant in self.grants.items() if grant.revoked_at_ms is None)


class Asked(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A device waiting at the door, in the shape of `device.pair.requested`."""

    request_id: str
    device_id: str
    public_key: str
    client_id: str
    client_mode: str
    platform: str
    role: str
    roles: tuple[str, ...]
    scopes: tuple[str, ...]
    ts: int
    display_name: str | None = None
    device_family: str | None = None
    remote_ip: str | None = None
    is_repair: bool | None = None


class Resolved(Struct, frozen=True, kw_only=True, rename="camel"):
    """The end of a request, in the shape of `device.pair.resolved`."""

    request_id: str
    device_id: str
    decision: Decision
    ts: int


class Cut(Struct, frozen=True):
    """A device lost what its open connections stand on; `role` None = all of it."""

    device_id: str
    role: str | None


class Book(Struct, frozen=True, kw_only=True):
    """Everything that is kept."""

    version: int
    key: str
    devices: dict[str, Device]


class Shelf(Protocol):
    """Where the book lies between starts."""

    async def load(self) -> Book | None:
        """None when there is none yet. Raises StateBroken rather than lose one that can't be read."""

    async def save(self, book: Book) -> None:
        """On disk when this returns."""


class FileShelf:
    """The book as one private file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def load(self) -> Book | None:
        data = read_whole(self._path)
        if data is None:
            return None
        try:
            return msgspec.json.decode(data, type=Book)
        except ValueError as exc:
            raise StateBroken(
                f"{self._path} is no pairing book; restore it from a backup, or remove it to pair every device anew"
            ) from exc

    async def save(self, book: Book) -> None:
        await asyncio.to_thread(write_whole, self._path, msgspec.json.format(msgspec.json.encode(book)))


class MemoryShelf:
    """The book for as long as the process lives."""

    def __init__(self) -> None:
        self.book: Book | None = None

    async def load(self) -> Book | None:
        return self.book

    async def save(self, book: Book) -> None:
        self.book = book


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class Pairing:
    """Changes are saved before they are acknowledged, one at a time."""

    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf
        self._book = Book(version=1, key=secrets.token_hex(32), devices={})
        self._asked: dict[str, Asked] = {}
        self._writing = asyncio.Lock()
        self.asked: Bell[Asked] = Bell()
        self.resolved: Bell[Resolved] = Bell()
        self.cut: Bell[Cut] = Bell()

    async def open(self) -> None:
        """Read the book. Raises StateBroken."""
        found = await self._shelf.load()
        if found is not None:
            self._book = found

    # ---- looking -------------------------------------------------------------------------------------------------

    def find(self, device: str) -> Device | None:
        return self._book.devices.get(device)

    def devices(self) -> Iterable[Device]:
        return self._book.devices.values()

    def pending(self) -> list[Asked]:
        oldest = now_ms() - int(PENDING_FOR * 1000)
        self._asked = {id: asked for id, asked in self._asked.items() if asked.ts >= oldest}
        return list(self._asked.values())

    def token(self, device: str, role: str) -> str | None:
        """The token that device carries in that role; None when it has no standing in it."""
        known = self.find(device)
        grant = known.grants.get(role) if known else None
        if grant is None or grant.revoked_at_ms is not None:
            return None
        words = f"{device}|{role}|{grant.issue}".encode()
        digest = hmac.digest(bytes.fromhex(self._book.key), words, hashlib.sha256)
        return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()

    def holds(self, device: str, role: str, token: str) -> bool:
        """Whether `token` is that device's for that role. Takes the same time however much of it is right."""
        wanted = self.token(device, role)
        return wanted is not None and hmac.compare_digest(wanted.encode(), token.encode())

    def wants(self, connect: Connect) -> Reason | None:
        """What must be approved before this device comes in as it asks; None = nothing."""
        proof = connect.device
        assert proof is not None
        known = self.find(proof.id)
        if known is None:
            return "not-paired"
        client = connect.client
        if (known.platform, known.device_family) != (client.platform, client.device_family):
            return "metadata-upgrade"
        if connect.role not in known.roles:
            return "role-upgrade"
        if not all(covers(set(known.grants[connect.role].scopes), scope) for scope in connect.scopes):
            return "scope-upgrade"
        return None

    # ---- changing --------------------------------------------------------------------------------------------------

    def ask(self, connect: Connect, *, public_key: str, remote_ip: str | None) -> Asked:
        """File a request; an earlier one of the same device is withdrawn."""
        asked = self._asked_by(connect, public_key=public_key, remote_ip=remote_ip)
        for earlier in self.pending():
            if earlier.device_id == asked.device_id:
                self._close(earlier, "rejected")
        while len(self._asked) >= MOST_PENDING:
            self._close(next(iter(self._asked.values())), "rejected")
        self._asked[asked.request_id] = asked
        self.asked.ring(asked)
        return asked

    async def approve(self, request: str, *, by: frozenset[str]) -> Device:
        """Let the device in. Nobody grants what they do not hold themselves. Raises Fault."""
        asked = self._find_asked(request)
        for scope in asked.scopes:
            if not covers(by, scope):
                raise missing_scope(scope)
        device = await self._admit(asked, via="owner")
        self._close(asked, "approved")
        return device

    async def admit_silently(self, connect: Connect, *, public_key: str, remote_ip: str | None) -> Device:
        """Approve on the spot, as for programs of this machine that know the shared token."""
        asked = self._asked_by(connect, public_key=public_key, remote_ip=remote_ip)
        device = await self._admit(asked, via="silent")
        self.resolved.ring(_resolution(asked, "approved"))
        return device

    def reject(self, request: str) -> Asked:
        asked = self._find_asked(request)
        self._close(asked, "rejected")
        return asked

    async def remove(self, device: str) -> None:
        async with self._writing:
            self._known(device)
            await self._save({id: kept for id, kept in self._book.devices.items() if id != device})
        self.cut.ring(Cut(device, None))

    async def rename(self, device: str, label: str) -> Device:
        return await self._change(device, lambda known: replace(known, label=label))

    async def rotate(self, device: str, role: str, scopes: tuple[str, ...] | None, *, by: frozenset[str]) -> Grant:
        """A new token for that role; the old one and its connections end. Raises Fault."""

        def fresh(grant: Grant) -> Grant:
            if grant.revoked_at_ms is not None:
                raise Fault(
                    f"the role {role!r} of this device was revoked; it must ask for it with a new pairing request"
                )
            wanted = grant.scopes if scopes is None else scopes
            for scope in wanted:
                if not covers(by, scope):
                    raise missing_scope(scope)
                if not covers(frozenset(grant.scopes), scope):
                    raise Fault(f"{scope} was not approved for this device; ask for it with a new pairing request")
            return replace(grant, scopes=wanted, issue=grant.issue + 1, created_at_ms=now_ms())

        return await self._change_grant(device, role, fresh)

    async def revoke(self, device: str, role: str) -> Grant:
        return await self._change_grant(device, role, lambda grant: replace(grant, revoked_at_ms=now_ms()))

    # ---- within ------------------------------------------------------------------------------------------------------

    def _asked_by(self, connect: Connect, *, public_key: str, remote_ip: str | None) -> Asked:
        proof, client = connect.device, connect.client
        assert proof is not None
        return Asked(
            request_id=str(uuid.uuid4()),
            device_id=proof.id,
            public_key=public_key,
            client_id=client.id,
            client_mode=client.mode,
            platform=client.platform,
            device_family=client.device_family,
            display_name=client.display_name,
            role=connect.role,
            roles=(connect.role,),
            scopes=connect.scopes,
            remote_ip=remote_ip,
            is_repair=True if self.find(proof.id) else None,
            ts=now_ms(),
        )

    async def _admit(self, asked: Asked, *, via: Literal["silent", "owner"]) -> Device:
        async with self._writing:
            known = self._book.devices.get(asked.device_id)
            now = now_ms()
            grants = dict(known.grants) if known else {}
            before = grants.get(asked.role)
            # What was revoked does not come back with what is approved now: nobody was asked for it again.
            held = before.scopes if before and before.revoked_at_ms is None else ()
            grants[asked.role] = Grant(
                scopes=_union(held, asked.scopes),
                created_at_ms=before.created_at_ms if before else now,
                # A revoked role that is approved again gets a token of its own: the revoked one stays dead. So do those
                # of a device that was removed: its count is forgotten, so a new one begins where none has been.
                issue=(before.issue + (before.revoked_at_ms is not None)) if before else secrets.randbits(ISSUE_BITS),
            )
            device = Device(
                device_id=asked.device_id,
                public_key=asked.public_key,
                client_id=asked.client_id,
                client_mode=asked.client_mode,
                platform=asked.platform,
                device_family=asked.device_family,
                display_name=asked.display_name,
                label=known.label if known else None,
                grants=grants,
                created_at_ms=known.created_at_ms if known else now,
                approved_at_ms=now,
                approved_via=via,
                remote_ip=asked.remote_ip,
            )
            await self._save({**self._book.devices, device.device_id: device})
        return device

    async def _change(self, device: str, change: Callable[[Device], Device]) -> Device:
        async with self._writing:
            changed = change(self._known(device))
            await self._save({**self._book.devices, device: changed})
        return changed

    async def _change_grant(self, device: str, role: str, change: Callable[[Grant], Grant]) -> Grant:
        def with_grant(known: Device) -> Device:
            grant = known.grants.get(role)
            if grant is None:
                raise Fault(f"this device has no role {role!r}")
            return replace(known, grants={**known.grants, role: change(grant)})

        changed = await self._change(device, with_grant)
        self.cut.ring(Cut(device, role))
        return changed.grants[role]

    async def _save(self, devices: dict[str, Device]) -> None:
        book = replace(self._book, devices=devices)
        await self._shelf.save(book)
        self._book = book

    def _find_asked(self, request: str) -> Asked:
        self.pending()  # forgets what has waited too long
        asked = self._asked.get(request)
        if asked is None:
            raise Fault("unknown requestId")
        return asked

    def _known(self, device: str) -> Device:
        known = self.find(device)
        if known is None:
            raise Fault("unknown deviceId")
        return known

    def _close(self, asked: Asked, decision: Decision) -> None:
        if self._asked.pop(asked.request_id, None) is not None:
            self.resolved.ring(_resolution(asked, decision))


def _resolution(asked: Asked, decision: Decision) -> Resolved:
    return Resolved(request_id=asked.request_id, device_id=asked.device_id, decision=decision, ts=now_ms())


def _union(old: tuple[str, ...], new: tuple[str, ...]) -> tuple[str, ...]:
    return old + tuple(scope for scope in new if scope not in old)
