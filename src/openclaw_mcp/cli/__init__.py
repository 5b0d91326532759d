"""The command line. A command is imported when it is chosen; stdio servers start before the parser is imported."""

import sys

STDIO_COMMANDS: dict[tuple[str, ...], str] = {
    ("echo",): "echo",
    ("mcp-server",): "mcp_server",
    ("node", "--stdio"): "node",
}
"""Command lines of stdio servers that answer before the parser of all commands is imported."""


def main() -> int:
    """Entry point of `openclaw` and `openclaw-mcp`."""
    try:
        return _run_command()
    except KeyboardInterrupt:  # while a command's modules are imported, which takes a second on a busy machine
        return 130


def _run_command() -> int:
    surface = STDIO_COMMANDS.get(tuple(sys.argv[1:])) or _proxy_stdio_module(sys.argv[1:])
    if surface is not None:
        # Here for start-up: a client waits for this process's first answer.
        from . import stdio

        return stdio.serve(surface)
    from .commands import run  # here for start-up: the fast path above needs none of it

    return run(sys.argv[1:])


def _proxy_stdio_module(args: list[str]) -> str | None:
    """The stdio proxy takes options; with any other argument the parser reports the error."""
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
