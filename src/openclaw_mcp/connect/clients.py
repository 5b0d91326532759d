"""The clients we know: what each is called, where its settings lie, and how an entry is written there."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from msgspec import Struct

from . import entries, jsonc, toml
from .entries import Entry
from .jsonc import CannotEdit

Json = dict[str, Any]


class Client(Struct, frozen=True, kw_only=True):
    id: str
    title: str
    file: Callable[[], Path]
    """The settings of this user."""
    project: str | None
    """The settings of a folder, below it; None when it has none."""
    under: str
    """The name in the settings that holds the servers."""
    shape: Callable[[Entry], Json]
    after: str
    """What to do for it to take notice."""
    reads_token_file: bool = False
    """Whether it finds a server's token in its file by itself; the others need a variable set."""

    @property
    def is_toml(self) -> bool:
        return self.id == "codex"

    def put(self, text: str, entry: Entry) -> str:
        """Raises CannotEdit."""
        edit = toml.put if self.is_toml else _put_json
        return edit(text, self.under, entry.name, self.shape(entry))

    def shown(self, wanted: list[Entry]) -> str:
        """The entries as they would stand in a file of their own."""
        text = ""
        for entry in wanted:
            text = self.put(text, entry)
        return text

    def drop(self, text: str, name: str) -> str:
        return toml.drop(text, self.under, name) if self.is_toml else jsonc.drop(text, (self.under,), name)

    def holds(self, text: str, name: str | None = None) -> bool:
        """Whether a server of that name is there; without a name, whether there is a place for servers at all."""
        place = (toml.read(text) if self.is_toml else jsonc.read(text)).get(self.under)
        if place is not None and not isinstance(place, dict):
            raise CannotEdit(f"its {self.under} should hold servers by name, and does not")
        return place is not None and (name is None or name in place)

    def drop_room(self, text: str) -> str:
        """Without the place we made for our entries, if nobody else has any there."""
        if self.is_toml or jsonc.read(text).get(self.under):
            return text
        return jsonc.drop(text, (), self.under)


def _put_json(text: str, under: str, name: str, value: Json) -> str:
    return jsonc.put(text, (under,), name, value)


def _home() -> Path:
    return Path.home()


def _config() -> Path:
    """Where desktop programs keep their settings on this platform."""
    if sys.platform == "darwin":
        return _home() / "Library" / "Application Support"
    if sys.platform == "win32":
        return Path(os.environ.get("APPDATA") or _home() / "AppData" / "Roaming")
    return _xdg()


def _xdg() -> Path:
    return Path(os.environ.get("XDG_CONFIG_HOME") or _home() / ".config")


def _claude() -> Path:
    return Path(os.environ.get("CLAUDE_CONFIG_DIR") or _home()) / ".claude.json"


def _codex() -> Path:
    return Path(os.environ.get("CODEX_HOME") or _home() / ".codex") / "config.toml"


def _gemini() -> Path:
    return Path(os.environ.get("GEMINI_CLI_HOME") or _home()) / ".gemini" / "settings.json"


def _opencode() -> Path:
    """The file named by its variable, else the one of the two spellings that is there."""
    named = os.environ.get("OPENCODE_CONFIG")
    if named:
        return Path(named)
    commented = _xdg() / "opencode" / "opencode.jsonc"
    return commented if commented.exists() else commented.with_suffix(".json")


RESTART = "restart it, and it has the tools"

CLIENTS = {
    client.id: client
    for client in (
        Client(
            id="claude-code", title="Claude Code", file=_claude, project=".mcp.json", under="mcpServers",
            shape=entries.common, after="the next session has the tools; `claude mcp list` shows them",
        ),
        Client(
            id="claude-desktop", title="Claude Desktop",
            file=lambda: _config() / "Claude" / "claude_desktop_config.json", project=None, under="mcpServers",
            shape=entries.desktop, after=RESTART,
        ),
        Client(
            id="cursor", title="Cursor", file=lambda: _home() / ".cursor" / "mcp.json", project=".cursor/mcp.json",
            under="mcpServers", shape=entries.cursor, after=RESTART,
        ),
        Client(
            id="vscode", title="VS Code", file=lambda: _config() / "Code" / "User" / "mcp.json",
            project=".vscode/mcp.json", under="servers", shape=entries.vscode,
            after="run `MCP: List Servers` in it to start them",
        ),
        Client(
            id="gemini", title="Gemini CLI", file=_gemini, project=".gemini/settings.json", under="mcpServers",
            shape=entries.gemini, after="the next session has the tools; `gemini mcp list` shows them",
        ),
        Client(
            id="codex", title="Codex", file=_codex, project=".codex/config.toml", under="mcp_servers",
            shape=entries.codex, after="the next session has the tools; `codex mcp list` shows them",
        ),
        Client(
            id="opencode", title="OpenCode", file=_opencode, project="opencode.json", under="mcp",
            shape=entries.opencode, after="the next session has the tools; `opencode mcp list` shows them",
            reads_token_file=True,
        ),
    )
}  # fmt: skip

OTHER_NAMES = {
    "claude": "claude-code", "claudecode": "claude-code", "claudedesktop": "claude-desktop",
    "desktop": "claude-desktop", "code": "vscode", "vs-code": "vscode",
    "gemini-cli": "gemini", "codex-cli": "codex", "open-code": "opencode",
}  # fmt: skip
