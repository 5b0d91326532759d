"""The command line. Commands are imported when they are chosen; the stdio servers sooner than that."""

import sys

STDIO_COMMANDS: dict[tuple[str, ...], str] = {
    ("echo",): "echo",
    ("mcp-server",): "mcp_server",
    ("node", "--stdio"): "node",
}
"""Command lines of stdio servers that answer before the parser of all commands is even imported."""


def main() -> int:
    """Entry point of `openclaw` and `openclaw-mcp`."""
    surface = STDIO_COMMANDS.get(tuple(sys.argv[1:])) or _proxy_stdio_module(sys.argv[1:])
    if surface is not None:
        # Here for start-up: a client waits for this process's first answer.
        from . import stdio

        return stdio.serve(surface)
    from .commands import run  # here for start-up: the fast path above needs none of it

    return run(sys.argv[1:])


def _proxy_stdio_module(args: list[str]) -> str | None:
    """The proxy's stdio side takes options; what is not one of them is left to the parser to complain about."""
    if args[:1] != ["proxy"] or "--stdio" not in args:
        return None
    rest = iter(args[1:])
    for word in rest:
        if word in ("--session", "--device", "--proxy-base-url"):
            if next(rest, None) is None:
                return None
        elif word != "--stdio":
            return None
    return "proxy_stdio"
