"""Gateways forked from a process that has imported their modules: to import them takes longer than most tests.

Each is a process of its own, with its own environment and process group, that runs the command line `openclaw gateway`.
"""

import atexit
import contextlib
import functools
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from typing import IO, Any

from tests.running import END_WAIT, OPENCLAW, ROOT

MODULES = (
    "openclaw_mcp.cli.commands",
    "openclaw_mcp.cli.gateway",
    "openclaw_mcp.gateway.wiring.assembly",
    "openclaw_mcp.gateway.agents.models.runtime",
    "openclaw_mcp.gateway.agents.models.gateway_runtime",
    "openclaw_mcp.gateway.agents.cli.runtime",
    "openclaw_mcp.tools.schema_check",
)
"""What a gateway imports when it starts and when it first runs an agent of each kind."""
MAX_REQUEST = 1 << 20
PAUSE = 0.01  # seconds between two looks at a process that is to end


class ForkedProcess:
    """A child of the server below, to be used as a `subprocess.Popen`."""

    def __init__(self, server: "ForkServer", pid: int, stdout: IO[bytes]) -> None:
        self.pid, self.stdout, self._server = pid, stdout, server
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = self._server.ask({"ended": self.pid})
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        end = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if end is not None and time.monotonic() > end:
                raise subprocess.TimeoutExpired("openclaw gateway", timeout or 0.0)
            time.sleep(PAUSE)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class ForkServer:
    """The process that has imported everything."""

    def __init__(self) -> None:
        self._wire, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            words = (sys.executable, "-m", "tests.gateway.wiring.fork_server", str(theirs.fileno()))
            self._process = subprocess.Popen(words, cwd=ROOT, pass_fds=(theirs.fileno(),))

    def start(self, words: list[str], env: Mapping[str, str]) -> ForkedProcess:
        reader, writer = os.pipe()
        try:
            pid = self.ask({"start": words, "env": dict(env)}, writer)
        finally:
            os.close(writer)
        return ForkedProcess(self, pid, os.fdopen(reader, "rb", buffering=0))

    def ask(self, request: Any, *descriptors: int) -> Any:
        socket.send_fds(self._wire, [json.dumps(request).encode()], descriptors)
        return json.loads(self._wire.recv(MAX_REQUEST))

    def close(self) -> None:
        self._wire.close()
        self._process.wait(END_WAIT)


@functools.cache
def fork_server() -> ForkServer:
    """The one of this process."""
    server = ForkServer()
    atexit.register(server.close)
    return server


@contextlib.contextmanager
def forked(*words: str, env: Mapping[str, str]) -> Iterator[ForkedProcess]:
    """`openclaw` with these words, in a process group of its own, which is gone when the block ends."""
    child = fork_server().start([OPENCLAW, *words], env)
    try:
        yield child
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait(END_WAIT)
        child.stdout.close()


def _serve(wire: socket.socket) -> list[str] | None:
    """Fork whenever it is asked for. The words for this process: None in the server, once its client is gone."""
    while True:
        data, descriptors, _, _ = socket.recv_fds(wire, MAX_REQUEST, 1)
        if not data:
            return None
        request = json.loads(data)
        if "ended" in request:
            ended, status = os.waitpid(request["ended"], os.WNOHANG)
            wire.send(json.dumps(os.waitstatus_to_exitcode(status) if ended else None).encode())
        elif pid := os.fork():
            os.close(descriptors[0])
            wire.send(json.dumps(pid).encode())
        else:
            _become(request["env"], descriptors[0])
            wire.close()
            return list(request["start"])


def _become(env: Mapping[str, str], stdout: int) -> None:
    """What `exec` gives a process: its own group, output and environment."""
    os.setsid()
    os.dup2(stdout, 1)
    os.close(stdout)
    os.environ.clear()
    os.environ.update(env)


if __name__ == "__main__":
    for name in MODULES:
        importlib.import_module(name)
    with socket.socket(fileno=int(sys.argv[1])) as asked:
        given = _serve(asked)
    if given is not None:
        from openclaw_mcp.cli import main

        sys.argv = given
        sys.exit(main())
