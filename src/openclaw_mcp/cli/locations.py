"""Where the surfaces of a state directory are now. Every command, stdio server and client's entry asks these functions.

Light to import: a stdio server asks before its first order.
"""

import os
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from msgspec import Struct

from ..core.errors import BadRequest
from ..core.numbers import parse_whole_number
from ..net.gateway_client.address import DEFAULT_GATEWAY_PORT, is_local_gateway
from ..net.state_dir import find_gateway_token
from ..protocol.bridge import DEFAULT_URL
from . import run_state

if TYPE_CHECKING:
    # For the types alone: most folders have no config, and need no code for it.
    from ..core.config.gateway import GatewayConfig
    from ..proxy.settings import ProxySettings


class GatewayLocation(Struct, frozen=True, kw_only=True):
    url: str
    token: str | None
    """The token for this gateway, which no other may see."""
    is_expected: bool
    """Whether one should be there: it was named, or `openclaw up` runs. Else it may be that none runs here."""

    def __repr__(self) -> str:
        return f"GatewayLocation(url={self.url!r}, …)"  # the token must not slip into a log


def find_gateway(
    folder: Path,
    *,
    url: str | None = None,
    port: int | None = None,
    token: str | None = None,
    config: "GatewayConfig | None" = None,
) -> GatewayLocation:
    """`url`, $OPENCLAW_GATEWAY_URL, `port`, the config's `gateway.remote`, $OPENCLAW_GATEWAY_PORT, the gateway of the
    `openclaw up` that serves the folder, the config's port, the default one: the first that is given.

    `config`: if it was read already. Raises ConfigInvalid when a config that is not valid would have to say it."""
    running, chosen = port_from_state(folder), port or port_from_env()
    named = url or os.environ.get("OPENCLAW_GATEWAY_URL")
    if config is None:
        config = _read_config(folder, is_needed=not (named or chosen or running))
    remote = config.remote if config.mode == "remote" else None
    if not named and not port and remote is not None:
        named = remote.url
    address = named or local_url(chosen or running or config.port or DEFAULT_GATEWAY_PORT)
    given = token or os.environ.get("OPENCLAW_GATEWAY_TOKEN", "").strip() or None
    if given is None and remote is not None and address == remote.url:
        given = remote.token
    if given is None and is_local_gateway(address) and _may_get_token(address, running):
        given = find_gateway_token(folder) or config.auth.token
    return GatewayLocation(url=address, token=given, is_expected=bool(named or (running and chosen in (None, running))))


def _may_get_token(url: str, running: int | None) -> bool:
    """While an `openclaw up` serves a folder, the folder's token is for that process alone."""
    return running is None or urlsplit(url).netloc.endswith(f":{running}")


def _read_config(folder: Path, *, is_needed: bool) -> "GatewayConfig":
    """The config's `gateway`; its defaults when there is no file or, unless it `is_needed`, when it is not valid."""
    from ..core.config.gateway import GatewayConfig  # here for start-up: the doctor has read it already

    if not (folder / "openclaw.json").exists():
        return GatewayConfig()
    # Here for start-up: without a file there is nothing to read.
    from ..config.file import ConfigFile, invalid_config_error

    snapshot = ConfigFile(folder, key=b"the hash is not shown").read()
    if snapshot.issues and is_needed:
        raise invalid_config_error(snapshot.issues, snapshot.path)
    return snapshot.config.gateway


def local_url(port: int) -> str:
    return f"ws://127.0.0.1:{port}"


def port_from_env() -> int | None:
    """$OPENCLAW_GATEWAY_PORT."""
    text = os.environ.get("OPENCLAW_GATEWAY_PORT") or None
    port = None if text is None else parse_whole_number(text, maximum=65535)
    if text is not None and port is None:
        raise BadRequest(f"OPENCLAW_GATEWAY_PORT is {text!r}, which is no port number; give one from 0 to 65535")
    return port


def port_from_state(folder: Path) -> int | None:
    """The gateway's port of the `openclaw up` that serves this folder."""
    up = run_state.read(folder)
    return None if up is None else urlsplit(up.surface("gateway").address).port


def find_node_url(folder: Path) -> str:
    """The present address of its MCP server, else the configured one; empty while it is switched off."""
    up = run_state.read(folder)
    if up is not None:
        return up.surface("node").address
    # Here for start-up: a stdio server does not ask for the node.
    from ..node import settings as node_settings
    from ..node.address_file import AddressFile  # here for start-up, as above

    settings = node_settings.load_settings(folder / node_settings.SETTINGS_FILE)
    if not settings.enable_mcp_server:
        return ""
    number = parse_whole_number(os.environ.get("OPENCLAW_MCP_PORT", ""))
    port = settings.mcp_port if number is None else number
    return AddressFile(folder).read() or f"http://127.0.0.1:{port}/"


def find_proxy_url(folder: Path, settings: "ProxySettings") -> str:
    """The address in the settings, else the present one, else the default."""
    up = run_state.read(folder)
    if up is not None and settings.server_url == DEFAULT_URL:
        return up.surface("proxy").address
    return settings.server_url.rstrip("/")
