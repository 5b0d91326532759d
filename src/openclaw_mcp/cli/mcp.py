"""`openclaw mcp`: other MCP servers in the config: add, list, remove them, list and call their tools."""

import argparse
import asyncio
import copy
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from ..config import parsing, redaction
from ..config.file import CONFIG_FILE, ConfigFile, Snapshot
from ..core import model
from ..core.errors import BadRequest
from ..core.json_values import drop_none
from ..core.model import Json
from ..core.ports import NULL_CONTEXT
from ..core.tool_naming import SEPARATOR
from ..mcp.client import entry
from ..mcp.client.server import PooledMcpServer
from ..mcp.client.server_pool import McpServerPool
from ..net.files import read_if_exists
from ..net.state_dir import state_dir
from ..protocol.mcp import encode_tool, encode_tool_result
from ..tools.dispatcher import ToolDispatcher
from ..tools.registry import ToolRegistry
from .commands import DONE, FAILED, Parser, parse_object, require_cwd
from .config_effect import describe_effect
from .report import as_row, print_json, printable

MAX_ABOUT = 100  # characters of a tool's description in the list
LEND_HINT = "put mcp/{} into tools.alsoAllow (or tools.allow, where that is set)"


def arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION", parser_class=_ActionParser)
    add = _add_action(actions, "add", "add a server to the config, after a first connection to it")
    add.add_argument("name", help="its name; its tools are called NAME__TOOL")
    add.usage = "%(prog)s NAME [options] [-- PROGRAM [ARG ...]]"
    add.add_argument("--command", help="the program to start; or put it and its arguments after --")
    add.add_argument("--arg", action="append", default=[], help="an argument for --command; may be repeated")
    add.add_argument(
        "--env", action="append", default=[], metavar="NAME=VALUE", help="may be repeated; ${X} is replaced"
    )
    add.add_argument("--cwd", help="the folder to start the program in; its relative paths begin there")
    add.add_argument("--url", help="the address of an HTTP server instead of a program")
    add.add_argument("--header", action="append", default=[], metavar="NAME: VALUE", help="may be repeated, with --url")
    add.add_argument("--transport", choices=["streamable-http"], help="the transport of --url")
    add.add_argument("--protocol", choices=["auto", "handshake", "stateless"], help="the era of MCP (default auto)")
    add.add_argument("--agent", action="append", default=[], help="only this agent may use it; may be repeated")
    add.add_argument("--include", help="only these tools: names or * patterns, separated by commas")
    add.add_argument("--exclude", help="not these tools")
    add.add_argument("--timeout", type=float, metavar="SECONDS", help="for an answer (default 60)")
    add.add_argument("--connect-timeout", type=float, metavar="SECONDS", help="for the start (default 30)")
    add.add_argument("--disabled", action="store_true", help="keep it in the config, unused")
    add.add_argument("--no-probe", action="store_true", help="do not start it now")
    _add_action(actions, "list", "the servers in the config", json=True)
    remove = _add_action(actions, "remove", "remove a server from the config")
    remove.add_argument("name")
    tools = _add_action(actions, "tools", "start the servers and list their tools", json=True)
    tools.add_argument("name", nargs="?", help="of this server only")
    call = _add_action(actions, "call", "call a tool of a server", json=True)
    call.add_argument("name", metavar="SERVER")
    call.add_argument("tool", metavar="TOOL", help="as the server calls it, or with the prefix SERVER__")
    call.add_argument("arguments", nargs="?", default="{}", metavar="JSON", help="an object; - reads it from stdin")


class _ActionParser(Parser):
    """Puts what comes after `--` into `program` unchanged: argparse would expect it next to the name."""

    def parse_known_args(  # type: ignore[override]  # the one of its overloads that is called
        self, args: list[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        given = list(args or ())
        cut = given.index("--") if "--" in given else len(given)
        found, unknown = super().parse_known_args(given[:cut], namespace)
        found.program = given[cut + 1 :]
        return found, unknown


def _add_action(actions: Any, name: str, summary: str, *, json: bool = False) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = actions.add_parser(name, help=summary, description=summary, allow_abbrev=False)
    parser.add_argument(
        "--state-dir", help="where openclaw.json is (default $OPENCLAW_STATE_DIR, else ~/.openclaw-mcp)"
    )
    if json:
        parser.add_argument("--json", action="store_true", help="for programs")
    return parser


def run(options: argparse.Namespace) -> int:
    if options.program and options.action != "add":
        raise BadRequest(f"nothing may follow --; only add takes a program there, {options.action} does not")
    file = state_dir(options.state_dir) / CONFIG_FILE
    if options.action in ("tools", "call"):
        return asyncio.run((_list_tools if options.action == "tools" else _call_tool)(options, file))
    return {"add": _add, "list": _list, "remove": _remove}[options.action](options, file)


# ---- the config ----


def _add(options: argparse.Namespace, file: Path) -> int:
    value = _entry_from_options(options)
    tools = None
    if options.no_probe or options.disabled:
        entry.read_entry(options.name, value)
    else:
        tools = asyncio.run(_probe(options.name, value))
    known = False

    def edit(servers: Json) -> None:
        nonlocal known
        known = options.name in servers
        servers[options.name] = value

    after = _edit_servers(file, edit)
    count = "" if tools is None else f"; its tools: {tools}"
    effect = describe_effect(file.parent, after, "hot")
    print(f"{options.name} is {'replaced' if known else 'added'} in {file}{count}; {effect}")
    print(
        f"its tools are for the owner; to lend them to everybody your agents answer, {LEND_HINT.format(options.name)}"
    )
    return DONE


async def _probe(name: str, value: Json) -> int:
    async with McpServerPool({name: value}) as pool:
        server = pool.find(name)
        await server.start()
        return len(server.specs())


def _entry_from_options(options: argparse.Namespace) -> Json:
    """The entry that these options describe."""
    command, args = options.command, list(options.arg)
    if options.program:
        if command is not None:
            raise entry.BadServerEntry("give the program either after -- or as --command, not both")
        command, args = options.program[0], options.program[1:]
    _check_unused_options(options)
    require_cwd()
    here = Path.cwd()
    program = _absolute_words([] if command is None else [command, *args], None if options.cwd else here)
    cwd = str(here / Path(options.cwd).expanduser()) if options.cwd else _needed_folder(program[1:], here)
    chosen = {key: _split_commas(getattr(options, key)) for key in ("include", "exclude") if getattr(options, key)}
    value = {
        "command": program[0] if program else None,
        "args": program[1:] or None,
        "env": _parse_pairs(options.env, "--env"),
        "cwd": cwd,
        "url": options.url,
        "headers": _parse_pairs(options.header, "--header", separators="=:"),
        "transport": options.transport,
        "protocol": options.protocol,
        "agents": options.agent or None,
        "toolFilter": chosen or None,
        "requestTimeoutMs": _milliseconds(options.timeout),
        "connectionTimeoutMs": _milliseconds(options.connect_timeout),
        "enabled": False if options.disabled else None,
    }
    return drop_none(value)


def _absolute_words(words: list[str], folder: Path | None) -> list[str]:
    """A command's words with paths made absolute that begin in `folder`: the gateway starts it from another one.

    None: `--cwd` names where its paths begin, and they stay."""
    return [_absolute_word(word, folder) for word in words]


def _absolute_word(word: str, folder: Path | None) -> str:
    if word.startswith("~/"):
        path = Path(word).expanduser()
        return str(path) if _is_path(word, path) else word
    if folder is None or word.startswith(("-", "/")):
        return word
    place = folder / word
    # `server.py` and `tools/server.js` are files if they are there; `node` may be a folder and a command's own word.
    is_explicit = word in (".", "..") or word.startswith(("./", "../"))
    is_meant = _is_path(word, place) if is_explicit else ("/" in word or place.suffix != "") and _exists(place)
    return os.path.normpath(place) if is_meant else word


def _is_path(word: str, place: Path) -> bool:
    """One with spaces that is not there is a script: `sh -c './get http://…'`."""
    return not re.search(r"\s", word) or _exists(place)


def _exists(place: Path) -> bool:
    return os.path.exists(place)  # noqa: PTH110 - `Path.exists` raises for a word that is longer than any name


def _needed_folder(args: list[str], folder: Path) -> str | None:
    """`folder`, when a plain word may be one of the folders in it; None when nothing depends on it."""
    is_needed = any("/" not in word and os.path.isdir(folder / word) for word in args)  # noqa: PTH112 - as above
    return str(folder) if is_needed else None


def _check_unused_options(options: argparse.Namespace) -> None:
    """Raises BadServerEntry for options of the other kind of server, which would be stored and never used."""
    if options.url:
        others, reason = ["arg", "env", "cwd"], "is for programs; a server at --url gets what it needs with --header"
    else:
        others, reason = ["header", "transport"], "is for servers at a --url; a program gets what it needs with --env"
    for name in others:
        if getattr(options, name):
            raise entry.BadServerEntry(f"--{name} {reason}")


def _list(options: argparse.Namespace, file: Path) -> int:
    servers = _read_servers(file)
    shown = redaction.redact_secrets({"servers": servers}, redaction.MASK)["servers"]
    if options.json:
        print_json(shown)
        return DONE
    if not servers:
        print(f"no MCP servers in {file}; add one with: openclaw mcp add NAME -- PROGRAM")
    for name, value in servers.items():
        print(as_row(f"{name}  {_summary(name, value, shown[name])}"))
    return DONE


def _summary(name: str, value: Any, redacted_entry: Any) -> str:
    try:
        entry.read_entry(name, value)
    except entry.BadServerEntry as exc:
        return f"can't be used: {exc}"
    where = redacted_entry.get("url") or " ".join([redacted_entry["command"], *(redacted_entry.get("args") or [])])
    return where if value.get("enabled", True) else f"{where}  (disabled)"


def _remove(options: argparse.Namespace, file: Path) -> int:
    def edit(servers: Json) -> None:
        if options.name not in servers:
            raise entry.BadServerEntry(f"there is no server {options.name!r} in {file}; see openclaw mcp list")
        del servers[options.name]

    after = _edit_servers(file, edit)
    print(f"{options.name} is removed from {file}; {describe_effect(file.parent, after, 'hot')}")
    return DONE


def _read_servers(file: Path) -> Json:
    """The servers in the config, as written."""
    try:
        raw = (read_if_exists(file) or b"").decode(errors="replace")
        return _servers_section(parsing.parse(raw) if raw.strip() else {})
    except BadRequest as exc:
        raise entry.BadServerEntry(f"{file}: {exc}") from None


def _edit_servers(file: Path, edit: Callable[[Json], None]) -> Snapshot:
    """Let `edit` change the servers in the config; everything else in it stays. Returns the config after it."""

    def change(before: Snapshot) -> Json:
        config = copy.deepcopy(before.parsed)
        edit(_servers_section(config))
        return config

    return ConfigFile(file.parent).change(change)[1]


def _servers_section(config: Json) -> Json:
    """`mcp.servers`, created if absent. Raises BadRequest when it is not an object."""
    mcp = config.setdefault("mcp", {})
    servers = mcp.setdefault("servers", {}) if type(mcp) is dict else None
    if type(servers) is not dict:
        raise BadRequest("mcp.servers must be an object")
    return servers


# ---- the servers ----


async def _list_tools(options: argparse.Namespace, file: Path) -> int:
    servers = _read_servers(file)
    async with McpServerPool(servers) as pool:
        if options.name is not None:
            server = pool.find(options.name)
            await server.start()
            found: dict[str, PooledMcpServer] = {options.name: server}
            missing: dict[str, str] = {}
        else:
            missing = {**pool.errors, **await pool.start()}
            found = {server.entry.name: server for server in pool.sources().values()}
        if options.json:
            print_json({name: [encode_tool(spec) for spec in server.specs()] for name, server in found.items()})
        else:
            print(*(f"{_format_tool(spec)}\n" for server in found.values() for spec in server.specs()), sep="", end="")
        for reason in missing.values():
            print(f"openclaw mcp: {printable(reason)}", file=sys.stderr)
    return FAILED if missing else DONE


def _format_tool(spec: model.ToolSpec) -> str:
    about = " ".join((spec.title or spec.description).split())
    if len(about) > MAX_ABOUT:
        about = f"{about[:MAX_ABOUT].rsplit(' ', 1)[0]} …"
    return as_row(f"{spec.name}  {about}".rstrip())


async def _call_tool(options: argparse.Namespace, file: Path) -> int:
    text = sys.stdin.read() if options.arguments == "-" else options.arguments
    given = parse_object(text, '{"text": "hi"}', name="arguments")
    servers = _read_servers(file)
    async with McpServerPool(servers) as pool:
        result = await _call_server(pool.find(options.name), options.tool, given)
    if options.json:
        print(msgspec.json.encode(encode_tool_result(result)).decode())
    else:
        text = "".join(f"{_format_block(block)}\n" for block in result.content)
        print(printable(text) if sys.stdout.isatty() else text, end="")
    return FAILED if result.failed else DONE


async def _call_server(server: PooledMcpServer, tool: str, arguments: Json) -> model.ToolResult:
    client, name = await server.start(), server.full_tool_name(tool)
    own = tool.removeprefix(f"{server.prefix}{SEPARATOR}")
    if server.entry.allows_tool(own) and all(spec.name != name for spec in server.specs()):
        # Not among those it lists: the server itself knows whether it can't work now, and why.
        return await client.call(own, arguments)
    dispatcher = ToolDispatcher(ToolRegistry({f"mcp/{server.entry.name}": server}))
    return await dispatcher.call(
        model.ToolCall(caller=model.LOCAL_CALLER, name=name, arguments=arguments, context=NULL_CONTEXT)
    )


def _format_block(block: model.ContentBlock) -> str:
    match block:
        case model.Text(text=text):
            return text
        case model.Image(data=data, mime_type=kind) | model.Audio(data=data, mime_type=kind):
            return f"[{kind}, {len(data)} bytes]"
        case model.Embedded(resource=resource):
            return resource.text if resource.text is not None else f"[{resource.uri}]"
        case model.Link(uri=uri, name=name):
            return f"[{name}: {uri}]"


def _parse_pairs(items: list[str], option: str, *, separators: str = "=") -> dict[str, str] | None:
    """`NAME=VALUE`, and with a colon among the separators `NAME: VALUE`, as HTTP and curl write it."""
    pairs = {}
    for item in items:
        found = re.fullmatch(f"([^{separators}]+)([{separators}])(.*)", item, re.DOTALL)
        if found is None:  # not repeated: all of it may be a secret
            form = "'NAME: VALUE'" if ":" in separators else "NAME=VALUE"
            raise entry.BadServerEntry(f"a value of {option} has no name; give it as {form}")
        name, separator, value = found.groups()
        pairs[name.strip()] = value.strip() if separator == ":" else value
    return pairs or None


def _split_commas(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _milliseconds(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1000)
