"""Each test runs on every engine: sessions in memory, sessions in a real Redis, and from the other side of one.

`across` registers and attaches at one instance and calls through a second one, so that every call is relayed.
"""

import contextlib
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from openclaw_mcp.proxy.settings import ProxySettings

from ..programs import need
from ..running import process
from .proxies import Proxy, proxy

Start = Callable[..., AbstractAsyncContextManager[Proxy]]
READY_WAIT = 10.0


class Redis:
    """A real Redis on a port of its own, keeping nothing on disk. It can be stopped and started again."""

    def __init__(self) -> None:
        self._program = need("redis-server", package="redis-server")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]
        self.url = f"redis://127.0.0.1:{self._port}/0"
        self._stack = contextlib.ExitStack()

    def start(self) -> None:
        words = [self._program, "--port", str(self._port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
        self._stack.enter_context(process(*words, stdout=subprocess.DEVNULL))
        end = time.monotonic() + READY_WAIT
        while not self._answers():
            assert time.monotonic() < end, "Redis did not start"
            time.sleep(0.02)

    def stop(self) -> None:
        """Killed: no instance is notified."""
        self._stack.close()

    def forget(self) -> None:
        assert self.ask(b"FLUSHALL\r\n") == b"+OK\r\n"

    def ask(self, command: bytes) -> bytes:
        with socket.create_connection(("127.0.0.1", self._port), timeout=READY_WAIT) as wire:
            wire.sendall(command)
            return wire.recv(4096)

    def _answers(self) -> bool:
        try:
            return self.ask(b"PING\r\n") == b"+PONG\r\n"
        except OSError:
            return False


@pytest.fixture(scope="session")
def one_redis() -> Iterator[Redis]:
    redis = Redis()
    redis.start()
    yield redis
    redis.stop()


@pytest.fixture
def redis(one_redis: Redis) -> Redis:
    """The Redis of all tests, empty."""
    one_redis.forget()
    return one_redis


@pytest.fixture(params=["memory", "redis", "across"])
def proxies(request: pytest.FixtureRequest, tmp_path: Path) -> Start:
    """Starts a proxy with the settings given; one in memory has a file for its sessions, as most have."""
    url = "" if request.param == "memory" else request.getfixturevalue("redis").url
    file = "" if url else str(tmp_path / "sessions.sqlite")

    @contextlib.asynccontextmanager
    async def start(**fields: Any) -> AsyncIterator[Proxy]:
        settings = ProxySettings(**{"audit": "off", "redis_url": url, "sessions_file": file, **fields})
        async with proxy(settings) as running:
            if request.param != "across":
                yield running
                return
            async with proxy(settings) as second:
                running.calls = second.address
                yield running

    return start
