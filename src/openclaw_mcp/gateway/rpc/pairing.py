"""Paired devices: which are known, what each may do, and which ask to be paired."""

import asyncio
import base64
import hashlib
import hmac
import secrets
import uuid
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, Literal, Protocol

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from ...core.clock import now_ms
from ...core.rpc import RpcError, has_scope, scope_error
from ...core.signal import Signal
from ...net.files import StateBroken, read_if_exists, write_atomic
from ...net.gateway_client.handshake import ConnectParams

PENDING_SECONDS: Final = 300.0  # seconds a request waits for approval; a device that is still not paired asks again
MAX_PENDING: Final = 256  # requests kept; each needed the shared token, so more is a runaway client
ISSUE_BITS: Final = 52  # of the first number of a device's tokens; counted on, it stays exact in every JSON

PairingDecision = Literal["approved", "rejected", "removed"]
PairingReason = Literal["not-paired", "role-upgrade", "scope-upgrade", "metadata-upgrade"]


class DeviceGrant(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What a device may do in one role. The token is not stored: it follows from `PairingState.key` and `issue`."""

    scopes: tuple[str, ...]
    created_at_ms: int
    issue: int = 1
    """Counts rotations; the tokens of earlier issues no longer fit."""
    revoked_at_ms: int | None = None


class DeviceInfo(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What a device shows of itself when it connects."""

    device_id: str
    public_key: str
    client_id: str
    client_mode: str
    platform: str
    device_family: str | None = None
    display_name: str | None = None
    remote_ip: str | None = None


class PairedDevice(DeviceInfo, frozen=True, kw_only=True, omit_defaults=True):
    label: str | None = None
    grants: dict[str, DeviceGrant]
    created_at_ms: int
    approved_at_ms: int
    approved_via: Literal["silent", "owner"]

    @property
    def roles(self) -> tuple[str, ...]:
        return tuple(role for role, grant in self.grants.items() if grant.revoked_at_ms is None)


class PairingRequest(DeviceInfo, frozen=True, kw_only=True, omit_defaults=True):
    """A device that waits for approval, in the shape of `device.pair.requested`."""

    request_id: str
    role: str
    roles: tuple[str, ...]
    scopes: tuple[str, ...]
    ts: int
    is_repair: bool | None = None


class PairingResolution(Struct, frozen=True, kw_only=True, rename="camel"):
    """The end of a request, in the shape of `device.pair.resolved`."""

    request_id: str
    device_id: str
    decision: PairingDecision
    ts: int


class DeviceRevocation(Struct, frozen=True):
    """A device lost a role that its open connections may use; `role` None = it was removed."""

    device_id: str
    role: str | None


class PairingState(Struct, frozen=True, kw_only=True):
    """Everything that is stored."""

    version: int
    key: str
    devices: dict[str, PairedDevice]


class PairingStorage(Protocol):
    """Where the pairing state is stored."""

    async def load(self) -> PairingState | None:
        """None when there is none yet. Raises StateBroken rather than lose one that can't be read."""

    async def save(self, state: PairingState) -> None:
        """On disk when this returns."""


class FilePairingStorage:
    """The pairing state as one private file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def load(self) -> PairingState | None:
        data = read_if_exists(self._path)
        if data is None:
            return None
        try:
            return msgspec.json.decode(data, type=PairingState)
        except ValueError as exc:
            raise StateBroken(
                f"{self._path} is no pairing file; restore it from a backup, or remove it to pair every device again"
            ) from exc

    async def save(self, state: PairingState) -> None:
        await asyncio.to_thread(write_atomic, self._path, msgspec.json.format(msgspec.json.encode(state)))


class MemoryPairingStorage:
    """The pairing state for as long as the process lives."""

    def __init__(self) -> None:
        self.state: PairingState | None = None

    async def load(self) -> PairingState | None:
        return self.state

    async def save(self, state: PairingState) -> None:
        self.state = state


class DevicePairing:
    """Changes are saved before they are acknowledged, one at a time."""

    def __init__(self, storage: PairingStorage) -> None:
        self._storage = storage
        self._state = PairingState(version=1, key=secrets.token_hex(32), devices={})
        self._requests: dict[str, PairingRequest] = {}
        self._write_lock = asyncio.Lock()
        self.requested: Signal[PairingRequest] = Signal()
        self.resolved: Signal[PairingResolution] = Signal()
        self.revoked: Signal[DeviceRevocation] = Signal()

    async def open(self) -> None:
        """Read the stored state. Raises StateBroken."""
        found = await self._storage.load()
        if found is not None:
            self._state = found

    # ---- reading -------------------------------------------------------------------------------------------------

    def find(self, device: str) -> PairedDevice | None:
        return self._state.devices.get(device)

    def devices(self) -> Iterable[PairedDevice]:
        return self._state.devices.values()

    def list_pending(self) -> list[PairingRequest]:
        oldest = now_ms() - int(PENDING_SECONDS * 1000)
        self._requests = {id: asked for id, asked in self._requests.items() if asked.ts >= oldest}
        return list(self._requests.values())

    def device_token(self, device: str, role: str) -> str | None:
        """The token that device carries in that role; None when it does not have that role."""
        known = self.find(device)
        grant = known.grants.get(role) if known else None
        if grant is None or grant.revoked_at_ms is not None:
            return None
        claim = f"{device}|{role}|{grant.issue}".encode()
        digest = hmac.digest(bytes.fromhex(self._state.key), claim, hashlib.sha256)
        return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()

    def is_valid_token(self, device: str, role: str, token: str) -> bool:
        """Whether `token` is that device's for that role. Takes the same time however much of it is right."""
        wanted = self.device_token(device, role)
        return wanted is not None and hmac.compare_digest(wanted.encode(), token.encode())

    # ---- changing --------------------------------------------------------------------------------------------------

    def request(self, connect: ConnectParams, device: str, *, public_key: str, remote_ip: str | None) -> PairingRequest:
        """File a request; an earlier one of the same device is withdrawn."""
        asked = self._build_request(connect, device, public_key=public_key, remote_ip=remote_ip)
        for earlier in self.list_pending():
            if earlier.device_id == asked.device_id:
                self._resolve(earlier, "rejected")
        while len(self._requests) >= MAX_PENDING:
            self._resolve(next(iter(self._requests.values())), "rejected")
        self._requests[asked.request_id] = asked
        self.requested.emit(asked)
        return asked

    async def approve(self, request: str, *, by: frozenset[str]) -> PairedDevice:
        """Pair the device. The approver must hold every scope that is granted. Raises RpcError."""
        asked = self._find_request(request)
        for scope in asked.scopes:
            if not has_scope(by, scope):
                raise scope_error(scope)
        device = await self._store_device(asked, via="owner")
        self._resolve(asked, "approved")
        return device

    async def approve_silently(
        self, connect: ConnectParams, device: str, *, public_key: str, remote_ip: str | None
    ) -> PairedDevice:
        """Approve without asking, as for programs of this machine that have the shared token."""
        asked = self._build_request(connect, device, public_key=public_key, remote_ip=remote_ip)
        paired = await self._store_device(asked, via="silent")
        self.resolved.emit(_make_resolution(asked, "approved"))
        return paired

    def reject(self, request: str) -> PairingRequest:
        asked = self._find_request(request)
        self._resolve(asked, "rejected")
        return asked

    async def remove(self, device: str) -> None:
        async with self._write_lock:
            self._get_device(device)
            await self._save({id: kept for id, kept in self._state.devices.items() if id != device})
        self.revoked.emit(DeviceRevocation(device, None))

    async def rename(self, device: str, label: str) -> PairedDevice:
        return await self._change(device, lambda known: replace(known, label=label))

    async def rotate(
        self, device: str, role: str, scopes: tuple[str, ...] | None, *, by: frozenset[str]
    ) -> DeviceGrant:
        """A new token for that role; the old one and its connections end. Raises RpcError."""

        def fresh(grant: DeviceGrant) -> DeviceGrant:
            if grant.revoked_at_ms is not None:
                raise RpcError(
                    f"the role {role!r} of this device was revoked; it must ask for it with a new pairing request"
                )
            wanted = grant.scopes if scopes is None else scopes
            for scope in wanted:
                if not has_scope(by, scope):
                    raise scope_error(scope)
                if not has_scope(frozenset(grant.scopes), scope):
                    raise RpcError(f"{scope} was not approved for this device; ask for it with a new pairing request")
            return replace(grant, scopes=wanted, issue=grant.issue + 1, created_at_ms=now_ms())

        return await self._change_grant(device, role, fresh)

    async def revoke(self, device: str, role: str) -> DeviceGrant:
        return await self._change_grant(device, role, lambda grant: replace(grant, revoked_at_ms=now_ms()))

    # ---- internal --------------------------------------------------------------------------------------------------

    def _build_request(
        self, connect: ConnectParams, device: str, *, public_key: str, remote_ip: str | None
    ) -> PairingRequest:
        client = connect.client
        return PairingRequest(
            request_id=str(uuid.uuid4()), device_id=device, public_key=public_key, client_id=client.id,
            client_mode=client.mode, platform=client.platform, device_family=client.device_family,
            display_name=client.display_name, role=connect.role, roles=(connect.role,), scopes=connect.scopes,
            remote_ip=remote_ip, is_repair=True if self.find(device) else None, ts=now_ms(),
        )  # fmt: skip

    async def _store_device(self, request: PairingRequest, *, via: Literal["silent", "owner"]) -> PairedDevice:
        async with self._write_lock:
            known = self._state.devices.get(request.device_id)
            now = now_ms()
            grants = dict(known.grants) if known else {}
            before = grants.get(request.role)
            # What was revoked does not come back with what is approved now: no operator was asked for it again.
            held = before.scopes if before and before.revoked_at_ms is None else ()
            grants[request.role] = DeviceGrant(
                scopes=tuple(dict.fromkeys((*held, *request.scopes))),
                created_at_ms=before.created_at_ms if before else now,
                # A revoked role that is approved again gets a token of its own: the revoked one stays dead. So do those
                # of a device that was removed: its count is forgotten, so a new one begins where none has been.
                issue=(before.issue + (before.revoked_at_ms is not None)) if before else secrets.randbits(ISSUE_BITS),
            )
            device = PairedDevice(
                **{name: getattr(request, name) for name in DeviceInfo.__struct_fields__},
                label=known.label if known else None,
                grants=grants,
                created_at_ms=known.created_at_ms if known else now,
                approved_at_ms=now,
                approved_via=via,
            )
            await self._save({**self._state.devices, device.device_id: device})
        return device

    async def _change(self, device: str, change: Callable[[PairedDevice], PairedDevice]) -> PairedDevice:
        async with self._write_lock:
            changed = change(self._get_device(device))
            await self._save({**self._state.devices, device: changed})
        return changed

    async def _change_grant(self, device: str, role: str, change: Callable[[DeviceGrant], DeviceGrant]) -> DeviceGrant:
        def with_grant(known: PairedDevice) -> PairedDevice:
            grant = known.grants.get(role)
            if grant is None:
                raise RpcError(f"this device has no role {role!r}")
            return replace(known, grants={**known.grants, role: change(grant)})

        changed = await self._change(device, with_grant)
        self.revoked.emit(DeviceRevocation(device, role))
        return changed.grants[role]

    async def _save(self, devices: dict[str, PairedDevice]) -> None:
        state = replace(self._state, devices=devices)
        await self._storage.save(state)
        self._state = state

    def _find_request(self, request: str) -> PairingRequest:
        self.list_pending()  # forgets what has waited too long
        asked = self._requests.get(request)
        if asked is None:
            raise RpcError("unknown requestId")
        return asked

    def _get_device(self, device: str) -> PairedDevice:
        known = self.find(device)
        if known is None:
            raise RpcError("unknown deviceId")
        return known

    def _resolve(self, request: PairingRequest, decision: PairingDecision) -> None:
        if self._requests.pop(request.request_id, None) is not None:
            self.resolved.emit(_make_resolution(request, decision))


def upgrade_reason(connect: ConnectParams, known: PairedDevice) -> PairingReason | None:
    """What must be approved before a known device is admitted as it asks; None = nothing."""
    client = connect.client
    if (known.platform, known.device_family) != (client.platform, client.device_family):
        return "metadata-upgrade"
    if connect.role not in known.roles:
        return "role-upgrade"
    if not all(has_scope(set(known.grants[connect.role].scopes), scope) for scope in connect.scopes):
        return "scope-upgrade"
    return None


def _make_resolution(request: PairingRequest, decision: PairingDecision) -> PairingResolution:
    return PairingResolution(request_id=request.request_id, device_id=request.device_id, decision=decision, ts=now_ms())
