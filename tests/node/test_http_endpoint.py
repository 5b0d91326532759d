"""The node's HTTP endpoint, as the machine's programs and its browser reach it."""

import asyncio
import contextlib
import json
import signal
import socket
import stat
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
import psutil
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from tests.programs import need
from tests.running import OPENCLAW, process, read_line
from tests.web_client import Answer, ask, opened, rpc, send, stateless

from .running import RunningNode, running_node

WAIT = 60.0


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    with running_node(tmp_path_factory.mktemp("node")) as node:
        yield node


def ping(node: RunningNode, **headers: str) -> Answer:
    return send(
        node.address, "POST", rpc("ping"), **(headers if "Authorization" in headers else {**node.bearer, **headers})
    )


# ---- the token ----


def test_the_token_is_made_at_first_start_private_and_kept(tmp_path: Path) -> None:
    with running_node(tmp_path) as first:
        token = first.token
        assert len(token) == 43
        assert stat.S_IMODE((tmp_path / "mcp-token.txt").stat().st_mode) == 0o600
    with running_node(tmp_path) as second:
        assert second.token == token
        assert ping(second).status == 200


@pytest.mark.parametrize(
    "authorization", [None, "Bearer wrong", "Basic x", "Bearer ", "bearer\u00e9".encode().decode("latin-1")]
)
def test_without_the_token_nothing_is_answered(node: RunningNode, authorization: str | None) -> None:
    headers = {} if authorization is None else {"Authorization": authorization}
    for method in ("GET", "POST", "PUT", "DELETE", "OPTIONS"):
        answer = send(node.address, method, rpc("ping") if method == "POST" else None, **headers)
        assert (answer.status, answer.body) == (401, b""), method


def test_a_new_token_counts_at_once_and_is_not_shown(tmp_path: Path) -> None:
    with running_node(tmp_path) as node:
        old = node.bearer
        reply = subprocess.run(
            [OPENCLAW, "node", "token", "--reset", "--state-dir", str(tmp_path)],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        fresh = node.token

        assert reply == f"{tmp_path / 'mcp-token.txt'}\n"
        assert ping(node, **old).status == 401
        assert ping(node, Authorization=f"Bearer {fresh}").status == 200
        (tmp_path / "mcp-token.txt").unlink()
        assert ping(node, Authorization=f"Bearer {fresh}").status == 401


def test_a_token_that_cannot_be_written_is_one_line_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "mcp-token.txt").mkdir()

    ended = subprocess.run(
        [OPENCLAW, "node", "token", "--reset", "--state-dir", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )

    assert ended.returncode == 1
    assert ended.stderr == f"openclaw node: {tmp_path / 'mcp-token.txt'} can't be written: Is a directory\n"


def test_a_token_file_that_cannot_be_used_stops_the_start(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text("x" * 43)
    (tmp_path / "mcp-token.txt").symlink_to(tmp_path / "elsewhere")
    words = [OPENCLAW, "node", "--port", "0", "--state-dir", str(tmp_path)]

    ended = subprocess.run(words, capture_output=True, text=True, timeout=WAIT, check=False)

    assert ended.returncode == 1
    assert "mcp-token.txt can't be read" in ended.stderr
    assert (tmp_path / "elsewhere").read_text() == "x" * 43


# ---- what each kind of request gets ----


def test_the_documents_curl_lines_get_the_answers_it_prints(node: RunningNode) -> None:
    curl = need("curl", package="curl")
    url, token = node.address, f"Authorization: Bearer {node.token}"
    json_type = "Content-Type: application/json"
    ping_text = '{"jsonrpc":"2.0","id":1,"method":"ping"}'
    lines: list[tuple[str, list[str]]] = [
        ("403", ["-X", "POST", url, "-H", "Origin: https://evil.com", "-H", json_type, "-d", "{}"]),
        ("403", ["-X", "POST", url, "-H", "Host: evil.com", "-H", json_type, "-d", "{}"]),
        ("415", ["-X", "POST", url, "-H", "Content-Type: text/plain", "--data", ping_text]),
        ("200", [url, "-H", token]),
        ("200", ["-X", "POST", url, "-H", token, "-H", json_type, "-d", ping_text]),
    ]
    for status, words in lines:
        reply = subprocess.run(
            [curl, "-s", "-w", "\n%{http_code}", *words], capture_output=True, text=True, timeout=WAIT, check=True
        ).stdout
        assert reply.rpartition("\n")[2] == status, words
        if words == [url, "-H", token]:
            assert reply.startswith(f"OpenClaw MCP server. POST JSON-RPC to {url}")
        if status == "200" and "POST" in words:
            assert json.loads(reply.rpartition("\n")[0]) == {"jsonrpc": "2.0", "id": 1, "result": {}}


def test_the_quick_lines_without_a_token_work_on_a_machine_that_wants_none(tmp_path: Path) -> None:
    with running_node(tmp_path, requireToken=False) as node:
        assert send(node.address, "GET", Accept="*/*").body.startswith(b"OpenClaw MCP server")
        tools = send(node.address, "POST", rpc("tools/list")).json["result"]["tools"]
        assert "system.run" in {tool["name"] for tool in tools}
        assert send(node.address, "POST", rpc("ping"), Origin="http://localhost").status == 403


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Origin": "null"}, 403),
        ({"Origin": "http://127.0.0.1:8765"}, 403),
        ({"Referer": "http://127.0.0.1/"}, 403),
        ({"Sec_Fetch_Site": "none"}, 403),
        ({"Sec_Fetch_Mode": "cors"}, 200),
        ({"Host": "localhost"}, 200),
        ({"Host": "LOCALHOST:1"}, 200),
        ({"Host": "[::1]:8765"}, 200),
        ({"Host": "127.0.0.1.evil.com"}, 403),
        ({"Host": "localhost.evil.com:8765"}, 403),
        ({"Host": "[::1"}, 403),
        ({"Host": "[::1]evil"}, 403),
        ({"Host": "evil.com@127.0.0.1"}, 403),
        ({"Content_Type": "application/json; charset=utf-8"}, 200),
        ({"Content_Type": "APPLICATION/JSON"}, 200),
        ({"Content_Type": "application/jsonp"}, 415),
        ({"Content_Type": "application/x-www-form-urlencoded"}, 415),
        ({"Content_Type": "multipart/form-data; boundary=x"}, 415),
        ({"Content_Type": ""}, 415),
    ],
)
def test_browser_marks_foreign_hosts_and_other_bodies_are_refused(
    node: RunningNode, headers: dict[str, str], status: int
) -> None:
    answer = ping(node, **headers)

    assert answer.status == status
    assert not [name for name in answer.headers if name.startswith("access-control")]


def test_a_forwarding_header_changes_no_caller(node: RunningNode) -> None:
    assert ping(node, X_Forwarded_For="203.0.113.9").status == 200  # else a header could say who is local


def test_a_missing_host_is_refused(node: RunningNode) -> None:
    parts = urlsplit(node.address)
    with socket.create_connection((parts.hostname, parts.port), timeout=WAIT) as plug:
        plug.sendall(b"GET / HTTP/1.0\r\nAuthorization: Bearer " + node.token.encode() + b"\r\n\r\n")
        assert plug.recv(100).split()[1] in (b"403", b"400")


@pytest.mark.parametrize("method", ["PUT", "HEAD", "OPTIONS", "PATCH", "DELETE"])
def test_other_verbs_get_405(node: RunningNode, method: str) -> None:
    answer = send(node.address, method, **node.bearer)

    assert answer.status == 405
    assert not [name for name in answer.headers if name.startswith("access-control")]


def test_there_is_no_websocket(node: RunningNode) -> None:
    upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec_WebSocket_Version": "13"}
    key = {"Sec_WebSocket_Key": "dGhlIHNhbXBsZSBub25jZQ=="}

    assert send(node.address, "GET", Accept="*/*", **node.bearer, **upgrade, **key).status == 200  # a mere probe


def test_get_is_a_probe_for_people_and_a_stream_only_for_sessions(node: RunningNode) -> None:
    assert send(node.address, "GET", Accept="text/html", **node.bearer).status == 200
    assert send(node.address, "GET", Accept="text/event-stream", **node.bearer).status == 405


def test_four_mebibytes_pass_and_one_byte_more_does_not(node: RunningNode) -> None:
    empty = json.dumps(rpc("ping", {"pad": ""}))
    for size, status in ((4 << 20, 200), ((4 << 20) + 1, 413)):
        body = json.dumps(rpc("ping", {"pad": "x" * (size - len(empty))})).encode()
        assert len(body) == size
        assert send(node.address, "POST", body, **node.bearer).status == status


def test_a_body_with_a_wrong_length_is_cut_off(node: RunningNode) -> None:
    parts = urlsplit(node.address)
    head = (
        f"POST / HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {node.token}\r\n"
        "Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    with socket.create_connection((parts.hostname, parts.port), timeout=WAIT) as plug:
        plug.sendall(head.encode())
        chunk = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
        try:
            for _ in range(70):
                plug.sendall(chunk)
        except (BrokenPipeError, ConnectionResetError):
            pass
        assert plug.recv(100).split()[1] == b"413"


def test_clients_that_only_listen_take_no_slot(tmp_path: Path) -> None:
    listen, headers = stateless("subscriptions/listen", {"notifications": {"toolsListChanged": True}})
    with running_node(tmp_path, mcpSlots=2) as node, contextlib.ExitStack() as listeners:
        for id in range(4):
            one = {**listen, "id": id}
            response = listeners.enter_context(opened(node.address, "POST", one, **headers, **node.bearer))
            assert response.status == 200
        for _ in range(3):
            assert ask(node.address, "tools/call", {"name": "device.info"}, **node.bearer).status == 200


def test_calls_beyond_the_slots_are_refused_and_questions_still_get_answered(tmp_path: Path) -> None:
    sleep = {"name": "system.run", "arguments": {"command": ["sleep", "5"]}}
    (tmp_path / "exec-policy.json").write_text('{"defaultAction": "allow", "rules": []}')
    with running_node(tmp_path, mcpSlots=2) as node, opened(node.address, "POST", rpc("ping"), **node.bearer):
        threads = [
            threading.Thread(target=send, args=(node.address, "POST", rpc("tools/call", sleep)), kwargs=node.bearer)
        ]
        threads += [
            threading.Thread(target=send, args=(node.address, "POST", rpc("tools/call", sleep)), kwargs=node.bearer)
        ]
        for thread in threads:
            thread.start()
        statuses = set()
        while 503 not in statuses:
            answer = ping(node)
            statuses.add(answer.status)
        assert answer.body == b"server busy"
        assert send(node.address, "POST", {"jsonrpc": "2.0", "method": "notifications/x"}, **node.bearer).status == 202
        assert send(node.address, "GET", Accept="*/*", **node.bearer).status == 200
        for thread in threads:
            thread.join(WAIT)
        assert ping(node).status == 200


# ---- ports ----


def test_a_taken_port_is_a_clear_error_or_the_next_free_one(tmp_path: Path) -> None:
    with running_node(tmp_path / "a") as first:
        port = str(urlsplit(first.address).port)
        words = [OPENCLAW, "node", "--port", port, "--state-dir", str(tmp_path / "b")]
        ended = subprocess.run(words, capture_output=True, text=True, timeout=WAIT, check=False)
        assert ended.returncode == 1
        assert f"port {port} on 127.0.0.1 is taken" in ended.stderr

        with running_node(tmp_path / "c", "--port", "auto", mcpPort=int(port)) as second:
            assert urlsplit(second.address).port != int(port)
            assert ping(second).status == 200


def test_without_a_port_option_a_taken_port_gives_way_to_the_next_free_one(tmp_path: Path) -> None:
    """Clients find the server by the file beside the token's."""
    with running_node(tmp_path / "a") as first:
        port = urlsplit(first.address).port
        with running_node(tmp_path / "b", "-v", mcpPort=port) as second:
            assert urlsplit(second.address).port != port
            assert f"port {port} is taken" in second.line()
            file = tmp_path / "b" / "mcp-url.txt"
            assert file.stat().st_mode & 0o077 == 0
            assert file.read_text().strip() == second.address
            assert ping(second).status == 200
            doctor = [OPENCLAW, "node", "doctor", "--json", "--state-dir", str(second.state)]
            report = json.loads(subprocess.run(doctor, capture_output=True, timeout=WAIT, check=True).stdout)
            assert report["mcp"]["address"] == second.address
            second.child.send_signal(signal.SIGTERM)
            second.child.wait(WAIT)
        assert not file.exists()


def test_a_server_that_closes_leaves_the_address_of_a_newer_one(tmp_path: Path) -> None:
    with running_node(tmp_path) as newer_state:
        file = tmp_path / "mcp-url.txt"
        with running_node(tmp_path) as older:
            assert file.read_text().strip() == older.address
            file.write_text(f"{newer_state.address}\n")
            older.child.send_signal(signal.SIGTERM)
            older.child.wait(WAIT)
        assert file.read_text().strip() == newer_state.address


def test_a_server_that_closes_gives_the_address_of_an_earlier_one_that_listens_back(tmp_path: Path) -> None:
    with running_node(tmp_path) as first:
        file = tmp_path / "mcp-url.txt"
        with running_node(tmp_path, "--port", "0") as second:
            assert file.read_text().strip() == second.address
            second.child.send_signal(signal.SIGTERM)
            second.child.wait(WAIT)
        assert file.read_text().strip() == first.address
        first.child.send_signal(signal.SIGTERM)
        first.child.wait(WAIT)
        assert not file.exists()


def test_the_environment_names_the_port_and_the_flag_wins(tmp_path: Path) -> None:
    with socket.socket() as plug:
        plug.bind(("127.0.0.1", 0))
        free = plug.getsockname()[1]
    with running_node(tmp_path, "-v", env={"OPENCLAW_MCP_PORT": str(free)}) as node:
        assert urlsplit(node.address).port == free
        with running_node(tmp_path, "--port", "0", env={"OPENCLAW_MCP_PORT": str(free)}) as other:
            assert urlsplit(other.address).port != free


def test_it_listens_on_loopback_only(node: RunningNode) -> None:
    port = urlsplit(node.address).port
    listening = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]

    assert {row[1] for row in listening if row[3] == "0A" and row[1].endswith(f":{port:04X}")} == {
        f"0100007F:{port:04X}"
    }
    six = [line.split() for line in Path("/proc/net/tcp6").read_text().splitlines()[1:]]
    assert not [row for row in six if row[3] == "0A" and row[1].endswith(f":{port:04X}")]


# ---- clients ----


@pytest.mark.parametrize("mode", ["auto", "legacy", "2026-07-28"])
def test_the_official_python_client_lists_calls_and_reads(node: RunningNode, mode: str) -> None:
    async def visit() -> tuple[set[str], str, bool, set[str]]:
        web = httpx2.AsyncClient(headers=node.bearer, timeout=WAIT)
        transport = streamable_http_client(node.address, http_client=web)
        async with asyncio.timeout(WAIT), web, Client(transport, mode=mode) as client:
            tools = {tool.name for tool in (await client.list_tools()).tools}
            info = await client.call_tool("device.info", {})
            denied = await client.call_tool("system.run", {"command": ["rm", "x"]})
            resources = {str(resource.uri) for resource in (await client.list_resources()).resources}
            assert info.structured_content
            return tools, info.structured_content["systemName"], bool(denied.is_error), resources

    tools, system, denied, resources = asyncio.run(visit())

    assert {"system.run", "system.which", "device.info", "device.status"} <= tools
    assert system == "Linux"
    assert denied
    assert "openclaw://node/activity" in resources


def test_every_tool_has_a_description_and_a_schema_that_takes_more(node: RunningNode) -> None:
    tools = send(node.address, "POST", rpc("tools/list"), **node.bearer).json["result"]["tools"]

    for tool in tools:
        assert len(tool["description"]) > 20, tool["name"]
        assert tool["inputSchema"]["additionalProperties"] is True
    unknown = {"name": "device.status", "arguments": {"sections": ["CPU"], "surprise": 1}}
    status = send(node.address, "POST", rpc("tools/call", unknown), **node.bearer).json["result"]
    assert "cpu" in status["structuredContent"]
    assert json.loads(status["content"][0]["text"]) == status["structuredContent"]


def test_a_tool_that_cannot_work_here_is_not_listed_and_says_why(node: RunningNode) -> None:
    tools = send(node.address, "POST", rpc("tools/list"), **node.bearer).json["result"]["tools"]
    called = ask(node.address, "tools/call", {"name": "system.notify", "arguments": {"title": "x"}}, **node.bearer)

    assert "system.notify" not in {tool["name"] for tool in tools}
    assert called.json["result"]["isError"]
    assert "no desktop session bus" in called.json["result"]["content"][0]["text"]


def test_settings_and_activity_can_be_read(node: RunningNode) -> None:
    def read(name: str) -> dict[str, object]:
        uri = f"openclaw://node/{name}"
        answer = send(node.address, "POST", rpc("resources/read", {"uri": uri}), **node.bearer)
        text: str = answer.json["result"]["contents"][0]["text"]
        assert node.token not in text
        return dict(json.loads(text))

    send(node.address, "POST", rpc("tools/call", {"name": "device.info"}), **node.bearer)

    assert read("settings")["commands"]
    calls = read("activity")["calls"]
    assert isinstance(calls, list)
    assert calls[0]["tool"] == "device.info"
    assert calls[0]["outcome"] == "ok"


def test_prompts_are_served_for_the_commands_that_can_work(node: RunningNode) -> None:
    def get(name: str, **arguments: str) -> Any:
        params = {"name": name, "arguments": arguments}
        return send(node.address, "POST", rpc("prompts/get", params), **node.bearer).json

    listed = send(node.address, "POST", rpc("prompts/list"), **node.bearer).json["result"]["prompts"]
    names = {prompt["name"] for prompt in listed}

    assert {"machine_capabilities", "run_on_machine"} <= names
    assert "look_at_screen" not in names  # there is no screen here
    text = get("machine_capabilities")["result"]["messages"][0]["content"]["text"]
    assert "- system.run (" in text
    assert "screen.snapshot" in text
    assert "does not work: " in text
    task = get("run_on_machine", task="count {files}")["result"]["messages"][0]["content"]["text"]
    assert task.startswith("Do this on this machine: count {files}\n")
    assert get("run_on_machine")["error"] == {
        "code": -32602,
        "message": "the prompt run_on_machine needs the argument task",
    }
    assert get("run_on_machine", task="x" * 10_001)["error"]["code"] == -32602
    assert "not available" in get("look_at_screen")["error"]["message"]
    assert get("no_such")["error"] == {"code": -32602, "message": "Unknown prompt: no_such"}


LIVE_SETTINGS = {
    "locationFixed": {"latitude": 1.5, "longitude": 2.5},
    "cameraSource": "lavfi:testsrc2=size=64x48",
    "capabilities": {"location": True, "camera": True, "tts": True},
    "ttsProvider": "elevenlabs",
    "elevenlabsVoice": "voice",
    "canvasBrowser": "/nowhere/chromium",
}


def test_an_edited_settings_file_counts_while_a_stdio_server_runs(tmp_path: Path) -> None:
    env = {"OPENCLAW_STATE_DIR": str(tmp_path), "PATH": "/usr/bin:/bin"}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "bufsize": 0}
    with process(OPENCLAW, "node", "--stdio", env=env, **pipes) as child:

        def answer(method: str, **params: object) -> Any:
            assert child.stdin is not None
            child.stdin.write(json.dumps(rpc(method, params)).encode() + b"\n")
            while "id" not in (message := json.loads(read_line(child, WAIT))):
                pass  # a notification
            return message["result"]

        answer("initialize", protocolVersion="2025-11-25", capabilities={})
        before = {tool["name"] for tool in answer("tools/list")["tools"]}
        (tmp_path / "node.json").write_text(json.dumps(LIVE_SETTINGS))
        end = time.monotonic() + WAIT
        while "location.get" not in (after := {tool["name"] for tool in answer("tools/list")["tools"]}):
            assert time.monotonic() < end, "the settings are not read again"
        assert before.isdisjoint({"location.get", "camera.snap"})
        assert {"location.get", "camera.snap"} <= after
        assert not any(name.startswith("canvas.") for name in after)
        assert answer("tools/call", name="location.get")["structuredContent"]["latitude"] == 1.5
        cameras = answer("tools/call", name="camera.list")["structuredContent"]["cameras"]
        assert [camera["deviceId"] for camera in cameras] == ["lavfi:testsrc2=size=64x48"]
        assert answer("tools/call", name="tts.status")["structuredContent"]["configuredProvider"] == "elevenlabs"


def test_the_stdio_server_serves_the_same_tools(tmp_path: Path) -> None:
    env = {"OPENCLAW_STATE_DIR": str(tmp_path), "PATH": "/usr/bin:/bin"}
    with process(
        OPENCLAW, "node", "--stdio", stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, env=env
    ) as child:
        messages = [
            rpc("initialize", {"protocolVersion": "2025-11-25", "capabilities": {}}, 1),
            rpc("tools/list", {}, 2),
            rpc("tools/call", {"name": "system.run", "arguments": {"command": "echo through the pipe"}}, 3),
        ]
        reply, _ = child.communicate("".join(json.dumps(m) + "\n" for m in messages).encode(), timeout=WAIT)
    answers = {message["id"]: message["result"] for message in map(json.loads, reply.splitlines())}

    assert answers[1]["serverInfo"]["name"] == "openclaw-node"
    assert "system.run" in {tool["name"] for tool in answers[2]["tools"]}
    assert answers[3]["structuredContent"]["stdout"] == "through the pipe\n"


def running(parent: int, name: str) -> list[psutil.Process]:
    """What it has started of that name, once it has."""
    end = time.monotonic() + WAIT
    while not (found := [one for one in psutil.Process(parent).children(recursive=True) if one.name() == name]):
        assert time.monotonic() < end
        time.sleep(0.02)
    return found


@contextlib.contextmanager
def not_ignored(number: int) -> Iterator[None]:
    """Under `nohup` the tests, and what they start, would not receive a hangup."""
    before = signal.signal(number, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(number, before)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_stdio_node_that_gets_a_signal_ends_its_commands(tmp_path: Path, number: int) -> None:
    (tmp_path / "exec-policy.json").write_text('{"defaultAction": "allow", "rules": []}')
    env = {"OPENCLAW_STATE_DIR": str(tmp_path), "PATH": "/usr/bin:/bin"}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "bufsize": 0}
    with not_ignored(number), process(OPENCLAW, "node", "--stdio", env=env, **pipes) as child:
        assert child.stdin is not None
        sleep = rpc("tools/call", {"name": "system.run", "arguments": {"command": ["sleep", "600"]}})
        child.stdin.write(json.dumps(sleep).encode() + b"\n")
        started = running(child.pid, "sleep")
        child.send_signal(number)
        assert child.wait(WAIT) == 0
        assert psutil.wait_procs(started, WAIT)[1] == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_node_that_gets_a_signal_closes_what_it_opened(tmp_path: Path, number: int) -> None:
    with not_ignored(number), running_node(tmp_path) as node:
        assert list(tmp_path.glob("approvals-*.sock"))
        node.child.send_signal(number)
        assert node.child.wait(WAIT) == 0
    assert list(tmp_path.glob("approvals-*.sock")) == []


def test_the_commands_of_a_node_that_is_killed_end_with_it(tmp_path: Path) -> None:
    (tmp_path / "exec-policy.json").write_text('{"defaultAction": "allow", "rules": []}')
    with running_node(tmp_path) as node:
        sleep = {"name": "system.run", "arguments": {"command": ["sleep", "600"]}}
        place = urlsplit(node.address)
        with socket.create_connection((place.hostname, place.port), timeout=WAIT) as plug:
            body = json.dumps(rpc("tools/call", sleep))
            head = ["POST / HTTP/1.1", f"Host: {place.netloc}", "Content-Type: application/json"]
            head += [f"Authorization: Bearer {node.token}", f"Content-Length: {len(body)}"]
            plug.sendall(("\r\n".join(head) + "\r\n\r\n" + body).encode())
            started = running(node.child.pid, "sleep")
            httpx2.get(node.address, timeout=WAIT)  # answered after the start is noted: one thread does both
            node.child.kill()
            assert psutil.wait_procs(started, WAIT)[1] == []
