"""The supported clients: names, settings files, and how each writes an entry."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from msgspec import Struct

from ..core.model import Json
from . import jsonc, toml
from .entries import (
    ClientEntry,
    JsonFormat,
    SettingsEntry,
    format_claude_desktop,
    format_codex,
    format_opencode,
    read_entry,
)
from .jsonc import CannotEdit


class SupportedClient(Struct, frozen=True):
    id: str
    title: str
    settings_file: Callable[[], Path]
    """The settings file of this user."""
    project_file: str | None
    """The settings file in a project folder; None: it has none."""
    servers_key: str
    """The key of the servers in the settings."""
    format_entry: Callable[[ClientEntry], SettingsEntry]
    next_step: str
    """What a person has to do for the change to take effect."""
    reads_token_file: bool = False
    """Whether it reads a server's token from a file; the others need an environment variable."""
    is_toml: bool = False

    def put(self, text: str, entry: ClientEntry) -> str:
        """Raises CannotEdit."""
        value = self.format_entry(entry)
        if self.is_toml:
            return toml.put(text, self.servers_key, entry.name, value)
        return jsonc.put(text, (self.servers_key,), entry.name, value)

    def format_entries(self, wanted: list[ClientEntry]) -> str:
        """The text of a settings file with only these entries."""
        text = ""
        for entry in wanted:
            text = self.put(text, entry)
        return text

    def drop(self, text: str, name: str) -> str:
        return toml.drop(text, self.servers_key, name) if self.is_toml else jsonc.drop(text, (self.servers_key,), name)

    def has_server(self, text: str, name: str | None = None) -> bool:
        """Whether there is a server of that name; without a name, whether there is a section for servers."""
        section = self._read_section(text)
        return section is not None and (name is None or name in section)

    def read_server(self, text: str, name: str) -> ClientEntry | None:
        """The entry of that name as it is written; None when there is none. Raises CannotEdit."""
        found = (self._read_section(text) or {}).get(name)
        return None if found is None else read_entry(name, found)

    def _read_section(self, text: str) -> Json | None:
        section = (toml.read(text) if self.is_toml else jsonc.read(text)).get(self.servers_key)
        if section is not None and not isinstance(section, dict):
            raise CannotEdit(f"its {self.servers_key} should hold servers by name, and does not")
        return section

    def is_empty(self, text: str) -> bool:
        """Whether the text holds nothing at all, not even a comment."""
        return "".join(text.split()) in ("", "{}")

    def drop_empty_section(self, text: str) -> str:
        """The text without the section we created, if it is empty."""
        if self.is_toml or jsonc.read(text).get(self.servers_key):
            return text
        return jsonc.drop(text, (), self.servers_key)


def _env_path(variable: str, default: Path) -> Path:
    return Path(os.environ.get(variable) or default)


def _config_dir() -> Path:
    """Where desktop programs keep their settings on this platform."""
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support"
    if sys.platform == "win32":
        return _env_path("APPDATA", Path.home() / "AppData" / "Roaming")
    return _xdg_config_dir()


def _xdg_config_dir() -> Path:
    return _env_path("XDG_CONFIG_HOME", Path.home() / ".config")


def _opencode_file() -> Path:
    """The file named by its variable, else the one of the two spellings that exists."""
    commented = _xdg_config_dir() / "opencode" / "opencode.jsonc"
    return _env_path("OPENCODE_CONFIG", commented if commented.exists() else commented.with_suffix(".json"))


_RESTART: Final = "restart it, and it has the tools"
_NEXT_SESSION: Final = "the next session has the tools; `{} mcp list` shows them"

CLIENTS: Final = {client.id: client for client in (
    SupportedClient(
        "claude-code", "Claude Code", lambda: _env_path("CLAUDE_CONFIG_DIR", Path.home()) / ".claude.json", ".mcp.json",
        "mcpServers", JsonFormat(has_type=True, env_reference="${%s}"), _NEXT_SESSION.format("claude"),
    ),
    SupportedClient(
        "claude-desktop", "Claude Desktop", lambda: _config_dir() / "Claude" / "claude_desktop_config.json", None,
        "mcpServers", format_claude_desktop, _RESTART,
    ),
    SupportedClient(
        "cursor", "Cursor", lambda: Path.home() / ".cursor" / "mcp.json", ".cursor/mcp.json",
        "mcpServers", JsonFormat(), _RESTART,
    ),
    SupportedClient(
        "vscode", "VS Code", lambda: _config_dir() / "Code" / "User" / "mcp.json", ".vscode/mcp.json",
        "servers", JsonFormat(has_type=True), "run `MCP: List Servers` in it to start them",
    ),
    SupportedClient(
        "gemini", "Gemini CLI", lambda: _env_path("GEMINI_CLI_HOME", Path.home()) / ".gemini" / "settings.json",
        ".gemini/settings.json", "mcpServers", JsonFormat(url_key="httpUrl", env_reference="$%s"),
        _NEXT_SESSION.format("gemini"),
    ),
    SupportedClient(
        "codex", "Codex", lambda: _env_path("CODEX_HOME", Path.home() / ".codex") / "config.toml", ".codex/config.toml",
        "mcp_servers", format_codex, _NEXT_SESSION.format("codex"), is_toml=True,
    ),
    SupportedClient(
        "opencode", "OpenCode", _opencode_file, "opencode.json",
        "mcp", format_opencode, _NEXT_SESSION.format("opencode"), reads_token_file=True,
    ),
)}  # fmt: skip

ALIASES: Final = {
    "claude": "claude-code", "claudecode": "claude-code", "claudedesktop": "claude-desktop",
    "desktop": "claude-desktop", "code": "vscode", "vs-code": "vscode",
    "gemini-cli": "gemini", "codex-cli": "codex", "open-code": "opencode",
}  # fmt: skip
