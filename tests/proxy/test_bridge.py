"""The bridge: frames of every kind, apps that misbehave, die, stall, and come back."""

import asyncio
import base64
import contextlib
import json
import time
from typing import Any

import pytest
import websockets

from openclaw_mcp.proxy.engine import bridge
from openclaw_mcp.proxy.engine.limits import BridgeLimits

from .engines import Start, one_redis, proxies, redis
from .proxies import HOLD, App, Proxy, closed, soon, text_of

__all__ = ["one_redis", "proxies", "redis"]

PIXEL = base64.b64encode(b"not really a picture").decode()


async def opened(proxy: Proxy) -> str:
    id: str = (await proxy.create())["mcpSessionId"]
    return id


def test_frames_carry_both_spellings_and_ids_of_their_session(proxies: Start) -> None:
    async def main() -> None:
        async with proxies() as proxy:
            id = await opened(proxy)
            async with proxy.app(id) as app:
                waiting = asyncio.create_task(proxy.call(id, "hold", a=[1, {"b": None}]))
                frame = await app.holding()
                assert frame == {
                    "type": "invoke_tool",
                    "mcpSessionId": id,
                    "request_id": f"{id}:1",
                    "requestId": f"{id}:1",
                    "tool_name": "hold",
                    "toolName": "hold",
                    "arguments": {"a": [1, {"b": None}]},
                }
                await app.say(type="invoke_result", mcpSessionId=id, requestId=f"{id}:1", ok=True, content="done")
                assert text_of(await soon(waiting)) == "done"

    asyncio.run(main())


BLOCKS: list[Any] = [
    {"type": "text", "text": "seen"},
    {"type": "image", "data": PIXEL, "mimeType": "image/png"},
    {"type": "audio", "data": PIXEL, "mimeType": "audio/wav"},
    {"type": "resource", "resource": {"uri": "app://x", "text": "t"}},
    {"type": "resource_link", "uri": "app://y", "name": "y"},
]


@pytest.mark.parametrize(
    ("frame", "result"),
    [
        ({"content": {"a": 1}}, {"content": [{"type": "text", "text": '{"a": 1}'}], "structuredContent": {"a": 1}}),
        ({"content": "plain"}, {"content": [{"type": "text", "text": "plain"}]}),
        ({"content": [1, "two"]}, {"content": [{"type": "text", "text": '[1, "two"]'}]}),
        ({"content": []}, {"content": [{"type": "text", "text": "[]"}]}),
        ({"content": None}, {"content": [{"type": "text", "text": "null"}]}),
        ({"content": 4.5}, {"content": [{"type": "text", "text": "4.5"}]}),
        ({"content": BLOCKS}, {"content": BLOCKS}),
        ({"content": BLOCKS, "mcp": True}, {"content": BLOCKS}),
        ({"content": [], "mcp": True}, {"content": []}),
        (
            {"content": {"content": BLOCKS, "structuredContent": {"n": 1}, "_meta": {"k": "v"}}, "mcp": True},
            {"content": BLOCKS, "structuredContent": {"n": 1}, "_meta": {"k": "v"}},
        ),
        (
            {"content": {"content": [], "isError": True}, "mcp": True},
            {"content": [], "isError": True},
        ),
        ({"ok": False, "error": "no"}, {"content": [{"type": "text", "text": "no"}], "isError": True}),
        ({"ok": False, "error": {"message": "n"}}, {"content": [{"type": "text", "text": "n"}], "isError": True}),
        (
            {"ok": False, "error": None, "content": "why"},
            {"content": [{"type": "text", "text": "why"}], "isError": True},
        ),
        (
            {"ok": False, "error": {"message": ""}},
            {"content": [{"type": "text", "text": "The app said no and gave no reason"}], "isError": True},
        ),
        ({"ok": False, "content": "why"}, {"content": [{"type": "text", "text": "why"}], "isError": True}),
        (
            {"ok": False},
            {"content": [{"type": "text", "text": "The app said no and gave no reason"}], "isError": True},
        ),
    ],
)
def test_an_answer_of_any_json_becomes_a_tool_result(proxies: Start, frame: Any, result: Any) -> None:
    async def main() -> None:
        async with proxies() as proxy:
            id = await opened(proxy)
            async with proxy.app(id) as app:
                waiting = asyncio.create_task(proxy.call(id, "hold"))
                held = await app.holding()
                await app.say(**{"type": "invoke_result", "request_id": held["request_id"], "ok": True, **frame})
                assert await soon(waiting) == {"isError": False, **result}

    asyncio.run(main())


@pytest.mark.parametrize(
    ("frame", "says"),
    [
        ("{", "not JSON"),
        ("[]", "not what the bridge takes"),
        ("7", "not what the bridge takes"),
        ('{"type": 7}', "type"),
        ("{}", "type"),
        ('{"type": "dance"}', "'dance'"),
        ('{"type": "invoke_result", "ok": true}', "request_id"),
        ('{"type": "invoke_result", "request_id": "nobody:1", "ok": true}', "no call"),
        ('{"type": "progress", "request_id": "x"}', "progress"),
        ('{"type": "update_tools"}', "tools"),
        (
            '{"type": "update_tools", "tools": [{"name": "x", "input_schema": {"maximum": 1e400}}]}',
            "tools[0].input_schema",
        ),
        ('{"type": "update_tools", "tools": [{"name": ""}]}', "tools[0].name"),
        ('{"type": "pong", "mcpSessionId": "another"}', "another session"),
        ('{"type": "pong", "x": ' + "[" * 100_000, "nested too deeply"),
        (b"\x00\x01", "binary"),
        (b'{"type": "pong"}', "binary"),
    ],
)
def test_a_frame_that_can_not_be_used_is_answered_and_the_bridge_stays(
    proxies: Start, frame: str | bytes, says: str
) -> None:
    async def main() -> None:
        async with proxies() as proxy:
            id = await opened(proxy)
            async with proxy.app(id) as app:
                waiting = asyncio.create_task(proxy.call(id, "hold"))
                held = await app.holding()
                await app.socket.send(frame)
                assert says in (await soon(app.errors.get()))["reason"]
                await app.result(held, "still here")
                assert text_of(await soon(waiting)) == "still here"

    asyncio.run(main())


@pytest.mark.parametrize(
    "broken",
    [{}, {"ok": "yes"}, {"ok": True, "mcp": "x"}, {"ok": None}, {"ok": True, "content": "x" * 5000}],
)
def test_a_broken_answer_fails_its_call_at_once_and_no_other(proxies: Start, broken: Any) -> None:
    async def main() -> None:
        async with proxies(bridge=BridgeLimits(result=4000)) as proxy:
            id = await opened(proxy)
            async with proxy.app(id) as app:
                bad = asyncio.create_task(proxy.call(id, "hold"))
                held = await app.holding()
                good = asyncio.create_task(proxy.call(id, "hold"))
                other = await app.holding()
                await app.say(**{"type": "invoke_result", "request_id": held["request_id"], **broken})
                result = await soon(bad)
                assert result["isError"] is True
                assert "can't be used" in text_of(result)
                assert (await soon(app.errors.get()))["request_id"] == held["request_id"]
                await app.result(other, "fine")
                assert text_of(await soon(good)) == "fine"

    asyncio.run(main())


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ('"\\ud83d smile"', "cut in the middle of a character"),
        ("NaN", "not JSON"),
        ("[" * 5000 + "]" * 5000, "nested too deeply"),
        ('{"request_id": "another"}, NaN', "not JSON"),
    ],
)
@pytest.mark.parametrize("spelling", ["request_id", "requestId"])
def test_an_answer_that_is_no_json_fails_its_call_at_once(
    proxies: Start, content: str, says: str, spelling: str
) -> None:
    async def main() -> None:
        async with proxies() as proxy:
            id = await opened(proxy)
            async with proxy.app(id) as app:
                waiting = asyncio.create_task(proxy.call(id, "hold"))
                call = (await app.holding())["request_id"]
                frame = f'{{"type": "invoke_result", "content": {content}, "ok": true, "{spelling}": "{call}"}}'
                await app.socket.send(frame)
                assert says in text_of(await soon(waiting))

    asyncio.run(main())


def test_an_answer_that_claims_to_be_mcp_and_is_not_fails_with_the_reason(proxies: Start) -> None:
    async def main() -> None:
        async with proxies() as proxy:
            id = await opened(proxy)
            async with proxy.app(id) as app:
                for content in (7, {"content": "x"}, [{"type": "text"}], [{"type": "dance"}]):
                    waiting = asyncio.create_task(proxy.call(id, "hold"))
                    await app.result(await app.holding(), content, mcp=True)
                    assert "claims to be MCP" in text_of(await soon(waiting))

    asyncio.run(main())


def test_a_result_of_fifteen_megabytes_arrives_and_one_beyond_everything_closes_the_bridge(proxies: Start) -> None:
    async def main() -> None:
        async with proxies() as proxy:
            id = await opened(proxy)
            async with proxy.app(id) as app:
                waiting = asyncio.create_task(proxy.call(id, "hold"))
                await app.result(await app.holding(), "x" * 15_000_000)
                assert len(text_of(await soon(waiting))) == 15_000_000
                waiting = asyncio.create_task(proxy.call(id, "hold"))
                held = await app.holding()
                with contextlib.suppress(websockets.ConnectionClosed):
                    await app.result(held, "x" * (33 << 20))
                assert "the app said more than 33554432 bytes at once" in text_of(await soon(waiting))
                assert (await closed(app.socket))[0] == 1009

    asyncio.run(main())


def test_an_app_that_leaves_fails_waiting_calls_at_once_and_may_come_back(proxies: Start) -> None:
    async def main() -> None:
        async with proxies() as proxy:
            id = await opened(proxy)
            async with proxy.app(id) as app:
                calls = [asyncio.create_task(proxy.call(id, "hold")) for _ in range(3)]
                first = [await app.holding() for _ in calls]
                start = time.monotonic()
                app.socket.transport.abort()
                for call in calls:
                    assert "Bridge is not connected" in text_of(await soon(call))
                assert time.monotonic() - start < 5
            assert "Bridge is not connected" in text_of(await proxy.call(id))
            async with proxy.app(id) as app:
                call = asyncio.create_task(proxy.call(id, "hold"))
                again = await app.holding()
                assert again["request_id"] not in {frame["request_id"] for frame in first}
                await app.result(again, "back")
                assert text_of(await soon(call)) == "back"

    asyncio.run(main())


def test_a_thousand_calls_in_flight_end_when_the_session_is_deleted_and_no_other_session_notices(
    proxies: Start,
) -> None:
    async def main() -> None:
        async with proxies() as proxy:
            doomed, other = await opened(proxy), await opened(proxy)
            async with proxy.app(doomed) as app, proxy.app(other) as witness:
                call = web_call("hold")
                sockets = [await proxy.connect() for _ in range(1000)]
                for _, writer in sockets:
                    writer.write(http_post(f"/v1/mcp/{doomed}", call))
                for _ in sockets:
                    await app.holding()
                spared = asyncio.create_task(proxy.call(other, "hold"))
                held = await witness.holding()
                start = time.monotonic()
                await proxy.send("DELETE", f"/v1/chat/sessions/{doomed}")
                for reader, writer in sockets:
                    body = await soon(http_answer(reader))
                    assert "The session was unregistered" in text_of(body["result"])
                    writer.close()
                assert time.monotonic() - start < 10
                await witness.result(held, "untouched")
                assert text_of(await soon(spared)) == "untouched"

    asyncio.run(main())


def test_results_forged_from_another_session_are_dropped(proxies: Start) -> None:
    async def main() -> None:
        async with proxies() as proxy:
            victim, thief = await opened(proxy), await opened(proxy)
            async with proxy.app(victim) as app, proxy.app(thief) as forger:
                waiting = asyncio.create_task(proxy.call(victim, "hold"))
                held = await app.holding()
                for claimed in (victim, thief):
                    frame = {"type": "invoke_result", "request_id": held["request_id"], "ok": True, "content": "forged"}
                    await forger.say(**frame, mcpSessionId=claimed)
                    assert (await soon(forger.errors.get()))["reason"]
                await app.result(held, "true")
                assert text_of(await soon(waiting)) == "true"

    asyncio.run(main())


def test_a_second_bridge_is_refused_while_the_first_answers_and_takes_over_when_it_does_not(
    proxies: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bridge, "PROBE_WAIT", 0.3)

    async def main() -> None:
        async with proxies() as proxy:
            id = await opened(proxy)
            async with proxy.app(id) as app:
                assert (await proxy.refused(id))[0] == 4409
                assert (await proxy.call(id))["isError"] is False
                app.freeze()
                async with proxy.app(id):
                    app.thaw()
                    assert (await closed(app.socket))[0] == 4408
                    assert (await proxy.call(id))["isError"] is False

    asyncio.run(main())


def test_a_silent_app_is_pinged_then_let_go(proxies: Start) -> None:
    async def main() -> None:
        async with proxies(bridge=BridgeLimits(ping=0.3)) as proxy:
            id = await opened(proxy)
            async with proxy.app(id) as app:
                await asyncio.sleep(1.5)  # longer than both spans: answered pings have kept it
                assert (await proxy.call(id))["isError"] is False
                app.freeze()
                while "openclaw_proxy_bridges 1" in (await proxy.send("GET", "/metrics")).body.decode():
                    pass
                app.thaw()
                assert await closed(app.socket) == (4408, "the app gave no sign of life")

    asyncio.run(main())


def test_an_app_that_stops_reading_fails_its_calls_and_harms_no_other(
    proxies: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bridge, "STALLED", 0.5)

    async def main() -> None:
        async with proxies(bridge=BridgeLimits(ping=1.0)) as proxy:
            id, other = await opened(proxy), await opened(proxy)
            async with websockets.connect(proxy.bridge_url(id), compression=None, max_queue=1) as socket:
                app = App(socket)
                await app.settled()
                socket.transport.pause_reading()
                calls = [asyncio.create_task(proxy.call(id, text="x" * 1_000_000)) for _ in range(20)]
                async with proxy.app(other):
                    assert (await soon(proxy.call(other)))["isError"] is False
                for call in calls:
                    assert "Bridge is not connected" in text_of(await soon(call))
                socket.transport.abort()

    asyncio.run(main())


def test_calls_beyond_the_window_are_refused_not_queued(proxies: Start) -> None:
    async def main() -> None:
        async with proxies(bridge=BridgeLimits(calls=2)) as proxy:
            id = await opened(proxy)
            async with proxy.app(id) as app:
                calls = [asyncio.create_task(proxy.call(id, "hold")) for _ in range(2)]
                held = [await app.holding() for _ in calls]
                assert "2 calls wait" in text_of(await proxy.call(id, "hold"))
                for frame in held:
                    await app.result(frame, "ok")
                for call in calls:
                    assert text_of(await soon(call)) == "ok"

    asyncio.run(main())


def test_a_call_that_takes_too_long_ends_with_the_reason_and_the_app_is_notified(proxies: Start) -> None:
    async def main() -> None:
        async with proxies(tool_timeout=0.3) as proxy:
            id = await opened(proxy)
            async with proxy.app(id) as app:
                call = asyncio.create_task(proxy.call(id, "hold"))
                held = await app.holding()
                assert text_of(await soon(call)).startswith(
                    "hold took longer than 0.3 s without progress and was stopped"
                )
                assert await soon(app.cancelled.get()) == held["request_id"]
                await app.result(held, "too late")
                assert "no call" in (await soon(app.errors.get()))["reason"]
                assert (await proxy.call(id))["isError"] is False

    asyncio.run(main())


def test_new_tools_from_the_app_replace_the_old_ones(proxies: Start) -> None:
    async def main() -> None:
        async with proxies() as proxy:
            id = await opened(proxy)
            async with proxy.app(id) as app:
                await app.say(type="update_tools", tools=[HOLD, {"name": "fresh", "inputSchema": {}}])
                assert await soon(app.others.get()) == {"type": "tools_updated", "mcpSessionId": id, "tool_count": 2}
                await proxy.offers(id, "hold", "fresh")
                assert (await proxy.call(id, "fresh"))["isError"] is False

    asyncio.run(main())


def web_call(tool: str, **arguments: Any) -> Any:
    return {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": tool, "arguments": arguments}}


def http_post(path: str, message: Any, *headers: str) -> bytes:
    body = json.dumps(message).encode()
    lines = [
        f"POST {path} HTTP/1.1",
        "host: 127.0.0.1",
        f"content-length: {len(body)}",
        "accept: application/json, text/event-stream",
        *headers,
    ]
    return "\r\n".join([*lines, "", ""]).encode() + body


async def http_answer(reader: asyncio.StreamReader) -> Any:
    head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    length = int(head.partition("content-length: ")[2].split("\r\n")[0])
    return json.loads(await reader.readexactly(length))
