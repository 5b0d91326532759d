"""Devices and nodes are kept in the store: through a kill, and from the file older versions kept."""

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from openclaw_mcp.gateway.rpc.pairing import DeviceGrant, DevicePairing, FilePairingStorage, PairedDevice, PairingState
from openclaw_mcp.gateway.wiring.nodes import DatabasePairingStorage
from openclaw_mcp.net.files import StateBroken
from openclaw_mcp.net.gateway_client.client import GatewayClient
from openclaw_mcp.net.gateway_client.handshake import ClientProfile, Credentials
from openclaw_mcp.net.gateway_client.identity import DeviceIdentity

from ..rpc.gateways import BACKEND, EVERY, NODE, within
from ..wiring.gateways import serving
from ..wiring.test_gateway import Served
from .gateways import MemoryBook, approve


def device(id: str) -> PairedDevice:
    return PairedDevice(
        device_id=id,
        public_key="k",
        client_id="node-host",
        client_mode="node",
        platform="linux",
        grants={"node": DeviceGrant(scopes=(), created_at_ms=1)},
        created_at_ms=1,
        approved_at_ms=1,
        approved_via="owner",
    )


def test_the_store_keeps_the_book_of_devices(tmp_path: Path) -> None:
    async def test() -> None:
        rows = MemoryBook()
        storage = DatabasePairingStorage(rows, tmp_path / "pairing.json")
        assert await storage.load() is None
        state = PairingState(version=1, key="ab" * 32, devices={"d1": device("d1"), "d2": device("d2")})
        await storage.save(state)
        again = DatabasePairingStorage(rows, tmp_path / "pairing.json")
        assert await again.load() == state
        await again.save(PairingState(version=1, key=state.key, devices={"d2": state.devices["d2"]}))
        assert set(rows.rows) == {"(key)", "d2"}
        del rows.rows["(key)"]
        with pytest.raises(StateBroken, match="not the key of their tokens"):
            await again.load()

    within(test())


def test_devices_paired_by_an_older_version_stay_paired(tmp_path: Path) -> None:
    async def test() -> None:
        path = tmp_path / "pairing.json"
        state = PairingState(version=1, key="cd" * 32, devices={"d1": device("d1")})
        await FilePairingStorage(path).save(state)
        storage = DatabasePairingStorage(MemoryBook(), path)
        pairing = DevicePairing(storage)
        await pairing.open()
        token = pairing.device_token("d1", "node")
        assert token is not None
        assert not path.exists()
        once_more = DevicePairing(storage)
        await once_more.open()
        assert once_more.device_token("d1", "node") == token

    within(test())


@contextlib.contextmanager
def killed(folder: Path) -> Iterator[Served]:
    """A gateway that gets no chance to tidy up."""
    with serving(folder) as served:
        yield served
        served.child.kill()
        served.child.wait()


def test_pairing_and_approval_survive_a_kill(tmp_path: Path) -> None:
    identity = DeviceIdentity.load(tmp_path / "node.json")
    reported = ClientProfile(client=NODE, role="node", commands=("device.info",))
    state = tmp_path / "state"

    def operator(served: Served) -> GatewayClient:
        reported = ClientProfile(client=BACKEND, scopes=EVERY)
        return GatewayClient(served.ws, reported, credentials=Credentials(token=served.token), redial=False)

    async def join(served: Served, credentials: Credentials) -> str:
        node = GatewayClient(served.ws, reported, credentials=credentials, signer=identity, redial=False)
        async with node, operator(served) as caller:
            await approve(caller, identity.id)
            (entry,) = (await caller.call("node.list"))["nodes"]
            assert (entry["approvalState"], entry["commands"]) == ("approved", ["device.info"])
            assert node.hello is not None
            return str(node.hello["auth"]["deviceToken"])

    with killed(state) as served:
        token = asyncio.run(join(served, Credentials(token=served.token)))
    with killed(state) as served:
        assert asyncio.run(join(served, Credentials(device_token=token))) == token
