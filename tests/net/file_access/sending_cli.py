"""Stands in for a CLI whose model was talked into sending files: it asks its server for each, and says what came of it.

Started as `sending_cli.py PLACES RESULTS -p --mcp-config … …`, PLACES being a JSON list of paths. For each it calls
`message_send_attachment` and `message_send`; RESULTS is written with what they answered. Its answer names the first
file in the ways other agents show files.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

HELLO = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "sending", "version": "1"}}


def main() -> None:
    places, results, args = json.loads(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]
    sys.stdin.read()
    config = args[args.index("--mcp-config") + 1]
    text = config if config.lstrip().startswith("{") else Path(config).read_text()
    entry = json.loads(text)["mcpServers"]["remoteclaw"]
    child = subprocess.Popen([entry["command"], *entry["args"]], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    answer(child, 0, "initialize", HELLO)
    outcomes = []
    for number, place in enumerate(places, start=1):
        for tool, arguments in (
            ("message_send_attachment", {"file": place}),
            ("message_send", {"media": place, "message": "as asked"}),
        ):
            call = {"name": tool, "arguments": {**conversation(entry), **arguments}}
            result = answer(child, f"{number}{tool}", "tools/call", call)
            outcomes.append([tool, place, result["isError"], result["content"][0]["text"]])
    draft = results.with_suffix(".draft")
    draft.write_text(json.dumps(outcomes))
    draft.rename(results)
    assert child.stdin is not None
    child.stdin.close()
    child.wait()
    reply = f"Here it is.\nMEDIA:{places[0]}\n![it](file://{places[0]})\n[[media:{places[0]}]]"
    say(type="system", subtype="init", session_id="s-1", model="claude-x", mcp_servers=[])
    say(type="result", subtype="success", is_error=False, result=reply, session_id="s-1")


def conversation(entry: Any) -> Any:
    """Where the run came from, as its server is given; `room` of the local channel for one that came from nowhere."""
    lines = Path(entry["args"][2]).read_text().splitlines()
    variables = dict(line.removeprefix("export REMOTECLAW_").split("=", 1) for line in lines)
    return {"target": variables.get("TO", "room").strip("'"), "channel": variables.get("CHANNEL", "local").strip("'")}


def answer(child: "subprocess.Popen[bytes]", id: object, method: str, params: Any) -> Any:
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write(json.dumps({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).encode() + b"\n")
    child.stdin.flush()
    while (message := json.loads(child.stdout.readline())).get("id") != id:
        pass
    return message["result"]


def say(**event: Any) -> None:
    print(json.dumps(event), flush=True)


if __name__ == "__main__":
    main()
