"""The HTTP endpoint on a real server: both eras, streams, sessions, cancellation, refusals."""

import asyncio
import json
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from openclaw_mcp.core.model import LOCAL_CALLER
from openclaw_mcp.mcp.server import sessions
from openclaw_mcp.mcp.server.http_gate import HttpRefusal
from openclaw_mcp.mcp.server.server import McpServer, McpServerInfo
from openclaw_mcp.protocol.mcp import read_initialize
from openclaw_mcp.tools.dispatcher import ToolDispatcher
from openclaw_mcp.tools.registry import ToolRegistry
from tests.running import everything_over_http
from tests.web_client import Answer, ask, opened, rpc, send, stateless


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with everything_over_http() as address:
        yield address


def call(address: str, name: str, arguments: Any = None, **headers: str) -> Answer:
    """A call of the handshake era, without a session."""
    return send(address, "POST", rpc("tools/call", {"name": name, "arguments": arguments or {}}), **headers)


def session(address: str, capabilities: Any = None, version: str = "2025-11-25") -> str:
    opened = send(address, "POST", rpc("initialize", {"protocolVersion": version, "capabilities": capabilities or {}}))
    assert opened.status == 200
    return opened.headers["mcp-session-id"]


# ---- answers ----


def test_a_plain_result_is_plain_json(address: str) -> None:
    for answer in (
        call(address, "greet", {"name": "Ada"}),
        ask(address, "tools/call", {"name": "greet", "arguments": {"name": "Ada"}}),
    ):
        assert answer.status == 200
        assert answer.headers["content-type"] == "application/json"
        assert answer.json["result"]["content"][0]["text"] == "Hello, Ada!"


def test_progress_makes_it_a_stream_that_ends_with_the_result(address: str) -> None:
    answer = ask(address, "tools/call", {"name": "test_tool_with_progress", "_meta": {"progressToken": 1}})

    assert answer.headers["content-type"] == "text/event-stream"
    assert [message.get("method") for message in answer.messages] == ["notifications/progress"] * 3 + [None]


def test_a_client_that_takes_no_stream_still_gets_its_result(address: str) -> None:
    params = {"name": "test_tool_with_progress", "_meta": {"progressToken": 1}}

    answer = ask(address, "tools/call", params, Accept="application/json")

    assert answer.json["result"]["content"][0]["text"] == "done"


def test_a_notification_is_accepted_without_a_body(address: str) -> None:
    answer = send(address, "POST", {"jsonrpc": "2.0", "method": "notifications/initialized"})

    assert (answer.status, answer.body) == (202, b"")


def test_errors_of_the_stateless_era_have_their_http_status(address: str) -> None:
    assert ask(address, "no/such").status == 404
    assert ask(address, "tools/call", {"name": "nobody"}).status == 400
    assert ask(address, "tools/list", MCP_Protocol_Version="2031-01-01").json["error"]["code"] == -32020
    assert ask(address, "tools/list", Mcp_Method="prompts/list").json["error"]["code"] == -32020
    assert send(address, "POST", stateless("tools/list")[0]).json["error"]["code"] == -32020


@pytest.mark.parametrize("version", ["1999-01-01", "banana", "2027-01-01"])
def test_a_version_header_we_do_not_know_names_those_we_do(address: str, version: str) -> None:
    """Whatever else the client sends: it may belong to either era."""
    request = send(address, "POST", rpc("tools/list"), MCP_Protocol_Version=version)
    notification = {"jsonrpc": "2.0", "method": "notifications/initialized"}
    others = [
        send(address, "POST", notification, MCP_Protocol_Version=version),
        send(address, "GET", MCP_Protocol_Version=version, Accept="text/event-stream"),
        send(address, "DELETE", MCP_Protocol_Version=version),
    ]
    stateless_request, headers = stateless("tools/list")
    stateless_request["params"]["_meta"]["io.modelcontextprotocol/protocolVersion"] = version
    both = send(address, "POST", stateless_request, **{**headers, "MCP_Protocol_Version": version})

    assert request.status == 400
    assert request.json["error"]["code"] == -32022
    assert "2025-11-25, 2026-07-28" in request.json["error"]["message"]
    assert request.json["error"]["data"]["requested"] == version
    assert {"2025-11-25", "2026-07-28"} <= set(request.json["error"]["data"]["supported"])
    for answer in others:
        assert (answer.status, b"2025-11-25, 2026-07-28" in answer.body) == (400, True)
    assert both.json["error"]["code"] == -32022
    assert "2026-07-28" in both.json["error"]["message"]


def test_errors_of_the_handshake_era_come_with_status_200(address: str) -> None:
    answer = send(address, "POST", rpc("no/such"))

    assert (answer.status, answer.json["error"]["code"]) == (200, -32601)


@pytest.mark.parametrize(
    ("body", "code"), [(b"{", -32700), (b"[]", -32600), (b"\xff", -32700), (b'{"id":1,"method":7}', -32600)]
)
def test_a_body_that_is_no_message_is_refused(address: str, body: bytes, code: int) -> None:
    answer = send(address, "POST", body)

    assert (answer.status, answer.json["error"]["code"]) == (400, code)


def test_a_repeated_mcp_header_is_refused(address: str) -> None:
    body = json.dumps(stateless("tools/list")[0]).encode()
    parts = urlsplit(address)
    with socket.create_connection((parts.hostname, parts.port), timeout=20) as raw:
        raw.sendall(
            b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\n"
            b"MCP-Protocol-Version: 2026-07-28\r\nMcp-Method: tools/list\r\nMcp-Method: tools/call\r\n"
            b"Content-Length: %d\r\n\r\n" % len(body) + body
        )
        answer = b""
        while data := raw.recv(65536):
            answer += data

    assert answer.startswith(b"HTTP/1.1 400")
    assert b"more than once" in answer


# ---- the gate ----


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "[::1", "", "localhost.evil.example:80"])
def test_a_foreign_host_name_is_refused(address: str, host: str) -> None:
    assert send(address, "POST", rpc("ping"), Host=host).status in (400, 403)


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://localhost.evil.example", "file://"])
def test_a_foreign_origin_is_refused(address: str, origin: str) -> None:
    assert send(address, "POST", rpc("ping"), Origin=origin).status == 403


def test_our_own_names_are_welcome(address: str) -> None:
    for host in ("localhost:1", "127.0.0.1", "[::1]:9"):
        assert send(address, "POST", rpc("ping"), Host=host, Origin="http://localhost:3000").status == 200


def test_a_body_over_the_limit_is_refused_before_and_while_reading(address: str) -> None:
    parts = urlsplit(address)
    with socket.create_connection((parts.hostname, parts.port), timeout=20) as raw:
        raw.sendall(b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5000000\r\n\r\n")
        assert raw.recv(65536).startswith(b"HTTP/1.1 413")
    with socket.create_connection((parts.hostname, parts.port), timeout=20) as raw:
        raw.sendall(b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
        chunk = b"100000\r\n" + b"x" * 0x100000 + b"\r\n"
        try:
            for _ in range(5):
                raw.sendall(chunk)
        except OSError:
            pass  # refused while we were still sending
        assert raw.recv(65536).startswith(b"HTTP/1.1 413")


def test_only_post_is_served_without_a_session(address: str) -> None:
    for method in ("GET", "DELETE", "PUT", "OPTIONS"):
        answer = send(address, method)
        assert (answer.status, answer.headers["allow"]) == (405, "POST")
    assert send(address, "GET", MCP_Protocol_Version="2026-07-28").status == 405


def test_a_client_that_takes_no_json_is_told_so(address: str) -> None:
    assert send(address, "POST", rpc("ping"), Accept="text/html").status == 406


# ---- cancellation and endings ----


def running(address: str) -> int:
    """How many calls of `test_count_running` the server is serving; the one that counts is not included."""
    answer: Answer = call(address, "test_count_running")
    return int(answer.json["result"]["content"][0]["text"])


def until_running(address: str, count: int) -> None:
    end = time.monotonic() + 20
    while running(address) != count:
        assert time.monotonic() < end, f"never {count} running"
        time.sleep(0.02)


@pytest.mark.parametrize("era", ["stateless", "handshake without session"])
def test_closing_the_stream_cancels_the_call(address: str, era: str) -> None:
    body, headers = stateless("tools/call", {"name": "test_wait_for_ever", "arguments": {}})
    if era != "stateless":
        body, headers = rpc("tools/call", {"name": "test_wait_for_ever", "arguments": {}}), {}
    parts = urlsplit(address)
    lines = "".join(f"{key.replace('_', '-')}: {value}\r\n" for key, value in headers.items())
    data = json.dumps(body).encode()
    with socket.create_connection((parts.hostname, parts.port), timeout=20) as raw:
        raw.sendall(
            f"POST /mcp HTTP/1.1\r\nHost: localhost\r\n{lines}Content-Length: {len(data)}\r\n\r\n".encode() + data
        )
        until_running(address, 1)

    until_running(address, 0)


# ---- sessions ----


def test_a_session_ends_when_it_is_deleted(address: str) -> None:
    id = session(address)

    assert send(address, "POST", rpc("tools/list"), MCP_Session_Id=id).status == 200
    assert send(address, "DELETE", MCP_Session_Id=id).status == 200
    assert send(address, "POST", rpc("tools/list"), MCP_Session_Id=id).status == 404
    assert send(address, "GET", MCP_Session_Id="unknown").status == 404


def test_a_session_client_is_asked_on_the_stream_of_its_call(address: str) -> None:
    id = session(address, {"elicitation": {}})
    body = rpc("tools/call", {"name": "test_elicitation", "arguments": {"message": "Who?"}}, id=5)

    with opened(address, "POST", body, MCP_Session_Id=id) as response:
        question = next_message(response)
        assert question["method"] == "elicitation/create"
        answer = {"jsonrpc": "2.0", "id": question["id"], "result": {"action": "decline"}}
        assert send(address, "POST", answer, MCP_Session_Id=id).status == 202
        result = next_message(response)

    assert result["id"] == 5
    assert "decline" in result["result"]["content"][0]["text"]


def next_message(response: Any) -> Any:
    while line := response.readline():
        if line.startswith(b"data:") and line[5:].strip():
            return json.loads(line[5:])
    raise AssertionError("the stream ended")


def test_a_stream_that_is_hung_up_is_resumed_where_it_stood(address: str) -> None:
    id = session(address)

    first = send(address, "POST", rpc("tools/call", {"name": "test_reconnection"}, id=3), MCP_Session_Id=id)
    lines = first.body.split(b"\r\n")
    assert first.messages == []
    assert any(line.startswith(b"retry:") for line in lines)
    last = next(line[3:].strip().decode() for line in lines if line.startswith(b"id:"))
    second = send(address, "GET", MCP_Session_Id=id, Last_Event_ID=last)

    assert [message["id"] for message in second.messages] == [3]


def test_a_call_in_a_session_survives_a_lost_connection(address: str) -> None:
    id = session(address)
    body = rpc("tools/call", {"name": "test_two_steps", "_meta": {"progressToken": 1}}, id=8)
    with opened(address, "POST", body, MCP_Session_Id=id) as response:
        last = ""
        while not last.endswith("_1"):
            line = response.readline()
            last = line[3:].strip().decode() if line.startswith(b"id:") else last

    assert call(address, "test_second_step").status == 200
    rest = send(address, "GET", MCP_Session_Id=id, Last_Event_ID=last)

    assert [message["id"] for message in rest.messages if "id" in message] == [8]


def test_an_unknown_event_id_can_not_be_resumed(address: str) -> None:
    for last in ("99_1", "x", "1_x"):
        assert send(address, "GET", MCP_Session_Id=session(address), Last_Event_ID=last).status == 404


@pytest.mark.parametrize("digits", ["9" * 4301, "9" * 5000, "9" * 20, str(2**63), "", "-1", "1.0", "+1", " 1", "x"])
def test_a_position_that_is_no_number_of_ours_can_not_be_resumed(address: str, digits: str) -> None:
    id = session(address)
    first = send(address, "POST", rpc("tools/call", {"name": "test_reconnection"}, id=3), MCP_Session_Id=id)
    last = next(line[3:].strip().decode() for line in first.body.split(b"\r\n") if line.startswith(b"id:"))

    again = send(address, "GET", MCP_Session_Id=id, Last_Event_ID=f"{last.partition('_')[0]}_{digits}")

    assert again.status == 404


def test_a_session_call_is_cancelled_by_notification(address: str) -> None:
    id = session(address)
    waiting = threading.Thread(
        target=send,
        args=(address, "POST", rpc("tools/call", {"name": "test_wait_for_ever"}, id=6)),
        kwargs={"MCP_Session_Id": id},
    )
    waiting.start()
    until_running(address, 1)
    cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 6}}
    assert send(address, "POST", cancel, MCP_Session_Id=id).status == 202
    waiting.join(20)

    assert not waiting.is_alive()
    assert running(address) == 0


def test_the_standing_stream_of_a_session_tells_of_changes(address: str) -> None:
    id = session(address)
    with opened(address, "GET", MCP_Session_Id=id) as response:
        assert response.status == 200
        response.readline()
        call(address, "test_trigger_tool_change")
        assert next_message(response)["method"] == "notifications/tools/list_changed"


def test_a_listen_stream_tells_of_changes(address: str) -> None:
    body, headers = stateless("subscriptions/listen", {"notifications": {"toolsListChanged": True}}, id="mine")
    with opened(address, "POST", body, **headers) as response:
        assert next_message(response)["method"] == "notifications/subscriptions/acknowledged"
        call(address, "test_trigger_tool_change")
        notification = next_message(response)

    assert notification["method"] == "notifications/tools/list_changed"
    assert notification["params"]["_meta"] == {"io.modelcontextprotocol/subscriptionId": "mine"}


# ---- what is kept ----


def test_idle_sessions_and_old_answers_are_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        server, registry = (
            McpServer(McpServerInfo(name="t", version="1"), ToolDispatcher(ToolRegistry({}))),
            sessions.McpSessions(),
        )
        session = registry.create(read_initialize({"protocolVersion": "2025-11-25"}), LOCAL_CALLER, server)
        for _ in range(2):
            stream = session.open_listen_stream()
            stream.append(b"x" * 100)
            stream.end()
        session.open_listen_stream()
        assert session.resume("2_0")
        with pytest.raises(HttpRefusal, match="can't be resumed"):
            session.resume("1_0")
        assert registry.find(session.id, LOCAL_CALLER) is session
        monkeypatch.setattr(sessions, "IDLE", -1.0)
        registry.create(read_initialize({"protocolVersion": "2025-11-25"}), LOCAL_CALLER, server)
        with pytest.raises(HttpRefusal, match="session not found"):
            registry.find(session.id, LOCAL_CALLER)

    monkeypatch.setattr(sessions, "MAX_STORED", 10)
    asyncio.run(main())
