"""Benchmark: HTTP tools/call on both wires at 1, 16 and 64 keep-alive connections, against a floor and peers.

Named like a standard module it hides from scripts of this folder; nothing here may import that one.
"""

import json
import shutil
import socket
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass

import wire
from measure import Figures, Ratios, Sample, Turn, interleave
from processes import (
    Child,
    ChildFailed,
    Talk,
    cpu_seconds,
    leave_nothing_behind,
    resident_mib,
    serving,
    talking,
)
from report import Options, Target, conclude, number, options, say_conditions, say_table
from subjects import HELLO, HERE, OURS, SDK, NotInstalled, Subject, http_subjects

CONNECTIONS = (1, 16, 64)
JUDGED_AT = 16
SAMPLE_SECONDS = 2
QUICK_SECONDS = 1  # wrk counts in whole seconds
START_LIMIT = 30.0  # the slowest peer needs about two seconds
SOCKET_LIMIT = 10.0
RETRY_PAUSE = 0.05
UNUSABLE = 2
FLOOR = f"{HELLO} GET"
HELLO_REQUESTS = {
    "GET": wire.Post(label="GET", method="GET", headers=(), body=b""),
    "POST": wire.http_calls()["M"],
}
NO_WRK = "wrk, the load generator, is not installed: apt-get install wrk (Debian) or your system's package"


class LoadFailed(Exception):
    """The load generator is missing, or saw a failed request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """One subject on one wire, up and serving."""

    name: str
    child: Child
    port: int
    post: wire.Post
    echoes: bool

    def check(self) -> None:
        """The right answer, once, before figures are believed."""
        head, _, body = _ask_once(self.port, self.post).partition(b"\r\n\r\n")
        if head.split(b" ", 2)[1:2] != [b"200"]:
            raise wire.WrongAnswer(f"{self.name}: {head[:200]!r} {body[:300]!r}")
        if self.echoes:
            wire.check_calls([body], of=self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """One endpoint under so many connections."""

    endpoint: Endpoint
    connections: int
    seconds: int

    def take(self) -> Sample:
        group = self.endpoint.child.process.pid
        before = cpu_seconds(group)
        seen = self._run_wrk()
        spent = cpu_seconds(group) - before
        if seen["status"] or seen["socket"] or seen["timeout"] or not seen["requests"]:
            raise LoadFailed(f"{self.endpoint.name} at {self.connections} connections: {seen}")
        self.endpoint.check()
        figures = {
            "/s": 1e6 * seen["requests"] / seen["us"],
            "p50 ms": seen["p50_us"] / 1000,
            "p99 ms": seen["p99_us"] / 1000,
            "CPU us": 1e6 * spent / seen["requests"],
        }
        memory = {"RSS MiB": resident_mib(group)} if self.connections == max(CONNECTIONS) else {}
        return {f"{self.connections}: {name}": value for name, value in figures.items()} | memory

    def _run_wrk(self) -> dict[str, int]:
        post = self.endpoint.post
        settings = {
            "BENCH_METHOD": post.method,
            "BENCH_BODY": post.body.decode(),
            "BENCH_HEADERS": "\n".join(f"{name}: {value}" for name, value in post.headers),
        }
        load = ("-t1", f"-c{self.connections}", f"-d{self.seconds}s", f"--timeout={SOCKET_LIMIT:.0f}s")
        address = f"http://127.0.0.1:{self.endpoint.port}/mcp"
        argv = ("wrk", *load, "-s", str(HERE / "call.lua"), address)
        with talking(argv, name="wrk", extra=settings) as child:
            said = Talk(child).rest().decode()
            lines = [line for line in said.splitlines() if line.startswith("{")]
            if not lines:
                raise child.failed(f"reported nothing: {said[-300:]}")
        report: dict[str, int] = json.loads(lines[-1])
        return report


def _ask_once(port: int, post: wire.Post) -> bytes:
    """One HTTP/1.0 exchange, which by its age is neither chunked nor kept alive."""
    lines = [f"{post.method} /mcp HTTP/1.0", f"Host: 127.0.0.1:{port}", f"Content-Length: {len(post.body)}"]
    lines += [f"{name}: {value}" for name, value in post.headers]
    request = "\r\n".join([*lines, "", ""]).encode() + post.body
    answer = b""
    with socket.create_connection(("127.0.0.1", port), timeout=SOCKET_LIMIT) as connection:
        connection.sendall(request)
        while data := connection.recv(1 << 16):
            answer += data
    return answer


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    return port


def start(subject: Subject, servers: ExitStack) -> list[Endpoint]:
    """Bring a subject up and check it on each of its wires."""
    port = _free_port()
    child = servers.enter_context(serving((*subject.argv, str(port)), name=subject.name))
    _await_listening(child, port)
    posts = HELLO_REQUESTS if subject.name == HELLO else wire.http_calls()
    endpoints = [
        Endpoint(
            name=f"{subject.name} {label}",
            child=child,
            port=port,
            post=posts[label],
            echoes=subject.name != HELLO,
        )
        for label in subject.wires
    ]
    for endpoint in endpoints:
        endpoint.check()
    return endpoints


def _await_listening(child: Child, port: int) -> None:
    deadline = time.monotonic() + START_LIMIT
    while time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=SOCKET_LIMIT).close()
        except ConnectionRefusedError:
            if child.exited(within=RETRY_PAUSE):
                raise child.failed("left before it listened") from None
        else:
            return
    raise child.failed(f"did not listen within {START_LIMIT:.0f} s")


def measure(subjects: list[Subject], asked: Options, figures: Figures) -> list[str]:
    """All endpoints under all loads; returns the endpoints' names in order."""
    seconds = QUICK_SECONDS if asked.quick else SAMPLE_SECONDS
    with ExitStack() as servers:
        endpoints = [endpoint for subject in subjects for endpoint in start(subject, servers)]
        turns = [
            Turn(
                subject=endpoint.name,
                take=Load(endpoint=endpoint, connections=count, seconds=seconds).take,
            )
            for count in CONNECTIONS
            for endpoint in endpoints
        ]
        interleave("calls", turns, rounds=asked.rounds, figures=figures)
    return [endpoint.name for endpoint in endpoints]


def ratios_of(figures: Figures, names: list[str]) -> Ratios:
    """Every endpoint against the floor at each load, and ours against it on the wire they share."""
    ratios: Ratios = {}
    for name in names:
        of = {f"{count}: / floor": figures.ratio(f"{count}: /s", of=name, to=FLOOR) for count in CONNECTIONS}
        twin = f"{OURS} {name.rpartition(' ')[2]}"
        of["ours / this"] = figures.ratio(f"{JUDGED_AT}: /s", of=twin, to=name)
        ratios[name] = of
    return ratios


def say_throughput(figures: Figures, ratios: Ratios) -> None:
    head = [""]
    for count in CONNECTIONS:
        head += [f"c={count} /s", "x floor"]
    rows = []
    for name, of in ratios.items():
        row = [name]
        for count in CONNECTIONS:
            row += [number(figures.median(name, f"{count}: /s")), number(of[f"{count}: / floor"])]
        rows.append([*row, number(of["ours / this"])])
    say_table("calls a second by keep-alive connections", [*head, f"ours / this at {JUDGED_AT}"], rows)


def say_cost(figures: Figures, names: list[str]) -> None:
    columns = ("p50 ms", "p99 ms", "CPU us")
    rows = []
    for name in names:
        cells = [number(figures.median(name, f"{JUDGED_AT}: {column}")) for column in columns]
        rows.append([name, *cells, number(figures.median(name, "RSS MiB"))])
    title = f"at {JUDGED_AT} connections: latency, processor time per call; memory"
    say_table(title, ["", *columns, "RSS MiB"], rows)


def targets_of(ratios: Ratios) -> list[Target]:
    targets = []
    for label in ("M", "L"):
        floor = ratios[f"{OURS} {label}"][f"{JUDGED_AT}: / floor"]
        peer = ratios.get(f"{SDK} {label}", {}).get("ours / this")
        what = f"wire {label} at {JUDGED_AT}"
        targets.append(Target(what=what, unit=f"x {HELLO}", measured=floor, at_least=0.5))
        targets.append(Target(what=what, unit="x Python SDK", measured=peer, at_least=4))
    return targets


def main() -> int:
    asked = options("http", (__doc__ or "").split("\n", 1)[0], rounds=5, quick_rounds=3)
    figures = Figures()
    leave_nothing_behind()
    try:
        if shutil.which("wrk") is None:
            raise LoadFailed(NO_WRK)
        subjects = http_subjects(asked.venv)
        say_conditions(asked)
        names = measure(subjects, asked, figures)
    except (NotInstalled, ChildFailed, LoadFailed, wire.WrongAnswer) as exc:
        sys.stderr.write(f"{exc}\n")
        return UNUSABLE
    ratios = ratios_of(figures, names)
    say_throughput(figures, ratios)
    say_cost(figures, names)
    return conclude(asked, figures, ratios, targets_of(ratios))


if __name__ == "__main__":
    sys.exit(main())
