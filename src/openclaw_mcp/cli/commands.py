"""Every command with its one-line summary; a command's module is imported when it is chosen."""

import argparse
import difflib
import json
import os
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import NoReturn

from .. import __version__
from ..core.errors import BadRequest, OpenClawError
from ..core.model import Json
from ..core.numbers import parse_whole_number

COMMANDS = {
    "up": "start every surface on this machine",
    "down": "stop the surfaces that up started",
    "restart": "stop them and start them again on the same ports",
    "status": "show which surfaces run here and whether they answer",
    "doctor": "check this installation and print a remedy for each problem",
    "sessions": "list the sessions, show one, or search their messages",
    "logs": "print the log; -f follows it",
    "demo": "call each of the four surfaces and print the answers",
    "connect": "add our surfaces to an MCP client's settings",
    "disconnect": "remove our surfaces from an MCP client's settings",
    "proxy": "lend the tools of apps to MCP clients, over HTTP or stdio",
    "gateway": "serve the gateway, or call a method of one",
    "chat": "talk to an agent in this terminal",
    "channels": "show the state of the channels, and approve senders",
    "outbox": "list messages that wait or could not be sent; retry or drop them",
    "cron": "scheduled jobs: add, list, change, run them, see their results",
    "config": "read, change and check openclaw.json",
    "mcp-server": "order_openclaw for MCP clients, over stdin and stdout",
    "node": "this machine's capabilities over MCP and over a gateway",
    "nodes": "the nodes of a gateway: see, approve, name, remove and invoke them",
    "approvals": "answer the node's questions, and change its rules and consents",
    "mcp": "other MCP servers: add, list, remove them, see and call their tools",
    "echo": "an MCP server with one tool, to check that a client can reach us",
    "policy": "which tools a caller may use, and by which rule",
    "audit": "which tools were called, by whom, and with which outcome",
}
"""Command to summary. The module of the same name in this package defines `arguments(parser)` and `run(options)`."""

DONE, FAILED, WRONG_USAGE = 0, 1, 2


class Parser(argparse.ArgumentParser):
    """Prints errors as one line on stderr and exits with status 2."""

    def error(self, message: str) -> NoReturn:
        self.exit(WRONG_USAGE, f"{self.prog}: {message}; see {self.prog} --help\n")


def parse_port(text: str) -> int:
    """An option's port number."""
    number = parse_whole_number(text, maximum=65535)
    if number is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no port number; give one from 0 to 65535")
    return number


def parse_object(text: str, example: str, *, name: str = "parameters") -> Json:
    """A JSON object given as an argument. Raises BadRequest."""
    try:
        value = json.loads(text)
    except ValueError as exc:
        raise BadRequest(f"the {name} are not JSON ({exc}); give an object such as '{example}'") from None
    if not isinstance(value, dict):
        raise BadRequest(f"the {name} must be a JSON object, such as '{example}'")
    return value


def require_cwd() -> None:
    """Raises when the current folder was removed: no program could be started in it."""
    try:
        Path.cwd()
    except FileNotFoundError:
        raise OpenClawError("the folder you are in is gone; change to another one and try again") from None


def repeat_options(add_options: Callable[[argparse.ArgumentParser], None], *parsers: argparse.ArgumentParser) -> None:
    """Accept the options after the verb as well as before it."""
    for parser in parsers:
        parser.argument_default = argparse.SUPPRESS  # a value given before the verb stays unless it is given again
        add_options(parser)


def run(args: list[str]) -> int:
    if not args or args[0] in ("-h", "--help", "help"):
        print(_help_text())
        return DONE
    if args[0] in ("-V", "--version"):
        print(f"openclaw-mcp {__version__}")
        return DONE
    name = args[0]
    if name not in COMMANDS:
        print(_unknown_command_text(name), file=sys.stderr)
        return WRONG_USAGE
    module = import_module(f".{name.replace('-', '_')}", __package__)
    parser = Parser(prog=f"openclaw {name}", description=COMMANDS[name], allow_abbrev=False)
    module.arguments(parser)
    options = parser.parse_args(args[1:])
    try:
        status: int = module.run(options)
    except OpenClawError as exc:
        from .report import printable  # here for start-up: only a failure needs it

        print(f"openclaw {name}: {printable(str(exc))}", file=sys.stderr)  # it may be the text of another program
        return FAILED
    except BrokenPipeError:  # the reader of our output closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except KeyboardInterrupt:
        return 130
    return status


def _help_text() -> str:
    width = max(map(len, COMMANDS))
    rows = "\n".join(f"  {name:{width}}  {summary}" for name, summary in COMMANDS.items())
    return (
        "usage: openclaw COMMAND [options]\n\n"
        "Agents, machines and apps reachable through MCP.\n\n"
        f"commands:\n{rows}\n\n"
        "openclaw COMMAND --help shows a command's options; openclaw --version the version."
    )


def _unknown_command_text(name: str) -> str:
    if name.startswith("-"):
        return f"openclaw: unknown option {name}; see openclaw --help"
    close = difflib.get_close_matches(name, COMMANDS, n=1)
    hint = f"did you mean {close[0]}?" if close else "see openclaw --help"
    return f"openclaw: there is no command {name!r}; {hint}"
