"""An `openclaw proxy` that is up, apps that lend to it, and plain requests to it."""

import json
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

import wire
from load import SOCKET_LIMIT, Endpoint, await_listening, free_port
from processes import Child, Talk, serving, talking
from subjects import SOURCES, ours_command, ours_python

TOOLS = 20  # of a session, unless said otherwise
DESCRIPTION = "What this tool does, in a sentence of the length that people write for such tools."


@dataclass(frozen=True, slots=True, kw_only=True)
class Proxy:
    """One instance."""

    child: Child
    port: int

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def group(self) -> int:
        return self.child.process.pid


@contextmanager
def proxy(venv: Path, *, redis: str = "") -> Iterator[Proxy]:
    """As shipped: no tokens, audit lines to stderr (a file here)."""
    settings = {"OPENCLAW_PROXY_REDIS_URL": redis} if redis else {}
    argv = (ours_command(venv), "proxy", "--port", "0")
    with talking(argv, name="openclaw proxy", extra=settings) as child:
        address = _line(child).split()[-1]
        yield Proxy(child=child, port=urlsplit(address).port or 0)


@contextmanager
def lender(venv: Path, to: Proxy, *, tools: int) -> Iterator[str]:
    """An app in a process of its own that answers at once; yields its session's id."""
    argv = (ours_python(venv), str(SOURCES / "lender.py"), to.address, str(tools))
    with talking(argv, name="the app") as child:
        yield _line(child).strip().rpartition("/")[2]


@contextmanager
def crowd(venv: Path, to: Proxy, *, count: int) -> Iterator[list[str]]:
    """So many apps in one other process, each with a session and a bridge; yields the sessions' ids."""
    argv = (ours_python(venv), str(SOURCES / "crowd.py"), to.address, str(count))
    with talking(argv, name="the apps") as child:
        ids: list[str] = json.loads(_line(child))
        yield ids


@contextmanager
def redis_server() -> Iterator[str]:
    """A Redis that keeps nothing on disk; yields its address."""
    port = free_port()
    argv = ("redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no")
    with serving(argv, name="redis-server") as child:
        await_listening(child, port)
        yield f"redis://127.0.0.1:{port}/0"


def has_redis(venv: Path) -> bool:
    module = next((venv / "lib").glob("python*/site-packages/redis"), None)
    return module is not None and shutil.which("redis-server") is not None


def calls_to(proxy: Proxy, session: str, *, name: str) -> Endpoint:
    """The echo call of wire M to a session, as load."""
    return Endpoint(
        name=name,
        groups=(proxy.group,),
        port=proxy.port,
        post=wire.http_calls()["M"],
        path=f"/v1/mcp/{session}",
        right=partial(_echoed, of=name),
    )


def registration(number: int, *, tools: int = TOOLS, own_words: bool = False) -> bytes:
    """The body that registers a session; with `own_words` no two sessions describe their tools alike."""
    schema = {
        "type": "object",
        "properties": {
            "path": {"type": "string", "description": "which one it is about"},
            "limit": {"type": "integer", "minimum": 1, "maximum": 100, "default": 10},
        },
        "required": ["path"],
    }
    ending = f" Number {number}." if own_words else ""
    listed = [
        {"name": f"tool_{index}", "description": f"{DESCRIPTION} {index}{ending}", "input_schema": schema}
        for index in range(tools)
    ]
    return wire.encode({"device_id": f"device-{number}", "app_version": "1", "tools": listed})


class Wire:
    """One keep-alive connection, for what `wrk` can't do."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=SOCKET_LIMIT)
        self._buffer = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, _: TracebackType | None) -> None:
        self._socket.close()

    def ask(self, method: str, path: str, body: bytes = b"", headers: tuple[tuple[str, str], ...] = ()) -> Any:
        """The JSON of a 200 answer. Raises wire.WrongAnswer."""
        return json.loads(self._exchange(method, path, body, headers))

    def register(self, body: bytes) -> str:
        """Make a session and list its tools once, as every MCP client does first; its id."""
        id: str = self.ask("POST", "/v1/chat/sessions", body)["mcpSessionId"]
        self.ask("POST", f"/v1/mcp/{id}", wire.encode({"jsonrpc": "2.0", "id": 1, "method": "tools/list"}))
        return id

    def well(self) -> None:
        """Return when /health says ok. Raises wire.WrongAnswer."""
        if self._exchange("GET", "/health", b"", ()) != b"ok":
            raise wire.WrongAnswer("the proxy is not well")

    def _exchange(self, method: str, path: str, body: bytes, headers: tuple[tuple[str, str], ...]) -> bytes:
        lines = [f"{method} {path} HTTP/1.1", f"Host: 127.0.0.1:{self._port}", f"Content-Length: {len(body)}"]
        lines += [f"{name}: {value}" for name, value in headers or (("Content-Type", "application/json"),)]
        self._socket.sendall("\r\n".join([*lines, "", ""]).encode() + body)
        head = self._until(b"\r\n\r\n")
        fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:] if line)
        content = self._exactly(int(fields[b"content-length"]))
        if head.split(b" ", 2)[1] != b"200":
            raise wire.WrongAnswer(f"{method} {path[:40]}: {head[:100]!r} {content[:200]!r}")
        return content

    def _until(self, end: bytes) -> bytes:
        while end not in self._buffer:
            self._more()
        found, _, self._buffer = self._buffer.partition(end)
        return found

    def _exactly(self, count: int) -> bytes:
        while len(self._buffer) < count:
            self._more()
        found, self._buffer = self._buffer[:count], self._buffer[count:]
        return found

    def _more(self) -> None:
        data = self._socket.recv(1 << 16)
        if not data:
            raise wire.WrongAnswer("the proxy closed the connection")
        self._buffer += data


def _line(child: Child) -> str:
    """What a child says once it is ready, which may be after more than one pipeful."""
    talk, output = Talk(child), b""
    while not output.endswith(b"\n"):
        output += talk.read()
    return output.decode()


def _echoed(body: bytes, *, of: str) -> None:
    wire.check_calls([body], of=of)
