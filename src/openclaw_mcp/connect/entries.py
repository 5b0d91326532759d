"""Entries in a client's settings: a program to start, or an address and where its token is."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from .jsonc import CannotEdit

SettingsValue = str | bool | list[str] | dict[str, str]
SettingsEntry = dict[str, SettingsValue]
"""One entry as a client's settings file holds it."""


class StdioClientEntry(Struct, frozen=True, kw_only=True):
    """A stdio server. It finds its token itself, so none is written."""

    name: str
    command: str
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = {}


class HttpClientEntry(Struct, frozen=True, kw_only=True):
    """An HTTP server. The client reads the token from `token_env`, or from `token_file` if it can."""

    name: str
    url: str
    token_env: str = ""
    token_file: Path | None = None


ClientEntry = StdioClientEntry | HttpClientEntry


class JsonFormat(Struct, frozen=True):
    """How most clients write an entry."""

    has_type: bool = False
    url_key: str = "url"
    env_reference: str = "${env:%s}"
    """How a header refers to an environment variable."""

    def __call__(self, entry: ClientEntry) -> SettingsEntry:
        if isinstance(entry, StdioClientEntry):
            return {**({"type": "stdio"} if self.has_type else {}), **_format_command(entry)}
        address: SettingsEntry = {**({"type": "http"} if self.has_type else {}), self.url_key: entry.url}
        if not entry.token_env:
            return address
        return {**address, "headers": {"Authorization": f"Bearer {self.env_reference % entry.token_env}"}}


def format_claude_desktop(entry: ClientEntry) -> SettingsEntry:
    if isinstance(entry, StdioClientEntry):
        return _format_command(entry)
    raise CannotEdit("Claude Desktop starts programs only; leave --http out")


def format_codex(entry: ClientEntry) -> SettingsEntry:
    if isinstance(entry, StdioClientEntry):
        return _format_command(entry)
    return {"url": entry.url, **({"bearer_token_env_var": entry.token_env} if entry.token_env else {})}


def format_opencode(entry: ClientEntry) -> SettingsEntry:
    if isinstance(entry, StdioClientEntry):
        local: SettingsEntry = {"type": "local", "command": [entry.command, *entry.args], "enabled": True}
        return local | ({"environment": dict(entry.env)} if entry.env else {})
    remote: SettingsEntry = {"type": "remote", "url": entry.url, "oauth": False, "enabled": True}
    token = f"file:{entry.token_file}" if entry.token_file is not None else f"env:{entry.token_env}"
    if token != "env:":
        remote["headers"] = {"Authorization": f"Bearer {{{token}}}"}
    return remote


def read_entry(name: str, value: Any) -> ClientEntry:
    """An entry as any of the clients writes it. Raises CannotEdit when it names neither a program nor an address."""
    fields = value if isinstance(value, dict) else {}
    url = fields.get("url", fields.get("httpUrl"))
    if isinstance(url, str):
        return HttpClientEntry(name=name, url=url)
    command, args = fields.get("command"), fields.get("args") or []
    words = [*(command if isinstance(command, list) else [command]), *(args if isinstance(args, list) else [None])]
    if not all(isinstance(word, str) for word in words):
        raise CannotEdit(f"its entry {name} names neither a program nor an address")
    env = fields.get("env") or fields.get("environment") or {}
    texts = {key: str(text) for key, text in env.items()} if isinstance(env, dict) else {}
    return StdioClientEntry(name=name, command=words[0], args=tuple(words[1:]), env=texts)


def _format_command(entry: StdioClientEntry) -> SettingsEntry:
    env = {"env": dict(entry.env)} if entry.env else {}
    return {"command": entry.command, "args": list(entry.args), **env}
