"""Benchmark: the node's device.info at 8 callers and its screen.snapshot over HTTP; its start, its memory at rest."""

import json
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import wire
from measure import Figures, Sample, Turn, calm, interleave
from processes import Child, ChildFailed, Talk, leave_nothing_behind, resident_mib, serving, talking
from report import Options, Target, conclude, number, read_options, say, say_conditions, say_table
from subjects import HELLO, HERE, NotInstalled, http_subjects

CALLERS = 8
SAMPLE_SECONDS = 2
QUICK_SECONDS = 1  # wrk counts in whole seconds
ANSWER_LIMIT = 20.0
IDLE_SECONDS = 2.0  # after the start, before memory is read
PAUSE = 0.002
UNUSABLE = 2
FLOOR, NODE, PASS, PICTURE = "hello", "node", "python -c pass", "the picture alone"
COLUMNS = ("/s", "p50 ms", "start ms", "snapshot ms")
SCREEN = "1280x800x24"
SHOTS = 10  # pictures in a sample
PHOTOGRAPH = """
import os, sys, time
from openclaw_mcp.node.media.pixels import ImageOptions, capture_screen
options = ImageOptions(png=True, width=1920, quality=80)
for _ in sys.stdin:
    began = time.perf_counter()
    capture_screen(os.environ["DISPLAY"], index=0, pointer=True, options=options)
    print(1000 * (time.perf_counter() - began), flush=True)
"""
"""Capture and encoding as the node does them, and nothing else."""


class LoadFailed(Exception):
    """The load generator is missing, or saw a failed request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """One server under eight callers."""

    name: str
    port: int
    post: wire.Post
    seconds: int

    def take(self) -> Sample:
        settings = {
            "BENCH_METHOD": self.post.method,
            "BENCH_BODY": self.post.body.decode(),
            "BENCH_HEADERS": "\n".join(f"{name}: {value}" for name, value in self.post.headers),
        }
        words = ("-t1", f"-c{CALLERS}", f"-d{self.seconds}s", "-s", str(HERE / "call.lua"))
        with talking(("wrk", *words, f"http://127.0.0.1:{self.port}/"), name="wrk", extra=settings) as child:
            output = Talk(child).rest().decode()
        report = json.loads([line for line in output.splitlines() if line.startswith("{")][-1])
        if report["status"] or report["socket"] or report["timeout"] or not report["requests"]:
            raise LoadFailed(f"{self.name}: {report}")
        return {"/s": 1e6 * report["requests"] / report["us"], "p50 ms": report["p50_us"] / 1000}


def tool_call(token: str, name: str = "device.info") -> wire.Post:
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": name, "arguments": {}}}
    headers = (
        ("Content-Type", "application/json"),
        ("Accept", "application/json, text/event-stream"),
        ("Authorization", f"Bearer {token}"),
    )
    return wire.Post(label="L", method="POST", headers=headers, body=wire.encode(call))


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    return port


def ask(port: int, post: wire.Post) -> bytes:
    lines = [f"{post.method} / HTTP/1.0", f"Host: 127.0.0.1:{port}", f"Content-Length: {len(post.body)}"]
    lines += [f"{name}: {value}" for name, value in post.headers]
    with socket.create_connection(("127.0.0.1", port), timeout=ANSWER_LIMIT) as plug:
        plug.sendall("\r\n".join([*lines, "", ""]).encode() + post.body)
        answer = b""
        while data := plug.recv(1 << 16):
            answer += data
    return answer


def first_answer(child: Child, port: int, token: Path) -> None:
    """Return when device.info has been answered."""
    while True:
        try:
            if b" 200 " in ask(port, tool_call(token.read_text()))[:20]:
                return
        except (ConnectionRefusedError, FileNotFoundError):
            if time.monotonic() - child.started > ANSWER_LIMIT or child.exited(within=0):
                raise child.failed("did not answer") from None
        time.sleep(PAUSE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Spawn to the first answer, with a state directory that is already there."""

    argv: tuple[str, ...]
    state: Path

    def take(self) -> Sample:
        port = free_port()
        with serving((*self.argv, "--state-dir", str(self.state), "--port", str(port)), name=NODE) as child:
            first_answer(child, port, self.state / "mcp-token.txt")
            return {"start ms": 1000 * (time.monotonic() - child.started)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Bare:
    """The interpreter alone."""

    python: str

    def take(self) -> Sample:
        began = time.monotonic()
        subprocess.run([self.python, "-c", "pass"], check=True, timeout=ANSWER_LIMIT)
        return {"start ms": 1000 * (time.monotonic() - began)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Shots:
    """Pictures by way of the node."""

    port: int
    post: wire.Post

    def take(self) -> Sample:
        samples = []
        for _ in range(SHOTS):
            began = time.perf_counter()
            answer = ask(self.port, self.post)
            samples.append(1000 * (time.perf_counter() - began))
            if b'"image"' not in answer:
                raise LoadFailed(f"screen.snapshot brought no picture: {answer[-300:]!r}")
        return {"snapshot ms": statistics.median(samples)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Pictures:
    """The same pictures, taken without a call."""

    talk: Talk

    def take(self) -> Sample:
        return {"snapshot ms": statistics.median(float(self.talk.ask(b"\n")) for _ in range(SHOTS))}


def measure_snapshots(options: Options, figures: Figures) -> None:
    """screen.snapshot of a screen of 1280x800, beside capture and encoding alone."""
    xvfb = shutil.which("Xvfb")
    if xvfb is None:
        say("  screen.snapshot is left out: apt-get install xvfb")
        return
    with ExitStack() as stack:
        words = (xvfb, "-displayfd", "1", "-nolisten", "tcp", "-screen", "0", SCREEN)
        screen = Talk(stack.enter_context(talking(words, name="Xvfb")))
        display = {"DISPLAY": f":{screen.read().decode().strip()}"}
        state = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        port = free_port()
        argv = (str(options.venv / "bin" / "openclaw"), "node", "--state-dir", str(state), "--port", str(port))
        node = stack.enter_context(serving(argv, name=NODE, extra=display))
        first_answer(node, port, state / "mcp-token.txt")
        post = tool_call((state / "mcp-token.txt").read_text(), "screen.snapshot")
        python = (str(options.venv / "bin" / "python"), "-c", PHOTOGRAPH)
        alone = Talk(stack.enter_context(talking(python, name=PICTURE, extra=display)))
        turns = [
            Turn(subject=PICTURE, take=Pictures(talk=alone).take),
            Turn(subject=NODE, take=Shots(port=port, post=post).take),
        ]
        interleave("snapshots", turns, rounds=options.rounds, figures=figures)


def measure(options: Options, figures: Figures) -> float:
    """All of it; returns the memory at rest in MiB."""
    seconds = QUICK_SECONDS if options.quick else SAMPLE_SECONDS
    argv = (str(options.venv / "bin" / "openclaw"), "node")
    with ExitStack() as stack:
        state = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        port = free_port()
        words = (*argv, "--state-dir", str(state), "--port", str(port))
        node = stack.enter_context(serving(words, name=NODE))
        first_answer(node, port, state / "mcp-token.txt")
        time.sleep(IDLE_SECONDS)
        idle = resident_mib(node.process.pid)
        hello = next(subject for subject in http_subjects(options.venv) if subject.name == HELLO)
        hello_port = free_port()
        floor = stack.enter_context(serving((*hello.argv, str(hello_port)), name=FLOOR))
        get = wire.Post(label="GET", method="GET", headers=(), body=b"")
        _await(floor, hello_port, get)
        post = tool_call((state / "mcp-token.txt").read_text())
        loads = [
            Load(name=FLOOR, port=hello_port, post=get, seconds=seconds),
            Load(name=NODE, port=port, post=post, seconds=seconds),
        ]
        turns = [Turn(subject=load.name, take=load.take) for load in loads]
        interleave("calls", turns, rounds=options.rounds, figures=figures)
        python = str(options.venv / "bin" / "python")
        starts = [
            Turn(subject=PASS, take=Bare(python=python).take),
            Turn(subject=NODE, take=Start(argv=argv, state=state).take),
        ]
        interleave("starts", starts, rounds=max(5, options.rounds), figures=figures)
    return idle


def _await(child: Child, port: int, post: wire.Post) -> None:
    while True:
        try:
            ask(port, post)
        except ConnectionRefusedError:
            if child.exited(within=PAUSE):
                raise child.failed("left before it listened") from None
        else:
            return


def main() -> int:
    options = read_options("node", __doc__ or "", rounds=5, quick_rounds=3)
    figures = Figures()
    leave_nothing_behind()
    try:
        if shutil.which("wrk") is None:
            raise LoadFailed("wrk, the load generator, is not installed: apt-get install wrk")
        say_conditions(options)
        calm()
        idle = measure(options, figures)
        measure_snapshots(options, figures)
    except (NotInstalled, ChildFailed, LoadFailed) as exc:
        sys.stderr.write(f"{exc}\n")
        return UNUSABLE
    calls = figures.ratio("/s", of=NODE, to=FLOOR)
    start = figures.ratio("start ms", of=NODE, to=PASS)
    rows = [
        [name, *(number(figures.median(name, column)) for column in COLUMNS)] for name in (FLOOR, NODE, PASS, PICTURE)
    ]
    say_table(f"device.info at {CALLERS} callers, screen.snapshot at 1, and the start", ["", *COLUMNS], rows)
    share = figures.ratio("snapshot ms", of=PICTURE, to=NODE)
    targets = [
        Target(what=f"device.info at {CALLERS}", unit="x hello", measured=calls, at_least=0.4),
        Target(what="start to first answer", unit="x python -c pass", measured=start, at_most=20),
        Target(what="capture and encoding", unit="of screen.snapshot", measured=share, at_least=0.7),
        Target(what="memory at rest", unit="MiB", measured=idle, at_most=60),
    ]
    return conclude(
        options, figures, {NODE: {"calls / hello": calls, "start / pass": start, "picture / snapshot": share}}, targets
    )


if __name__ == "__main__":
    sys.exit(main())
