"""The settings of the node: a JSON file that the person at this machine may edit while the node runs."""

from pathlib import Path
from typing import Final, Literal

import msgspec
from msgspec import Struct

from ..core.errors import OpenClawError
from .private_files import read_private, write_private

SETTINGS_FILE: Final = "node.json"
DEFAULT_PORT: Final = 8765
MAX_FILE_BYTES: Final = 1 << 20  # bytes; a settings file is a page of text

DEFAULT_ENABLED: Final = {
    "system": True,
    "device": True,
    "screen": True,
    "canvas": True,
    "camera": False,
    "location": False,
    "tts": False,
}
"""Capabilities that record or address people near the machine are off by default."""


class BadSettings(OpenClawError):
    code = "bad_settings"


class FixedPosition(Struct, frozen=True, kw_only=True, rename="camel"):
    """The position of a machine that does not move."""

    latitude: float
    longitude: float
    accuracy: float = 100.0


class NodeSettings(Struct, frozen=True, kw_only=True, rename="camel"):
    """Every setting with its default. Unknown names are ignored."""

    enable_mcp_server: bool = True
    enable_node_mode: bool = False
    """Connect to a gateway as a node."""
    mcp_only_mode: bool | None = None
    """An older name: true means MCP on and gateway off. Read, never written."""
    mcp_port: int = DEFAULT_PORT
    mcp_slots: int = 8
    """Calls served at once over HTTP."""
    require_token: bool = True
    """False admits every program of this machine: for a development machine only."""
    gateway_url: str | None = None
    display_name: str | None = None
    run_system_tools: bool = True
    """False switches system.run and system.run.prepare off."""
    capabilities: dict[str, bool] = {}
    """Category to on or off; DEFAULT_ENABLED has the rest."""
    ask_in_client: bool = True
    """Put approval questions to the calling MCP client when it can ask a person."""
    ask_on_desktop: bool = True
    """Put approval questions into a desktop notification with buttons."""
    ask_on_gateway: bool = True
    """Put approval questions to the operators of the gateway the node is connected to."""
    ask_seconds: int = 300
    """How long a person may take before the answer is no."""
    tts_provider: Literal["system", "elevenlabs"] | None = None
    tts_voice: str | None = None
    elevenlabs_voice: str | None = None
    elevenlabs_model: str | None = None
    camera_device: str | None = None
    camera_source: str | None = None
    """An ffmpeg input to film instead of a camera, as `lavfi:testsrc2=size=640x480`."""
    canvas_browser: str | None = None
    """Path of the Chromium to use; None = the first one found."""
    canvas_trusted: tuple[str, ...] = ()
    """Origins of this machine and its network the canvas may reach, as `http://localhost:5173`; it reaches no other."""
    location_fixed: FixedPosition | None = None

    def is_enabled(self, category: str) -> bool:
        return self.capabilities.get(category, DEFAULT_ENABLED.get(category, True))


def load_settings(path: Path) -> NodeSettings:
    """The settings in `path`; the defaults when there is no such file. Raises BadSettings, with the line at fault."""
    try:
        text = read_private(path, largest=MAX_FILE_BYTES)
    except FileNotFoundError:
        return NodeSettings()
    except OSError as exc:
        raise BadSettings(f"{path} can't be read: {exc.strerror or exc}") from exc
    try:
        settings = msgspec.json.decode(text, type=NodeSettings)
    except (msgspec.ValidationError, msgspec.DecodeError) as exc:
        raise BadSettings(f"{path} is no settings file: {exc}") from exc
    if settings.mcp_only_mode:
        settings = msgspec.structs.replace(settings, enable_mcp_server=True, enable_node_mode=False)
    _check_settings(path, settings)
    return settings


def save_settings(path: Path, settings: NodeSettings) -> None:
    kept = {
        key: value for key, value in msgspec.to_builtins(settings).items() if value is not None and key != "mcpOnlyMode"
    }
    write_private(path, msgspec.json.format(msgspec.json.encode(kept), indent=2) + b"\n")


def _check_settings(path: Path, settings: NodeSettings) -> None:
    if not 0 <= settings.mcp_port <= 65535:
        raise BadSettings(f"{path}: mcpPort must be between 0 and 65535")
    if not 1 <= settings.mcp_slots <= 1024:
        raise BadSettings(f"{path}: mcpSlots must be between 1 and 1024")
    if not 1 <= settings.ask_seconds <= 3600:
        raise BadSettings(f"{path}: askSeconds must be between 1 and 3600")
