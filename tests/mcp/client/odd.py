"""A stdio MCP server with the faults of real ones: `python -m tests.mcp.client.odd [FAULT]`. Speaks the handshake era.

Faults: `silent` never answers; `garbage` prints what is no message; `floods` stderr; `dies` at its first request;
`dies-of-probe` at `server/discover`; `stubborn` ignores SIGTERM and the end of input; `parent` has a child that does.
"""

import json
import os
import signal
import subprocess
import sys
import time
from typing import Any

FAULT = sys.argv[1] if len(sys.argv) > 1 else ""
TOOLS = ["echo", "die", "hang", "huge", "too_long", "pid", "env", "more", "ask", "count", "step", "complain"]
STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"

cancelled: list[Any] = []
pending: dict[Any, Any] = {}


def send(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def send_text(id: Any, text: str) -> None:
    send({"id": id, "result": {"content": [{"type": "text", "text": text}]}})


def call(id: Any, name: str, arguments: dict[str, Any], token: Any) -> None:  # noqa: C901  one case a tool
    match name:
        case "echo":
            send_text(id, arguments.get("text", ""))
        case "die":
            sys.stderr.write("the disk is on fire\npassword is hunter2-hunter2\n")
            sys.stderr.flush()
            os.kill(os.getpid(), signal.SIGKILL)
        case "hang":
            pass
        case "huge":
            send_text(id, "x" * (8 << 20))
        case "too_long":
            send_text(id, "x" * (10 << 20))
        case "pid":
            send_text(id, str(os.getpid()))
        case "env":
            send_text(id, json.dumps(dict(os.environ)))
        case "more":
            TOOLS.append(arguments["name"])
            send({"method": "notifications/tools/list_changed"})
            send_text(id, "ok")
        case "ask":
            schema = {"type": "object", "properties": {"name": {"type": "string"}}}
            pending[f"q{id}"] = id
            send(
                {
                    "id": f"q{id}",
                    "method": "elicitation/create",
                    "params": {"message": "Who?", "requestedSchema": schema},
                }
            )
        case "count":
            send_text(id, json.dumps(cancelled))
        case "step":
            send({"method": "notifications/progress", "params": {"progressToken": token, "progress": 1, "total": 2}})
            send_text(id, "stepped")
        case "complain":
            sys.stderr.write("line\n" * 2_000_000)
            send_text(id, "complained")
        case _:
            send({"id": id, "error": {"code": -32602, "message": f"Unknown tool: {name}"}})


def serve(message: dict[str, Any]) -> None:
    id, method, params = message.get("id"), message.get("method"), message.get("params", {})
    if method is None and id in pending:
        send_text(pending.pop(id), json.dumps(message.get("result", message.get("error"))))
    elif method == "initialize":
        info = {"name": "odd", "version": "1"}
        capabilities = {"tools": {"listChanged": True}}
        send({"id": id, "result": {"protocolVersion": "2025-06-18", "capabilities": capabilities, "serverInfo": info}})
    elif method == "tools/list":
        start = int(params.get("cursor") or 0)
        page = [{"name": name, "inputSchema": {"type": "object"}} for name in TOOLS[start : start + 5]]
        more = {"nextCursor": str(start + 5)} if start + 5 < len(TOOLS) else {}
        send({"id": id, "result": {"tools": page, **more}})
    elif method == "tools/call":
        call(id, params["name"], params.get("arguments", {}), params.get("_meta", {}).get("progressToken"))
    elif method == "notifications/cancelled":
        cancelled.append(params["requestId"])
    elif id is not None:
        if FAULT == "dies-of-probe" and method == "server/discover":
            sys.exit("what is server/discover?")
        send({"id": id, "error": {"code": -32601, "message": "Method not found"}})


def main() -> None:
    if FAULT == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if FAULT == "parent":
        child = subprocess.Popen([sys.executable, "-c", STUBBORN])
        print(f"child {child.pid}", file=sys.stderr, flush=True)
        TOOLS.append(f"child_{child.pid}")
    if FAULT == "garbage":
        print('Welcome!\n{"half": \n[1, 2]\n\x00\xff', flush=True)
    if FAULT == "floods":
        sys.stderr.write("noise " * 200_000)
    if FAULT == "dies":
        sys.exit("I will not start")
    for line in sys.stdin:
        if FAULT != "silent":
            serve(json.loads(line))
    if FAULT == "stubborn":
        time.sleep(600)


if __name__ == "__main__":
    main()
