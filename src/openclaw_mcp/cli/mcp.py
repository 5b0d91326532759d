"""`openclaw mcp`: name other MCP servers in the config, look at their tools, call one."""

import argparse
import asyncio
import copy
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from ..config import parsing, redaction
from ..config.file import CONFIG_FILE, ConfigFile, Snapshot
from ..core.errors import BadRequest, OpenClawError
from ..core.model import (
    LOCAL_CALLER,
    Audio,
    ContentBlock,
    Embedded,
    Image,
    Json,
    Link,
    Text,
    ToolCall,
    ToolResult,
    ToolSpec,
)
from ..core.ports import NULL_CONTEXT
from ..mcp.client import entry
from ..mcp.client.server import PooledMcpServer
from ..mcp.client.server_pool import McpServerPool
from ..net.files import read_if_exists
from ..net.state_dir import state_dir
from ..protocol.mcp import encode_tool, encode_tool_result
from ..tools.dispatcher import ToolDispatcher
from ..tools.registry import ToolRegistry
from .commands import DONE, FAILED, Parser

LEND_HINT = "put mcp/{} into tools.alsoAllow (or tools.allow, where that is set)"


def arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION", parser_class=_ActionParser)
    add = _add_action(actions, "add", "put a server into the config, after a first talk with it")
    add.add_argument("name", help="what to call it; its tools are called NAME__TOOL")
    add.usage = "%(prog)s NAME [options] [-- PROGRAM [ARG ...]]"
    add.add_argument("--command", help="the program to start; or put it and its arguments after --")
    add.add_argument("--arg", action="append", default=[], help="an argument for --command; may be repeated")
    add.add_argument(
        "--env", action="append", default=[], metavar="NAME=VALUE", help="may be repeated; ${X} is filled in"
    )
    add.add_argument("--cwd", help="the folder to start the program in")
    add.add_argument("--url", help="the address of an HTTP server instead of a program")
    add.add_argument("--header", action="append", default=[], metavar="NAME=VALUE", help="may be repeated, with --url")
    add.add_argument("--transport", choices=["streamable-http"], help="how to talk to --url")
    add.add_argument("--protocol", choices=["auto", "handshake", "stateless"], help="the era of MCP (default auto)")
    add.add_argument("--agent", action="append", default=[], help="only this agent may use it; may be repeated")
    add.add_argument("--include", help="only these tools: names or * patterns, with commas between")
    add.add_argument("--exclude", help="not these tools")
    add.add_argument("--timeout", type=float, metavar="SECONDS", help="for an answer (default 60)")
    add.add_argument("--connect-timeout", type=float, metavar="SECONDS", help="for the start (default 30)")
    add.add_argument("--disabled", action="store_true", help="keep it in the config, unused")
    add.add_argument("--no-probe", action="store_true", help="do not start it now")
    _add_action(actions, "list", "what is in the config", json=True)
    remove = _add_action(actions, "remove", "take a server out of the config")
    remove.add_argument("name")
    tools = _add_action(actions, "tools", "start the servers and list their tools", json=True)
    tools.add_argument("name", nargs="?", help="of this server only")
    call = _add_action(actions, "call", "call a tool of a server", json=True)
    call.add_argument("name", metavar="SERVER")
    call.add_argument("tool", metavar="TOOL", help="as the server calls it, or with the prefix SERVER__")
    call.add_argument("arguments", nargs="?", default="{}", metavar="JSON", help="an object; - reads it from stdin")


class _ActionParser(Parser):
    """Takes what comes after `--` aside as it stands, into `program`: argparse would want it next to the name."""

    def parse_known_args(  # type: ignore[override]  # of the base's overloads this is the one that is called
        self, args: list[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        words = list(args or ())
        cut = words.index("--") if "--" in words else len(words)
        found, unknown = super().parse_known_args(words[:cut], namespace)
        found.program = words[cut + 1 :]
        return found, unknown


def _add_action(actions: Any, name: str, summary: str, *, json: bool = False) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = actions.add_parser(name, help=summary, description=summary, allow_abbrev=False)
    parser.add_argument("--state-dir", help="where openclaw.json is (default $OPENCLAW_STATE_DIR or ~/.openclaw-mcp)")
    if json:
        parser.add_argument("--json", action="store_true", help="for programs")
    return parser


def run(options: argparse.Namespace) -> int:
    if options.program and options.action != "add":
        raise BadArguments(f"nothing may follow --; only add takes a program there, {options.action} does not")
    file = state_dir(options.state_dir) / CONFIG_FILE
    match options.action:
        case "add":
            return _add(options, file)
        case "list":
            return _list(options, file)
        case "remove":
            return _remove(options, file)
        case "tools":
            return asyncio.run(_list_tools(options, file))
        case _:
            return asyncio.run(_call_tool(options, file))


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

    _edit_servers(file, edit)
    told = "" if tools is None else f"; its tools: {tools}"
    print(f"{options.name} is {'replaced' if known else 'added'} in {file}{told}")
    print(
        f"its tools are for the owner; to lend them to everybody your agents answer, {LEND_HINT.format(options.name)}"
    )
    return DONE


async def _probe(name: str, value: Json) -> int:
    async with McpServerPool({name: value}) as roster:
        server = roster.find(name)
        await server.start()
        return len(server.specs())


def _entry_from_options(options: argparse.Namespace) -> Json:
    """The entry these options describe, without what they leave open."""
    command, args = options.command, list(options.arg)
    if options.program:
        if command is not None:
            raise entry.BadServerEntry("give the program either after -- or as --command, not both")
        command, args = options.program[0], options.program[1:]
    _check_unused_options(options)
    chosen = {key: _split_commas(getattr(options, key)) for key in ("include", "exclude") if getattr(options, key)}
    value = {
        "command": command,
        "args": args or None,
        "env": _parse_pairs(options.env, "--env"),
        "cwd": options.cwd,
        "url": options.url,
        "headers": _parse_pairs(options.header, "--header"),
        "transport": options.transport,
        "protocol": options.protocol,
        "agents": options.agent or None,
        "toolFilter": chosen or None,
        "requestTimeoutMs": _milliseconds(options.timeout),
        "connectionTimeoutMs": _milliseconds(options.connect_timeout),
        "enabled": False if options.disabled else None,
    }
    return {key: item for key, item in value.items() if item is not None}


def _check_unused_options(options: argparse.Namespace) -> None:
    """What is meant for the other kind of server would be kept, and never used."""
    if options.url:
        others, why = ["arg", "env", "cwd"], "is for programs; a server at --url gets what it needs with --header"
    else:
        others, why = ["header", "transport"], "is for servers at a --url; a program gets what it needs with --env"
    for word in others:
        if getattr(options, word):
            raise entry.BadServerEntry(f"--{word} {why}")


def _list(options: argparse.Namespace, file: Path) -> int:
    servers = _read_servers(file)
    shown = redaction.redact_secrets({"servers": servers}, redaction.MASK)["servers"]
    if options.json:
        _print_json(shown)
        return DONE
    if not servers:
        print(f"no MCP servers in {file}; add one with: openclaw mcp add NAME -- PROGRAM")
    for name, value in servers.items():
        print(f"{name}  {_summary(name, value, shown[name])}")
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

    _edit_servers(file, edit)
    print(f"{options.name} is removed from {file}")
    return DONE


def _read_servers(file: Path) -> Json:
    """The servers in the config, as they are written there."""
    try:
        raw = (read_if_exists(file) or b"").decode(errors="replace")
        return _servers_section(parsing.parse(raw) if raw.strip() else {})
    except BadRequest as exc:
        raise entry.BadServerEntry(f"{file}: {exc}") from None


def _edit_servers(file: Path, edit: Callable[[Json], None]) -> None:
    """Have `edit` change the servers in the config; whatever else is in it stays as it is."""

    def edited(before: Snapshot) -> Json:
        config = copy.deepcopy(before.parsed)
        edit(_servers_section(config))
        return config

    ConfigFile(file.parent).change(edited)


def _servers_section(config: Json) -> Json:
    """`mcp.servers`, there to be changed. Raises BadRequest when something else stands in its place."""
    mcp = config.setdefault("mcp", {})
    servers = mcp.setdefault("servers", {}) if type(mcp) is dict else None
    if type(servers) is not dict:
        raise BadRequest("mcp.servers must be an object")
    return servers


# ---- the servers ----


async def _list_tools(options: argparse.Namespace, file: Path) -> int:
    servers = _read_servers(file)
    async with McpServerPool(servers) as roster:
        if options.name is not None:
            server = roster.find(options.name)
            await server.start()
            found: dict[str, PooledMcpServer] = {options.name: server}
            missing: dict[str, str] = {}
        else:
            missing = {**roster.errors, **await roster.start()}
            found = {server.entry.name: server for server in roster.sources().values()}
        if options.json:
            _print_json({name: [encode_tool(spec) for spec in server.specs()] for name, server in found.items()})
        else:
            for server in found.values():
                for spec in server.specs():
                    print(_format_tool(spec))
        for reason in missing.values():
            print(f"openclaw mcp: {reason}", file=sys.stderr)
    return FAILED if missing else DONE


def _format_tool(spec: ToolSpec) -> str:
    about = (spec.title or spec.description).strip().splitlines()
    return f"{spec.name}  {about[0][:100]}" if about else spec.name


async def _call_tool(options: argparse.Namespace, file: Path) -> int:
    given = _parse_arguments(options.arguments)
    servers = _read_servers(file)
    async with McpServerPool(servers) as roster:
        server = roster.find(options.name)
        await server.start()
        name = server.full_tool_name(options.tool)
        desk = ToolDispatcher(ToolRegistry({f"mcp/{options.name}": server}))
        result = await desk.call(ToolCall(caller=LOCAL_CALLER, name=name, arguments=given, context=NULL_CONTEXT))
    _print_result(result, as_json=options.json)
    return FAILED if result.failed else DONE


def _parse_arguments(text: str) -> Json:
    try:
        value = json.loads(sys.stdin.read() if text == "-" else text)
    except ValueError as exc:
        raise BadArguments(f'the arguments are not JSON ({exc}); give an object such as \'{{"text": "hi"}}\'') from exc
    if type(value) is not dict:
        raise BadArguments("the arguments must be a JSON object")
    return value


class BadArguments(OpenClawError):
    code = "bad_request"


def _print_result(result: ToolResult, *, as_json: bool) -> None:
    if as_json:
        print(msgspec.json.encode(encode_tool_result(result)).decode())
        return
    for block in result.content:
        print(_format_block(block))


def _format_block(block: ContentBlock) -> str:
    match block:
        case Text(text=text):
            return text
        case Image(data=data, mime_type=kind) | Audio(data=data, mime_type=kind):
            return f"[{kind}, {len(data)} bytes]"
        case Embedded(resource=resource):
            return resource.text if resource.text is not None else f"[{resource.uri}]"
        case Link(uri=uri, name=name):
            return f"[{name}: {uri}]"


def _print_json(value: Any) -> None:
    print(json.dumps(value, indent=2, ensure_ascii=False))


def _parse_pairs(items: list[str], option: str) -> dict[str, str] | None:
    pairs = {}
    for word in items:
        name, between, value = word.partition("=")
        if not between or not name:
            raise entry.BadServerEntry(f"{option} {name}: give it as NAME=VALUE")
        pairs[name] = value
    return pairs or None


def _split_commas(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _milliseconds(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1000)
