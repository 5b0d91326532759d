"""Load by `wrk`: one request repeated over keep-alive connections, checked before and after. Linux only."""

import json
import shutil
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass

import wire
from measure import Sample
from processes import Child, Talk, cpu_seconds, resident_mib, talking
from subjects import HERE

SOCKET_LIMIT = 10.0
START_LIMIT = 30.0  # the slowest peer needs about two seconds
RETRY_PAUSE = 0.05
NO_WRK = "wrk, the load generator, is not installed: apt-get install wrk (Debian) or your system's package"

Check = Callable[[bytes], None]
"""Looks at the body of an answer. Raises wire.WrongAnswer."""


class LoadFailed(Exception):
    """The load generator is missing, or saw a failed request."""


def need_wrk() -> None:
    if shutil.which("wrk") is None:
        raise LoadFailed(NO_WRK)


def nothing(_: bytes) -> None:
    """The check of a floor: any answer will do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """One request that one subject answers; `groups` are the processes whose time it costs."""

    name: str
    groups: tuple[int, ...]
    port: int
    post: wire.Post
    path: str = "/mcp"
    right: Check = nothing

    def check(self) -> None:
        """The right answer, once, before figures are believed."""
        head, _, body = ask_once(self.port, self.path, self.post).partition(b"\r\n\r\n")
        if head.split(b" ", 2)[1:2] != [b"200"]:
            raise wire.WrongAnswer(f"{self.name}: {head[:200]!r} {body[:300]!r}")
        self.right(body)


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """One endpoint under so many connections."""

    endpoint: Endpoint
    connections: int
    seconds: int
    memory: bool = False
    pause: int = 0
    """Milliseconds each connection rests between two requests."""

    def take(self) -> Sample:
        before = sum(map(cpu_seconds, self.endpoint.groups))
        report = self.run()
        spent = sum(map(cpu_seconds, self.endpoint.groups)) - before
        if report["status"] or report["socket"] or report["timeout"] or not report["requests"]:
            raise LoadFailed(f"{self.endpoint.name} at {self.connections} connections: {report}")
        self.endpoint.check()
        figures = {
            "/s": 1e6 * report["requests"] / report["us"],
            "p50 ms": report["p50_us"] / 1000,
            "p99 ms": report["p99_us"] / 1000,
            "CPU us": 1e6 * spent / report["requests"],
        }
        memory = {"RSS MiB": sum(map(resident_mib, self.endpoint.groups))} if self.memory else {}
        return {f"{self.connections}: {name}": value for name, value in figures.items()} | memory

    def run(self, meanwhile: Callable[[Child], None] | None = None) -> dict[str, int]:
        """What wrk reports; `meanwhile` is called with it running, and must return by its end."""
        post = self.endpoint.post
        settings = {
            "BENCH_METHOD": post.method,
            "BENCH_BODY": post.body.decode(),
            "BENCH_HEADERS": "\n".join(f"{name}: {value}" for name, value in post.headers),
            "BENCH_PAUSE_MS": str(self.pause),
        }
        load = ("-t1", f"-c{self.connections}", f"-d{self.seconds}s", f"--timeout={SOCKET_LIMIT:.0f}s")
        address = f"http://127.0.0.1:{self.endpoint.port}{self.endpoint.path}"
        argv = ("wrk", *load, "-s", str(HERE / "call.lua"), address)
        with talking(argv, name="wrk", extra=settings) as child:
            if meanwhile is not None:
                meanwhile(child)
            child.exited(within=self.seconds + SOCKET_LIMIT)  # silent until then, which reading alone would not bear
            output = Talk(child).rest().decode()
            lines = [line for line in output.splitlines() if line.startswith("{")]
            if not lines:
                raise child.failed(f"reported nothing: {output[-300:]}")
        report: dict[str, int] = json.loads(lines[-1])
        return report


def ask_once(port: int, path: str, post: wire.Post) -> bytes:
    """One HTTP/1.0 exchange, which by its age is neither chunked nor kept alive."""
    lines = [f"{post.method} {path} HTTP/1.0", f"Host: 127.0.0.1:{port}", f"Content-Length: {len(post.body)}"]
    lines += [f"{name}: {value}" for name, value in post.headers]
    request = "\r\n".join([*lines, "", ""]).encode() + post.body
    answer = b""
    with socket.create_connection(("127.0.0.1", port), timeout=SOCKET_LIMIT) as connection:
        connection.sendall(request)
        while data := connection.recv(1 << 16):
            answer += data
    return answer


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    return port


def await_listening(child: Child, port: int) -> None:
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
