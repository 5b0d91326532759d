"""A real `openclaw proxy` as a process of its own, and an MCP caller for what is lent through it."""

import asyncio
import contextlib
import http.client
import json
import os
import socket
import subprocess
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

from tests import web_client
from tests.running import OPENCLAW, READY_WAIT, process, read_line

APP_TOKEN = "app-token~/+="  # not safe in a URL, as a token may be
MCP_TOKEN = "mcp-token"


@contextlib.contextmanager
def proxy(port: int = 0, **settings: str) -> Iterator[str]:
    """The address of a proxy that answers, killed in the end. Settings are named without their OPENCLAW_PROXY_ prefix.

    It keeps no session, unless it is given a SESSIONS_FILE."""
    fixed = {"APP_TOKEN": APP_TOKEN, "OPENCLAW_TOKEN": MCP_TOKEN, "AUDIT": "off", "SESSIONS_FILE": "off"}
    variables = {**fixed, **settings}
    environment = {key: value for key, value in os.environ.items() if not key.startswith("OPENCLAW_")}
    environment |= {f"OPENCLAW_PROXY_{name}": value for name, value in variables.items()}
    with process(OPENCLAW, "proxy", "--port", str(port), env=environment, stdout=subprocess.PIPE) as child:
        yield read_line(child, READY_WAIT).decode().split()[-1]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    return port


def call(url: str, tool: str, arguments: Any = None, **meta: Any) -> Any:
    """The result of `tools/call`; what came before it on a stream is under `said`."""
    params: dict[str, Any] = {"name": tool, "arguments": arguments or {}}
    if meta:
        params["_meta"] = meta
    answer = web_client.ask(url, "tools/call", params, Authorization=f"Bearer {MCP_TOKEN}")
    assert answer.status == 200, answer.body
    messages = answer.messages if "event-stream" in answer.headers["content-type"] else [answer.json]
    assert "result" in messages[-1], messages[-1]
    return {**messages[-1]["result"], "said": messages[:-1]}


async def calling(url: str, tool: str, arguments: Any = None, **meta: Any) -> Any:
    return await asyncio.to_thread(call, url, tool, arguments, **meta)


def ask_and_leave(url: str, tool: str, running: Callable[[], object]) -> None:
    """Call a tool, wait for `running` to return, and hang up."""
    body, headers = web_client.stateless("tools/call", {"name": tool, "arguments": {}})
    parts = urlsplit(url)
    all_headers = {
        "Content-Type": "application/json",
        "Accept": web_client.BOTH,
        "Authorization": f"Bearer {MCP_TOKEN}",
    }
    all_headers |= {key.replace("_", "-"): value for key, value in headers.items()}
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=web_client.WAIT)
    connection.request("POST", parts.path, json.dumps(body).encode(), all_headers)
    try:
        assert running(), f"{tool} was not called"
    finally:
        connection.close()


def tools(url: str) -> list[Any]:
    answer = web_client.ask(url, "tools/list", {}, Authorization=f"Bearer {MCP_TOKEN}")
    assert answer.status == 200, answer.body
    listed: list[Any] = answer.json["result"]["tools"]
    return listed


def text(result: Any) -> str:
    (block,) = result["content"]
    content: str = block["text"]
    return content


def api(address: str, method: str, path: str, body: Any = None) -> web_client.Answer:
    """One request of the app's HTTP API."""
    return web_client.send(f"{address}/v1/chat/sessions{path}", method, body, Authorization=f"Bearer {APP_TOKEN}")
