"""Servers as real processes: started, waited for, ended by process group."""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Protocol

ROOT = Path(__file__).parent.parent
OPENCLAW = str(Path(sys.executable).with_name("openclaw"))
READY_WAIT = 30.0
ANSWER_WAIT = 20.0
END_WAIT = 10.0


class Child(Protocol):
    """A process whose output is read."""

    @property
    def stdout(self) -> IO[bytes] | None: ...


@contextlib.contextmanager
def process(*words: str, **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """A child in a process group of its own, which is gone when the block ends."""
    child = subprocess.Popen(words, start_new_session=True, cwd=ROOT, **options)
    try:
        yield child
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait(END_WAIT)
        for stream in (child.stdin, child.stdout, child.stderr):
            if stream is not None:
                stream.close()


@contextlib.contextmanager
def http_server(*words: str) -> Iterator[str]:
    """A server that prints a line ending in its address once it answers; yields that address."""
    with process(*words, stdout=subprocess.PIPE) as child:
        yield read_line(child, READY_WAIT).decode().split()[-1]


@contextlib.contextmanager
def echo_over_http() -> Iterator[str]:
    with http_server(OPENCLAW, "echo", "--http", "--port", "0") as address:
        yield address


@contextlib.contextmanager
def everything_over_http() -> Iterator[str]:
    with http_server(sys.executable, "-m", "tests.conformance.everything", "0") as address:
        yield address


def read_line(child: Child, seconds: float = ANSWER_WAIT) -> bytes:
    """One line of the child's output, read byte by byte so that nothing is lost in a buffer."""
    assert child.stdout is not None
    descriptor, line, end = child.stdout.fileno(), b"", time.monotonic() + seconds
    while not line.endswith(b"\n"):
        ready, _, _ = select.select([descriptor], [], [], max(0, end - time.monotonic()))
        assert ready, f"no whole line within {seconds} s; so far {line[:200]!r}"
        data = os.read(descriptor, 1)
        assert data, f"end of output; so far {line[:200]!r}"
        line += data
    return line


class StdioServer:
    """A stdio MCP server and the other end of its pipe."""

    def __init__(self, child: subprocess.Popen[bytes]) -> None:
        self.child = child
        self._buffer = bytearray()

    def send(self, message: Any) -> None:
        self.write(json.dumps(message).encode() + b"\n")

    def write(self, data: bytes) -> None:
        assert self.child.stdin is not None
        self.child.stdin.write(data)
        self.child.stdin.flush()

    def receive(self, seconds: float = ANSWER_WAIT) -> Any:
        """The next message. Anything on stdout that is no JSON line fails the test."""
        assert self.child.stdout is not None
        end = time.monotonic() + seconds
        looked = 0  # a line may have tens of megabytes, and comes in small pieces
        while (at := self._buffer.find(b"\n", looked)) < 0:
            looked = len(self._buffer)
            ready, _, _ = select.select([self.child.stdout], [], [], max(0, end - time.monotonic()))
            assert ready, f"no answer within {seconds} s; so far {self._buffer[:200]!r}"
            data = os.read(self.child.stdout.fileno(), 1 << 20)
            assert data, f"the server closed its output; so far {self._buffer[:200]!r}"
            self._buffer += data
        line = bytes(self._buffer[:at])
        del self._buffer[: at + 1]
        return json.loads(line)

    def ask(self, method: str, params: Any = None, *, id: Any = 1) -> Any:
        message = {"jsonrpc": "2.0", "id": id, "method": method}
        if params is not None:
            message["params"] = params
        self.send(message)
        return self.receive()

    def hang_up(self) -> int:
        """Close the server's input; its exit status."""
        assert self.child.stdin is not None
        self.child.stdin.close()
        return self.child.wait(END_WAIT)


@contextlib.contextmanager
def stdio_server(*words: str) -> Iterator[StdioServer]:
    with process(*words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0) as child:
        yield StdioServer(child)


@contextlib.contextmanager
def echo_over_stdio() -> Iterator[StdioServer]:
    with stdio_server(OPENCLAW, "echo") as server:
        yield server
