"""The MCP side: routing, eras, progress, cancellation, list changes, tokens, pages."""

import asyncio
import base64
import hashlib
import json
from pathlib import Path

import pytest
from websockets.exceptions import InvalidStatus

from openclaw_mcp.proxy import state

from .. import web_client
from ..web_client import stateless
from .engines import Start, one_redis, proxies, redis
from .proxies import ECHO, HOLD, Proxy, closed, soon, text_of
from .test_bridge import http_answer, http_post, opened, web_call

__all__ = ["one_redis", "proxies", "redis"]

PING = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
TOKENS = {"app_token": "app-secret", "mcp_token": "mcp-secret"}
APP = {"Authorization": "Bearer app-secret"}
MCP = {"Authorization": "Bearer mcp-secret"}


def test_a_session_is_found_by_path_or_header_with_or_without_a_slash_and_the_path_wins(proxies: Start) -> None:
    async def main() -> None:
        async with proxies() as proxy:
            id = await opened(proxy)
            for path, headers in (
                (f"/v1/mcp/{id}", {}),
                (f"/v1/mcp/{id}/", {}),
                ("/v1/mcp", {"MCP_Session_Id": id}),
                ("/v1/mcp/", {"MCP_Session_Id": id}),
                (f"/v1/mcp/{id}", {"MCP_Session_Id": "elsewhere"}),
            ):
                answer = await proxy.send("POST", path, PING, **headers)
                assert (answer.status, answer.json["result"]) == (200, {}), path
            assert (await proxy.send("POST", "/v1/mcp", PING)).status == 400
            assert (await proxy.send("POST", "/v1/mcp/", PING)).status == 400
            assert (await proxy.send("POST", "/v1/mcp/unknown", PING)).status == 404
            assert (await proxy.send("POST", "/v1/mcp", PING, MCP_Session_Id="unknown")).status == 404
            assert (await proxy.send("POST", "/v1/mcp/unknown", PING, MCP_Session_Id=id)).status == 404
            assert (await proxy.send("DELETE", f"/v1/mcp/{id}")).status == 405
            assert (await proxy.send("POST", f"/v1/mcp/{id}", PING)).status == 200

    asyncio.run(main())


def test_both_eras_call_a_tool(proxies: Start) -> None:
    async def main() -> None:
        async with proxies() as proxy:
            id = await opened(proxy)
            async with proxy.app(id):
                hello = await proxy.rpc(id, "initialize", {"protocolVersion": "2025-06-18", "capabilities": {}})
                assert hello["result"]["protocolVersion"] == "2025-06-18"
                assert id not in json.dumps(hello)
                assert (await proxy.call(id))["structuredContent"] == {"echoed_text": "hello"}
                body, headers = stateless("tools/call", {"name": "echo_text", "arguments": {"text": "new"}})
                for path, more in ((f"/v1/mcp/{id}", {}), ("/v1/mcp", {"MCP_Session_Id": id})):
                    answer = await proxy.send("POST", path, body, **headers, **more)
                    assert answer.json["result"]["structuredContent"] == {"echoed_text": "new"}
                assert (await proxy.rpc(id, "no/such"))["error"]["code"] == -32601
                assert (await proxy.call(id, "no_such_tool"))["error"]["code"] == -32602

    asyncio.run(main())


def test_progress_reaches_the_caller_before_the_result(proxies: Start) -> None:
    async def main() -> None:
        async with proxies() as proxy:
            id = await opened(proxy)
            async with proxy.app(id) as app:
                params = {"name": "hold", "arguments": {}, "_meta": {"progressToken": "p"}}
                posted = proxy.send("POST", f"/v1/mcp/{id}", web_client.rpc("tools/call", params))
                waiting = asyncio.create_task(posted)
                held = await app.holding()
                await app.say(type="progress", request_id=held["request_id"], progress=1, total=3, message="one")
                await app.say(type="progress", requestId=held["request_id"], progress=2)
                await app.result(held, "done")
                answer = await soon(waiting)
                assert answer.headers["content-type"].startswith("text/event-stream")
                *news, last = answer.messages
                assert news
                assert {message["method"] for message in news} == {"notifications/progress"}
                assert news[-1]["params"] == {"progressToken": "p", "progress": 2}
                assert text_of(last["result"]) == "done"

    asyncio.run(main())


def test_the_app_is_notified_of_a_caller_that_leaves(proxies: Start) -> None:
    async def main() -> None:
        async with proxies() as proxy:
            id = await opened(proxy)
            async with proxy.app(id) as app:
                _, writer = await proxy.connect()
                writer.write(http_post(f"/v1/mcp/{id}", web_call("hold")))
                held = await app.holding()
                writer.close()
                assert await soon(app.cancelled.get()) == held["request_id"]

    asyncio.run(main())


def test_a_handshake_client_cancels_its_own_request_alone(proxies: Start) -> None:
    async def main() -> None:
        async with proxies() as proxy:
            id = await opened(proxy)
            async with proxy.app(id) as app:
                params = {"protocolVersion": "2025-11-25", "capabilities": {}}
                path = f"/v1/mcp/{id}"
                clients = [
                    (await proxy.send("POST", path, web_client.rpc("initialize", params))).headers["mcp-session-id"]
                    for _ in range(2)
                ]
                posts = [
                    asyncio.create_task(proxy.send("POST", path, web_call("hold"), MCP_Session_Id=client))
                    for client in clients
                ]
                held = [await app.holding() for _ in posts]
                cancelled = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}}
                assert (await proxy.send("POST", path, cancelled, MCP_Session_Id=clients[0])).status == 202
                gone = await soon(app.cancelled.get())
                [stays] = [frame for frame in held if frame["request_id"] != gone]
                await app.result(stays, "mine")
                answers = [await soon(post) for post in posts]
                assert sorted(answer.status for answer in answers) == [200, 202]

    asyncio.run(main())


async def lines_until(reader: asyncio.StreamReader, word: str) -> None:
    while word not in (await soon(reader.readline())).decode():
        pass


def test_both_eras_hear_of_new_tools_and_of_the_end(proxies: Start) -> None:
    async def main() -> None:
        async with proxies() as proxy:
            id = await opened(proxy)
            get, get_writer = await proxy.connect()
            get_writer.write(
                f"GET /v1/mcp/{id} HTTP/1.1\r\nhost: localhost\r\naccept: text/event-stream\r\n\r\n".encode()
            )
            await lines_until(get, "200 OK")
            listen, listen_writer = await proxy.connect()
            body, headers = stateless("subscriptions/listen", {"notifications": {"toolsListChanged": True}})
            named = [f"{key.replace('_', '-')}: {value}" for key, value in headers.items()]
            listen_writer.write(http_post(f"/v1/mcp/{id}", body, *named))
            await lines_until(listen, "acknowledged")
            await proxy.send("PUT", f"/v1/chat/sessions/{id}/tools", [ECHO])
            await lines_until(get, "notifications/tools/list_changed")
            await lines_until(listen, "notifications/tools/list_changed")
            await proxy.send("DELETE", f"/v1/chat/sessions/{id}")
            await lines_until(get, "0\r\n")
            await lines_until(listen, "0\r\n")
            get_writer.close()
            listen_writer.close()

    asyncio.run(main())


def test_more_sessions_than_servers_are_kept_ready_are_all_served(
    proxies: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state, "MAX_IDLE_SERVERS", 4)

    async def main() -> None:
        async with proxies() as proxy:
            ids = [await opened(proxy) for _ in range(10)]
            async with proxy.app(ids[0]) as app:
                calls = [asyncio.create_task(proxy.call(ids[0], "hold")) for _ in range(2)]
                held = [await app.holding() for _ in calls]
                for _ in range(2):
                    for id in ids:
                        assert len((await proxy.rpc(id, "tools/list"))["result"]["tools"]) == 2
                for frame in held:
                    await app.result(frame, "still served")
                for call in calls:
                    assert text_of(await soon(call)) == "still served"
                assert (await proxy.call(ids[0]))["isError"] is False

    asyncio.run(main())


def test_each_side_needs_its_own_token(proxies: Start) -> None:
    async def main() -> None:
        async with proxies(**TOKENS) as proxy:
            for headers in ({}, MCP, {"Authorization": "app-secret"}, {"Authorization": "Bearer "}):
                for method, path in (
                    ("POST", "/v1/chat/sessions"),
                    ("GET", "/v1/chat/sessions"),
                    ("DELETE", "/v1/chat/sessions/x"),
                    ("PUT", "/v1/chat/sessions/x/tools"),
                    ("GET", "/metrics"),
                    ("GET", "/openapi.json"),
                ):
                    refused = await proxy.send(method, path, {} if method != "GET" else None, **headers)
                    assert (refused.status, refused.headers["www-authenticate"]) == (401, "Bearer"), path
            created = await proxy.send("POST", "/v1/chat/sessions", {"tools": [ECHO, HOLD]}, **APP)
            id = created.json["mcpSessionId"]
            for headers in ({}, APP):
                refused = await proxy.send("POST", f"/v1/mcp/{id}", PING, **headers)
                assert (refused.status, refused.headers["www-authenticate"]) == (401, "Bearer")
            assert (await proxy.send("GET", "/health")).body == b"ok"
            assert (await proxy.refused(id))[0] == 4401
            assert (await proxy.refused(id, additional_headers=MCP))[0] == 4401
            async with proxy.app(id, additional_headers=APP):
                answer = await proxy.rpc(id, "tools/call", {"name": "echo_text", "arguments": {"text": "t"}}, **MCP)
                assert answer["result"]["isError"] is False
            subprotocol = "bearer." + base64.urlsafe_b64encode(b"app-secret").decode().rstrip("=")
            async with proxy.app(id, subprotocols=["openclaw-bridge", subprotocol]) as app:
                assert app.socket.subprotocol == "openclaw-bridge"
            wrong = ["openclaw-bridge", "bearer." + base64.urlsafe_b64encode(b"wrong").decode().rstrip("=")]
            assert (await proxy.refused(id, subprotocols=wrong))[0] == 4401

    asyncio.run(main())


def test_a_bridge_to_no_session_is_refused(proxies: Start) -> None:
    async def main() -> None:
        async with proxies() as proxy:
            assert (await proxy.refused("unknown"))[0] == 4404
            id = await opened(proxy)
            await proxy.send("DELETE", f"/v1/chat/sessions/{id}")
            assert (await proxy.refused(id))[0] == 4404

    asyncio.run(main())


def test_only_admitted_pages_and_hosts_come_in(proxies: Start) -> None:
    async def main() -> None:
        evil, good = {"Origin": "https://evil.example"}, {"Origin": "https://app.example.com"}
        async with proxies(origins=frozenset({"https://app.example.com"})) as proxy:
            id = await opened(proxy)
            for path in ("/v1/chat/sessions", f"/v1/mcp/{id}"):
                refused = await proxy.send("POST", path, PING, **evil)
                assert refused.status == 403
                assert "access-control-allow-origin" not in refused.headers
                admitted = await proxy.send("POST", path, PING, **good)
                assert admitted.headers["access-control-allow-origin"] == "https://app.example.com"
                preflight = {"Access_Control_Request_Method": "POST", "Access_Control_Request_Headers": "authorization"}
                assert (await proxy.send("OPTIONS", path, None, **good, **preflight)).status == 200
                assert (await proxy.send("OPTIONS", path, None, **evil, **preflight)).status == 403
                assert (await proxy.send("POST", path, PING, Host="rebound.example")).status == 403
            with pytest.raises(InvalidStatus) as rejected:
                await proxy.refused(id, origin="https://evil.example")
            assert rejected.value.response.status_code == 403
            async with proxy.app(id, origin="https://app.example.com") as app:
                await app.socket.close()
                await closed(app.socket)

    asyncio.run(main())


def test_a_call_leaves_one_audit_line_without_its_arguments(proxies: Start, tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"

    async def main() -> None:
        async with proxies(audit=str(path)) as proxy:
            id = await opened(proxy)
            async with proxy.app(id):
                await proxy.call(id, text="very-secret")
                await proxy.call(id, text=7)
                await proxy.call(id, "nothing")
            await proxy.call(id)
            ids.append(id)

    ids: list[str] = []
    asyncio.run(main())
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["outcome"] for line in lines] == ["ok", "tool_arguments", "tool_not_found", "tool_unavailable"]
    assert [line["session"] for line in lines] == 4 * [hashlib.sha256(ids[0].encode()).hexdigest()[:12]]
    assert ids[0] not in path.read_text(), "the id is the key to the session"
    assert (lines[0]["tool"], lines[0]["caller"]) == ("echo_text", "agent mcp")
    assert lines[0]["sent"] > 20
    assert lines[0]["received"] > 10
    assert lines[1]["sent"] is None
    assert lines[0]["time"].endswith("Z")
    assert "very-secret" not in path.read_text()
    assert path.stat().st_mode & 0o077 == 0


def test_answers_come_back_over_one_kept_alive_connection(proxies: Start) -> None:
    async def main(start: Start) -> None:
        async with start() as proxy:
            await _several(proxy)

    async def _several(proxy: Proxy) -> None:
        id = await opened(proxy)
        async with proxy.app(id):
            reader, writer = await proxy.connect()
            for _ in range(3):
                writer.write(http_post(f"/v1/mcp/{id}", web_call("echo_text", text="again")))
                assert (await soon(http_answer(reader)))["result"]["isError"] is False
            writer.close()

    asyncio.run(main(proxies))
