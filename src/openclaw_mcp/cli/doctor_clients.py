"""The doctor on MCP clients: whether what is written in their settings reaches our surfaces as they are now."""

import asyncio
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from ..connect.changes import ConnectionRecord, SettingsEditor
from ..connect.clients import CLIENTS, SupportedClient
from ..connect.entries import ClientEntry, HttpClientEntry, StdioClientEntry
from ..connect.jsonc import CannotEdit
from ..mcp.client.server_pool import McpServerPool
from ..net.files import read_if_exists
from ..net.gateway_client.address import is_local_gateway
from ..net.listening_ports import can_connect
from ..proxy.settings import read_settings
from .connect import DESKTOP_VARIABLES, ENTRY_NAMES, PROGRAM_ARGUMENTS, script_path, side_effects_file
from .gateway import token_file_path
from .locations import find_gateway, find_node_url, find_proxy_url, local_url, port_from_state
from .probe import has_http_server
from .report import Finding, attention, fine, note

START_TIMEOUT: Final = 20.0  # seconds an entry's program gets to list its tools: a busy machine starts it in two
PROGRAMS: Final = ("openclaw", "openclaw-mcp", "remoteclaw-mcp-server")
"""Our programs. Only these are started to see whether they answer, and only as `openclaw connect` has them started: the
settings of a project come with the code of others."""
PROXY_OPTIONS: Final = ("--session", "--device", "--proxy-base-url")


def check_clients(folder: Path) -> Iterator[Finding]:
    """What `openclaw connect` wrote, as it is in the clients' settings now."""
    records = SettingsEditor(folder).records()
    if not records:
        yield note("clients", "no client was given our surfaces", "openclaw connect CLIENT does it")
    for file, record in records.items():
        yield from _check_file(folder, Path(file), record)


def _check_file(folder: Path, file: Path, record: ConnectionRecord) -> Iterator[Finding]:
    client = CLIENTS.get(record.client)
    title = client.title if client else record.client
    entries = {} if client is None else _read_entries(client, file, record.names)
    missing = [name for name in record.names if name not in entries]
    again = f"openclaw connect {_target_words(client, file, record)}"
    if missing:
        message = f"{title} no longer has {', '.join(missing)} in {file}"
        remedy = f"{again} writes it again, openclaw disconnect {_target_words(client, file, record)} forgets it"
        yield attention("clients", message, remedy)
    problems = {name: problem for name, entry in entries.items() if (problem := _find_problem(folder, entry))}
    programs = [each for each in entries.values() if isinstance(each, StdioClientEntry) and each.name not in problems]
    untried = {each.name: odd for each in programs if (odd := _find_odd_variables(folder, each, record.client))}
    for name, odd in untried.items():
        message = f"{title}'s {name} sets {', '.join(odd)}, which openclaw connect did not write, so it was not tried"
        yield note("clients", f"{message} ({file})", f"{again} writes it again")
    problems |= _find_start_problems([each for each in programs if each.name not in untried])
    for name, problem in problems.items():
        http = " --http" if isinstance(entries[name], HttpClientEntry) else ""
        surface = next((f" --surface {each}" for each, entry in ENTRY_NAMES.items() if entry == name), "")
        yield attention("clients", f"{title}'s {name} {problem} ({file})", f"{again}{surface}{http} writes it again")
    working = [name for name in entries if name not in problems and name not in untried]
    if working:
        yield fine("clients", f"{title} reaches {', '.join(working)} ({file})")


def _target_words(client: SupportedClient | None, file: Path, record: ConnectionRecord) -> str:
    """The arguments that name this client and settings file to `connect`."""
    if client is None or client.project_file is None or file == client.settings_file().expanduser().resolve():
        return record.client
    project = Path(str(file).removesuffix(client.project_file))
    return f"{record.client} --project {project}"


def _read_entries(client: SupportedClient, file: Path, names: list[str]) -> dict[str, ClientEntry]:
    text = (read_if_exists(file) or b"").decode(errors="replace")
    try:
        return {name: entry for name in names if (entry := client.read_server(text, name)) is not None}
    except CannotEdit:
        return {}


# ---- one entry ----


def _find_problem(folder: Path, entry: ClientEntry) -> str | None:
    """Why a client can't use what the entry names, or would reach something else than what runs."""
    if isinstance(entry, HttpClientEntry):
        return _find_address_problem(entry.url, _present_url(folder, entry.name))
    if shutil.which(entry.command) is None:
        return f"starts {entry.command}, which is not there"
    for name, url in _written_addresses(entry).items():
        running = port_from_state(folder)
        present = local_url(running) if running and "GATEWAY" in name else None
        if problem := _find_address_problem(url, present):
            return f"{problem} (set as {name})"
    display_key = entry.env.get("XAUTHORITY")
    if display_key and not Path(display_key).is_file():
        return f"has XAUTHORITY={display_key}, which is gone: each login may make another one"
    if not _is_ours(entry.command):
        return f"starts {entry.command}, which is not a program of this installation"
    if not _has_usual_arguments(entry):
        return f"starts {entry.command} with arguments that openclaw connect does not write, so it was not tried"
    return None


def _find_address_problem(url: str, present: str | None) -> str | None:
    """`present`: where the surface is now, or would be, if that is known."""
    if present and urlsplit(url).netloc != urlsplit(present).netloc and _answers(present):
        return f"has the address {url}, but it is at {present} now"
    return None if _answers(url) else f"has the address {url}, where nothing answers; openclaw up starts it"


def _answers(url: str) -> bool:
    return can_connect(url) if url.startswith("ws") else has_http_server(url)


def _present_url(folder: Path, name: str) -> str | None:
    if name == ENTRY_NAMES["node"]:
        return find_node_url(folder)
    if name == ENTRY_NAMES["tools"]:
        return find_gateway(folder).url
    return find_proxy_url(folder, read_settings())


def _written_addresses(entry: StdioClientEntry) -> dict[str, str]:
    """The addresses that an entry fixes, by the setting that has each."""
    port = entry.env.get("OPENCLAW_GATEWAY_PORT")
    found = {"OPENCLAW_GATEWAY_PORT": f"ws://127.0.0.1:{port}"} if port else {}
    found |= {name: url for name in ("OPENCLAW_GATEWAY_URL", "REMOTECLAW_GATEWAY_URL") if (url := entry.env.get(name))}
    option = "--proxy-base-url"
    return found | ({option: entry.args[entry.args.index(option) + 1]} if option in entry.args[:-1] else {})


def _is_ours(program: str) -> bool:
    name = Path(program).name
    return name in PROGRAMS and Path(program).resolve() == Path(script_path(name)).resolve()


def _has_usual_arguments(entry: StdioClientEntry) -> bool:
    surface = next((surface for surface, name in ENTRY_NAMES.items() if name == entry.name), None)
    usual = PROGRAM_ARGUMENTS.get(surface or "")
    if usual is None or entry.args[: len(usual)] != usual:
        return False
    rest = entry.args[len(usual) :]
    options, values = rest[::2], rest[1::2]
    known = PROXY_OPTIONS if surface == "proxy" else ()
    return len(options) == len(values) and {*options} <= {*known} and not any(map(_is_odd_word, values))


def _is_odd_word(value: str) -> bool:
    """An option, or one with a variable that would be replaced when we start it."""
    return value.startswith("-") or "${" in value


def _find_odd_variables(folder: Path, entry: StdioClientEntry, client: str) -> list[str]:
    """The variables that `openclaw connect` would not write, or not so: they could have our program run other code, or
    give its token to others."""
    usual = {
        "OPENCLAW_STATE_DIR": str(folder),
        "REMOTECLAW_STATE_DIR": str(folder),
        "REMOTECLAW_SESSION_KEY": "main",
        "REMOTECLAW_SENDER_IS_OWNER": "true",
        "REMOTECLAW_SIDE_EFFECTS_FILE": str(side_effects_file(folder, client)),
        "REMOTECLAW_GATEWAY_TOKEN_FILE": str(token_file_path(folder)),
    }
    free = {*DESKTOP_VARIABLES, "OPENCLAW_GATEWAY_PORT"}

    def is_usual(name: str, value: str) -> bool:
        if name in ("OPENCLAW_GATEWAY_URL", "REMOTECLAW_GATEWAY_URL"):
            return is_local_gateway(value) or value == find_gateway(folder).url
        return usual.get(name) == value or (name in free and not _is_odd_word(value))

    return [name for name, value in entry.env.items() if not is_usual(name, value)]


def _find_start_problems(entries: Sequence[StdioClientEntry]) -> dict[str, str]:
    """Start them all as a client does; why those that do not list their tools don't."""
    servers = {each.name: {"command": each.command, "args": [*each.args], "env": {**each.env}} for each in entries}

    async def start() -> dict[str, str]:
        async with McpServerPool(servers) as pool:
            return {**pool.errors, **await pool.start(wait=START_TIMEOUT)}

    return {name: f"does not answer: {reason}" for name, reason in asyncio.run(start()).items()}
