"""Stands in for a CLI that has bad luck: it calls a tool, and its server is killed when the gateway has done what was
asked and before the server hears so.

Started as `cut_off.py CALLS -p --mcp-config … …`, where CALLS is `{"calls": [[name, arguments], …], "says"}`; the last
call has the bad luck. The server is started with a relay before the gateway, which keeps that call's answer back. With
`"dies": true` it is the CLI itself that is killed then.
"""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

LAUNCH = '. "$0" && export REMOTECLAW_GATEWAY_URL="$RELAY" && exec "$@"'
PATIENCE = 60.0


class Relay:
    """Bytes both ways; from `keep` on, those of the gateway stay here."""

    def __init__(self, gateway: tuple[str, int]) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"ws://127.0.0.1:{self._listener.getsockname()[1]}"
        self._gateway = gateway
        self._kept: bytes | None = None
        self.answered = threading.Event()
        self._listed = threading.Event()
        threading.Thread(target=self._serve, daemon=True).start()

    def keep(self) -> None:
        """Once the server has the list of further tools, which it asks for of itself: its answer is not the call's."""
        assert self._listed.wait(PATIENCE)
        self._kept = b""

    def _serve(self) -> None:
        server, _ = self._listener.accept()
        gateway = socket.create_connection(self._gateway)
        threading.Thread(target=self._out, args=(server, gateway), daemon=True).start()
        passed = b""
        while data := gateway.recv(1 << 16):
            if self._kept is None:
                server.sendall(data)
                passed += data
                if b'"payload":{"tools":[' in passed:
                    self._listed.set()
                continue
            self._kept += data
            if b'"type":"res"' in self._kept:
                self.answered.set()

    @staticmethod
    def _out(server: socket.socket, gateway: socket.socket) -> None:
        while data := server.recv(1 << 16):
            gateway.sendall(data)


def main() -> None:
    wanted, args = json.loads(sys.argv[1]), sys.argv[2:]
    sys.stdin.read()
    entry = json.loads(args[args.index("--mcp-config") + 1])["mcpServers"]["remoteclaw"]
    _, _, passes, *server = entry["args"]
    found = re.search(r"REMOTECLAW_GATEWAY_URL=.?ws://([\d.]+):(\d+)", Path(passes).read_text())
    assert found is not None
    relay = Relay((found[1], int(found[2])))
    child = subprocess.Popen(
        ["/bin/sh", "-c", LAUNCH, passes, *server],
        env={**os.environ, "RELAY": relay.url},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    received = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "cut-off", "version": "1"}}
    ask(child, 1, "initialize", received)
    receive(child, 1)
    *lucky, unlucky = wanted["calls"]
    for id, (name, arguments) in enumerate([["session_status", {}], *lucky], start=2):
        ask(child, id, "tools/call", {"name": name, "arguments": arguments})
        assert not receive(child, id)["isError"], name
    relay.keep()
    ask(child, 0, "tools/call", {"name": unlucky[0], "arguments": unlucky[1]})
    assert relay.answered.wait(PATIENCE)
    os.kill(os.getpid() if wanted["dies"] else child.pid, signal.SIGKILL)
    child.wait()
    say(type="system", subtype="init", session_id="s-1", model="claude-x", mcp_servers=[])
    say(type="result", subtype="success", is_error=False, result=wanted["says"], session_id="s-1")


def ask(child: "subprocess.Popen[bytes]", id: int, method: str, params: Any) -> None:
    assert child.stdin is not None
    child.stdin.write(json.dumps({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).encode() + b"\n")
    child.stdin.flush()


def receive(child: "subprocess.Popen[bytes]", id: int) -> Any:
    assert child.stdout is not None
    while (message := json.loads(child.stdout.readline())).get("id") != id:
        pass
    return message["result"]


def say(**event: Any) -> None:
    print(json.dumps(event), flush=True)


if __name__ == "__main__":
    main()
