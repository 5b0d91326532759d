"""Benchmark: the gateway's start, idle memory and round trips, beside a real OpenClaw when one is installed.

Ours answers with its demo agent; the real one has none and asks a model that answers at once. It is found by
OPENCLAW_REAL (the npm package's folder) and OPENCLAW_NODE (a Node.js 24.16 or newer).
"""

import json
import os
import socket
import statistics
import struct
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from measure import Figures, Ratios, Sample, Turn, interleave
from processes import Child, Talk, leave_nothing_behind, resident_mib, serving, talking
from report import Options, Target, conclude, number, read_options, say, say_conditions, say_table

OURS, REAL = "ours", "real OpenClaw"
TOKEN = "benchmark"
START_LIMIT = 180.0  # the real one needs about 20 s, on a cold and busy machine several times that
ANSWER_LIMIT = 30.0
RETRY_PAUSE = 0.005
SETTLE = 5.0  # seconds of rest before memory is read
CALLS, QUICK_CALLS = 500, 100
TURNS, WARM_TURNS = 40, 3  # of one session, which grows
SESSIONS = 100  # that are listed, after the list of one session
IDLE_CLIENTS = 500
FIGURES = ("hello s", "idle MiB", "health ms", "p99 ms", "list ms", "list 100 ms", "turn ms", "KiB/client")


@dataclass(frozen=True, slots=True, kw_only=True)
class Gateway:
    """How one of the two is started on a port, with a state folder of its own."""

    name: str
    argv: tuple[str, ...]
    calls: int
    python: str = sys.executable
    """One that has uvloop, for the model."""

    def take(self) -> Sample:
        with tempfile.TemporaryDirectory() as folder:
            port = free_port()
            with (
                self._model() as model,
                serving(self._argv(port), name=self.name, extra=settings(folder, port, model)) as child,
            ):
                rpc = _hello(port, child)
                started = time.perf_counter() - child.started
                rpc.ask("health")
                time.sleep(SETTLE)
                idle = resident_mib(child.process.pid)
                trips = sorted(_timed(rpc, "health") for _ in range(self.calls))
                turns = [rpc.turn("main") for _ in range(WARM_TURNS + TURNS)][WARM_TURNS:]
                lists = [_timed(rpc, "sessions.list") for _ in range(self.calls)]
                for number in range(1, SESSIONS):
                    rpc.ask("sessions.create", {"label": f"Session {number}"})
                long_lists = [_timed(rpc, "sessions.list", {"limit": SESSIONS}) for _ in range(self.calls // 5)]
                clients = [_hello(port, child) for _ in range(IDLE_CLIENTS)]
                each = (resident_mib(child.process.pid) - idle) * 1024 / IDLE_CLIENTS
                for one in (rpc, *clients):
                    one.close()
        return {
            "hello s": started,
            "idle MiB": idle,
            "health ms": 1000 * statistics.median(trips),
            "p99 ms": 1000 * trips[int(len(trips) * 0.99)],
            "list ms": 1000 * statistics.median(lists),
            "list 100 ms": 1000 * statistics.median(long_lists),
            "turn ms": 1000 * statistics.median(turns),
            "KiB/client": each,
        }

    @contextmanager
    def _model(self) -> Iterator[int | None]:
        """The port of a model, for the one that needs one to answer at all."""
        if self.name == OURS:
            yield None
            return
        model = (self.python, str(Path(__file__).parent / "peers" / "model.py"), "0")
        with talking(model, name="the model") as peer:
            yield int(Talk(peer).read())

    def _argv(self, port: int) -> tuple[str, ...]:
        return tuple(word.replace("PORT", str(port)) for word in self.argv)


class RpcClient:
    """A WebSocket client of fifty lines, so that the benchmark measures the gateway and not a library."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=ANSWER_LIMIT)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._file = self._socket.makefile("rb")
        self._socket.sendall(
            b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
        )
        if b"101" not in self._file.readline():
            raise ConnectionError("no WebSocket")
        while self._file.readline() not in (b"\r\n", b""):
            pass

    def send(self, method: str, params: object = None) -> None:
        payload = json.dumps({"type": "req", "id": method, "method": method, "params": params or {}}).encode()
        size = (
            struct.pack("!BBH", 0x81, 0xFE, len(payload)) if len(payload) > 125 else bytes([0x81, 0x80 | len(payload)])
        )
        self._socket.sendall(size + b"\0\0\0\0" + payload)

    def ask(self, method: str, params: object = None) -> dict[str, object]:
        self.send(method, params)
        while True:
            frame = json.loads(self.read())
            if frame["type"] == "res":
                if not frame["ok"]:
                    raise ConnectionError(str(frame["error"]))
                answer: dict[str, object] = frame["payload"]
                return answer

    def close(self) -> None:
        self._file.close()
        self._socket.close()

    def read(self) -> bytes:
        while True:
            head = self._file.read(2)
            if len(head) < 2:
                raise ConnectionError("closed")
            opcode, size = head[0] & 15, head[1] & 127
            if size == 126:
                (size,) = struct.unpack("!H", self._file.read(2))
            elif size == 127:
                (size,) = struct.unpack("!Q", self._file.read(8))
            data = self._file.read(size)
            if opcode in (1, 2):
                return data
            if opcode == 8:
                raise ConnectionError("closed by the gateway")
            if opcode == 9:
                self._socket.sendall(b"\x8a\x80\0\0\0\0")


class ChatClient(RpcClient):
    """A client that talks to agents."""

    def turn(self, key: str) -> float:
        """Seconds from sending a message to its final answer."""
        start = time.perf_counter()
        self.all_at_once([key])
        return time.perf_counter() - start

    def all_at_once(self, keys: list[str]) -> None:
        waiting = set()
        for key in keys:
            run_id = str(uuid.uuid4())
            waiting.add(run_id)
            self.send("chat.send", {"sessionKey": key, "message": "What is the answer?", "idempotencyKey": run_id})
        while waiting:
            frame = json.loads(self.read())
            if frame["type"] == "res" and not frame["ok"]:
                raise ConnectionError(str(frame["error"]))
            payload = frame.get("payload") or {}
            if frame.get("event") == "chat" and payload.get("state") in ("final", "error", "aborted"):
                if payload["state"] != "final":
                    raise ConnectionError(str(payload.get("errorMessage")))
                waiting.discard(payload["runId"])


def _hello(port: int, child: Child) -> ChatClient:
    """A connected client, as soon as the gateway accepts one."""
    deadline = time.monotonic() + START_LIMIT
    client = {"id": "gateway-client", "version": "1", "platform": "linux", "mode": "backend"}
    connect = {
        "minProtocol": 4, "maxProtocol": 4, "client": client, "role": "operator",
        "scopes": ["operator.read", "operator.write"], "auth": {"token": TOKEN},
    }  # fmt: skip
    while True:
        rpc = None
        with suppress(OSError):
            rpc = ChatClient(port)
            rpc.ask("connect", connect)
            return rpc
        if rpc is not None:
            rpc.close()
        if child.exited(within=0) or time.monotonic() > deadline:
            raise child.failed("said no hello")
        time.sleep(RETRY_PAUSE)


def _timed(rpc: RpcClient, method: str, params: object = None) -> float:
    start = time.perf_counter()
    rpc.ask(method, params)
    return time.perf_counter() - start


def model_settings(model: int) -> dict[str, object]:
    """What makes the model on that port the one every agent asks, in the words both gateways know."""
    cost = {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0}
    card = {"id": "m", "name": "M", "reasoning": False, "input": ["text"], "cost": cost}
    card |= {"contextWindow": 128000, "maxTokens": 8192}
    provider = {"baseUrl": f"http://127.0.0.1:{model}/v1", "apiKey": "k", "api": "openai-completions", "models": [card]}
    models = {"mode": "merge", "providers": {"fake": provider}}
    return {"models": models, "agents": {"defaults": {"model": {"primary": "fake/m"}}}}


def settings(folder: str, port: int, model: int | None = None) -> dict[str, str]:
    """State in the folder alone; the real one also reads its port and token from a config file there."""
    state = Path(folder) / "state"
    state.mkdir()
    auth = {"mode": "token", "token": TOKEN}
    config: dict[str, object] = {"gateway": {"mode": "local", "bind": "loopback", "port": port, "auth": auth}}
    if model is not None:
        config |= model_settings(model)
    (state / "openclaw.json").write_text(json.dumps(config))
    return {"HOME": folder, "OPENCLAW_STATE_DIR": str(state), "OPENCLAW_GATEWAY_TOKEN": TOKEN}


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def _gateways(options: Options) -> list[Gateway]:
    calls = QUICK_CALLS if options.quick else CALLS
    ours = (str(options.venv / "bin" / "openclaw"), "gateway", "--port", "PORT")
    found = [Gateway(name=OURS, argv=ours, calls=calls)]
    folder, node = os.environ.get("OPENCLAW_REAL"), os.environ.get("OPENCLAW_NODE")
    if folder and node:
        real = (node, str(Path(folder) / "openclaw.mjs"), "gateway", "run")
        python = str(options.venv / "bin" / "python")
        found.append(Gateway(name=REAL, argv=real, calls=calls, python=python))
    else:
        say(f"  {REAL} is left out: set OPENCLAW_REAL and OPENCLAW_NODE")
    return found


def main() -> int:
    leave_nothing_behind()
    options = read_options("gateway", __doc__ or "", rounds=5, quick_rounds=1)
    say_conditions(options)
    figures = Figures()
    gateways = _gateways(options)
    turns = [Turn(subject=gateway.name, take=gateway.take) for gateway in gateways]
    interleave("gateway", turns, rounds=options.rounds, figures=figures)
    rows = [[each.name, *(number(figures.median(each.name, name)) for name in FIGURES)] for each in gateways]
    say_table("gateway", ["", *FIGURES], rows)
    ratios: Ratios = {OURS: {name: figures.ratio(name, of=OURS, to=REAL) for name in FIGURES}}
    targets = [
        Target(what="start to hello", unit="of the real one", measured=ratios[OURS]["hello s"], at_most=1 / 15),
        Target(what="idle memory", unit="of the real one", measured=ratios[OURS]["idle MiB"], at_most=1 / 8),
        Target(what="health round trip", unit="of the real one", measured=ratios[OURS]["health ms"], at_most=1 / 5),
        Target(what="sessions.list", unit="of the real one", measured=ratios[OURS]["list ms"], at_most=1 / 2),
        Target(
            what="sessions.list of 100", unit="of the real one", measured=ratios[OURS]["list 100 ms"], at_most=1 / 2
        ),
        Target(what="chat.send to final", unit="of the real one", measured=ratios[OURS]["turn ms"], at_most=1 / 20),
        Target(what="idle memory", unit="MiB", measured=figures.median(OURS, "idle MiB"), at_most=65),
    ]
    return conclude(options, figures, ratios, targets)


if __name__ == "__main__":
    sys.exit(main())
