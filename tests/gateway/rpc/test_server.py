"""The gateway's WebSocket as peers see it."""

import asyncio
import socket as sockets
from pathlib import Path
from typing import Any

import msgspec
import pytest

from openclaw_mcp.core.rpc import ADMIN, PAIRING, READ, WRITE, RpcEvent
from openclaw_mcp.gateway.rpc import connection, handshake, server
from openclaw_mcp.gateway.wiring.gateway import GatewayServer
from openclaw_mcp.net import tasks
from openclaw_mcp.net.gateway_client.handshake import Challenge, ClientProfile, Credentials
from openclaw_mcp.net.gateway_client.identity import DeviceIdentity
from openclaw_mcp.protocol import gateway_frames

from .gateways import CONNECT, TOKEN, TUI, Echo, Running, running, within


def test_the_gateway_speaks_first_and_says_hello_in_full(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path, modules=[Echo()]) as running_gateway, running_gateway.stranger() as peer:
            challenge = await peer.event("connect.challenge")
            assert set(challenge["payload"]) >= {"nonce", "ts"}
            assert "seq" not in challenge
            hello = (await peer.ask("connect", CONNECT))["payload"]
            assert hello["type"] == "hello-ok"
            assert hello["protocol"] == 4
            assert set(hello["server"]) >= {"version", "connId", "bootId"}
            assert set(hello["snapshot"]) >= {"presence", "health", "stateVersion", "uptimeMs", "stateDir"}
            assert hello["auth"] == {"method": "token", "role": "operator", "scopes": [ADMIN]}
            sizes = {"maxBytes": 18 * 1024 * 1024, "maxImageBytes": 18 * 1024 * 1024}
            limits = {"maxPayload": 26214400, "maxBufferedBytes": 52428800, "tickIntervalMs": 30000}
            assert hello["policy"] == {**limits, "attachments": sizes}
            assert {"health", "echo"} <= set(hello["features"]["methods"])
            assert "hidden" not in hello["features"]["methods"]
            assert (await peer.ask("hidden"))["ok"]

    within(test())


def test_only_an_administrator_sees_where_state_lies(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path) as running_gateway, running_gateway.stranger() as peer:
            await peer.event("connect.challenge")
            hello = (await peer.ask("connect", CONNECT | {"scopes": [READ]}))["payload"]
            assert not set(hello["snapshot"]) & {"stateDir", "configPath", "authMode"}

    within(test())


def test_requests_may_follow_connect_without_waiting(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path, modules=[Echo()]) as running_gateway, running_gateway.stranger() as peer:
            await peer.say({"type": "req", "id": "c", "method": "connect", "params": CONNECT})
            for number in range(15):
                await peer.say({"type": "req", "id": str(number), "method": "echo", "params": {"n": number}})
            assert (await peer.response("c"))["ok"]
            answers = {frame["id"]: frame["payload"]["params"]["n"] for frame in [await peer.hear() for _ in range(15)]}
            assert answers == {str(number): number for number in range(15)}

    within(test())


def test_binary_frames_fragments_and_null_params_are_fine(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path, modules=[Echo()]) as running_gateway, running_gateway.raw() as peer:
            await peer.say(b'{"type":"req","id":"b","method":"echo"}')
            assert (await peer.response("b"))["payload"]["params"] == {}
            await peer.socket.send(['{"type":"req",', '"id":"f","method":"echo",', '"params":null}'])
            assert (await peer.response("f"))["payload"]["params"] == {}

    within(test())


@pytest.mark.parametrize(
    ("frame", "code", "reason"),
    [
        ("not json", 1000, ""),
        ({"hello": 1}, 1008, "invalid request frame"),
        ({"type": "req", "id": "1", "method": "connect", "params": {}, "x": 1}, 1008, "invalid request frame"),
        ({"type": "req", "id": "1", "method": "health"}, 1008, "invalid handshake: first request must be connect"),
        ({"type": "req", "id": "1", "method": "connect"}, 1008, "invalid connect params: must be object"),
        ("x" * (gateway_frames.MAX_HANDSHAKE_FRAME + 1), 1009, "preauth payload too large"),
    ],
)
def test_a_stranger_who_sends_a_wrong_first_frame_is_disconnected(
    tmp_path: Path, frame: Any, code: int, reason: str
) -> None:
    async def test() -> None:
        async with running(tmp_path) as running_gateway, running_gateway.stranger() as peer:
            await peer.event("connect.challenge")
            await peer.say(frame)
            assert await peer.closed() == (code, reason)

    within(test())


def test_a_stranger_may_not_make_us_hold_a_large_message(tmp_path: Path) -> None:
    """The limit holds for what has arrived of a message, not only for a whole one."""

    async def test() -> None:
        async with running(tmp_path) as running_gateway, running_gateway.stranger() as peer:
            await peer.event("connect.challenge")

            async def parts() -> Any:
                for _ in range(200):
                    yield "x" * 1000
                await asyncio.Event().wait()

            sending = asyncio.create_task(peer.socket.send(parts()))
            assert (await peer.closed())[0] == 1009
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)

    within(test())


def test_a_stranger_who_sends_nothing_is_disconnected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handshake, "HANDSHAKE_TIMEOUT", 0.05)

    async def test() -> None:
        async with running(tmp_path) as running_gateway, running_gateway.stranger() as peer:
            assert await peer.closed() == (1000, "")

    within(test())


async def upgrade(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(
        b"GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
    )
    return reader, writer


async def eventually(check: Any) -> None:
    async with asyncio.timeout(10):
        while not check():  # noqa: ASYNC110 - what is waited for lies behind a socket
            await asyncio.sleep(0.01)


def test_after_hello_bad_frames_are_answered_or_dropped_and_the_socket_stays(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path, modules=[Echo()]) as running_gateway, running_gateway.raw() as peer:
            await peer.say("not json")
            await peer.say("[]")
            assert (await peer.response("invalid"))["error"]["message"] == "invalid request frame: must be object"
            again = await peer.ask("connect", CONNECT)
            assert again["error"]["message"] == "connect is only valid as the first request"
            unknown = await peer.ask("no.such")
            assert unknown["error"] == {"code": "INVALID_REQUEST", "message": "unknown method: no.such"}
            await peer.say({"type": "req", "id": "l", "method": "echo", "params": []})
            assert (await peer.response("l"))["error"]["message"] == "invalid echo params: must be object"
            assert (await peer.ask("echo", {"unknown": 1}))["ok"]

    within(test())


def test_a_frame_that_is_too_large_after_hello_closes_before_it_is_sent(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path, modules=[Echo()]) as running_gateway:
            reader, writer = await upgrade(running_gateway.port)
            await reader.readuntil(b"\r\n\r\n")
            writer.write(masked(b'{"type":"req","id":"1","method":"connect","params":' + connect_bytes() + b"}"))
            await eventually(lambda: len(running_gateway.gateway.rpc_server.connections) == 1)
            writer.write(b"\x81\xff" + (gateway_frames.MAX_FRAME + 1).to_bytes(8, "big") + b"\0\0\0\0")
            data = await reader.read()
            assert b"\x88" in data
            assert (1009).to_bytes(2, "big") in data
            writer.close()
            await writer.wait_closed()

    within(test())


def test_scopes_are_asked_for_and_kept(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path, modules=[Echo()]) as running_gateway:
            async with running_gateway.raw(scopes=[READ]) as reader:
                assert (await reader.ask("echo"))["ok"]
                assert (await reader.ask("twice"))["error"] == {
                    "code": "FORBIDDEN",
                    "message": "missing scope: operator.write",
                    "details": {"code": "MISSING_SCOPE", "missingScope": WRITE, "requiredScopes": [WRITE]},
                }
            async with running_gateway.raw(scopes=[WRITE]) as writer:
                assert (await writer.ask("echo"))["ok"]  # write covers read
                assert (await writer.ask("device.pair.list"))["error"]["code"] == "FORBIDDEN"
            async with running_gateway.raw(scopes=[]) as nobody:
                assert (await nobody.ask("echo"))["error"]["code"] == "FORBIDDEN"
                assert (await nobody.ask("health"))["ok"]

    within(test())


def test_the_eleventh_wrong_role_call_in_a_row_closes(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path, modules=[Echo()]) as running_gateway, running_gateway.raw() as peer:
            for _ in range(11):
                assert (await peer.ask("node.only"))["error"]["message"] == "unauthorized role: operator"
            assert await peer.closed() == (1008, "repeated unauthorized calls")

    within(test())


def test_failures_are_answered_without_their_insides(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path, modules=[Echo()]) as running_gateway, running_gateway.raw() as peer:
            assert (await peer.ask("broken"))["error"] == {"code": "UNAVAILABLE", "message": "internal error"}
            assert (await peer.ask("unwritable"))["error"]["message"] == "response serialization failed"
            assert (await peer.ask("refuse"))["error"] == {
                "code": "UNAVAILABLE",
                "message": "not now",
                "retryable": True,
                "retryAfterMs": 7,
            }

    within(test())


def test_control_writes_have_an_allowance(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path, modules=[Echo()]) as running_gateway, running_gateway.raw() as peer:
            for _ in range(3):
                assert (await peer.ask("seldom"))["ok"]
            error = (await peer.ask("seldom"))["error"]
            assert (error["code"], error["retryable"]) == ("UNAVAILABLE", True)
            assert error["details"] == {"method": "seldom", "limit": "3 per 60s"}
            assert 0 < error["retryAfterMs"] <= 60_001

    within(test())


def test_events_reach_those_who_may_hear_them_numbered_without_gaps(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path, modules=[Echo()]) as running_gateway:
            publish = running_gateway.gateway.publish
            async with running_gateway.raw(scopes=[READ]) as reader, running_gateway.raw(scopes=[PAIRING]) as approver:
                await reader.ask("subscribe", {"topic": "session:a"})
                publish(RpcEvent(name="chat", payload=1))
                publish(RpcEvent(name="device.pair.changed", payload=2, scope=PAIRING))
                publish(RpcEvent(name="chat", payload=3, topic="session:b"))
                publish(RpcEvent(name="chat", payload=4, topic="session:a"))
                publish(RpcEvent(name="tick", payload=5, scope=None, state_version={"presence": 1, "health": 2}))
                received = [await reader.hear() for _ in range(3)]
                assert [(frame["payload"], frame["seq"]) for frame in received] == [(1, 1), (4, 2), (5, 3)]
                assert received[2]["stateVersion"] == {"presence": 1, "health": 2}
                received = [await approver.hear() for _ in range(2)]
                assert [(frame["payload"], frame["seq"]) for frame in received] == [(2, 1), (5, 2)]
                await reader.ask("tell")
                assert "seq" not in await reader.event("chat")

    within(test())


def test_a_peer_that_comes_and_goes_is_news(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path) as running_gateway, running_gateway.raw(scopes=[READ]) as peer:
            client = {"id": "test", "version": "1", "platform": "linux", "mode": "test", "displayName": "visitor"}
            async with running_gateway.raw(client=client):
                joined = await peer.event("presence")
                assert [entry["host"] for entry in joined["payload"]["presence"]][1:] == ["visitor"]
                assert joined["stateVersion"]["presence"] == 2
                assert len((await peer.ask("system-presence"))["payload"]) == 2
            departed = await peer.event("presence")
            assert len(departed["payload"]["presence"]) == 1
            async with running_gateway.raw():  # a backend comes for an errand and is not listed
                assert len((await peer.ask("system-presence"))["payload"]) == 1

    within(test())


def test_a_request_that_has_begun_is_carried_out_though_no_client_waits(tmp_path: Path) -> None:
    async def test() -> None:
        module = Echo()
        async with running(tmp_path, modules=[module]) as running_gateway:
            async with running_gateway.raw() as peer:
                await peer.say({"type": "req", "id": "w", "method": "wait", "params": {}})
                await module.begun.wait()
            module.go.set()
            await eventually(lambda: module.finished == 1)

    within(test())


def test_a_flood_of_waiting_requests_stops_our_reading_not_our_answers(tmp_path: Path) -> None:
    async def test() -> None:
        module = Echo()
        async with (
            running(tmp_path, modules=[module]) as running_gateway,
            running_gateway.raw() as peer,
            running_gateway.raw() as other,
        ):
            total = connection.MAX_RUNNING * 4
            for number in range(total):
                await peer.say({"type": "req", "id": str(number), "method": "wait", "params": {"pad": "x" * 2000}})
            assert (await other.ask("health"))["ok"]
            assert len(running_gateway.gateway.rpc_server._tasks) < total
            module.go.set()
            ids = {(await peer.hear())["id"] for _ in range(total)}
            assert len(ids) == total

    within(test())


@pytest.mark.parametrize("bound", ["of one reader", "of all together"])
def test_a_client_that_stops_reading_is_cut_off_and_others_do_not_notice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bound: str
) -> None:
    if bound == "of one reader":
        monkeypatch.setattr(gateway_frames, "MAX_BACKLOG", 4 << 20)

    async def test() -> None:
        async with running(tmp_path, modules=[Echo()]) as running_gateway, running_gateway.raw() as good:
            if bound == "of all together":
                running_gateway.gateway.connections.max_backlog = 4 << 20
            reader, writer = await upgrade(running_gateway.port)
            await reader.readuntil(b"\r\n\r\n")
            await asyncio.sleep(0)
            raw = writer.get_extra_info("socket")
            raw.setsockopt(sockets.SOL_SOCKET, sockets.SO_RCVBUF, 4096)
            writer.write(masked(b'{"type":"req","id":"1","method":"connect","params":' + connect_bytes() + b"}"))
            await eventually(lambda: len(running_gateway.gateway.rpc_server.connections) == 2)
            writer.transport.pause_reading()  # type: ignore[attr-defined]  # a socket's transport has it
            for _ in range(100):
                running_gateway.gateway.publish(RpcEvent(name="chat", payload="x" * 200_000))
                await good.event("chat")
            await eventually(lambda: len(running_gateway.gateway.rpc_server.connections) == 1)
            assert running_gateway.gateway.connections.metrics.counters[("slow_consumers",)] == 1
            assert (await good.ask("health"))["ok"]
            writer.transport.abort()

    within(test())


def test_what_waits_for_many_slow_clients_stays_within_one_bound(tmp_path: Path) -> None:
    """One event is a copy for each of them, so that several may have to give way at once."""

    async def test() -> None:
        async with running(tmp_path, modules=[Echo()]) as running_gateway, running_gateway.raw() as good:
            connections = running_gateway.gateway.connections
            connections.max_backlog = 8 << 20
            peers = [await upgrade(running_gateway.port) for _ in range(8)]
            for reader, writer in peers:
                await reader.readuntil(b"\r\n\r\n")
                raw = writer.get_extra_info("socket")
                raw.setsockopt(sockets.SOL_SOCKET, sockets.SO_RCVBUF, 4096)
                writer.write(masked(b'{"type":"req","id":"1","method":"connect","params":' + connect_bytes() + b"}"))
            await eventually(lambda: len(running_gateway.gateway.rpc_server.connections) == 1 + len(peers))
            for _, writer in peers:
                writer.transport.pause_reading()  # type: ignore[attr-defined]  # a socket's transport has it
            for _ in range(10):
                running_gateway.gateway.publish(RpcEvent(name="chat", payload="x" * 5_000_000))
                assert sum(one.socket.backlog_bytes for one in connections.values()) <= connections.max_backlog
                await good.event("chat")
            await eventually(lambda: len(running_gateway.gateway.rpc_server.connections) <= 2)
            assert (await good.ask("health"))["ok"]
            for _, writer in peers:
                writer.transport.abort()

    within(test())


def connect_bytes() -> bytes:
    return gateway_frames._encode(CONNECT)


def masked(payload: bytes) -> bytes:
    """One text frame as a client writes it, with a mask of zeros."""
    return b"\x81\xfe" + len(payload).to_bytes(2, "big") + b"\0\0\0\0" + payload


def test_a_peer_that_answers_no_ping_is_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "PING_INTERVAL", 0.1)

    async def test() -> None:
        async with running(tmp_path, modules=[Echo()]) as running_gateway, running_gateway.raw() as lively:
            reader, writer = await upgrade(running_gateway.port)
            await reader.readuntil(b"\r\n\r\n")
            writer.write(masked(b'{"type":"req","id":"1","method":"connect","params":' + connect_bytes() + b"}"))
            await eventually(lambda: len(running_gateway.gateway.rpc_server.connections) == 2)
            async with asyncio.timeout(10):
                while await reader.read(1 << 16):  # reads, but never answers a ping
                    pass
            await eventually(lambda: len(running_gateway.gateway.rpc_server.connections) == 1)
            assert (await lively.ask("health"))["ok"]
            writer.close()

    within(test())


def test_stopping_notifies_every_client_and_closes_with_1012(tmp_path: Path) -> None:
    async def test() -> None:
        async with (
            running(tmp_path) as running_gateway,
            running_gateway.raw() as peer,
            running_gateway.stranger() as stranger,
        ):
            await stranger.event("connect.challenge")
            await running_gateway.stop()
            assert (await peer.event("shutdown"))["payload"]["reason"] == "gateway stopping"
            assert await peer.closed() == (1012, "service restart")
            assert await stranger.closed() == (1012, "service restart")

    within(test())


def test_a_listener_that_fails_keeps_no_client_from_its_hello(tmp_path: Path) -> None:
    """It used to leave the client without an answer, for ever."""

    def fail(_: Any) -> None:
        raise RuntimeError("a listener's own mistake")

    async def test() -> None:
        async with running(tmp_path) as running_gateway:
            running_gateway.gateway.connections.connected.connect(fail)
            async with running_gateway.raw() as peer:
                assert (await peer.ask("health"))["ok"]

    within(test())


def test_a_hello_that_cannot_be_built_is_a_refusal_and_leaves_no_connection(tmp_path: Path) -> None:
    class Broken:
        def methods(self) -> tuple[()]:
            return ()

        def health(self) -> Any:
            raise RuntimeError("this module is broken")

        status = health

    async def test() -> None:
        async with running(tmp_path, modules=[Broken()]) as running_gateway, running_gateway.stranger() as peer:
            await peer.event("connect.challenge")
            assert (await peer.ask("connect", CONNECT))["error"]["message"] == "internal error"
            assert (await peer.closed())[0] == 1011
            assert len(running_gateway.gateway.connections) == 0

    within(test())


@pytest.mark.parametrize("name", ["_tick", "_ping"])
def test_ticks_and_pings_go_on_after_one_that_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """One failure used to end them until the gateway stopped, and with them every connection."""
    monkeypatch.setattr(server, "PING_INTERVAL", 0.02)
    monkeypatch.setattr(tasks, "FIRST_BACK_OFF", 0.02)

    async def test() -> None:
        calls, again = 0, asyncio.Event()

        async def step(self: server.RpcServer) -> None:
            nonlocal calls
            calls += 1
            if calls == 1:
                raise ValueError("a payload that can't be encoded")
            again.set()

        monkeypatch.setattr(server.RpcServer, name, step)
        gateway = GatewayServer(tmp_path, TOKEN)
        gateway.rpc_server._tick_interval = 0.02
        async with gateway.rpc_server, asyncio.timeout(10):
            await again.wait()

    within(test())


def test_ticks_come_to_every_client(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path) as running_gateway:
            tick = running_gateway.gateway.rpc_server._tick
            running_gateway.gateway.rpc_server._timers.loop(tick, name="tick", every=0.05, on_failure="restart")
            async with running_gateway.raw(scopes=[]) as peer:
                assert set((await peer.event("tick"))["payload"]) == {"ts"}

    within(test())


def test_a_device_behind_a_proxy_waits_for_approval_and_operators_hear_of_it(tmp_path: Path) -> None:
    async def connects(running_gateway: Running, device: DeviceIdentity) -> Any:
        async with running_gateway.stranger(**{"X-Forwarded-For": "192.0.2.7"}) as peer:
            payload = (await peer.event("connect.challenge"))["payload"]
            challenge = Challenge(payload["nonce"], payload["ts"])
            profile = ClientProfile(client=TUI, scopes=(READ,))
            connect = profile.build_connect(challenge, Credentials(token=TOKEN), device)
            return await peer.ask("connect", msgspec.to_builtins(connect))

    async def test() -> None:
        device = DeviceIdentity(b"\6" * 32)
        async with (
            running(tmp_path, trusted_proxies=["127.0.0.1"]) as running_gateway,
            running_gateway.raw(scopes=[PAIRING, READ]) as owner,
        ):
            refused = (await connects(running_gateway, device))["error"]
            request = (await owner.event("device.pair.requested"))["payload"]
            assert (request["deviceId"], request["requestId"]) == (device.id, refused["details"]["requestId"])
            assert (await owner.ask("device.pair.list"))["payload"]["pending"] == [request]
            approved = await owner.ask("device.pair.approve", {"requestId": request["requestId"]})
            assert approved["payload"]["device"]["approvedVia"] == "owner"
            resolved = (await owner.event("device.pair.resolved"))["payload"]
            assert (resolved["requestId"], resolved["decision"]) == (request["requestId"], "approved")
            assert (await connects(running_gateway, device))["payload"]["auth"]["scopes"] == [READ]

    within(test())


def test_the_websocket_is_at_the_root(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path) as running_gateway:
            reader, writer = await asyncio.open_connection("127.0.0.1", running_gateway.port)
            writer.write(
                b"GET /elsewhere HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
            )
            assert b"404" in await reader.readline()
            writer.close()

    within(test())


def test_the_token_is_never_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")

    async def test() -> None:
        async with running(tmp_path) as running_gateway, running_gateway.raw() as peer:
            assert (await peer.ask("health"))["ok"]

    within(test())
    assert TOKEN not in "\n".join(r.getMessage() for r in caplog.records if not r.name.startswith("websockets"))
