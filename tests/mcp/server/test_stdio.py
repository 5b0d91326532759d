"""The stdio server as a real process: both eras on one pipe, bad input, full pipes, endings."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from openclaw_mcp.mcp.server.stdio import MAX_LINE_LENGTH
from tests.running import OPENCLAW, StdioServer, echo_over_stdio, stdio_server

META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
}


def everything() -> Any:
    return stdio_server(sys.executable, "-m", "tests.mcp.server.everything_stdio")


def text_of(answer: Any) -> str:
    return str(answer["result"]["content"][0]["text"])


def greet(server: StdioServer, id: Any = 2, text: str = "hi") -> Any:
    return server.ask("tools/call", {"name": "echo", "arguments": {"text": text}}, id=id)


def test_a_client_may_discover_then_initialize_then_call_in_either_era_on_one_pipe() -> None:
    with echo_over_stdio() as server:
        assert server.ask("server/discover", {"_meta": META})["result"]["supportedVersions"] == ["2026-07-28"]
        opened = server.ask("initialize", {"protocolVersion": "2025-11-25", "capabilities": {}})
        assert opened["result"]["protocolVersion"] == "2025-11-25"
        server.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        assert text_of(greet(server)) == "hi"
        modern = {"name": "echo", "arguments": {"text": "ho"}, "_meta": META}
        answer = server.ask("tools/call", modern, id=3)
        assert text_of(answer) == "ho"
        assert answer["result"]["resultType"] == "complete"
        assert "resultType" not in greet(server, id=4)["result"]


def test_the_server_exits_at_end_of_input() -> None:
    with echo_over_stdio() as server:
        server.ask("ping")
        assert server.hang_up() == 0
    with echo_over_stdio() as server:
        greet(server)
        assert server.hang_up() == 0


def test_requests_piped_in_at_once_are_all_answered_before_the_exit() -> None:
    lines = [{"jsonrpc": "2.0", "id": n, "method": "tools/list"} for n in range(50)]
    fed = "\n".join(map(json.dumps, lines))  # no newline at the end: the last line still counts

    result = subprocess.run([OPENCLAW, "echo"], input=fed, capture_output=True, text=True, timeout=30, check=True)

    assert sorted(json.loads(line)["id"] for line in result.stdout.splitlines()) == list(range(50))


def test_input_and_output_may_be_files(tmp_path: Path) -> None:
    call = {"name": "echo", "arguments": {"text": "from a file"}}
    (tmp_path / "in").write_text(json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}) + "\n")

    with (tmp_path / "in").open("rb") as source, (tmp_path / "out").open("wb") as sink:
        subprocess.run([OPENCLAW, "echo"], stdin=source, stdout=sink, timeout=30, check=True)

    assert text_of(json.loads((tmp_path / "out").read_text())) == "from a file"


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (b'{"jsonrpc":"2.0","id":1,"method":"ping"', -32700),
        (b"hello", -32700),
        (b"\x00\x01\xff", -32700),
        (b"[" * 200_000, -32700),
        (b'{"a":' * 50_000 + b"1" + b"}" * 50_000, -32700),
        (b'[{"jsonrpc":"2.0","id":1,"method":"ping"}]', -32600),
        (b'"text"', -32600),
        (b"{}", -32600),
        (b'{"jsonrpc":"2.0","id":{},"method":"ping"}', -32600),
        (b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":"x"}', -32602),
        (b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":[]}}', -32602),
        (b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":3}}', -32602),
    ],
)
def test_bad_input_is_answered_and_the_server_lives_on(line: bytes, code: int) -> None:
    with echo_over_stdio() as server:
        server.write(line + b"\n")
        assert server.receive()["error"]["code"] == code
        assert text_of(greet(server)) == "hi"


def test_a_line_of_fifty_megabytes_is_refused_and_the_server_lives_on() -> None:
    with echo_over_stdio() as server:
        server.write(b'{"x":"' + b"y" * 50_000_000 + b'"}\n')
        error = server.receive()["error"]
        assert error["code"] == -32700
        assert str(MAX_LINE_LENGTH) in error["message"]
        assert text_of(greet(server)) == "hi"


def test_blank_lines_and_carriage_returns_are_no_trouble() -> None:
    with echo_over_stdio() as server:
        server.write(b'\n\r\n  \n{"jsonrpc":"2.0","id":1,"method":"ping"}\r\n')
        assert server.receive() == {"jsonrpc": "2.0", "id": 1, "result": {}}


def test_a_duplicate_id_is_refused_while_the_first_is_served() -> None:
    with everything() as server:
        slow = {"name": "slow_compute", "arguments": {"seconds": 30, "label": "x"}}
        server.send({"jsonrpc": "2.0", "id": "same", "method": "tools/call", "params": slow})
        refused = server.ask("ping", id="same")
        assert "still being served" in refused["error"]["message"]


def test_a_cancelled_call_stops_and_is_not_answered() -> None:
    with everything() as server:
        slow = {"name": "slow_compute", "arguments": {"seconds": 3600, "label": "x"}}
        server.send({"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": slow})
        server.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 7}})
        assert server.ask("ping", id=8)["id"] == 8
        assert server.ask("ping", id=7)["id"] == 7  # the id is free again


def test_a_listener_is_notified_of_a_new_tool_until_it_cancels() -> None:
    wish = {"notifications": {"toolsListChanged": True}, "_meta": META}
    change = {"name": "test_trigger_tool_change", "arguments": {}}
    with everything() as server:
        server.send({"jsonrpc": "2.0", "id": "l", "method": "subscriptions/listen", "params": wish})
        assert server.receive()["method"] == "notifications/subscriptions/acknowledged"
        server.send({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": change})
        assert {server.receive().get("method"), server.receive().get("method")} == {
            "notifications/tools/list_changed",
            None,
        }
        server.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": "l"}})
        assert server.ask("tools/call", change, id=2)["id"] == 2


def test_a_handshake_client_is_notified_of_a_new_tool() -> None:
    with everything() as server:
        server.ask("initialize", {"protocolVersion": "2025-06-18", "capabilities": {}})
        server.send({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "test_trigger_tool_change"}})
        assert "notifications/tools/list_changed" in {server.receive().get("method"), server.receive().get("method")}


def test_a_handshake_client_is_asked_over_the_same_pipe() -> None:
    with everything() as server:
        server.ask("initialize", {"protocolVersion": "2025-06-18", "capabilities": {"elicitation": {}}})
        server.send(
            {
                "jsonrpc": "2.0",
                "id": 2,
                "method": "tools/call",
                "params": {"name": "test_elicitation", "arguments": {"message": "Who?"}},
            }
        )
        question = server.receive()
        assert question["method"] == "elicitation/create"
        answer = {"action": "accept", "content": {"username": "ada"}}
        server.send({"jsonrpc": "2.0", "id": question["id"], "result": answer})
        assert "ada" in text_of(server.receive())


def test_stray_prints_never_reach_the_wire() -> None:
    with everything() as server:
        assert text_of(server.ask("tools/call", {"name": "prints", "arguments": {}})) == "printed"
        server.hang_up()
        assert server.child.stderr is not None
        errors = server.child.stderr.read()
        for stray in (b"from print", b"from a child process", b"from descriptor one"):
            assert stray in errors


def test_a_client_that_does_not_read_does_not_stop_us_from_reading() -> None:
    """Far more is asked than a pipe holds before the first answer is read; both ends would wait for ever otherwise."""
    text, count = "x" * 100_000, 60
    with echo_over_stdio() as server:
        call = {"name": "echo", "arguments": {"text": text}}
        written = threading.Event()

        def write_all() -> None:
            for id in range(count):
                server.send({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": call})
            written.set()

        threading.Thread(target=write_all, daemon=True).start()
        assert written.wait(30), "the server stopped reading while its answers were unread"
        assert sorted(server.receive()["id"] for _ in range(count)) == list(range(count))


def test_the_server_ends_when_its_client_is_gone() -> None:
    with everything() as server:
        server.ask("ping")
        slow = {"name": "slow_compute", "arguments": {"seconds": 3600, "label": "x"}}
        server.send({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": slow})
        assert server.child.stdin is not None
        assert server.child.stdout is not None
        server.child.stdout.close()
        server.child.stdin.close()
        start = time.monotonic()
        server.child.wait(10)
        assert time.monotonic() - start < 5, "no client could read the answer, so nothing was worth waiting for"


def test_a_terminal_interrupt_before_any_input_ends_quietly() -> None:
    with echo_over_stdio() as server:
        server.ask("ping")
        os.kill(server.child.pid, 2)
        assert server.child.wait(10) != 0
        assert server.child.stderr is not None
        assert b"Traceback" not in server.child.stderr.read()


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_a_signal_during_the_very_first_call_ends_that_call_in_order(name: str) -> None:
    """The first call runs before asyncio's own signal handlers are loaded."""
    call = {"name": "is_interrupted", "arguments": {"signal": name}}
    line = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call})
    command = (sys.executable, "-m", "tests.mcp.server.everything_stdio")
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, "FIRST_LINE": line},
        preexec_fn=lambda: signal.signal(signal.Signals[name], signal.SIG_DFL),  # noqa: PLW1509  `nohup` ignores one
    ) as child:  # fmt: skip
        _, errors = child.communicate(timeout=60)
    assert (child.returncode, errors.strip()) == (0, b"the call was ended")
