"""`openclaw gateway` as a program: its token, its HTTP routes, its calls, its end."""

import contextlib
import json
import os
import signal
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from openclaw_mcp.net.gateway_client.address import is_local_gateway

from ... import web_client
from ...running import END_WAIT, OPENCLAW, READY_WAIT, process, read_line
from ..rpc.gateways import CONNECT
from .fork_server import ForkedProcess

WAIT = 20


def environment(folder: Path, **more: str) -> dict[str, str]:
    clean = {key: value for key, value in os.environ.items() if not key.startswith("OPENCLAW_")}
    return clean | {"OPENCLAW_STATE_DIR": str(folder), **more}


class Served:
    def __init__(self, child: "subprocess.Popen[bytes] | ForkedProcess", folder: Path) -> None:
        words = read_line(child, READY_WAIT).decode().split()
        self.child = child
        self.folder = folder
        self.ws = words[1]
        self.http = words[2].removesuffix("/mcp")
        self.port = self.ws.rpartition(":")[2]

    @property
    def token(self) -> str:
        return (self.folder / "gateway-token.txt").read_text()

    def call(self, *words: str, **more: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [OPENCLAW, "gateway", "--port", self.port, "call", *words],
            env=environment(self.folder, **more),
            capture_output=True,
            text=True,
            timeout=WAIT,
            check=False,
        )


@contextlib.contextmanager
def serving(folder: Path, **more: str) -> Iterator[Served]:
    words = (OPENCLAW, "gateway", "--port", "0")
    with process(*words, env=environment(folder, **more), stdout=subprocess.PIPE) as child:
        yield Served(child, folder)


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("state")) as served:
        yield served


def test_the_token_is_made_at_first_start_and_private(gateway: Served) -> None:
    path = gateway.folder / "gateway-token.txt"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert len(gateway.token) >= 43


def test_call_prints_the_answer_and_exits_with_zero(gateway: Served) -> None:
    result = gateway.call("health")
    assert (result.returncode, result.stderr) == (0, "")
    assert json.loads(result.stdout)["ok"] is True
    tail = json.loads(gateway.call("logs.tail", '{"limit":5}').stdout)
    assert tail["file"] == str(gateway.folder / "gateway.log")


@pytest.mark.parametrize(
    ("words", "more", "message"),
    [
        (("no.such",), {}, "INVALID_REQUEST: unknown method: no.such"),
        (("health", "[1]"), {}, "the parameters must be a JSON object"),
        (("health", "{"), {}, "the parameters are not JSON"),
        (("health",), {"OPENCLAW_GATEWAY_TOKEN": "wrong"}, "gateway token mismatch"),
        (("health",), {"OPENCLAW_GATEWAY_URL": "ws://127.0.0.1:9"}, "connection refused; start one with"),
        (("health",), {"OPENCLAW_GATEWAY_URL": "nonsense"}, "is no gateway address"),
    ],
)
def test_call_says_in_one_line_what_is_wrong(
    gateway: Served, words: tuple[str, ...], more: dict[str, str], message: str
) -> None:
    result = gateway.call(*words, **more)
    assert (result.returncode, result.stdout) == (1, "")
    assert message in result.stderr
    assert result.stderr.count("\n") == 1


def test_the_environments_token_wins(tmp_path: Path) -> None:
    with serving(tmp_path, OPENCLAW_GATEWAY_TOKEN="from-the-environment") as served:
        assert served.call("health", "--token", "from-the-environment").returncode == 0
        assert not (tmp_path / "gateway-token.txt").exists()


def test_probes_and_metrics_need_no_token(gateway: Served) -> None:
    gateway.call("health")
    for path in ("/health", "/healthz"):
        answer = web_client.send(gateway.http + path, "GET")
        assert (answer.status, answer.json) == (200, {"ok": True, "status": "live"})
    for path in ("/ready", "/readyz"):
        answer = web_client.send(gateway.http + path, "GET")
        assert (answer.status, answer.json["ready"], answer.json["failing"]) == (200, True, [])
    metrics = web_client.send(gateway.http + "/metrics", "GET")
    assert metrics.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert b'openclaw_requests_total{method="health",outcome="ok"}' in metrics.body
    assert gateway.token.encode() not in metrics.body


def test_an_unknown_path_is_not_found(gateway: Served) -> None:
    assert web_client.send(gateway.http + "/nothing", "GET").status == 404


@pytest.mark.parametrize(
    ("body", "status", "error"),
    [
        ({"tool": "no_such"}, 404, {"type": "not_found", "message": "Tool not available: no_such"}),
        ({"tool": "exec"}, 404, {"type": "not_found", "message": "Tool not available: exec"}),
        ({}, 400, {"type": "invalid_request", "message": "tools.invoke requires name"}),
        ({"tool": "x", "args": 3}, 400, {"type": "invalid_request", "message": "args must be an object"}),
        (b"{", 400, {"type": "invalid_request_error", "message": "the body is not JSON"}),
    ],
)
def test_tools_invoke_refuses_in_the_real_ones_shapes(gateway: Served, body: Any, status: int, error: Any) -> None:
    bearer = {"Authorization": f"Bearer {gateway.token}"}
    answer = web_client.send(gateway.http + "/tools/invoke", "POST", body, **bearer)
    assert (answer.status, answer.json["error"]) == (status, error)


@pytest.mark.parametrize("levels", [128, 500, 900])
@pytest.mark.parametrize("path", ["/tools/invoke", "/v1/chat/completions"])
def test_a_body_that_is_nested_too_deeply_is_refused(gateway: Served, path: str, levels: int) -> None:
    body = b'{"model": "openclaw", "tool": "x", "args": {"a": ' + b"[" * levels + b"]" * levels + b"}}"
    answer = web_client.send(gateway.http + path, "POST", body, Authorization=f"Bearer {gateway.token}")
    assert (answer.status, "nested too deeply" in answer.json["error"]["message"]) == (400, True)


def test_tools_invoke_needs_the_token_and_post(gateway: Served) -> None:
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": f"Basic {gateway.token}"}):
        answer = web_client.send(gateway.http + "/tools/invoke", "POST", {"tool": "x"}, **headers)
        assert (answer.status, answer.json) == (401, {"error": {"message": "Unauthorized", "type": "unauthorized"}})
    assert web_client.send(gateway.http + "/tools/invoke", "GET").status == 405


def test_mcp_is_served_to_whoever_carries_the_token(gateway: Served) -> None:
    assert web_client.ask(gateway.http + "/mcp", "tools/list").status == 401
    answer = web_client.ask(gateway.http + "/mcp", "tools/list", Authorization=f"Bearer {gateway.token}")
    assert answer.status == 200
    assert {"sessions_list", "gateway", "message", "cron"} <= {tool["name"] for tool in answer.json["result"]["tools"]}


def test_a_page_elsewhere_gets_nothing_from_mcp(gateway: Served) -> None:
    headers = {"Authorization": f"Bearer {gateway.token}", "Origin": "http://evil.example"}
    assert web_client.ask(gateway.http + "/mcp", "tools/list", **headers).status == 403


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_stops_cleanly_and_notifies_its_clients(tmp_path: Path, number: signal.Signals) -> None:
    with serving(tmp_path) as served, connect(served.ws, compression=None) as client:
        client.recv(timeout=WAIT)
        hello = CONNECT | {"auth": {"token": served.token}}
        client.send(json.dumps({"type": "req", "id": "1", "method": "connect", "params": hello}))
        assert json.loads(client.recv(timeout=WAIT))["ok"]
        served.child.send_signal(number)
        assert json.loads(client.recv(timeout=WAIT))["event"] == "shutdown"
        with pytest.raises(ConnectionClosed) as closed:
            client.recv(timeout=WAIT)
        assert closed.value.rcvd is not None
        assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (1012, "service restart")
        assert served.child.wait(END_WAIT) == 0


def test_the_token_kept_here_is_sent_to_no_other_machine() -> None:
    assert is_local_gateway("ws://127.0.0.1:18789")
    assert is_local_gateway("ws://[::1]:18789/")
    for url in ("ws://192.0.2.7:18789", "wss://localhost.example", "ws://127.0.0.1@evil.example", "nonsense"):
        assert not is_local_gateway(url)


def test_a_gateway_elsewhere_is_met_as_a_device(tmp_path: Path) -> None:
    """This machine under another address: 127.0.0.1 is loopback for the gateway, but not by name for us."""
    with serving(tmp_path) as served:
        url = f"ws://127.0.0.2:{served.port}"
        result = served.call("device.pair.list", "--url", url)
        assert "no gateway answers" in result.stderr  # it listens on 127.0.0.1 alone
    words = (OPENCLAW, "gateway", "--port", "0", "--host", "0.0.0.0")
    with process(*words, env=environment(tmp_path), stdout=subprocess.PIPE) as child:
        served = Served(child, tmp_path)
        url = f"ws://127.0.0.2:{served.port}"
        assert "token missing" in served.call("health", "--url", url).stderr
        first = served.call("device.pair.list", "--url", url, "--token", served.token)
        assert first.returncode == 0, first.stderr
        own = json.loads(first.stdout)["paired"][0]
        assert (own["clientId"], own["connected"]) == ("cli", True)
        assert served.call("health", "--url", url).returncode == 0  # with the token the gateway gave this device
        tokens_file = tmp_path / "device-tokens.json"
        assert stat.S_IMODE(tokens_file.stat().st_mode) == 0o600


def test_a_broken_state_file_stops_the_start_with_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "pairing.json").write_text("{")
    result = subprocess.run(
        [OPENCLAW, "gateway", "--port", "0"],
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=WAIT,
        check=False,
    )
    assert result.returncode == 1
    assert "pairing.json is no pairing file; restore it" in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_taken_port_is_named(gateway: Served, tmp_path: Path) -> None:
    result = subprocess.run(
        [OPENCLAW, "gateway", "--port", gateway.port],
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=WAIT,
        check=False,
    )
    assert result.returncode == 1
    assert f"port {gateway.port} on 127.0.0.1 is taken" in result.stderr
