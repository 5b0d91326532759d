"""The command line. Commands are imported when they are chosen; the stdio servers sooner than that."""

import sys

STDIO: dict[tuple[str, ...], str] = {
    ("echo",): "echo",
    ("mcp-server",): "mcp_server",
    ("node", "--stdio"): "node",
}
"""Command lines of stdio servers that answer before the parser of all commands is even imported."""


def main() -> int:
    """Entry point of `openclaw` and `openclaw-mcp`."""
    surface = STDIO.get(tuple(sys.argv[1:]))
    if surface is not None:
        # Here for start-up: a client waits for this process's first answer.
        from . import stdio

        return stdio.serve(surface)
    from .commands import run  # here for start-up: the fast path above needs none of it

    return run(sys.argv[1:])
