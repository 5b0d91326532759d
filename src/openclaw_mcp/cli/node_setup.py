"""`openclaw node doctor`, `openclaw node setup`, `openclaw node token` and `openclaw node key`."""

import json
import sys
from collections.abc import Callable, Sequence
from getpass import getpass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from ..core.errors import OpenClawError
from ..core.numbers import parse_whole_number
from ..net.gateway_client.address import DEFAULT_GATEWAY_PORT
from ..net.state_dir import state_dir_path
from ..node import settings as node_settings
from ..node.address_file import AddressFile
from ..node.api_keys import ELEVENLABS_KEY, KeyStore
from ..node.host import LocalNode, choose_port
from ..node.registry import CommandStatus
from ..node.settings import DEFAULT_ENABLED, NodeSettings
from ..node.token import TokenFile
from .report import print_json

if TYPE_CHECKING:
    import argparse

GATEWAY_ALLOW_KEY = "gateway.nodes.commands.allow"
"""The key by which a gateway allows a node more commands than the defaults."""
GATEWAY_DEFAULT_COMMANDS = ("system.", "screen.snapshot", "camera.list", "location.get")


def run(options: "argparse.Namespace") -> int:
    folder = state_dir_path(options.state_dir)
    if options.action == "doctor":
        return doctor(folder, options.port, as_json=options.json)
    if options.action == "token":
        return token(folder, reset=options.reset)
    if options.action == "key":
        return key(folder, forget=options.forget)
    return setup(folder, ask=_take_default if options.yes else _ask)


# ---- doctor ----


class McpReport(Struct, frozen=True, kw_only=True, rename="camel"):
    on: bool
    address: str
    token_file: str
    token_made: bool


class GatewayReport(Struct, frozen=True, kw_only=True, rename="camel"):
    on: bool
    url: str | None
    to_allow_there: list[str]


class NodeReport(Struct, kw_only=True, rename="camel", omit_defaults=True):
    """What was found; a node that can't be made has problems alone."""

    state_directory: str
    problems: list[str]
    settings: str | None = None
    mcp: McpReport | None = None
    gateway: GatewayReport | None = None
    commands: Sequence[CommandStatus] = ()
    platform_limits: Sequence[str] = ()
    """What this platform lacks, beside commands that do not work."""


WINDOWS_LIMITS = (
    "approval questions can't be answered in a terminal here; use an MCP client that asks, or a gateway",
    "a command that runs when the node is killed goes on; end it with the Task Manager",
)


def doctor(folder: Path, port: str | None, *, as_json: bool) -> int:
    """What works here, why the rest does not, and the remedy. Exit status 1 when something is broken, not absent."""
    report = NodeReport(state_directory=str(folder), problems=[])
    try:
        node = LocalNode(folder)
        token = TokenFile(folder)
        report.settings = str(node.settings_path)
        report.mcp = McpReport(
            on=node.settings.enable_mcp_server,
            address=AddressFile(folder).read() or f"http://127.0.0.1:{choose_port(port, node.settings).port}/",
            token_file=str(token.path),
            token_made=token.path.exists(),
        )
        offered = [spec.name for spec in node.capabilities.specs()]
        to_allow = [name for name in offered if not name.startswith(GATEWAY_DEFAULT_COMMANDS)]
        settings = node.settings
        report.gateway = GatewayReport(on=settings.enable_node_mode, url=settings.gateway_url, to_allow_there=to_allow)
        report.commands = node.capabilities.statuses()
        report.platform_limits = WINDOWS_LIMITS if sys.platform == "win32" else ()
        checks: tuple[Callable[[], object], ...] = (node.approvals.load_policy, node.consents.load, token.current_token)
        for check in checks:
            try:
                check()
            except OpenClawError as exc:
                report.problems.append(str(exc))
    except OpenClawError as exc:
        report.problems.append(str(exc))
    if as_json:
        print_json(report)
    else:
        _print_report(report)
    return 1 if report.problems else 0


def _print_report(report: NodeReport) -> None:
    print(f"state     {report.state_directory}")
    if (mcp := report.mcp) and (gateway := report.gateway):
        print(f"mcp       {'on' if mcp.on else 'off'}, {mcp.address}, token in {mcp.token_file}")
        print(f"gateway   {'on' if gateway.on else 'off'}, {gateway.url or 'no address set'}")
        for command in report.commands:
            print(f"  {'no ' if command.missing else 'yes'}  {command.name}")
            if command.missing:
                print(f"       {command.missing.reason} {command.missing.remedy}")
        for limit in report.platform_limits:
            print(f"platform  {limit}")
        if gateway.on and gateway.to_allow_there:
            print(f"A real OpenClaw gateway offers these only when {GATEWAY_ALLOW_KEY} lists them:")
            print(f"  {json.dumps(gateway.to_allow_there)}")
    for problem in report.problems:
        print(f"problem   {problem}")


# ---- token ----


def token(folder: Path, *, reset: bool) -> int:
    """Print the token's file, never the token: terminals are watched and output is stored."""
    file = TokenFile(folder)
    if reset:
        file.reset()
    else:
        file.ensure()
    print(file.path)
    return 0


# ---- key ----


def key(folder: Path, *, forget: bool) -> int:
    """Store the ElevenLabs key, or delete it. It is never an argument: those are visible in the list of processes."""
    keys = KeyStore(folder)
    if forget:
        keys.delete(ELEVENLABS_KEY)
        print("The ElevenLabs key is deleted.")
        return 0
    given = getpass("ElevenLabs API key: ") if sys.stdin.isatty() else sys.stdin.readline()
    in_keyring = keys.store(ELEVENLABS_KEY, given) == "keyring"
    place = "the desktop's keyring" if in_keyring else keys.path(ELEVENLABS_KEY)
    print(f"The ElevenLabs key is kept in {place}.")
    return 0


# ---- setup ----


def setup(folder: Path, *, ask: Callable[[str, str], str]) -> int:
    """A few questions, then the settings file and the entry for a client."""
    path = folder / node_settings.SETTINGS_FILE
    old = node_settings.load_settings(path)
    mcp = _ask_yes_no(ask, "Serve MCP clients of this machine?", default=old.enable_mcp_server)
    port = _ask_port(ask, old.mcp_port) if mcp else old.mcp_port
    gateway = _ask_yes_no(ask, "Connect to an OpenClaw gateway as a node?", default=old.enable_node_mode)
    url = (
        ask("Gateway address", old.gateway_url or f"ws://127.0.0.1:{DEFAULT_GATEWAY_PORT}")
        if gateway
        else old.gateway_url
    )
    switches = {name: _ask_yes_no(ask, f"Offer {name}?", default=old.is_enabled(name)) for name in DEFAULT_ENABLED}
    fresh: NodeSettings = msgspec.structs.replace(
        old,
        enable_mcp_server=mcp,
        enable_node_mode=gateway,
        mcp_port=port,
        gateway_url=url,
        capabilities={**old.capabilities, **switches},
    )
    node_settings.save_settings(path, fresh)
    print(f"\nWritten to {path}; a running node applies it at once.")
    if mcp:
        file = TokenFile(folder)
        file.ensure()
        _print_clients(port, file.path)
    print("Start the node with: openclaw node")
    return 0


def _print_clients(port: int, token_path: Path) -> None:
    address = f"http://127.0.0.1:{port}/"
    print(
        f"\nClaude Code, from here:\n  claude mcp add --transport http openclaw-node {address} "
        f'--header "Authorization: Bearer $(cat {token_path})"\n'
        "Or in .mcp.json:\n"
        f'  {{"mcpServers": {{"openclaw-node": {{"type": "http", "url": "{address}", '
        f'"headers": {{"Authorization": "Bearer <the text in {token_path}>"}}}}}}}}\n'
        'Clients that start their servers themselves: command "openclaw", arguments ["node", "--stdio"].\n'
    )


def _ask_yes_no(ask: Callable[[str, str], str], question: str, *, default: bool) -> bool:
    while True:
        answer = ask(question, "yes" if default else "no").lower()
        if answer in ("y", "yes", "n", "no"):
            return answer.startswith("y")
        print("Please answer yes or no.")


def _ask_port(ask: Callable[[str, str], str], default: int) -> int:
    while True:
        port = parse_whole_number(ask("On which port?", str(default)), maximum=65535)
        if port is not None:
            return port
        print("Please give a number from 0 to 65535.")


def _ask(question: str, default: str) -> str:
    try:
        return input(f"{question} [{default}] ").strip() or default
    except EOFError:
        raise OpenClawError("nothing was written: answer every question, or take every default with --yes") from None


def _take_default(question: str, default: str) -> str:
    print(f"{question} {default}")
    return default
