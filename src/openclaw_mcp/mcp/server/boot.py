"""First answers before heavy imports: a stdio server opens its pipe here and loads the rest meanwhile.

A client's first messages — `initialize`, `server/discover`, `ping`, the first `tools/list` — are the same every time,
so each server ships its answers as generated `FirstReplies` (see `first_replies`), and a test proves that the real
server gives the same. Everything else is left to the real server, which takes over with the bytes that were read but
not answered.

The first answer waits for this module's imports, so there are few: `typing` alone would cost as much as all of them.
"""

from __future__ import annotations

import gc
import json
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    import threading
    from collections.abc import Callable
    from typing import Any

    from .stdio import StdioHandover

    RunServer = Callable[[StdioHandover], None]

HANDSHAKE_VERSIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
STATELESS_VERSION = "2026-07-28"
LONGEST_LINE = 1 << 16  # a longer line is no opening message
_PREFIX = "io.modelcontextprotocol/"


class FirstReplies:
    """A surface's opening answers, as JSON text. Generated from the real server."""

    def __init__(self, *, initialize: str, discover: str, tools: str | None, stateless_tools: str | None) -> None:
        self.initialize = initialize
        """The result of `initialize`, with VERSION_PLACEHOLDER instead of the negotiated version."""
        self.discover = discover
        self.tools = tools
        """The result of `tools/list` in the handshake era; None when the list is decided at run time."""
        self.stateless_tools = stateless_tools


VERSION_PLACEHOLDER = "@VERSION@"


def serve(first_replies: FirstReplies, load: Callable[[], RunServer]) -> None:
    """Answer the opening exchange while `load` imports the real server, then hand the pipe over to it."""
    wire = os.dup(1)
    os.dup2(2, 1)  # everything printed to stdout from now on is sent to stderr, never to the client
    loader = _Loader(load)
    pending, initialize = b"", None
    while True:
        chunk = os.read(0, LONGEST_LINE)
        pending += chunk
        replies = []
        while (end := pending.find(b"\n")) >= 0:
            reply, params = answer(first_replies, pending[:end])
            if reply is None:
                break
            initialize = params or initialize
            replies.append(reply)
            pending = pending[end + 1 :]
        if replies:
            _write(wire, b"".join(replies))
        if not chunk and not pending:
            return
        loader.start()
        if pending or not chunk:
            break
    run = loader.wait()
    # Here for start-up: by now the loader has imported it anyway.
    from .stdio import StdioHandover

    run(StdioHandover(wire, pending, initialize))


def answer(first_replies: FirstReplies, line: bytes) -> tuple[bytes | None, dict[str, Any] | None]:
    """The reply to one opening message (empty to a notification), or None for the real server to answer it.

    Beside it the parameters of an `initialize`, which the real server will want to know.
    """
    if len(line) > LONGEST_LINE or b"\\ud" in line.lower():  # half a character may be hiding in such an escape
        return None, None
    try:
        message = json.loads(line, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return None, None
    if type(message) is not dict or message.get("jsonrpc") != "2.0":
        return None, None
    method, params, id = message.get("method"), message.get("params", {}), message.get("id")
    if method == "notifications/initialized" and "id" not in message:
        return b"", None
    # 53 bits: far within what the real server accepts as an id, so nothing is answered that it would refuse.
    if type(params) is not dict or not (type(id) is str or (type(id) is int and abs(id) < 1 << 53)):
        return None, None
    result = _find_result(first_replies, method, params)
    if result is None:
        return None, None
    reply = f'{{"jsonrpc":"2.0","id":{json.dumps(id)},"result":{result}}}\n'
    return reply.encode(), params if method == "initialize" else None


def _find_result(first_replies: FirstReplies, method: Any, params: dict[str, Any]) -> str | None:
    if method == "initialize":
        version = params.get("protocolVersion")
        if type(version) is not str:
            return None
        known = version if version in HANDSHAKE_VERSIONS else HANDSHAKE_VERSIONS[-1]
        return first_replies.initialize.replace(VERSION_PLACEHOLDER, known)
    meta: Any = params.get("_meta")
    stateless = type(meta) is dict and _PREFIX + "protocolVersion" in meta
    if stateless and not (
        meta[_PREFIX + "protocolVersion"] == STATELESS_VERSION
        and type(meta.get(_PREFIX + "clientCapabilities")) is dict
        and _PREFIX + "logLevel" not in meta
    ):
        return None
    if method == "server/discover" and stateless:
        return first_replies.discover
    if method == "ping" and not stateless:
        return "{}"
    if method == "tools/list" and params.get("cursor") is None:
        return first_replies.stateless_tools if stateless else first_replies.tools
    return None


def _refuse_constant(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


def _write(wire: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(wire, view) :]
        except BrokenPipeError:  # the client is gone, and with it the reason to run
            sys.exit(0)


class _Loader:
    """Imports in a second thread, so that the pipe is served meanwhile."""

    def __init__(self, load: Callable[[], RunServer]) -> None:
        self._load = load
        self._thread: threading.Thread | None = None
        self._run: RunServer | None = None
        self._error: BaseException | None = None

    def start(self) -> None:
        if self._thread is None:
            import threading  # here for start-up: by now the first answer is out

            self._thread = threading.Thread(target=self._import_server, daemon=True)
            self._thread.start()

    def wait(self) -> RunServer:
        self.start()
        assert self._thread is not None
        self._thread.join()
        if self._error is not None:
            raise self._error
        assert self._run is not None
        return self._run

    def _import_server(self) -> None:
        gc.disable()  # imports leave no garbage, and looking for some takes time
        try:
            self._run = self._load()
        except BaseException as exc:  # noqa: BLE001  raised again where the main thread waits
            self._error = exc
        gc.enable()
