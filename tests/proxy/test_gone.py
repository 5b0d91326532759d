"""Sessions that are deleted, or give way, while something is on its way to them; and what they leave behind."""

import asyncio
import contextlib
import json
from typing import Any

import msgspec
import pytest
import websockets

from openclaw_mcp.proxy.engine import bridge
from openclaw_mcp.proxy.engine.redis import RedisEngine
from openclaw_mcp.proxy.engine.relay import RelayMessage, channel_name
from openclaw_mcp.proxy.settings import ProxySettings

from .engines import Redis, Start, one_redis, proxies, redis
from .proxies import Proxy, closed, proxy, soon, text_of

__all__ = ["one_redis", "proxies", "redis"]

ELSEWHERE = [("192.0.2.7", 1), ("192.0.2.8", 1)]


def tools(size: int) -> Any:
    return [{"name": "a", "description": "d" * size}]


def session_keys(redis: Redis) -> bytes:
    return redis.ask(b"KEYS openclaw:proxy:session:*\r\n")


async def start_upload(proxy: Proxy, id: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, bytes]:
    """A PUT of tools whose session was found, and whose body has not come yet."""
    found = proxy.state.engine.sessions.get(id)
    before = None if found is None else found.last_used
    body = json.dumps(tools(1000)).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", int(proxy.address.rpartition(":")[2]))
    head = f"PUT /v1/chat/sessions/{id}/tools HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body[:10])
    while (found := proxy.state.engine.sessions.get(id)) is None or found.last_used == before:
        await proxy.send("GET", "/health")
    return reader, writer, body[10:]


def test_new_tools_for_a_session_deleted_meanwhile_are_refused_and_not_kept(
    proxies: Start, request: pytest.FixtureRequest
) -> None:
    async def main() -> None:
        async with proxies() as proxy:
            id = (await proxy.create())["mcpSessionId"]
            reader, writer, rest = await start_upload(proxy, id)
            assert (await proxy.send("DELETE", f"/v1/chat/sessions/{id}")).status == 200
            writer.write(rest)
            assert (await soon(reader.readline())).split()[1] == b"404"
            writer.close()
            if "redis" in request.fixturenames and proxy.state.settings.redis_url:
                assert session_keys(request.getfixturevalue("redis")) == b"*0\r\n"

    asyncio.run(main())


def test_what_is_deleted_is_taken_off_the_account_at_once(proxies: Start) -> None:
    async def main() -> None:
        async with proxies(most_bytes=400_000) as proxy:
            ids = [(await proxy.create(tools=tools(90_000 + n)))["mcpSessionId"] for n in range(3)]
            for n in range(3):
                full = await proxy.send("POST", "/v1/chat/sessions", {"tools": tools(91_000 + n)})
                assert full.status == 429
                assert (await proxy.send("DELETE", f"/v1/chat/sessions/{ids[n]}")).status == 200
                await proxy.create(tools=tools(91_000 + n))

    asyncio.run(main())


def test_an_evicted_session_is_taken_off_the_account_of_its_peer(proxies: Start) -> None:
    async def main() -> None:
        async with proxies(most_sessions=4, most_sessions_of_a_peer=4, most_bytes=400_000, unclaimed=-1.0) as proxy:
            for n in range(4):
                body = json.dumps({"tools": tools(70_000 + n)}).encode()
                await proxy.state.register(body, client=ELSEWHERE[n % 2])
            ids = [(await proxy.create(tools=tools(n)))["mcpSessionId"] for n in range(4)]
            statuses = []
            for n, id in enumerate(ids):
                more = await proxy.send("PUT", f"/v1/chat/sessions/{id}/tools", tools(95_000 + n))
                statuses.append(more.status)
            assert statuses == [200, 200, 200, 429], "a peer has 300,000 bytes, whichever peer it pushed out"

    asyncio.run(main())


def test_a_peer_is_counted_for_as_long_as_its_sessions_are_used(redis: Redis) -> None:
    async def main() -> None:
        async with proxy(ProxySettings(audit="off", redis_url=redis.url)) as one:
            id = (await one.create())["mcpSessionId"]
            for key in (b"", b":bytes"):
                assert redis.ask(b'PEXPIRE "openclaw:proxy:peer:this machine%b" 60000\r\n' % key) == b":1\r\n"
            assert (await one.send("GET", f"/v1/chat/sessions/{id}")).status == 200
            for key in (b"", b":bytes"):
                left = redis.ask(b'PTTL "openclaw:proxy:peer:this machine%b"\r\n' % key)
                assert int(left[1:]) > 60_000

    asyncio.run(main())


def test_a_bridge_that_waits_for_anothers_sign_of_life_does_not_outlive_its_session(
    proxies: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bridge, "PROBE_WAIT", 0.5)

    async def main() -> None:
        async with proxies() as proxy:
            id = (await proxy.create())["mcpSessionId"]
            url = proxy.bridge_url(id)
            async with websockets.connect(url) as first, contextlib.AsyncExitStack() as stack:
                await first.send('{"type": "ping"}')
                assert json.loads(await soon(first.recv()))["type"] == "pong", "it is attached"
                second = await stack.enter_async_context(websockets.connect(url))
                assert json.loads(await soon(first.recv()))["type"] == "ping", "the second waits for its answer"
                assert (await proxy.send("DELETE", f"/v1/chat/sessions/{id}")).status == 200
                assert (await closed(first))[0] == 4410
                assert (await closed(second))[0] == 4410
            assert "openclaw_proxy_bridges 0" in (await proxy.send("GET", "/metrics")).body.decode()

    asyncio.run(main())


def test_an_answer_no_instance_can_read_fails_its_call_alone(redis: Redis) -> None:
    """Another instance may have a fuller stack, or be of another version."""

    async def main() -> None:
        settings = ProxySettings(audit="off", redis_url=redis.url)
        async with proxy(settings) as near, proxy(settings) as far:
            id = (await near.create())["mcpSessionId"]
            async with near.app(id) as app:
                calls = [asyncio.create_task(far.call(id, "hold")) for _ in range(2)]
                held = [await app.holding() for _ in calls]
                engine = far.state.engine
                assert isinstance(engine, RedisEngine)
                relay = engine._relay
                frame = b'{"type": "invoke_result", "content": ' + b"[" * 5000 + b"]" * 5000 + b"}"
                notes = [RelayMessage("done", "x", number, data=frame) for number in (1, 77)]
                await relay._store.publish(channel_name(relay.instance), msgspec.msgpack.encode(notes))
                done, going = await asyncio.wait(calls, timeout=10, return_when=asyncio.FIRST_COMPLETED)
                assert [text_of(call.result()) for call in done] == [
                    "The app's answer could not be read by the instance that was asked"
                ]
                for frame_of in held:
                    await app.result(frame_of, "well")
                assert [text_of(await soon(call)) for call in going] == ["well"]
                assert (await soon(far.call(id)))["isError"] is False

    asyncio.run(main())
