"""A real OpenClaw and ours, either way round: its command line on our gateway, our client on its gateway."""

import asyncio
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from openclaw_mcp.core.rpc import ADMIN, READ, RpcError
from openclaw_mcp.net.gateway_client.client import CannotConnect, GatewayClient
from openclaw_mcp.net.gateway_client.handshake import Challenge, ClientProfile, Credentials
from openclaw_mcp.net.gateway_client.identity import DeviceIdentity

from ..gateway.rpc.gateways import CONNECT, NODE, TUI, within
from ..gateway.wiring.test_gateway import Served, serving
from ..running import OPENCLAW
from . import compatibility, real

GREETING = {"to": "hall", "channel": "local", "message": "hi", "idempotencyKey": "theirs"}


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    real.program()
    with serving(tmp_path_factory.mktemp("ours")) as served:
        yield served


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    real.program()
    with real.gateway(tmp_path_factory.mktemp("theirs")) as url:
        yield url


# ---- their command line, our gateway ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "key"),
    [
        (("health", "--json"), "ok"),
        (("gateway", "call", "health", "--json"), "ok"),
        (("gateway", "call", "status", "--json"), "runtimeVersion"),
        (("gateway", "call", "system.info", "--json"), "pid"),
        (("gateway", "call", "tools.catalog", "--json"), "groups"),
        (("devices", "list", "--json"), "paired"),
        (("gateway", "call", "channels.status", "--json"), "channelAccounts"),
        (("gateway", "call", "send", "--json", "--params", json.dumps(GREETING)), "messageId"),
    ],
)
def test_their_command_line_works_on_our_gateway(
    ours: Served, tmp_path: Path, words: tuple[str, ...], key: str
) -> None:
    result = real.command_line(tmp_path, ours.ws, ours.token, *words)
    assert result.returncode == 0, result.stderr[-500:]
    assert key in json.loads(result.stdout)


def test_their_command_line_reads_our_health_and_log(ours: Served, tmp_path: Path) -> None:
    health = real.command_line(tmp_path, ours.ws, ours.token, "health")
    assert health.returncode == 0
    assert "event loop: ok" in health.stdout
    logs = real.command_line(tmp_path, ours.ws, ours.token, "logs", "--limit", "5", "--plain")
    assert logs.returncode == 0
    assert str(ours.folder / "gateway.log") in logs.stdout


def test_their_command_line_shows_our_channels(ours: Served, tmp_path: Path) -> None:
    result = real.command_line(tmp_path, ours.ws, ours.token, "channels", "status")
    assert result.returncode == 0, result.stderr[-500:]
    assert "Local default: enabled, configured, running, connected" in result.stdout


def test_their_command_line_understands_our_refusals(ours: Served, tmp_path: Path) -> None:
    wrong = real.command_line(tmp_path, ours.ws, "wrong", "gateway", "call", "health")
    assert wrong.returncode != 0
    assert "gateway token mismatch" in wrong.stderr + wrong.stdout
    unknown = real.command_line(tmp_path, ours.ws, ours.token, "gateway", "call", "no.such")
    assert unknown.returncode != 0
    assert "unknown method: no.such" in unknown.stderr + unknown.stdout


# ---- our client, their gateway --------------------------------------------------------------------------------------


def test_our_client_calls_their_gateway(theirs: str) -> None:
    async def test() -> None:
        async with real.client(theirs) as client:
            assert client.hello is not None
            assert client.hello["protocol"] == 4
            health, status, presence = await asyncio.gather(
                client.call("health"), client.call("status"), client.call("system-presence")
            )
            assert health["ok"] is True
            assert status["runtimeVersion"] == client.hello["server"]["version"]
            assert presence[0]["mode"] == "gateway"
            with pytest.raises(RpcError, match=r"unknown method: no\.such"):
                await client.call("no.such")
            with pytest.raises(RpcError, match=r"invalid device\.pair\.approve params"):
                await client.call("device.pair.approve", {})

    within(test())


def test_our_command_calls_their_gateway(theirs: str, tmp_path: Path) -> None:
    result = subprocess.run(
        [OPENCLAW, "gateway", "--state-dir", str(tmp_path), "call", "health", "--url", theirs, "--token", real.TOKEN],
        env={**os.environ},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["ok"] is True


def test_our_device_pairs_with_their_gateway_and_comes_back(theirs: str) -> None:
    async def test() -> None:
        device = DeviceIdentity(os.urandom(32))
        profile = ClientProfile(client=TUI, scopes=(READ,))
        async with GatewayClient(theirs, profile, credentials=Credentials(token=real.TOKEN), signer=device) as client:
            assert client.hello is not None
            token = client.hello["auth"]["deviceToken"]
        async with GatewayClient(theirs, profile, credentials=Credentials(device_token=token), signer=device) as client:
            assert client.hello is not None
            assert client.hello["auth"]["method"] == "device-token"
        node = ClientProfile(client=NODE, role="node")
        other = DeviceIdentity(os.urandom(32))
        async with GatewayClient(theirs, node, credentials=Credentials(token=real.TOKEN), signer=other) as client:
            assert (await client.call("health"))["ok"] is True

    within(test())


def test_our_client_says_why_their_gateway_refuses(theirs: str) -> None:
    async def test() -> None:
        with pytest.raises(CannotConnect, match=r"token mismatch.*OPENCLAW_GATEWAY_TOKEN"):
            async with real.client(theirs, "wrong"):
                pass

    within(test())


# ---- word for word --------------------------------------------------------------------------------------------------

CLIENT = CONNECT["client"]
OPENINGS: dict[str, Any] = {
    "unknown client": {"client": CLIENT | {"id": "zz"}},
    "client without version": {"client": {"id": "cli"}},
    "empty version": {"client": CLIENT | {"version": ""}},
    "empty cap": {"caps": [""]},
    "protocol of another type": {"minProtocol": "x"},
    "protocol 0": {"minProtocol": 0},
    "role": {"role": "boss"},
    "old protocol": {"minProtocol": 3, "maxProtocol": 3},
    "newer protocol": {"minProtocol": 5, "maxProtocol": 9},
    "wrong token": {"auth": {"token": "wrong"}},
    "wrong token of a cli": {"auth": {"token": "wrong"}, "client": CLIENT | {"id": "cli", "mode": "cli"}},
    "no credentials": {"auth": {}},
    "webchat without origin": {"client": CLIENT | {"id": "webchat", "mode": "webchat"}},
    "control page without origin": {"client": CLIENT | {"id": "openclaw-control-ui", "mode": "ui"}},
    "terminal without device": {"client": CLIENT | {"id": "openclaw-tui", "mode": "ui"}},
    "node without device": {"role": "node", "client": CLIENT | {"id": "node-host", "mode": "node"}},
    "no scopes": {"scopes": []},
    "a probe": {"client": CLIENT | {"id": "openclaw-probe", "mode": "probe"}},
}
PROOFS: dict[str, dict[str, Any]] = {
    "bad signature": {"signature": "AAAA"},
    "another nonce": {"nonce": "other"},
    "an old signature": {"signedAt": 1700000000000},
    "another id": {"id": "ab" * 32},
    "a bad key": {"publicKey": "AAAA"},
}
FIRST_FRAMES: list[Any] = [
    "not json",
    [],
    {"a": 1},
    {"type": "req", "id": "", "method": "connect"},
    {"type": "req", "id": "1", "method": "connect"},
    {"type": "req", "id": "1", "method": "health"},
    {"type": "req", "id": "1", "method": "connect", "params": {}, "x": 1},
]
LATER_FRAMES = [
    '{"type":"req","id":"5","method":"health","x":1}',
    '{"type":"req","method":"health"}',
    '{"type":"req","id":"8"}',
    "[]",
    "null",
    '{"type":"req","id":"9","method":"connect","params":{}}',
    '{"type":"req","id":"10","method":"no.such"}',
    '{"type":"req","id":"11","method":""}',
    '{"type":"req","id":"12","method":"device.pair.approve","params":{}}',
    '{"type":"req","id":"13","method":"device.pair.remove","params":{"deviceId":"unknown"}}',
    '{"type":"req","id":"14","method":"device.pair.list","params":null}',
]


async def reply_to(url: str, frame: Any) -> Any:
    """What a gateway answers to a first frame: what it refuses with, and how it closes."""
    async with connect(url, compression=None, proxy=None) as socket:
        challenge = json.loads(await socket.recv())["payload"]
        if callable(frame):
            frame = frame(challenge)
        await socket.send(frame if isinstance(frame, str) else json.dumps(frame))
        received: Any = None
        try:
            async with asyncio.timeout(20):
                received = json.loads(await socket.recv())
                if received["ok"]:
                    return "let in", received["payload"]["auth"]["scopes"]
                await socket.recv()
        except ConnectionClosed as closed:
            assert closed.rcvd is not None
            return received and received["error"], closed.rcvd.code, closed.rcvd.reason
        raise AssertionError(f"neither let in nor shown out: {received}")


def request(params: Any) -> Any:
    return {"type": "req", "id": "1", "method": "connect", "params": params}


async def same(theirs: str, ours: Served, frame: Any, mine: Any = None) -> None:
    assert await reply_to(ours.ws, mine or frame) == await reply_to(theirs, frame)


@pytest.mark.parametrize("name", OPENINGS)
def test_a_handshake_ends_alike_word_for_word(theirs: str, ours: Served, name: str) -> None:
    def opening(token: str) -> Any:
        return request(CONNECT | {"auth": {"token": token}, "scopes": [ADMIN]} | OPENINGS[name])

    within(same(theirs, ours, opening(real.TOKEN), opening(ours.token)))


@pytest.mark.parametrize("frame", FIRST_FRAMES, ids=str)
def test_a_first_frame_that_is_wrong_ends_alike(theirs: str, ours: Served, frame: Any) -> None:
    within(same(theirs, ours, frame))


@pytest.mark.parametrize("name", PROOFS)
def test_a_device_that_proves_nothing_is_refused_alike(theirs: str, ours: Served, name: str) -> None:
    def opening(token: str) -> Any:
        def answer(challenge: Any) -> Any:
            profile = ClientProfile(client=TUI, scopes=(READ,))
            params = msgspec.to_builtins(
                profile.build_connect(
                    msgspec.convert(challenge, Challenge), Credentials(token=token), DeviceIdentity(bytes(32))
                )
            )
            params["device"] |= PROOFS[name]
            return request(params)

        return answer

    within(same(theirs, ours, opening(real.TOKEN), opening(ours.token)))


def test_later_frames_are_answered_alike(theirs: str, ours: Served) -> None:
    async def answers(url: str, token: str) -> list[Any]:
        found = []
        async with connect(url, compression=None, proxy=None) as socket:
            await socket.recv()
            await socket.send(json.dumps(request(CONNECT | {"auth": {"token": token}})))
            for frame in ["", *LATER_FRAMES]:
                if frame:
                    await socket.send(frame)
                while True:
                    received = json.loads(await socket.recv())
                    if received["type"] == "res":
                        break
                found.append((frame, received["ok"], received.get("error"), received["id"]))
        return found

    async def test() -> None:
        assert await answers(ours.ws, ours.token) == await answers(theirs, real.TOKEN)

    within(test())


def test_a_list_that_is_empty_here_alone_is_a_difference() -> None:
    assert compatibility.gaps({"jobs": [{"id": "a"}]}, {"jobs": []}) == ["jobs[]"]
    assert compatibility.gaps({"jobs": []}, {"jobs": [{"id": "a"}]}) == []


def test_the_compatibility_page_says_what_this_run_shows(theirs: str, ours: Served) -> None:
    """Verdict by verdict; the keys a narrower answer lacks vary with what the real gateway has seen so far."""
    page = asyncio.run(compatibility.compared(theirs, ours.ws, ours.token))
    written = compatibility.PAGE.read_text(encoding="utf-8").partition(compatibility.COMMAND_LINE_HEAD)[0]
    assert verdicts(page) == verdicts(written), "run `python -m tests.interop.compatibility`"


def verdicts(page: str) -> dict[str, str]:
    rows = [line.split("|") for line in page.splitlines() if line.startswith("| `")]
    return {row[1].strip(): row[2].partition(":")[0].strip() for row in rows}
