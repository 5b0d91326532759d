"""A node as a real process, with a state directory of its own."""

import contextlib
import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.running import OPENCLAW, READY_WAIT, process, read_line

WITHOUT_DESKTOP = ("DBUS_SESSION_BUS_ADDRESS", "XDG_RUNTIME_DIR", "DISPLAY", "WAYLAND_DISPLAY", "OPENCLAW_MCP_PORT")


class RunningNode:
    def __init__(self, child: subprocess.Popen[bytes], state: Path) -> None:
        self.child = child
        self.state = state
        self.address = ""

    def line(self) -> str:
        """The next line it prints."""
        return read_line(self.child, READY_WAIT).decode().strip()

    @property
    def token(self) -> str:
        return (self.state / "mcp-token.txt").read_text()

    @property
    def bearer(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"}


@contextlib.contextmanager
def running_node(
    state: Path, *words: str, env: Mapping[str, str] | None = None, **settings: Any
) -> Iterator[RunningNode]:
    """A node on a free port; without a desktop unless `env` gives it one."""
    state.mkdir(parents=True, exist_ok=True)
    if settings:
        (state / "node.json").write_text(json.dumps(settings))
    bare = {name: value for name, value in os.environ.items() if name not in WITHOUT_DESKTOP}
    environment = {**bare, "OPENCLAW_STATE_DIR": str(state), **(env or {})}
    words = words or ("--port", "0")
    with process(OPENCLAW, "node", *words, stdout=subprocess.PIPE, env=environment) as child:
        node = RunningNode(child, state)
        reply = node.line()
        if reply.startswith("mcp: http"):
            node.address = reply.split()[-1]
        yield node
