"""The HTTP API for apps: register, inspect, retool, delete, expire."""

import asyncio
from typing import Any

import pytest

from openclaw_mcp.proxy.engine import limits

from .engines import Start, one_redis, proxies, redis
from .proxies import ECHO, HOLD, TEXT, Proxy, closed, soon, text_of

__all__ = ["one_redis", "proxies", "redis"]


def test_a_session_is_registered_lent_and_deleted(proxies: Start) -> None:
    async def main() -> None:
        async with proxies() as proxy:
            created = await proxy.create(
                device_id="device-1", device_name="desktop", app_version="1.0.0", chat_id="chat-1"
            )
            id = created["mcpSessionId"]
            assert created["bridge_url"] == proxy.bridge_url(id)
            assert created["mcp_url"] == f"{proxy.address}/v1/mcp/{id}"
            async with proxy.app(id) as app:
                assert (await proxy.call(id))["structuredContent"] == {"echoed_text": "hello"}
                deleted = await proxy.send("DELETE", f"/v1/chat/sessions/{id}")
                assert (deleted.status, deleted.json) == (200, {"ok": True})
                assert (await closed(app.socket))[0] == 4410
            assert (await proxy.send("POST", f"/v1/mcp/{id}", {})).status == 404

    asyncio.run(main())


def test_a_body_in_camel_case_is_answered_in_camel_case_with_links(proxies: Start) -> None:
    async def main() -> None:
        async with proxies() as proxy:
            tool = {"name": "echo_text", "inputSchema": TEXT}
            body = {"deviceId": "d", "deviceName": "n", "appVersion": "1", "tools": [tool]}
            answer = await proxy.send("POST", "/v1/chat/sessions", body)
            assert list(answer.json) == ["mcpSessionId"]
            id = answer.json["mcpSessionId"]
            bridge, mcp = answer.headers["link"].split(", ")
            assert bridge == f'<{proxy.bridge_url(id)}>; rel="bridge"'
            assert mcp == f'<{proxy.address}/v1/mcp/{id}>; rel="mcp"'
            listed = await proxy.rpc(id, "tools/list")
            assert listed["result"]["tools"] == [{"name": "echo_text", "inputSchema": TEXT}]

    asyncio.run(main())


@pytest.mark.parametrize(
    "body",
    [
        {"tools": [{"name": "a", "input_schema": {"type": "object", "properties": {"inputSchema": {}}}}]},
        {"tools": [ECHO], "deviceName": "said besides"},
        {"tools": [{"name": "a", "inputSchema": TEXT}], "device_id": "d"},
    ],
)
def test_a_body_in_snake_case_is_answered_with_the_addresses_with_any_other_fields(proxies: Start, body: Any) -> None:
    async def main() -> None:
        async with proxies() as proxy:
            answer = await proxy.send("POST", "/v1/chat/sessions", body)
            assert list(answer.json) == ["mcpSessionId", "bridge_url", "mcp_url"]

    asyncio.run(main())


def test_tools_are_listed_in_order_and_word_for_word(proxies: Start) -> None:
    tools: list[Any] = [
        {
            "name": f"z{index}",
            "title": "Títle",
            "description": "d",
            "inputSchema": {**TEXT, "x-order": index},
            "outputSchema": {"type": "object"},
            "annotations": {"readOnlyHint": True},
            "icons": [{"src": "https://example.com/i.png"}],
            "_meta": {"k": 1},
        }
        for index in reversed(range(5))
    ]

    async def main() -> None:
        async with proxies() as proxy:
            id = (await proxy.create(tools=tools))["mcpSessionId"]
            assert (await proxy.rpc(id, "tools/list"))["result"]["tools"] == tools

    asyncio.run(main())


@pytest.mark.parametrize(
    ("tools", "says"),
    [
        ([ECHO, ECHO], "'echo_text' is there twice"),
        ([{"name": ""}], "tools[0].name"),
        ([ECHO, {"name": "a b"}], "tools[1].name"),
        ([{"name": "x" * 129}], "tools[0].name"),
        ([{"description": "nameless"}], "name"),
        ([{"name": 7}], "name"),
        ([{"name": "a", "input_schema": []}], "tools[0].input_schema"),
        ([{"name": "a", "input_schema": True}], "tools[0].input_schema"),
        ([{"name": "a", "input_schema": {"type": "string"}}], "tools[0].input_schema"),
        ([{"name": "a", "input_schema": {"type": "object", "properties": 3}}], "tools[0].input_schema"),
        ([{"name": "a", "input_schema": {"$ref": "https://example.com/s.json"}}], "tools[0].input_schema"),
        ({"name": "a"}, "tools"),
        ("tools", "tools"),
        ([{"name": f"t{n}"} for n in range(600)], "600 are too many"),
    ],
)
def test_tools_that_can_not_be_lent_are_refused_by_name(proxies: Start, tools: Any, says: str) -> None:
    async def main() -> None:
        async with proxies() as proxy:
            answer = await proxy.send("POST", "/v1/chat/sessions", {"tools": tools})
            assert answer.status == 422
            assert says in answer.json["detail"]
            id = (await proxy.create())["mcpSessionId"]
            assert (await proxy.send("PUT", f"/v1/chat/sessions/{id}/tools", {"tools": tools})).status == 422
            assert len((await proxy.rpc(id, "tools/list"))["result"]["tools"]) == 2

    asyncio.run(main())


def test_what_an_app_registered_is_shown_to_its_owner_unknown_fields_included(proxies: Start) -> None:
    async def main() -> None:
        async with proxies() as proxy:
            first = (await proxy.create(device_id="one", chat_id="c", flavour={"sweet": True}))["mcpSessionId"]
            second = (await proxy.create(device_id="two"))["mcpSessionId"]
            third = (await proxy.create(device_id="one", tools=[]))["mcpSessionId"]
            listed = (await proxy.send("GET", "/v1/chat/sessions")).json["sessions"]
            assert [entry["mcpSessionId"] for entry in listed] == [third, second, first]
            ours = (await proxy.send("GET", "/v1/chat/sessions?device_id=one")).json["sessions"]
            assert [entry["mcpSessionId"] for entry in ours] == [third, first]
            session = (await proxy.send("GET", f"/v1/chat/sessions/{first}")).json
            assert session["flavour"] == {"sweet": True}
            assert session["chat_id"] == "c"
            assert session["tools"] == [ECHO, HOLD]
            assert session["connected"] is False
            async with proxy.app(first):
                assert (await proxy.send("GET", f"/v1/chat/sessions/{first}")).json["connected"] is True

    asyncio.run(main())


def test_new_tools_over_http_replace_the_old_ones(proxies: Start) -> None:
    async def main() -> None:
        async with proxies() as proxy:
            id = (await proxy.create())["mcpSessionId"]
            async with proxy.app(id):
                await proxy.call(id)
                answer = await proxy.send("PUT", f"/v1/chat/sessions/{id}/tools", [{"name": "fresh"}])
                assert answer.json == {"ok": True, "tool_count": 1}
                await proxy.offers(id, "fresh")
                assert (await proxy.call(id))["error"]["code"] == -32602
                assert (await proxy.call(id, "fresh"))["isError"] is False

    asyncio.run(main())


def test_a_session_expires_when_unused_and_a_bridge_keeps_it(proxies: Start) -> None:
    async def main() -> None:
        async with proxies(session_ttl=1.0) as proxy:
            left = (await proxy.create())["mcpSessionId"]
            id = (await proxy.create())["mcpSessionId"]
            async with proxy.app(id):
                await asyncio.sleep(1.5)  # nothing tells of an expiry, and asking would renew it
                assert (await proxy.send("POST", f"/v1/mcp/{left}", {})).status == 404
                assert (await proxy.call(id))["isError"] is False

    asyncio.run(main())


def test_bodies_that_are_no_json_objects_are_refused(proxies: Start) -> None:
    async def main() -> None:
        async with proxies(largest_body=10_000) as proxy:
            for body, status in ((b"{", 400), (b"", 400), (b"[]", 422), (b'"x"', 422), (b'{"device_id": 7}', 422)):
                assert (await proxy.send("POST", "/v1/chat/sessions", body)).status == status, body
            assert (await proxy.send("POST", "/v1/chat/sessions", b" " * 10_001)).status == 413
            assert (await proxy.send("POST", "/v1/chat/sessions", {"validate": "no"})).status == 422
            assert (await proxy.send("GET", "/v1/nothing")).json["detail"]
            assert (await proxy.send("PATCH", "/v1/chat/sessions")).status == 405

    asyncio.run(main())


@pytest.mark.parametrize(
    "body",
    [
        b'{"x": 1e400}',
        b'{"x": ' + b"7" * 5000 + b"}",
        b'{"x": "\xff"}',
        b'{"tools": [{"name": "x", "z": "\xff"}]}',
        b'{"tools": [{"name": "x", "input_schema": {"type": "object", "maximum": 1e400}}]}',
        b'{"tools": [{"name": "x", "input_schema": {"type": "object", "title": "\xff"}}]}',
    ],
)
def test_what_could_not_be_shown_again_is_refused(proxies: Start, body: bytes) -> None:
    async def main() -> None:
        async with proxies() as proxy:
            refused = await proxy.send("POST", "/v1/chat/sessions", body)
            assert refused.status in (400, 422)
            assert refused.json["detail"]
            id = (await proxy.create())["mcpSessionId"]
            if b"tools" in body:
                again = await proxy.send("PUT", f"/v1/chat/sessions/{id}/tools", body)
                assert again.status == refused.status
            assert len((await proxy.send("GET", "/v1/chat/sessions")).json["sessions"]) == 1

    asyncio.run(main())


def nested(levels: int) -> str:
    return "[" * levels + "]" * levels


BODIES = {
    "about": '{"x": %s}',
    "_meta": '{"tools": [{"name": "x", "_meta": {"a": %s}}]}',
    "annotations": '{"tools": [{"name": "x", "annotations": {"a": %s}}]}',
    "icons": '{"tools": [{"name": "x", "icons": [{"a": %s}]}]}',
    "input_schema": '{"tools": [{"name": "x", "input_schema": {"type": "object", "default": %s}}]}',
    "outputSchema": '{"tools": [{"name": "x", "outputSchema": {"type": "object", "default": %s}}]}',
    "unknown": '{"tools": [{"name": "x", "z": %s}]}',
}


@pytest.mark.parametrize("levels", [130, 500, 950])
@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_json_nested_too_deeply_is_refused_at_every_entry_point(proxies: Start, body: str, levels: int) -> None:
    async def main() -> None:
        async with proxies() as proxy:
            refused = await proxy.send("POST", "/v1/chat/sessions", (body % nested(levels)).encode())
            assert (refused.status, "nested too deeply" in refused.json["detail"]) == (422, True)
            created = await proxy.send("POST", "/v1/chat/sessions", (body % nested(100)).encode())
            id = created.json["mcpSessionId"]
            assert (await proxy.send("GET", "/v1/chat/sessions")).status == 200
            assert (await proxy.send("GET", f"/v1/chat/sessions/{id}")).status == 200
            if "tools" not in body:
                return
            again = await proxy.send("PUT", f"/v1/chat/sessions/{id}/tools", (body % nested(levels)).encode())
            assert (again.status, "nested too deeply" in again.json["detail"]) == (422, True)
            async with proxy.app(id) as app:
                frame = body.replace("{", '{"type": "update_tools", ', 1) % nested(levels)
                await app.socket.send(frame)
                assert "nested too deeply" in (await soon(app.errors.get()))["reason"]

    asyncio.run(main())


@pytest.mark.parametrize("body", [BODIES["about"], BODIES["input_schema"]], ids=["about", "input_schema"])
def test_no_session_breaks_the_list_of_all(proxies: Start, body: str) -> None:
    async def main() -> None:
        async with proxies() as proxy:
            for levels in range(880, 985):  # somewhere here the stack ends
                created = await proxy.send("POST", "/v1/chat/sessions", (body % nested(levels)).encode())
                assert created.status != 500, levels
                assert (await proxy.send("GET", "/v1/chat/sessions")).status == 200, levels

    asyncio.run(main())


def test_pages_are_admitted_by_their_whole_origin_or_by_their_host(proxies: Start) -> None:
    async def main() -> None:
        async with proxies(origins=frozenset({"https://one.example", "two.example"})) as proxy:
            for origin, status in {
                "https://one.example": 200,
                "http://one.example": 403,
                "https://one.example:8443": 403,
                "http://two.example:81": 200,
                "https://two.example.evil": 403,
                "http://localhost:5000": 200,
            }.items():
                assert (await proxy.send("OPTIONS", "/v1/chat/sessions", origin=origin)).status == status, origin

    asyncio.run(main())


def test_an_app_token_has_so_many_sessions_and_no_more(proxies: Start) -> None:
    async def main() -> None:
        async with proxies(most_sessions=2) as proxy:
            first = (await proxy.create())["mcpSessionId"]
            await proxy.create()
            refused = await proxy.send("POST", "/v1/chat/sessions", {})
            assert refused.status == 429
            assert "2 sessions" in refused.json["detail"]
            await proxy.send("DELETE", f"/v1/chat/sessions/{first}")
            await proxy.create()

    asyncio.run(main())


def test_sessions_that_are_none_are_not_counted(proxies: Start) -> None:
    """What is counted is kept, under a name the client has made up: each would be asked to wait otherwise."""

    async def main() -> None:
        async with proxies(session_rate=limits.parse_rate("1/h:2")) as proxy:
            for id in ("nobody", "n" * 10_000):
                for _ in range(4):
                    assert (await proxy.send("POST", f"/v1/mcp/{id}", {})).status == 404
                    assert (await proxy.send("POST", "/v1/mcp", {}, MCP_Session_Id=id)).status == 404

    asyncio.run(main())


def test_a_client_that_asks_too_fast_gets_a_retry_time(proxies: Start) -> None:
    async def main() -> None:
        slow = limits.parse_rate("1/h:2")
        async with proxies(app_rate=slow) as proxy:
            assert [(await proxy.send("GET", "/v1/chat/sessions")).status for _ in range(3)] == [200, 200, 429]
        async with proxies(session_rate=slow) as proxy:
            one, other = (await proxy.create())["mcpSessionId"], (await proxy.create())["mcpSessionId"]
            body = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
            answers = [await proxy.send("POST", f"/v1/mcp/{one}", body) for _ in range(3)]
            assert [answer.status for answer in answers] == [200, 200, 429]
            assert 3500 < int(answers[-1].headers["retry-after"]) <= 3600
            assert (await proxy.send("POST", f"/v1/mcp/{other}", body)).status == 200
        async with proxies(mcp_rate=slow) as proxy:
            one, other = (await proxy.create())["mcpSessionId"], (await proxy.create())["mcpSessionId"]
            assert [(await proxy.send("POST", f"/v1/mcp/{id}", body)).status for id in (one, other, one)] == [
                200,
                200,
                429,
            ]

    asyncio.run(main())


def test_health_metrics_and_description(proxies: Start) -> None:
    async def main() -> None:
        async with proxies() as proxy:
            id = (await proxy.create())["mcpSessionId"]
            health = await proxy.send("GET", "/health")
            assert (health.status, health.body) == (200, b"ok")
            async with proxy.app(id) as app:
                await proxy.call(id)
                await proxy.call(id, "echo_text", text=3)
                waiting = asyncio.create_task(proxy.call(id, "hold"))
                await app.holding()
                rows = await metrics(proxy.calls)
                here = await metrics(proxy.address)
                waiting.cancel()
            assert rows['openclaw_proxy_calls_total{outcome="ok"}'] == "1"
            assert rows['openclaw_proxy_calls_total{outcome="tool_arguments"}'] == "1"
            assert rows["openclaw_proxy_call_seconds_count"] == "2"
            assert rows['openclaw_proxy_call_seconds_bucket{le="+Inf"}'] == "2"
            assert (here["openclaw_proxy_sessions"], here["openclaw_proxy_bridges"]) == ("1", "1")
            assert here["openclaw_proxy_calls_running"] == "1"
            assert (await proxy.send("GET", "/openapi.json")).json["openapi"] == "3.1.0"

    asyncio.run(main())


async def metrics(address: str) -> dict[str, str]:
    text = (await Proxy(address).send("GET", "/metrics")).body.decode()
    return dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))


def test_arguments_are_checked_before_the_app_is_bothered_unless_it_says_no(proxies: Start) -> None:
    async def main() -> None:
        async with proxies() as proxy:
            strict = (await proxy.create())["mcpSessionId"]
            async with proxy.app(strict) as app:
                app.answer = lambda frame: pytest.fail("the app was asked")
                result = await proxy.call(strict, "echo_text", text=3)
                assert result["isError"] is True
                assert "text" in text_of(result)
            loose = (await proxy.create(validate=False))["mcpSessionId"]
            async with proxy.app(loose):
                assert (await proxy.call(loose, "echo_text", text=3))["structuredContent"] == {"echoed_text": 3}

    asyncio.run(main())


def test_the_urls_are_the_ones_the_asker_can_reach(proxies: Start) -> None:
    async def main() -> None:
        async with proxies() as proxy:
            created = await proxy.send("POST", "/v1/chat/sessions", {}, X_Forwarded_Proto="https")
            assert created.json["mcp_url"].startswith("https://127.0.0.1:")
            assert created.json["bridge_url"].startswith("wss://127.0.0.1:")
        async with proxies(public_url="https://proxy.example.com/base") as proxy:
            created = await proxy.send("POST", "/v1/chat/sessions", {})
            assert created.json["mcp_url"].startswith("https://proxy.example.com/base/v1/mcp/")

    asyncio.run(main())
