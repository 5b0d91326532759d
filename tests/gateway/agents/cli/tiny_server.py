"""A small MCP server that stands where ours will: `echo` notes an effect and says for whom it works, `hold` stays."""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

TEXT = {"type": "object", "properties": {"text": {"type": "string"}}}
TOOLS = [
    {"name": "echo", "description": "Says it again.", "inputSchema": TEXT},
    {"name": "hold", "description": "Takes long.", "inputSchema": {"type": "object"}},
]


def call(name: str, arguments: Any) -> str:
    if name == "hold":
        Path(os.environ["REMOTECLAW_SIDE_EFFECTS_FILE"] + ".held").write_text(str(os.getpid()))
        time.sleep(600)
    with Path(os.environ["REMOTECLAW_SIDE_EFFECTS_FILE"]).open("a") as file:
        file.write(json.dumps({"to": "room", "text": arguments["text"]}) + "\n")
    return f"{arguments['text']} for {os.environ['REMOTECLAW_SESSION_KEY']}"


def answer(method: str, params: Any) -> Any:
    match method:
        case "initialize":
            known = {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}}
            return {**known, "serverInfo": {"name": "tiny", "version": "1"}}
        case "tools/list":
            return {"tools": TOOLS}
        case "tools/call":
            return {"content": [{"type": "text", "text": call(params["name"], params.get("arguments", {}))}]}
        case "ping":
            return {}
    return None


for line in sys.stdin:
    message = json.loads(line)
    if "id" in message:
        found = answer(message["method"], message.get("params"))
        error = {"error": {"code": -32601, "message": "no such method"}}
        print(
            json.dumps({"jsonrpc": "2.0", "id": message["id"], **({"result": found} if found is not None else error)})
        )
        sys.stdout.flush()
