"""Count the functions of ours that a call passes one after another, from the socket to the tool's own code.

`python scripts/hops.py` prints three walks: an HTTP tools/call to the node, an app's tool through the proxy, and
chat.send with one tool call by a model. `-v` names each function. Only functions that call the next one count: a helper
that returns before the tool is reached is no hop. A task, and a callback of the event loop, continues the walk of the
code that started it. PYTHONPATH chooses another version of the package to count.
"""

import asyncio
import contextvars
import http.server
import inspect
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
import types
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.modules["uvloop"] = asyncio  # its loop can't be watched, and calls the same functions

import openclaw_mcp  # noqa: E402 - after the event loop was chosen
from openclaw_mcp.apps.client import AppTools  # noqa: E402
from openclaw_mcp.cli import main as openclaw  # noqa: E402

SOURCE = str(Path(openclaw_mcp.__file__).parent)
TOKEN = "hops"
VERBOSE = "-v" in sys.argv
PATIENCE = 30.0  # seconds for one walk

_HANDLE_RUN = vars(asyncio.Handle)["_run"].__code__
_before: contextvars.ContextVar[tuple[str, ...]] = contextvars.ContextVar(
    "functions passed before this task", default=()
)


def passed() -> tuple[str, ...]:
    """Functions of ours from where the call came in to the one that runs now."""
    frame: types.FrameType | None = inspect.currentframe()
    here: list[str] = []
    while frame is not None:
        code = frame.f_code
        if code is _HANDLE_RUN:  # below it is the event loop, and the command that started it
            break
        if code.co_filename.startswith(SOURCE) and not code.co_name.startswith("<"):
            here.append(f"{code.co_filename[len(SOURCE) + 1 :]} {code.co_qualname}")
        frame = frame.f_back
    return (*_before.get(), *reversed(here))


def follow_tasks() -> None:
    """Have tasks and callbacks know which functions led to them."""
    loop: Any = asyncio.base_events.BaseEventLoop
    call_soon, create_task = loop.call_soon, loop.create_task

    def continued(context: contextvars.Context | None) -> contextvars.Context:
        walk = passed()
        context = context or contextvars.copy_context()
        context.run(_before.set, walk)
        return context

    def soon(self: Any, callback: Any, *args: Any, context: contextvars.Context | None = None) -> Any:
        return call_soon(self, callback, *args, context=context or continued(None))

    def task(self: Any, coro: Any, *, name: str | None = None, context: contextvars.Context | None = None) -> Any:
        return create_task(self, coro, name=name, context=continued(context.copy() if context else None))

    loop.call_soon, loop.create_task = soon, task
    transport: Any = vars(asyncio.selector_events)["_SelectorSocketTransport"]
    read_ready = transport._read_ready  # noqa: SLF001 - asyncio names this step no other way

    def begin(self: Any) -> None:
        _before.set(())
        read_ready(self)

    transport._read_ready = begin  # noqa: SLF001


def stop_at(function: str, reached: Callable[[tuple[str, ...]], None]) -> None:
    def profile(frame: types.FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_name == function and frame.f_code.co_filename.startswith(SOURCE):
            reached(passed())

    sys.setprofile(profile)


def report(walk: str, *parts: tuple[str, ...]) -> None:
    """Say what was found and end: the servers of this process have done their work."""
    if VERBOSE:
        for part in parts:
            print("\n".join(f"    {function}" for function in part), end="\n    --\n")
    print(f"{sum(map(len, parts)):3d}  {walk}", flush=True)
    os._exit(0)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def call_tool(url: str, token: str, tool: str, arguments: dict[str, Any]) -> None:
    meta = {"io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientCapabilities": {}}
    params = {"name": tool, "arguments": arguments, "_meta": meta}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).encode()
    headers = {
        "Content-Type": "application/json", "Accept": "application/json, text/event-stream", "Mcp-Name": tool,
        "Mcp-Method": "tools/call", "MCP-Protocol-Version": "2026-07-28", "Authorization": f"Bearer {token}",
    }  # fmt: skip
    with urllib.request.urlopen(urllib.request.Request(url, body, headers)):  # noqa: S310 - our own server
        pass


def when_listening(port: int, then: Callable[[], object]) -> None:
    def wait() -> None:
        while True:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except OSError:
                time.sleep(0.1)
        then()

    threading.Thread(target=wait, daemon=True).start()


def serve(*command: str) -> None:
    sys.argv[1:] = command
    openclaw()


def node(state: Path, port: int) -> None:
    stop_at("_which", lambda walk: report("HTTP tools/call to the node", walk[:-1]))
    token = state / "mcp-token.txt"
    when_listening(
        port,
        lambda: call_tool(f"http://127.0.0.1:{port}/", token.read_text().strip(), "system.which", {"bins": ["sh"]}),
    )
    serve("node", "--port", str(port), "--state-dir", str(state))


def proxy(_: Path, port: int) -> None:
    sent: list[tuple[str, ...]] = []
    transport: Any = vars(asyncio.selector_events)["_SelectorSocketTransport"]
    write = transport.write

    def watched(self: Any, data: bytes) -> None:
        if b'"invoke_tool"' in data:
            sent.append(passed())
        write(self, data)

    transport.write = watched

    def lend() -> None:
        app = AppTools(f"http://127.0.0.1:{port}", device="hops")

        @app.tool
        async def touch() -> None:
            report("an app's tool through the proxy (to the bridge; in the app)", sent[0], passed())

        async def wait() -> None:
            async with app:
                threading.Thread(target=call_tool, args=(app.session.mcp_url, "", "touch", {}), daemon=True).start()
                await app.wait()

        asyncio.run(wait())

    when_listening(port, lend)
    serve("proxy", "--port", str(port))


class Model(http.server.BaseHTTPRequestHandler):
    """Calls `agents_list` once."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        call = {"index": 0, "id": "1", "type": "function", "function": {"name": "agents_list", "arguments": "{}"}}
        deltas = [({"role": "assistant", "tool_calls": [call]}, None), ({}, "tool_calls")]
        chunks = [{"choices": [{"index": 0, "delta": delta, "finish_reason": end}]} for delta, end in deltas]
        text = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())


def chat(state: Path, port: int) -> None:
    stop_at("_agents", lambda walk: report("chat.send with one tool call by a model", walk[:-1]))
    model = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Model)
    threading.Thread(target=model.serve_forever, daemon=True).start()
    provider = {"api": "openai", "baseUrl": f"http://127.0.0.1:{model.server_port}/v1", "apiKey": "x"}
    config = {"models": {"providers": {"lab": provider}}, "agents": {"defaults": {"model": "lab/m"}}}
    (state / "openclaw.json").write_text(json.dumps(config))
    os.environ["OPENCLAW_GATEWAY_TOKEN"] = TOKEN
    params = json.dumps({"sessionKey": "main", "message": "hello", "idempotencyKey": "1"})
    url = f"ws://127.0.0.1:{port}"
    send = [sys.executable, "-m", "openclaw_mcp", "gateway", "call", "chat.send", params, "--url", url]
    when_listening(port, lambda: subprocess.run(send, stdout=subprocess.DEVNULL, check=False))
    serve("gateway", "--port", str(port), "--state-dir", str(state))


WALKS = {"node": node, "proxy": proxy, "chat": chat}


def main() -> None:
    if chosen := [name for name in sys.argv[1:] if name in WALKS]:
        follow_tasks()
        with tempfile.TemporaryDirectory() as folder:
            WALKS[chosen[0]](Path(folder), free_port())
        return
    for name in WALKS:
        subprocess.run(
            [sys.executable, __file__, name, *sys.argv[1:]], stderr=subprocess.DEVNULL, timeout=PATIENCE, check=False
        )


if __name__ == "__main__":
    main()
