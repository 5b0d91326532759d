"""The pairing book: what is acknowledged is kept, and what is kept can't be used by who reads it."""

import asyncio
import json
import stat
import time
from pathlib import Path

import msgspec
import pytest

from openclaw_mcp.core.clock import now_ms
from openclaw_mcp.core.rpc import ADMIN, READ, WRITE, RpcError
from openclaw_mcp.gateway.rpc import pairing as pairings
from openclaw_mcp.gateway.rpc.pairing import DevicePairing, FilePairingStorage, MemoryPairingStorage
from openclaw_mcp.net.files import StateBroken
from openclaw_mcp.net.gateway_client.handshake import Challenge, ClientProfile, ConnectParams, Credentials
from openclaw_mcp.net.gateway_client.identity import DeviceIdentity

from .gateways import TUI

DEVICE = DeviceIdentity(b"\7" * 32)


def connect(device: DeviceIdentity = DEVICE, *scopes: str) -> ConnectParams:
    return ClientProfile(client=TUI, scopes=scopes or (READ,)).build_connect(Challenge("n", 1), Credentials(), device)


async def admitted(pairing: DevicePairing, device: DeviceIdentity = DEVICE, *scopes: str) -> str:
    await pairing.approve_silently(connect(device, *scopes), device.id, public_key=device.public_key, remote_ip=None)
    token = pairing.device_token(device.id, "operator")
    assert token is not None
    return token


def test_what_was_approved_is_there_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "pairing.json"

    async def test() -> None:
        first = DevicePairing(FilePairingStorage(path))
        await first.open()
        token = await admitted(first)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert token not in path.read_text()
        second = DevicePairing(FilePairingStorage(path))
        await second.open()
        assert second.is_valid_token(DEVICE.id, "operator", token)
        assert not second.is_valid_token(DEVICE.id, "node", token)
        assert not second.is_valid_token("unknown", "operator", token)

    asyncio.run(test())


def test_a_broken_book_stops_us_and_stays_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "pairing.json"
    path.write_text('{"version":1,')
    with pytest.raises(StateBroken, match="is no pairing file; restore it"):
        asyncio.run(DevicePairing(FilePairingStorage(path)).open())
    assert path.read_text() == '{"version":1,'


def test_a_change_that_cannot_be_saved_is_not_made() -> None:
    class Full(MemoryPairingStorage):
        async def save(self, repository: pairings.PairingState) -> None:
            raise StateBroken("no space left on device")

    async def test() -> None:
        pairing = DevicePairing(Full())
        with pytest.raises(StateBroken):
            await admitted(pairing)
        assert pairing.find(DEVICE.id) is None

    asyncio.run(test())


def test_rotation_and_revocation_end_the_old_token() -> None:
    async def test() -> None:
        pairing = DevicePairing(MemoryPairingStorage())
        cuts: list[pairings.DeviceRevocation] = []
        pairing.revoked.connect(cuts.append)
        first = await admitted(pairing, DEVICE, READ, ADMIN)
        with pytest.raises(RpcError, match="missing scope"):
            await pairing.rotate(DEVICE.id, "operator", None, by=frozenset({READ}))
        with pytest.raises(RpcError, match="was not approved"):
            await narrowed()
        await pairing.rotate(DEVICE.id, "operator", None, by=frozenset({ADMIN}))
        second = pairing.device_token(DEVICE.id, "operator")
        assert second is not None
        assert not pairing.is_valid_token(DEVICE.id, "operator", first)
        assert pairing.is_valid_token(DEVICE.id, "operator", second)
        await pairing.revoke(DEVICE.id, "operator")
        assert not pairing.is_valid_token(DEVICE.id, "operator", second)
        third = await admitted(pairing)
        assert third not in (first, second)
        assert cuts == [pairings.DeviceRevocation(DEVICE.id, "operator")] * 2
        await pairing.remove(DEVICE.id)
        fourth = await admitted(pairing)
        assert fourth not in (first, second, third)
        assert not any(pairing.is_valid_token(DEVICE.id, "operator", token) for token in (first, second, third))

    async def narrowed() -> None:
        other = DevicePairing(MemoryPairingStorage())
        await admitted(other, DEVICE, READ)
        await other.rotate(DEVICE.id, "operator", (ADMIN,), by=frozenset({ADMIN}))

    asyncio.run(test())


def test_requests_grow_old_and_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        pairing = DevicePairing(MemoryPairingStorage())
        request = pairing.request(connect(), DEVICE.id, public_key=DEVICE.public_key, remote_ip="192.0.2.7")
        later = now_ms() + int(pairings.PENDING_SECONDS * 1000) + 1000
        with monkeypatch.context() as clock:
            clock.setattr(pairings, "now_ms", lambda: later)
            with pytest.raises(RpcError, match="unknown requestId"):
                await pairing.approve(request.request_id, by=frozenset({ADMIN}))
        monkeypatch.setattr(pairings, "MAX_PENDING", 3)
        for number in range(5):
            device = DeviceIdentity(bytes([number]) * 32)
            pairing.request(connect(device), device.id, public_key=device.public_key, remote_ip=None)
        assert len(pairing.list_pending()) == 3

    asyncio.run(test())


def test_unknown_devices_and_roles_are_named() -> None:
    async def test() -> None:
        pairing = DevicePairing(MemoryPairingStorage())
        for change in (pairing.remove("x"), pairing.rename("x", "y"), pairing.revoke("x", "operator")):
            with pytest.raises(RpcError, match="unknown deviceId"):
                await change
        await admitted(pairing)
        with pytest.raises(RpcError, match="no role 'node'"):
            await pairing.revoke(DEVICE.id, "node")

    asyncio.run(test())


def test_a_request_waits_five_minutes_and_256_wait_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        pairing = DevicePairing(MemoryPairingStorage())
        now = now_ms()
        monkeypatch.setattr(pairings, "now_ms", lambda: now)
        first = pairing.request(connect(), DEVICE.id, public_key=DEVICE.public_key, remote_ip=None)
        monkeypatch.setattr(pairings, "now_ms", lambda: now + 300_000)
        assert pairing.list_pending() == [first]
        monkeypatch.setattr(pairings, "now_ms", lambda: now + 300_001)
        assert pairing.list_pending() == []
        ended: list[pairings.PairingResolution] = []
        pairing.resolved.connect(ended.append)
        for number in range(257):
            device = DeviceIdentity(number.to_bytes(2, "big") * 16)
            pairing.request(connect(device), device.id, public_key=device.public_key, remote_ip=None)
        assert len(pairing.list_pending()) == 256
        assert [(end.device_id, end.decision) for end in ended] == [(DeviceIdentity(bytes(32)).id, "rejected")]

    asyncio.run(test())


def test_a_request_says_whether_the_device_was_known_and_how_it_ended() -> None:
    async def test() -> None:
        pairing = DevicePairing(MemoryPairingStorage())
        requests: list[pairings.PairingRequest] = []
        ended: list[pairings.PairingResolution] = []
        pairing.requested.connect(requests.append)
        pairing.resolved.connect(ended.append)
        first = pairing.request(connect(), DEVICE.id, public_key=DEVICE.public_key, remote_ip="192.0.2.7")
        assert (first.is_repair, first.roles) == (None, ("operator",))
        device = await pairing.approve(first.request_id, by=frozenset({ADMIN}))
        assert (device.device_id, device.approved_via, device.remote_ip) == (DEVICE.id, "owner", "192.0.2.7")
        again = pairing.request(connect(), DEVICE.id, public_key=DEVICE.public_key, remote_ip=None)
        assert again.is_repair is True
        assert pairing.reject(again.request_id) == again
        silent = await pairing.approve_silently(connect(), DEVICE.id, public_key=DEVICE.public_key, remote_ip=None)
        assert silent.approved_via == "silent"
        assert [one.request_id for one in requests] == [first.request_id, again.request_id]
        assert [end.decision for end in ended] == ["approved", "rejected", "approved"]
        with pytest.raises(RpcError, match="unknown requestId"):
            await pairing.approve(first.request_id, by=frozenset({ADMIN}))

    asyncio.run(test())


def test_no_operator_approves_more_than_it_holds() -> None:
    async def test() -> None:
        for wanted, held, may in (
            ((READ,), {READ}, True),
            ((READ,), {WRITE}, True),
            ((WRITE,), {READ}, False),
            ((READ, WRITE), {READ}, False),
            ((ADMIN,), {WRITE, READ}, False),
            ((ADMIN,), {ADMIN}, True),
            ((READ,), set[str](), False),
        ):
            pairing = DevicePairing(MemoryPairingStorage())
            request = pairing.request(connect(DEVICE, *wanted), DEVICE.id, public_key=DEVICE.public_key, remote_ip=None)
            if may:
                await pairing.approve(request.request_id, by=frozenset(held))
                assert pairing.device_token(DEVICE.id, "operator") is not None
            else:
                with pytest.raises(RpcError, match="missing scope"):
                    await pairing.approve(request.request_id, by=frozenset(held))
                assert pairing.find(DEVICE.id) is None
                assert pairing.list_pending() == [request]

    asyncio.run(test())


def test_a_role_approved_again_after_revocation_gets_the_next_token() -> None:
    async def test() -> None:
        storage = MemoryPairingStorage()
        pairing = DevicePairing(storage)
        await admitted(pairing)

        def issue() -> int:
            assert storage.state is not None
            return storage.state.devices[DEVICE.id].grants["operator"].issue

        first = issue()
        assert 0 <= first < 2**53
        await admitted(pairing)  # approved again without a revocation: the same token
        assert issue() == first
        await pairing.rotate(DEVICE.id, "operator", None, by=frozenset({ADMIN}))
        assert issue() == first + 1
        await pairing.revoke(DEVICE.id, "operator")
        await admitted(pairing)
        assert issue() == first + 2

    asyncio.run(test())


@pytest.mark.parametrize(
    ("held", "requested", "left"),
    [
        ((ADMIN,), (READ,), (READ,)),
        ((ADMIN, READ, WRITE), (READ,), (READ,)),
        ((READ, WRITE), (READ,), (READ,)),
        ((READ,), (READ, WRITE), (READ, WRITE)),
    ],
)
@pytest.mark.parametrize("silently", [False, True])
def test_what_was_revoked_does_not_come_back_with_what_is_approved_later(
    held: tuple[str, ...], requested: tuple[str, ...], left: tuple[str, ...], silently: bool
) -> None:
    async def test() -> None:
        pairing = DevicePairing(MemoryPairingStorage())
        await admitted(pairing, DEVICE, *held)
        await pairing.revoke(DEVICE.id, "operator")
        again = connect(DEVICE, *requested)
        if silently:
            device = await pairing.approve_silently(again, DEVICE.id, public_key=DEVICE.public_key, remote_ip=None)
        else:
            request = pairing.request(again, DEVICE.id, public_key=DEVICE.public_key, remote_ip="10.0.0.9")
            device = await pairing.approve(request.request_id, by=frozenset(requested))
        assert device.grants["operator"].scopes == left
        more = {scope for scope in held if scope not in left and ADMIN not in left}
        assert all(pairings.upgrade_reason(connect(DEVICE, scope), device) == "scope-upgrade" for scope in more)
        await pairing.approve_silently(connect(DEVICE, ADMIN), DEVICE.id, public_key=DEVICE.public_key, remote_ip=None)
        both = await pairing.approve_silently(again, DEVICE.id, public_key=DEVICE.public_key, remote_ip=None)
        assert ADMIN in both.grants["operator"].scopes  # what was not revoked stays

    asyncio.run(test())


@pytest.mark.parametrize("scopes", [None, (READ,)])
def test_a_new_token_does_not_bring_a_revoked_role_back(scopes: tuple[str, ...] | None) -> None:
    async def test() -> None:
        pairing = DevicePairing(MemoryPairingStorage())
        await admitted(pairing, DEVICE, READ, WRITE)
        await pairing.revoke(DEVICE.id, "operator")
        with pytest.raises(RpcError, match="was revoked"):
            await pairing.rotate(DEVICE.id, "operator", scopes, by=frozenset({ADMIN}))
        assert pairing.device_token(DEVICE.id, "operator") is None

    asyncio.run(test())


def test_the_book_is_what_its_shelf_holds_and_says_which_kind_of_book_it_is(tmp_path: Path) -> None:
    async def test() -> None:
        for storage in (MemoryPairingStorage(), FilePairingStorage(tmp_path / "pairing.json")):
            first, second = DevicePairing(storage), DevicePairing(storage)
            token = await admitted(first)
            assert [device.device_id for device in first.devices()] == [DEVICE.id]
            assert list(second.devices()) == []
            await second.open()
            assert second.device_token(DEVICE.id, "operator") == token
        written = json.loads((tmp_path / "pairing.json").read_text())
        assert written["version"] == 1
        assert len(bytes.fromhex(written["key"])) == 32

    asyncio.run(test())


def test_a_grant_that_was_never_counted_is_the_first() -> None:
    async def test() -> None:
        storage = MemoryPairingStorage()
        pairing = DevicePairing(storage)
        await admitted(pairing)
        assert storage.state is not None
        [device] = storage.state.devices.values()

        def with_grant(grant: pairings.DeviceGrant) -> pairings.PairingState:
            changed = msgspec.structs.replace(device, grants={"operator": grant})
            assert storage.state is not None
            return msgspec.structs.replace(storage.state, devices={DEVICE.id: changed})

        tokens = set[str | None]()
        for grant in (
            pairings.DeviceGrant(scopes=(READ,), created_at_ms=1),
            pairings.DeviceGrant(scopes=(READ,), created_at_ms=1, issue=1),
        ):
            await storage.save(with_grant(grant))
            await pairing.open()
            tokens.add(pairing.device_token(DEVICE.id, "operator"))
        assert len(tokens) == 1

    asyncio.run(test())


def test_what_is_lost_is_reported_and_what_is_changed_is_handed_back() -> None:
    async def test() -> None:
        pairing = DevicePairing(MemoryPairingStorage())
        cuts: list[pairings.DeviceRevocation] = []
        pairing.revoked.connect(cuts.append)
        await admitted(pairing, DEVICE, READ, WRITE)
        assert (await pairing.rename(DEVICE.id, "desk")).label == "desk"
        rotated = await pairing.rotate(DEVICE.id, "operator", (READ,), by=frozenset({ADMIN}))
        assert rotated.scopes == (READ,)
        revoked = await pairing.revoke(DEVICE.id, "operator")
        assert revoked.revoked_at_ms is not None
        assert abs(revoked.revoked_at_ms - time.time() * 1000) < 60_000
        await pairing.remove(DEVICE.id)
        assert cuts == [pairings.DeviceRevocation(DEVICE.id, "operator")] * 2 + [
            pairings.DeviceRevocation(DEVICE.id, None)
        ]

    asyncio.run(test())
