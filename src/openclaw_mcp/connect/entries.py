"""What is put into a client's settings: a program to start, or an address with a token by reference."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from .jsonc import CannotEdit

Json = dict[str, Any]


class StdioClientEntry(Struct, frozen=True, kw_only=True):
    """A stdio server. It finds its token by itself, so none is written anywhere."""

    name: str
    command: str
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = {}


class HttpClientEntry(Struct, frozen=True, kw_only=True):
    """An HTTP server. The client reads the token from `token_env`, or from `token_file` where it can."""

    name: str
    url: str
    token_env: str = ""
    token_file: Path | None = None


ClientEntry = StdioClientEntry | HttpClientEntry


def format_claude_code(entry: ClientEntry) -> Json:
    """Claude Code's shape, which Claude Desktop and VS Code share."""
    if isinstance(entry, StdioClientEntry):
        return {"type": "stdio", **_format_command(entry)}
    return {"type": "http", "url": entry.url, **_format_headers(entry, "${%s}")}


def format_claude_desktop(entry: ClientEntry) -> Json:
    if isinstance(entry, StdioClientEntry):
        return _format_command(entry)
    raise CannotEdit("Claude Desktop starts programs only; leave --http out")


def format_cursor(entry: ClientEntry) -> Json:
    if isinstance(entry, StdioClientEntry):
        return _format_command(entry)
    return {"url": entry.url, **_format_headers(entry, "${env:%s}")}


def format_vscode(entry: ClientEntry) -> Json:
    if isinstance(entry, StdioClientEntry):
        return {"type": "stdio", **_format_command(entry)}
    return {"type": "http", "url": entry.url, **_format_headers(entry, "${env:%s}")}


def format_gemini(entry: ClientEntry) -> Json:
    if isinstance(entry, StdioClientEntry):
        return _format_command(entry)
    return {"httpUrl": entry.url, **_format_headers(entry, "$%s")}


def format_codex(entry: ClientEntry) -> Json:
    if isinstance(entry, StdioClientEntry):
        return _format_command(entry)
    return {"url": entry.url, **({"bearer_token_env_var": entry.token_env} if entry.token_env else {})}


def format_opencode(entry: ClientEntry) -> Json:
    if isinstance(entry, StdioClientEntry):
        local: Json = {"type": "local", "command": [entry.command, *entry.args], "enabled": True}
        return {**local, "environment": dict(entry.env)} if entry.env else local
    remote: Json = {"type": "remote", "url": entry.url, "oauth": False, "enabled": True}
    if entry.token_file is not None:
        remote["headers"] = {"Authorization": f"Bearer {{file:{entry.token_file}}}"}
    elif entry.token_env:
        remote["headers"] = {"Authorization": f"Bearer {{env:{entry.token_env}}}"}
    return remote


def _format_command(entry: StdioClientEntry) -> Json:
    shape: Json = {"command": entry.command, "args": list(entry.args)}
    return {**shape, "env": dict(entry.env)} if entry.env else shape


def _format_headers(entry: HttpClientEntry, pattern: str) -> Json:
    return {"headers": {"Authorization": f"Bearer {pattern % entry.token_env}"}} if entry.token_env else {}
