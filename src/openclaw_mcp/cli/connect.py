"""`openclaw connect`: add our surfaces to an MCP client's settings, after showing the change."""

import argparse
import difflib
import os
import shutil
import sys
from pathlib import Path
from sysconfig import get_path
from typing import Final

from ..connect.changes import SettingsEdit, SettingsEditor
from ..connect.clients import ALIASES, CLIENTS, SupportedClient
from ..connect.entries import ClientEntry, HttpClientEntry, StdioClientEntry
from ..core.errors import OpenClawError
from ..net.state_dir import state_dir, state_dir_path
from ..node.token import TOKEN_FILE as NODE_TOKEN_FILE
from ..node.token import TokenFile
from ..protocol.bridge import DEFAULT_URL
from ..proxy import settings as proxy_settings
from . import run_state
from .gateway import ensure_token_file, token_file_path
from .locations import find_gateway, find_node_url, find_proxy_url, port_from_env, port_from_state
from .report import printable

SURFACES: Final = ("node", "order", "tools", "proxy")
ENTRY_NAMES: Final = {"node": "openclaw-node", "order": "openclaw", "tools": "openclaw-tools", "proxy": "openclaw-app"}
"""The name of each surface in a client's settings."""
NODE_OFF_HINT: Final = (
    f"the node's MCP server is {run_state.OFF_LABEL}; set enableMcpServer to true there, or leave --http out"
)
DESKTOP_VARIABLES: Final = (
    "DISPLAY", "WAYLAND_DISPLAY", "XAUTHORITY", "XDG_RUNTIME_DIR", "XDG_CURRENT_DESKTOP", "DBUS_SESSION_BUS_ADDRESS",
    "DBUS_SYSTEM_BUS_ADDRESS", "PULSE_SERVER", "PIPEWIRE_REMOTE", "PIPEWIRE_RUNTIME_DIR",
)  # fmt: skip
"""What the node's screen, canvas, notifications and sound need of a desktop session: a client may start programs with
hardly any environment."""
PROGRAM_ARGUMENTS: Final[dict[str, tuple[str, ...]]] = {
    "node": ("node", "--stdio"), "order": ("mcp-server",), "tools": (), "proxy": ("proxy", "--stdio"),
}  # fmt: skip
"""How the program of each surface is started; the proxy's is followed by the app's session."""
DIFF_CONTEXT: Final = 2  # lines around a change in the diff


class UsageError(OpenClawError):
    code = "wrong_use"


def parse_client(name: str) -> SupportedClient:
    """An option's client."""
    known = CLIENTS.get(ALIASES.get(name.lower(), name.lower()))
    if known is None:
        raise argparse.ArgumentTypeError(f"the client {name!r} is not supported; give one of {', '.join(CLIENTS)}")
    return known


def arguments(parser: argparse.ArgumentParser) -> None:
    common_arguments(parser)
    parser.add_argument("--print", action="store_true", help="only print the entries, write nothing")
    parser.add_argument(
        "--http", action="store_true", help="by address instead of by program; the token is not written"
    )
    parser.add_argument("--session", metavar="ID", help="for the proxy: the app's session")
    parser.add_argument("--device", metavar="ID", help="for the proxy: the newest session of this device")
    parser.add_argument("--force", action="store_true", help="replace an entry of the same name that is not ours")


def common_arguments(parser: argparse.ArgumentParser) -> None:
    """The options that `connect` and `disconnect` share."""
    parser.add_argument("client", type=parse_client, metavar="CLIENT", help=f"one of {', '.join(CLIENTS)}")
    parser.add_argument("--surface", choices=(*SURFACES, "all"), default="all", help="which surface (default all)")
    parser.add_argument(
        "--project", metavar="DIR", nargs="?", const=".", help="the settings of this folder instead of yours"
    )
    parser.add_argument("--yes", "-y", action="store_true", help="do not ask before writing")
    parser.add_argument("--state-dir", help="where state is kept (default $OPENCLAW_STATE_DIR, else ~/.openclaw-mcp)")


def run(options: argparse.Namespace) -> int:
    if options.project is not None and not Path(options.project).expanduser().is_dir():
        raise UsageError(f"{options.project} is no folder; give --project the folder whose settings to change")
    folder = state_dir_path(options.state_dir)
    surfaces = _select_surfaces(options, folder)
    make_entry = _http_entry if options.http else _program_entry
    entries: list[ClientEntry] = [make_entry(surface, options, folder) for surface in surfaces]
    client: SupportedClient = options.client
    if options.print:
        print(client.format_entries(entries), end="")
        return 0
    editor = SettingsEditor(state_dir(options.state_dir))
    change = editor.connect(client, settings_file(options), entries, force=options.force)
    if not change.is_empty and not confirm_change(change, yes=options.yes):
        return 1
    _ensure_tokens(surfaces, folder, http=options.http)
    editor.apply(change)
    if change.is_empty:
        print(f"{client.title} is connected already ({change.file}).")
        return 0
    names = ", ".join(entry.name for entry in entries)
    print(f"{client.title} now has {names} ({change.file}): {client.next_step}.")
    for entry in entries:
        if isinstance(entry, HttpClientEntry):
            if entry.token_env and not (client.reads_token_file and entry.token_file):
                print(_token_hint(entry))
        elif entry.name == ENTRY_NAMES["tools"] and token_file_path(folder) is None:
            hint = f"start {client.title} with it in its environment"
            print(f"The token of {entry.name} is read from $OPENCLAW_GATEWAY_TOKEN: {hint}.")
    return 0


def _ensure_tokens(surfaces: list[str], folder: Path, *, http: bool) -> None:
    """Create the token files that the entries name."""
    if "node" in surfaces and http:
        TokenFile(folder).ensure()
    if "tools" in surfaces and http:  # a program finds the one that the gateway makes
        ensure_token_file(folder)


def settings_file(options: argparse.Namespace) -> Path:
    """The settings file that the options name."""
    client: SupportedClient = options.client
    if options.project is None:
        return client.settings_file()
    if client.project_file is None:
        raise UsageError(f"{client.title} has no settings of a folder; leave --project out")
    return Path(options.project) / client.project_file


def confirm_change(change: SettingsEdit, *, yes: bool) -> bool:
    """Show the change; whether the person agrees."""
    old, new = (change.old or "").splitlines(keepends=True), (change.new or "").splitlines(keepends=True)
    name = str(change.file)
    gone = "(removed)" if change.new is None else name
    for line in difflib.unified_diff(old, new, name, gone, n=DIFF_CONTEXT):
        print(printable(line.removesuffix("\n")))  # the last line of a file may have no end of its own
    if yes:
        return True
    if not sys.stdin.isatty():
        print("Nothing was written: add --yes to write this without a question.", file=sys.stderr)
        return False
    if input("Write this? [y/N] ").strip().lower() in ("y", "yes"):
        return True
    print("Nothing was written.", file=sys.stderr)
    return False


def _select_surfaces(options: argparse.Namespace, folder: Path) -> list[str]:
    named, off = bool(options.session or options.device), options.http and not find_node_url(folder)
    if options.surface == "all":
        left_out = {
            **({} if named else {"proxy": "it belongs to an app's session; name it with --session or --device"}),
            **({"order": "it is started as a program; connect it without --http"} if options.http else {}),
            **({"node": NODE_OFF_HINT} if off else {}),
        }
        for surface, reason in left_out.items():
            print(f"Left out: {ENTRY_NAMES[surface]}: {reason}.", file=sys.stderr)
        return [surface for surface in SURFACES if surface not in left_out]
    if options.surface == "node" and off:
        raise UsageError(f"there is no address to connect to: {NODE_OFF_HINT}")
    if options.surface == "proxy" and not named:
        raise UsageError("an app's tools belong to a session: give --session ID, or --device ID for its newest")
    if options.surface == "order" and options.http:
        raise UsageError("order_openclaw is started as a program; leave --http out")
    return [options.surface]


def _program_entry(surface: str, options: argparse.Namespace, folder: Path) -> StdioClientEntry:
    name, env, args = ENTRY_NAMES[surface], _state_env(options, folder), PROGRAM_ARGUMENTS[surface]
    match surface:
        case "node":
            env |= {variable: os.environ[variable] for variable in DESKTOP_VARIABLES if os.environ.get(variable)}
            return StdioClientEntry(name=name, command=script_path("openclaw"), args=args, env=env)
        case "order":
            env |= _named_gateway(folder)
            return StdioClientEntry(name=name, command=script_path("openclaw"), args=args, env=env)
        case "proxy":
            which = ("--session", options.session) if options.session else ("--device", options.device)
            url = proxy_settings.read_settings().server_url.rstrip("/")
            there = () if url == DEFAULT_URL else ("--proxy-base-url", url)
            return StdioClientEntry(name=name, command=script_path("openclaw"), args=(*args, *which, *there), env=env)
    tools = {
        "REMOTECLAW_STATE_DIR": str(folder),
        **_named_gateway(folder),
        "REMOTECLAW_SESSION_KEY": "main",
        "REMOTECLAW_SIDE_EFFECTS_FILE": str(side_effects_file(folder, options.client.id)),
        "REMOTECLAW_SENDER_IS_OWNER": "true",
    }
    return StdioClientEntry(name=name, command=script_path("remoteclaw-mcp-server"), args=args, env=tools)


def side_effects_file(folder: Path, client: str) -> Path:
    return folder / f"side-effects-{client}.ndjson"


def _http_entry(surface: str, options: argparse.Namespace, folder: Path) -> HttpClientEntry:
    name = ENTRY_NAMES[surface]
    match surface:
        case "node":
            return HttpClientEntry(
                name=name, url=find_node_url(folder), token_env="OPENCLAW_NODE_TOKEN",  # noqa: S106 - a variable's name
                token_file=folder / NODE_TOKEN_FILE,
            )  # fmt: skip
        case "tools":
            return HttpClientEntry(
                name=name, url=f"{_gateway_url('http', folder)}/mcp", token_env="OPENCLAW_GATEWAY_TOKEN",  # noqa: S106 - a variable's name
                token_file=token_file_path(folder),
            )  # fmt: skip
    if not options.session:
        raise UsageError("an address is of one session: give --session ID")
    proxy = proxy_settings.read_settings()
    token = "OPENCLAW_PROXY_OPENCLAW_TOKEN" if proxy.mcp_token else ""
    return HttpClientEntry(name=name, url=f"{find_proxy_url(folder, proxy)}/v1/mcp/{options.session}", token_env=token)


def _gateway_url(scheme: str, folder: Path) -> str:
    url = find_gateway(folder).url
    return url.replace("ws", scheme, 1) if url.startswith("ws") else url.replace("http", scheme, 1)


def _named_gateway(folder: Path) -> dict[str, str]:
    """What the environment says of the gateway's address. Where the gateway of `openclaw up` is, a program finds out
    when it starts, so that no port in a client's settings can become wrong."""
    if url := os.environ.get("OPENCLAW_GATEWAY_URL"):
        return {"OPENCLAW_GATEWAY_URL": url}
    port = port_from_env()
    return {} if port in (None, port_from_state(folder)) else {"OPENCLAW_GATEWAY_PORT": str(port)}


def _state_env(options: argparse.Namespace, folder: Path) -> dict[str, str]:
    """The variables the program needs: a client may start it with hardly any environment."""
    elsewhere = options.state_dir or os.environ.get("OPENCLAW_STATE_DIR")
    return {"OPENCLAW_STATE_DIR": str(folder)} if elsewhere else {}


def script_path(name: str) -> str:
    """The full path: programs started from a desktop rarely have a shell's PATH."""
    # Beside this program; under `python -m`, beside that Python, whose link in an environment must not be followed.
    folders = (Path(sys.argv[0]).resolve().parent, Path(sys.executable).absolute().parent, get_path("scripts"))
    found = (path for folder in folders if (path := Path(folder, name)).is_file())
    return str(next(found, shutil.which(name) or name))


def _token_hint(entry: HttpClientEntry) -> str:
    source = f'"$(cat {entry.token_file})"' if entry.token_file else "the token"
    return f"The token of {entry.name} is read from ${entry.token_env}: export {entry.token_env}={source}"
