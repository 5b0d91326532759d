"""Our client: calls, second answers, redialling, and the one sentence that says why it can't connect."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.server import ServerConnection, serve

from openclaw_mcp.core.rpc import READ, RpcError, RpcEvent
from openclaw_mcp.net import listen
from openclaw_mcp.net.gateway_client import client as clients
from openclaw_mcp.net.gateway_client.client import CallTimeout, CannotConnect, ConnectionGone, GatewayClient
from openclaw_mcp.net.gateway_client.handshake import ClientProfile
from openclaw_mcp.net.gateway_client.identity import DeviceIdentity
from openclaw_mcp.net.websocket import MAX_REASON_BYTES, truncate_reason
from openclaw_mcp.protocol.gateway_frames import EventFrame

from ...gateway.rpc.gateways import BACKEND, NODE, TUI, Echo, running, within


def test_calls_are_answered_each_with_its_own_answer(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path, modules=[Echo()]) as gateway, gateway.client() as client:
            answers = await asyncio.gather(*(client.call("echo", {"n": n}) for n in range(500)))
            assert [answer["params"]["n"] for answer in answers] == list(range(500))
            assert client.hello is not None
            assert client.hello["type"] == "hello-ok"

    within(test())


def test_a_refusal_is_raised_whole(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path, modules=[Echo()]) as gateway, gateway.client() as client:
            with pytest.raises(RpcError, match="not now") as caught:
                await client.call("refuse")
            assert (caught.value.kind, caught.value.retryable, caught.value.retry_after_ms) == ("UNAVAILABLE", True, 7)

    within(test())


def test_a_method_that_answers_twice(tmp_path: Path) -> None:
    async def test() -> None:
        module = Echo()
        async with running(tmp_path, modules=[module]) as gateway, gateway.client() as client:
            first: list[Any] = []
            waiting = asyncio.create_task(client.call("twice", final=True, on_accepted=first.append))
            assert (await client.call("twice"))["status"] == "accepted"
            module.go.set()
            assert (await waiting)["status"] == "ok"
            assert first == [{"status": "accepted", "runId": "R"}]

    within(test())


def test_events_are_received(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path, modules=[Echo()]) as gateway, gateway.client() as client:
            received: asyncio.Queue[EventFrame] = asyncio.Queue()
            client.events.connect(received.put_nowait)
            gateway.gateway.publish(RpcEvent(name="chat", payload={"a": 1}))
            news = await received.get()
            assert (news.event, news.payload, news.seq) == ("chat", {"a": 1}, 1)

    within(test())


def test_a_call_has_its_time(tmp_path: Path) -> None:
    async def test() -> None:
        module = Echo()
        async with running(tmp_path, modules=[module]) as gateway, gateway.client() as client:
            with pytest.raises(CallTimeout, match=r"wait was not answered within 0\.05 s"):
                await client.call("wait", within=0.05)
            assert (await client.call("echo"))["kind"] == "operator"
            module.go.set()

    within(test())


def test_a_message_the_gateway_would_refuse_for_its_size_is_not_sent(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path, modules=[Echo()]) as gateway, gateway.client() as client:
            with pytest.raises(RpcError, match="takes at most 26214400"):
                await client.call("echo", {"text": "x" * 26_214_400})
            assert await client.call("echo")

    within(test())


def test_a_device_pairs_silently_on_this_machine_and_comes_back_with_its_own_token(tmp_path: Path) -> None:
    async def test() -> None:
        device = DeviceIdentity(b"\1" * 32)
        async with running(tmp_path, modules=[Echo()]) as gateway:
            async with gateway.client(who=TUI, scopes=[READ], signer=device) as client:
                assert client.hello is not None
                token = client.hello["auth"]["deviceToken"]
                assert (await client.call("echo"))["caller"] == device.id
            async with gateway.client(who=TUI, scopes=[READ], signer=device, token=token) as client:
                assert client.hello is not None
                assert client.hello["auth"]["method"] == "device-token"
            async with gateway.client(who=NODE, role="node", scopes=[], signer=DeviceIdentity(b"\2" * 32)) as node:
                assert (await node.call("node.only"))["kind"] == "node"

    within(test())


def test_the_loss_of_a_devices_standing_ends_its_connections(tmp_path: Path) -> None:
    async def test() -> None:
        device = DeviceIdentity(b"\1" * 32)
        module = Echo()
        async with running(tmp_path, modules=[module]) as gateway, gateway.client() as owner:
            async with gateway.client(who=TUI, scopes=[READ], signer=device) as client:
                waiting = asyncio.create_task(client.call("wait"))
                await module.begun.wait()
                await owner.call("device.pair.remove", {"deviceId": device.id})
                with pytest.raises(ConnectionGone, match="4001: device removed"):
                    await waiting
            assert (await owner.call("device.pair.list"))["paired"] == []
            module.go.set()

    within(test())


# ---- when it can't connect -------------------------------------------------------------------------------------------


def test_it_says_why_it_cannot_connect(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path) as gateway:
            await refuses(
                gateway.client(token="wrong"),
                "refused us: unauthorized: gateway token mismatch",
                lasting=True,
            )
            await refuses(gateway.client(token="wrong"), "set OPENCLAW_GATEWAY_TOKEN", lasting=True)
            await refuses(
                gateway.client(token=None), "device identity required; set OPENCLAW_GATEWAY_TOKEN", lasting=True
            )
            await refuses(gateway.client(token=None), "start yours with openclaw up --gateway-port 0", lasting=True)
            elsewhere = GatewayClient(f"{gateway.url}/elsewhere", ClientProfile(client=BACKEND), redial=False)
            await refuses(elsewhere, "answered HTTP 404; no gateway's WebSocket is there", lasting=False)
            forwarded = gateway.client(headers={"X-Forwarded-For": "192.0.2.1"})
            await refuses(forwarded, "answered HTTP 403: Proxy client attribution is required.", lasting=False)
            await refuses(forwarded, "safely rebuild forwarded client headers.", lasting=False)
            gone = gateway.client()
        await refuses(gone, "connection refused; start one with `openclaw up --detach`", lasting=False)
        with pytest.raises(CannotConnect, match="no gateway address"):
            async with GatewayClient("nonsense", ClientProfile(client=BACKEND)):
                pass

    within(test())


async def refuses(client: GatewayClient, words: str, *, lasting: bool) -> None:
    with pytest.raises(CannotConnect) as caught:
        async with client:
            pass
    assert words in str(caught.value)
    assert caught.value.permanent is lasting


def test_a_gateway_that_never_answers_is_given_up() -> None:
    async def test() -> None:
        async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(ConnectionError):
                await reader.read()
            writer.close()

        quiet = await asyncio.start_server(say_nothing, "127.0.0.1", 0)
        async with quiet:
            port = quiet.sockets[0].getsockname()[1]
            url = f"ws://127.0.0.1:{port}"
            client = GatewayClient(url, ClientProfile(client=BACKEND), redial=False, dial_timeout=0.1)
            await refuses(client, "did not answer within 0.1 s", lasting=False)

    within(test())


# ---- redialling ------------------------------------------------------------------------------------------------------


def test_it_redials_and_waiting_calls_fail_at_once(tmp_path: Path) -> None:
    async def test() -> None:
        module = Echo()
        async with running(tmp_path, modules=[module]) as gateway:
            client = gateway.client(redial=True)
            port = gateway.port
            hellos: list[Any] = []
            client.connected.connect(hellos.append)
            async with client:
                waiting = asyncio.create_task(client.call("wait"))
                await module.begun.wait()
                asyncio.get_running_loop().call_later(0.3, module.go.set)  # the gateway waits for it, we do not
                await gateway.stop()
                with pytest.raises(ConnectionGone, match="1012: service restart"):
                    await waiting
                with pytest.raises(CannotConnect, match="connection refused"):
                    await client.call("echo")
                async with running(tmp_path, modules=[Echo()], port=port):
                    assert (await client.call("echo"))["kind"] == "operator"
                    assert len(hellos) == 2
                    assert hellos[0]["server"]["bootId"] != hellos[1]["server"]["bootId"]

    within(test())


def test_it_redials_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "FIRST_REDIAL_WAIT", 0.02)

    async def test() -> None:
        async with running(tmp_path) as gateway:
            client = gateway.client(redial=True)
            port = gateway.port
            back = asyncio.Event()
            async with client:
                await gateway.stop()
                client.connected.connect(lambda _: back.set())
                await asyncio.sleep(0.1)  # long enough for some attempts that fail
                async with running(tmp_path, port=port), asyncio.timeout(10):
                    await back.wait()

    within(test())


def test_without_redial_the_end_of_the_connection_is_the_end(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path) as gateway, gateway.client() as client:
            await gateway.stop()
            with pytest.raises(ConnectionGone):
                await client.call("health")

    within(test())


# ---- a gateway that is not ours --------------------------------------------------------------------------------------

Behaviour = Callable[[ServerConnection], Awaitable[None]]


@contextlib.asynccontextmanager
async def acting(behave: Behaviour) -> AsyncIterator[str]:
    listener = listen.bind("127.0.0.1", 0)
    async with serve(behave, sock=listener, compression=None):
        yield f"ws://127.0.0.1:{listener.getsockname()[1]}"


async def greet(socket: ServerConnection, **hello: Any) -> Any:
    """Challenge and hello; returns the parameters of `connect`."""
    event = {"type": "event", "event": "connect.challenge", "payload": {"nonce": "n", "ts": 1}}
    await socket.send(json.dumps(event))
    request = json.loads(await socket.recv())
    await socket.send(json.dumps({"type": "res", "id": request["id"], "ok": True, "payload": {**hello}}))
    return request


def test_connect_holds_no_key_without_a_value() -> None:
    """A real gateway refuses a null where it expects a word, and any key it does not know."""

    async def test() -> None:
        connects: asyncio.Queue[Any] = asyncio.Queue()

        async def behave(socket: ServerConnection) -> None:
            connects.put_nowait(await greet(socket))
            await socket.wait_closed()

        async with (
            acting(behave) as url,
            GatewayClient(url, ClientProfile(client=BACKEND, scopes=(READ,)), redial=False),
        ):
            request = await connects.get()
        assert set(request) == {"type", "id", "method", "params"}
        assert request["params"] == {
            "minProtocol": 4,
            "maxProtocol": 4,
            "client": {"id": "gateway-client", "version": "1", "platform": "linux", "mode": "backend"},
            "scopes": [READ],
            "auth": {},
        }

    within(test())


def test_a_gateway_that_falls_silent_is_left(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        async def behave(socket: ServerConnection) -> None:
            await greet(socket, policy={"tickIntervalMs": 50})
            await socket.wait_closed()

        async with acting(behave) as url, GatewayClient(url, ClientProfile(client=BACKEND), redial=False) as client:
            with pytest.raises(ConnectionGone, match=r"has sent nothing for 0\.1 s"):
                await client.call("health")

    within(test())


def test_unexpected_answers_and_unknown_frames_are_ignored() -> None:
    async def test() -> None:
        async def behave(socket: ServerConnection) -> None:
            await greet(socket)
            request = json.loads(await socket.recv())
            for frame in ("garbage", "[]", '{"type":"new"}', '{"type":"res","id":"zz","ok":true}'):
                await socket.send(frame)
            await socket.send(json.dumps({"type": "res", "id": request["id"], "ok": True, "payload": 1, "new": 2}))
            await socket.send(json.dumps({"type": "res", "id": request["id"], "ok": True, "payload": 2}))
            await socket.wait_closed()

        async with acting(behave) as url, GatewayClient(url, ClientProfile(client=BACKEND), redial=False) as client:
            assert await client.call("health") == 1

    within(test())


def test_a_starting_gateway_is_asked_again_when_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        attempts: list[int] = []

        async def behave(socket: ServerConnection) -> None:
            attempts.append(1)
            if len(attempts) < 3:
                event = {"type": "event", "event": "connect.challenge", "payload": {"nonce": "n", "ts": 1}}
                await socket.send(json.dumps(event))
                request = json.loads(await socket.recv())
                error = {
                    "code": "UNAVAILABLE",
                    "message": "gateway starting; retry shortly",
                    "retryable": True,
                    "retryAfterMs": 20,
                }
                await socket.send(json.dumps({"type": "res", "id": request["id"], "ok": False, "error": error}))
                await socket.close(1013, "gateway starting")
                return
            await greet(socket)
            await socket.wait_closed()

        async with acting(behave) as url:
            client = GatewayClient(url, ClientProfile(client=BACKEND))
            with pytest.raises(CannotConnect, match="gateway starting") as caught:
                await client._get_connection()
            assert caught.value.retry_after == 0.02
            greeted = asyncio.Event()
            client.connected.connect(lambda _: greeted.set())
            client._tasks.loop(client._keep_connected, name="redial", on_failure="restart")
            async with asyncio.timeout(10):
                await greeted.wait()
            await client.__aexit__(None, None, None)

    within(test())


@pytest.mark.parametrize("hello", [{"policy": {"tickIntervalMs": "soon"}}, {"policy": 3}])
def test_a_hello_that_cannot_be_read_is_refused_and_dialled_again(hello: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such a hello used to end the redialling for good, without a line in the log."""
    monkeypatch.setattr(clients, "FIRST_REDIAL_WAIT", 0.02)

    async def test() -> None:
        hellos: list[Any] = [{}, hello, hello, {}]

        async def behave(socket: ServerConnection) -> None:
            await greet(socket, **hellos.pop(0))
            if len(hellos) != 3:
                await socket.wait_closed()

        async with acting(behave) as url, asyncio.timeout(20):
            back = asyncio.Event()
            client = GatewayClient(url, ClientProfile(client=BACKEND))
            async with client:
                client.connected.connect(lambda _: back.set())
                await back.wait()
            assert hellos == []

    within(test())


def test_a_client_that_found_no_gateway_may_be_entered_again(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path) as gateway:
            client, port = gateway.client(), gateway.port
            await gateway.stop()
            with pytest.raises(CannotConnect):
                await client.__aenter__()
            async with running(tmp_path, port=port), client:
                assert (await client.call("health"))["ok"]

    within(test())


def test_a_challenge_that_cannot_be_signed_is_a_refusal() -> None:
    async def test() -> None:
        async def behave(socket: ServerConnection) -> None:
            event = {"type": "event", "event": "connect.challenge", "payload": {"nonce": "n", "ts": "now"}}
            await socket.send(json.dumps(event))
            await socket.wait_closed()

        async with acting(behave) as url:
            with pytest.raises(CannotConnect, match="sent a challenge that can't be read"):
                async with GatewayClient(url, ClientProfile(client=BACKEND), redial=False):
                    pass

    within(test())


def test_a_close_reason_is_cut_between_characters() -> None:
    assert truncate_reason("short") == "short"
    cut = truncate_reason("é" * 100)
    assert cut == "é" * 61
    assert len(cut.encode()) <= MAX_REASON_BYTES
