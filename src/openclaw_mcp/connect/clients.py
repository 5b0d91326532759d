"""The clients we know: what each is called, where its settings lie, and how an entry is written there."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from msgspec import Struct

from . import entries, jsonc, toml
from .entries import ClientEntry
from .jsonc import CannotEdit

Json = dict[str, Any]


class SupportedClient(Struct, frozen=True, kw_only=True):
    id: str
    title: str
    settings_file: Callable[[], Path]
    """The settings of this user."""
    project_file: str | None
    """The settings of a folder, below it; None when it has none."""
    servers_key: str
    """The name in the settings that holds the servers."""
    format_entry: Callable[[ClientEntry], Json]
    next_step: str
    """What to do for it to take notice."""
    reads_token_file: bool = False
    """Whether it finds a server's token in its file by itself; the others need a variable set."""

    @property
    def is_toml(self) -> bool:
        return self.id == "codex"

    def put(self, text: str, entry: ClientEntry) -> str:
        """Raises CannotEdit."""
        edit = toml.put if self.is_toml else _put_json
        return edit(text, self.servers_key, entry.name, self.format_entry(entry))

    def format_entries(self, wanted: list[ClientEntry]) -> str:
        """The entries as they would stand in a file of their own."""
        text = ""
        for entry in wanted:
            text = self.put(text, entry)
        return text

    def drop(self, text: str, name: str) -> str:
        return toml.drop(text, self.servers_key, name) if self.is_toml else jsonc.drop(text, (self.servers_key,), name)

    def has_server(self, text: str, name: str | None = None) -> bool:
        """Whether a server of that name is there; without a name, whether there is a place for servers at all."""
        place = (toml.read(text) if self.is_toml else jsonc.read(text)).get(self.servers_key)
        if place is not None and not isinstance(place, dict):
            raise CannotEdit(f"its {self.servers_key} should hold servers by name, and does not")
        return place is not None and (name is None or name in place)

    def drop_empty_section(self, text: str) -> str:
        """Without the place we made for our entries, if nobody else has any there."""
        if self.is_toml or jsonc.read(text).get(self.servers_key):
            return text
        return jsonc.drop(text, (), self.servers_key)


def _put_json(text: str, servers_key: str, name: str, value: Json) -> str:
    return jsonc.put(text, (servers_key,), name, value)


def _home_dir() -> Path:
    return Path.home()


def _config_dir() -> Path:
    """Where desktop programs keep their settings on this platform."""
    if sys.platform == "darwin":
        return _home_dir() / "Library" / "Application Support"
    if sys.platform == "win32":
        return Path(os.environ.get("APPDATA") or _home_dir() / "AppData" / "Roaming")
    return _xdg_config_dir()


def _xdg_config_dir() -> Path:
    return Path(os.environ.get("XDG_CONFIG_HOME") or _home_dir() / ".config")


def _claude_file() -> Path:
    return Path(os.environ.get("CLAUDE_CONFIG_DIR") or _home_dir()) / ".claude.json"


def _codex_file() -> Path:
    return Path(os.environ.get("CODEX_HOME") or _home_dir() / ".codex") / "config.toml"


def _gemini_file() -> Path:
    return Path(os.environ.get("GEMINI_CLI_HOME") or _home_dir()) / ".gemini" / "settings.json"


def _opencode_file() -> Path:
    """The file named by its variable, else the one of the two spellings that is there."""
    named = os.environ.get("OPENCODE_CONFIG")
    if named:
        return Path(named)
    commented = _xdg_config_dir() / "opencode" / "opencode.jsonc"
    return commented if commented.exists() else commented.with_suffix(".json")


RESTART_HINT = "restart it, and it has the tools"

CLIENTS = {
    client.id: client
    for client in (
        SupportedClient(
            id="claude-code",
            title="Claude Code",
            settings_file=_claude_file,
            project_file=".mcp.json",
            servers_key="mcpServers",
            format_entry=entries.format_claude_code,
            next_step="the next session has the tools; `claude mcp list` shows them",
        ),
        SupportedClient(
            id="claude-desktop",
            title="Claude Desktop",
            settings_file=lambda: _config_dir() / "Claude" / "claude_desktop_config.json",
            project_file=None,
            servers_key="mcpServers",
            format_entry=entries.format_claude_desktop,
            next_step=RESTART_HINT,
        ),
        SupportedClient(
            id="cursor",
            title="Cursor",
            settings_file=lambda: _home_dir() / ".cursor" / "mcp.json",
            project_file=".cursor/mcp.json",
            servers_key="mcpServers",
            format_entry=entries.format_cursor,
            next_step=RESTART_HINT,
        ),
        SupportedClient(
            id="vscode",
            title="VS Code",
            settings_file=lambda: _config_dir() / "Code" / "User" / "mcp.json",
            project_file=".vscode/mcp.json",
            servers_key="servers",
            format_entry=entries.format_vscode,
            next_step="run `MCP: List Servers` in it to start them",
        ),
        SupportedClient(
            id="gemini",
            title="Gemini CLI",
            settings_file=_gemini_file,
            project_file=".gemini/settings.json",
            servers_key="mcpServers",
            format_entry=entries.format_gemini,
            next_step="the next session has the tools; `gemini mcp list` shows them",
        ),
        SupportedClient(
            id="codex",
            title="Codex",
            settings_file=_codex_file,
            project_file=".codex/config.toml",
            servers_key="mcp_servers",
            format_entry=entries.format_codex,
            next_step="the next session has the tools; `codex mcp list` shows them",
        ),
        SupportedClient(
            id="opencode",
            title="OpenCode",
            settings_file=_opencode_file,
            project_file="opencode.json",
            servers_key="mcp",
            format_entry=entries.format_opencode,
            next_step="the next session has the tools; `opencode mcp list` shows them",
            reads_token_file=True,
        ),
    )
}

ALIASES = {
    "claude": "claude-code", "claudecode": "claude-code", "claudedesktop": "claude-desktop",
    "desktop": "claude-desktop", "code": "vscode", "vs-code": "vscode",
    "gemini-cli": "gemini", "codex-cli": "codex", "open-code": "opencode",
}  # fmt: skip
