"""`remoteclaw-mcp-server`: the gateway's tools for a CLI agent. Its settings come from the environment alone."""

import os
import sys

REQUIRED = (
    "REMOTECLAW_GATEWAY_URL",
    "REMOTECLAW_GATEWAY_TOKEN",
    "REMOTECLAW_SESSION_KEY",
    "REMOTECLAW_SIDE_EFFECTS_FILE",
)


def main() -> int:
    missing = [name for name in REQUIRED if not os.environ.get(name)]
    if missing:
        print(f"remoteclaw-mcp-server: {missing[0]} is not set", file=sys.stderr)
        return 1
    print("remoteclaw-mcp-server: this version has no gateway tools yet; see the changelog", file=sys.stderr)
    return 1
