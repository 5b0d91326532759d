"""Small promises of the contract: asked twice, without content, under a trailing slash, after long work."""

import asyncio
import json
from contextlib import suppress

import websockets

from openclaw_mcp.proxy.engine.limits import BridgeLimits

from .. import web_client
from .engines import Start, one_redis, proxies, redis
from .proxies import ECHO, App, Json, closed, soon, text_of

__all__ = ["one_redis", "proxies", "redis"]

INITIALIZE = web_client.rpc("initialize", {"protocolVersion": "2025-11-25", "capabilities": {}})
HOLD = web_client.rpc("tools/call", {"name": "hold", "arguments": {}})
CANCEL = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}}


def test_deleting_a_session_twice_is_well_both_times(proxies: Start) -> None:
    async def main() -> None:
        async with proxies() as proxy:
            id = (await proxy.create())["mcpSessionId"]
            for _ in range(2):
                answer = await proxy.send("DELETE", f"/v1/chat/sessions/{id}")
                assert (answer.status, answer.json) == (200, {"ok": True})
            assert (await proxy.send("GET", f"/v1/chat/sessions/{id}")).status == 404

    asyncio.run(main())


def test_a_call_under_way_learns_that_its_session_was_unregistered(proxies: Start) -> None:
    async def main() -> None:
        async with proxies() as proxy:
            id = (await proxy.create())["mcpSessionId"]
            async with proxy.app(id) as app:
                waiting = asyncio.create_task(proxy.call(id, "hold"))
                await app.holding()
                await proxy.send("DELETE", f"/v1/chat/sessions/{id}")
                result = await soon(waiting)
                assert result["isError"] is True
                assert text_of(result).startswith("The session was unregistered")
                assert "not connected" not in text_of(result)

    asyncio.run(main())


def test_an_answer_without_content_is_an_empty_result(proxies: Start) -> None:
    async def main() -> None:
        async with proxies() as proxy:
            id = (await proxy.create())["mcpSessionId"]
            async with proxy.app(id) as app:
                for more in ({}, {"mcp": True}):
                    waiting = asyncio.create_task(proxy.call(id, "hold"))
                    held = await app.holding()
                    await app.say(type="invoke_result", request_id=held["request_id"], ok=True, **more)
                    result = await soon(waiting)
                    assert (result["content"], result["isError"]) == ([], False)

    asyncio.run(main())


def test_a_trailing_slash_changes_nothing(proxies: Start) -> None:
    async def main() -> None:
        async with proxies() as proxy:
            created = await proxy.send("POST", "/v1/chat/sessions/", {"tools": [ECHO]})
            assert created.status == 200
            id = created.json["mcpSessionId"]
            assert (await proxy.send("GET", f"/v1/chat/sessions/{id}/")).json["mcpSessionId"] == id
            assert (await proxy.send("PUT", f"/v1/chat/sessions/{id}/tools/", [ECHO])).status == 200
            async with websockets.connect(f"{proxy.bridge_url(id)}/", compression=None) as socket:
                await App(socket).settled()
                deleted = await proxy.send("DELETE", f"/v1/chat/sessions/{id}/")
                assert (deleted.status, deleted.json) == (200, {"ok": True})
                assert (await closed(socket))[0] == 4410
            assert (await proxy.send("GET", "/")).status == 404

    asyncio.run(main())


def test_an_app_that_answers_only_the_pings_of_the_websocket_is_kept(proxies: Start) -> None:
    async def main() -> None:
        async with proxies(bridge=BridgeLimits(ping=0.3)) as proxy:
            id = (await proxy.create())["mcpSessionId"]
            async with proxy.app(id) as app:
                app.answers_pings = False
                for _ in range(5):  # pings of the bridge, each unanswered: the fourth would have been its end
                    await soon(app.pings.get())
                assert (await proxy.refused(id))[0] == 4409, "another bridge must not take its place"
                assert (await proxy.call(id))["isError"] is False

    asyncio.run(main())


def test_a_client_routed_by_header_cancels_its_own_request_alone(proxies: Start) -> None:
    async def main() -> None:
        async with proxies() as proxy:
            id = (await proxy.create())["mcpSessionId"]
            async with proxy.app(id) as app:
                assigned = [
                    (await proxy.send("POST", "/v1/mcp", INITIALIZE, MCP_Session_Id=id)).headers["mcp-session-id"]
                    for _ in range(2)
                ]
                # One client replaces its configured header by what it got, the other sends both in one.
                clients = [assigned[0], f"{assigned[1]}, {id}"]
                posts = [
                    asyncio.create_task(proxy.send("POST", "/v1/mcp", HOLD, MCP_Session_Id=client))
                    for client in (*clients, id)
                ]
                held = [await app.holding() for _ in posts]
                for client in clients:
                    assert (await proxy.send("POST", "/v1/mcp", CANCEL, MCP_Session_Id=client)).status == 202
                gone = {await soon(app.cancelled.get()) for _ in clients}
                [stays] = [frame for frame in held if frame["request_id"] not in gone]
                await app.result(stays, "mine")
                answers = [await soon(post) for post in posts]
                assert [answer.status for answer in answers] == [202, 202, 200], (
                    "the one without a name of its own stays"
                )

    asyncio.run(main())


def test_two_clients_that_name_the_session_in_path_and_header_may_use_the_same_request_ids(proxies: Start) -> None:
    async def main() -> None:
        async with proxies() as proxy:
            id = (await proxy.create())["mcpSessionId"]
            async with proxy.app(id) as app:
                posts = [
                    asyncio.create_task(proxy.send("POST", f"/v1/mcp/{id}", HOLD, MCP_Session_Id=id)) for _ in range(2)
                ]
                for frame in [await app.holding() for _ in posts]:
                    await app.result(frame, "done")
                assert [(await soon(post)).status for post in posts] == [200, 200]

    asyncio.run(main())


def test_a_header_that_names_two_sessions_is_refused(proxies: Start) -> None:
    async def main() -> None:
        async with proxies() as proxy:
            ids = [(await proxy.create())["mcpSessionId"] for _ in range(2)]
            answer = await proxy.send("POST", "/v1/mcp", INITIALIZE, MCP_Session_Id=", ".join(ids))
            assert answer.status == 400
            assert b"two sessions" in answer.body

    asyncio.run(main())


async def work_on(app: App, frame: Json, steps: int, pace: float) -> None:
    """Report progress every `pace` seconds."""
    with suppress(websockets.ConnectionClosed):
        for step in range(1, steps + 1):
            await asyncio.sleep(pace)
            await app.say(type="progress", request_id=frame["request_id"], progress=step)


def test_progress_gives_a_call_more_time(proxies: Start) -> None:
    async def main() -> None:
        async with proxies(tool_timeout=2.0) as proxy:
            id = (await proxy.create())["mcpSessionId"]
            async with proxy.app(id) as app:
                waiting = asyncio.create_task(proxy.call(id, "hold"))
                held = await app.holding()
                await work_on(app, held, steps=14, pace=0.25)  # 3.5 s, and the caller asked for no progress
                await app.result(held, "done")
                assert text_of(await soon(waiting)) == "done"

    asyncio.run(main())


def test_a_call_out_of_time_names_the_setting(proxies: Start) -> None:
    async def main() -> None:
        async with proxies(tool_timeout=0.5, longest_call=1.5) as proxy:
            id = (await proxy.create())["mcpSessionId"]
            async with proxy.app(id) as app:
                silent = text_of(await soon(proxy.call(id, "hold")))
                assert silent == (
                    "hold took longer than 0.5 s without progress and was stopped; "
                    "OPENCLAW_PROXY_TOOL_TIMEOUT_SECONDS allows more"
                )
                await app.holding()
                waiting = asyncio.create_task(proxy.call(id, "hold"))
                working = asyncio.create_task(work_on(app, await app.holding(), steps=200, pace=0.05))
                text = text_of(await soon(waiting))
                working.cancel()
                assert text == (
                    "hold took longer than 1.5 s and was stopped; OPENCLAW_PROXY_MAX_CALL_SECONDS allows more"
                )
                assert len([await soon(app.cancelled.get()) for _ in range(2)]) == 2

    asyncio.run(main())


def test_what_is_sent_is_one_frame_of_json(proxies: Start) -> None:
    """The ping of the bridge itself is still there, for apps that watch for it."""

    async def main() -> None:
        async with proxies(bridge=BridgeLimits(ping=0.2)) as proxy:
            id = (await proxy.create())["mcpSessionId"]
            async with websockets.connect(proxy.bridge_url(id), compression=None) as socket:
                await App(socket).settled()
                assert json.loads(await soon(socket.recv())) == {"type": "ping", "mcpSessionId": id}

    asyncio.run(main())
