"""Benchmark: `node.invoke` from an operator through the gateway to a node and back, beside a real OpenClaw gateway.

The real one is found by OPENCLAW_REAL (the npm package's folder) and OPENCLAW_NODE (a Node.js 24.16 or newer). Operator
and node are bare sockets of this process that wait for nothing else, so what is measured is the gateway between them.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gateway import ANSWER_LIMIT, OURS, REAL, RETRY_PAUSE, START_LIMIT, TOKEN, RpcClient, free_port, settings
from measure import Figures, Ratios, Sample, Turn, interleave
from processes import Child, leave_nothing_behind, serving
from report import Options, Target, conclude, number, read_options, say, say_conditions, say_table

CALLS, QUICK_CALLS = 300, 50
PICTURE = 1 << 20  # characters: about what a screen of 1280x800 comes to as a PNG in base64
PICTURES = 10
SCOPES = ["operator.read", "operator.write", "operator.admin", "operator.pairing"]
FIGURES = ("invoke ms", "p99 ms", "1 MiB ms")
COMMAND = "system.which"

INTRODUCE = """
import json, sys, msgspec
from pathlib import Path
from openclaw_mcp.net.gateway_client.handshake import Challenge, ClientInfo, ClientProfile, Credentials
from openclaw_mcp.net.gateway_client.identity import DeviceIdentity
challenge, token, folder, command = json.loads(sys.argv[1])
who = ClientInfo(id="node-host", version="1", platform="linux", mode="node", device_family="Linux")
profile = ClientProfile(client=who, role="node", caps=("system",), commands=(command,))
device = DeviceIdentity.load(Path(folder) / "node-identity.json")
connect = profile.build_connect(msgspec.convert(challenge, Challenge), Credentials(token=token), device)
sys.stdout.buffer.write(msgspec.json.encode(connect))
"""
"""A node's `connect`, signed. Run by the interpreter ours is installed for: this one has no cryptography."""


class Peer(RpcClient):
    """A client that sends and hears in steps."""

    def say(self, method: str, params: object) -> None:
        """Masked with nothing, which is a mask too."""
        payload = json.dumps({"type": "req", "id": method, "method": method, "params": params}).encode()
        if len(payload) < 126:
            head = bytes([0x81, 0x80 | len(payload)])
        elif len(payload) < 1 << 16:
            head = b"\x81\xfe" + len(payload).to_bytes(2, "big")
        else:
            head = b"\x81\xff" + len(payload).to_bytes(8, "big")
        self._socket.sendall(head + b"\0\0\0\0" + payload)

    def answer(self) -> Any:
        frame = self._next("res")
        if not frame["ok"]:
            raise ConnectionError(str(frame["error"]))
        return frame["payload"]

    def event(self, name: str) -> Any:
        while True:
            frame = self._next("event")
            if frame["event"] == name:
                return frame["payload"]

    def _next(self, kind: str) -> Any:
        while True:
            frame = json.loads(self.read())
            if frame["type"] == kind:
                return frame


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """One gateway with an operator and an approved node at it."""

    name: str
    operator: Peer
    node: Peer
    node_id: str
    calls: int

    def take(self) -> Sample:
        small = json.dumps({"bins": {"sh": "/usr/bin/sh"}})
        trips = sorted(self._trip(small) for _ in range(self.calls))
        large = json.dumps({"base64": "A" * PICTURE})
        pictures = [self._trip(large) for _ in range(PICTURES)]
        return {
            "invoke ms": 1000 * statistics.median(trips),
            "p99 ms": 1000 * trips[int(len(trips) * 0.99)],
            "1 MiB ms": 1000 * statistics.median(pictures),
        }

    def _trip(self, payload: str) -> float:
        order = {
            "nodeId": self.node_id, "command": COMMAND, "params": {"bins": ["sh"]}, "timeoutMs": 30_000,
            "idempotencyKey": str(uuid.uuid4()),
        }  # fmt: skip
        start = time.perf_counter()
        self.operator.say("node.invoke", order)
        request = self.node.event("node.invoke.request")
        result = {"id": request["id"], "nodeId": self.node_id, "ok": True, "payloadJSON": payload}
        self.node.say("node.invoke.result", result)
        answer = self.operator.answer()
        elapsed = time.perf_counter() - start
        if answer["payload"] != json.loads(payload):
            raise ConnectionError("the payload came back changed")
        self.node.answer()
        return elapsed


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """A gateway that says hello."""

    name: str
    port: int
    folder: str
    child: Child

    def operator(self) -> Peer:
        client = {"id": "gateway-client", "version": "1", "platform": "linux", "mode": "backend"}
        connect = {"minProtocol": 4, "maxProtocol": 4, "client": client, "role": "operator", "scopes": SCOPES}
        return joined(self.port, self.child, lambda _: connect | {"auth": {"token": TOKEN}})

    def bench(self, stack: ExitStack, options: Options) -> Bench:
        operator = self.operator()
        node = joined(self.port, self.child, lambda challenge: introduced(options, challenge, self.folder))
        stack.callback(operator.close)
        stack.callback(node.close)
        operator.say("node.pair.list", {})
        for request in operator.answer()["pending"]:
            operator.say("node.pair.approve", {"requestId": request["requestId"]})
            operator.answer()
        operator.say("node.list", {})
        node_id = operator.answer()["nodes"][0]["nodeId"]
        calls = QUICK_CALLS if options.quick else CALLS
        return Bench(name=self.name, operator=operator, node=node, node_id=node_id, calls=calls)


def started(stack: ExitStack, name: str, argv: tuple[str, ...]) -> Started:
    folder = stack.enter_context(tempfile.TemporaryDirectory())
    port = free_port()
    words = tuple(word.replace("PORT", str(port)) for word in argv)
    child = stack.enter_context(serving(words, name=name, extra=settings(folder, port)))
    gateway = Started(name=name, port=port, folder=folder, child=child)
    gateway.operator().close()
    return gateway


def joined(port: int, child: Child, introduce: Any) -> Peer:
    """A connected peer, as soon as the gateway accepts one."""
    deadline = time.monotonic() + START_LIMIT
    while True:
        peer = None
        with suppress(OSError):
            peer = Peer(port)
            peer.say("connect", introduce(peer.event("connect.challenge")))
            peer.answer()
            return peer
        if peer is not None:
            peer.close()
        if child.exited(within=0) or time.monotonic() > deadline:
            raise child.failed("said no hello")
        time.sleep(RETRY_PAUSE)


def introduced(options: Options, challenge: Any, folder: str) -> Any:
    words = [str(options.venv / "bin" / "python"), "-c", INTRODUCE, json.dumps([challenge, TOKEN, folder, COMMAND])]
    result = subprocess.run(words, capture_output=True, check=True, timeout=ANSWER_LIMIT)
    return json.loads(result.stdout)


def main() -> int:
    leave_nothing_behind()
    options = read_options("nodes", __doc__ or "", rounds=7, quick_rounds=2)
    say_conditions(options)
    figures = Figures()
    subjects = {OURS: (str(options.venv / "bin" / "openclaw"), "gateway", "--port", "PORT")}
    folder, node = os.environ.get("OPENCLAW_REAL"), os.environ.get("OPENCLAW_NODE")
    if folder and node:
        subjects[REAL] = (node, str(Path(folder) / "openclaw.mjs"), "gateway", "run")
    else:
        say(f"  {REAL} is left out: set OPENCLAW_REAL and OPENCLAW_NODE")
    with ExitStack() as stack:
        gateways = [started(stack, name, argv) for name, argv in subjects.items()]
        # Only now: a client that is not looked after while the other one starts would be taken for gone.
        benches = [gateway.bench(stack, options) for gateway in gateways]
        turns = [Turn(subject=bench.name, take=bench.take) for bench in benches]
        interleave("nodes", turns, rounds=options.rounds, figures=figures)
    rows = [[name, *(number(figures.median(name, figure)) for figure in FIGURES)] for name in subjects]
    say_table("node.invoke, one at a time", ["", *FIGURES], rows)
    ratios: Ratios = {OURS: {name: figures.ratio(name, of=OURS, to=REAL) for name in FIGURES}}
    invoke = ratios[OURS]["invoke ms"]
    targets = [Target(what="node.invoke round trip", unit="of the real one", measured=invoke, at_most=1 / 3)]
    return conclude(options, figures, ratios, targets)


if __name__ == "__main__":
    sys.exit(main())
