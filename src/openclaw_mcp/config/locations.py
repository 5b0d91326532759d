"""Where the store and the gateway are, as the config and the environment say."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

from ..core.config.keys import DEFAULT_GATEWAY_PORT
from ..core.numbers import parse_whole_number
from ..net.gateway_client.address import gateway_url, is_local_gateway

if TYPE_CHECKING:  # for start-up: a client of the gateway asks for its address alone
    from ..core.config.config import Config
    from ..core.config.gateway import GatewayConfig

DATABASE_FILE = "openclaw.sqlite"
"""The store's file in the state directory, unless the config names another place."""


def store_location(folder: Path, config: "Config") -> str:
    """$OPENCLAW_STORE_URL, else the config's `store.url`, else SQLite in the state directory."""
    return os.environ.get("OPENCLAW_STORE_URL") or config.store.url or str(folder / DATABASE_FILE)


def gateway_endpoint(gateway: "GatewayConfig | None") -> tuple[str, str | None]:
    """Where clients find the gateway, and its token if the config has it. The environment wins over the config.

    The token of one gateway is never given to another. None: there is no config.
    """
    number = parse_whole_number(os.environ.get("OPENCLAW_GATEWAY_PORT", ""))
    configured = (gateway.port if gateway else 0) or DEFAULT_GATEWAY_PORT
    here = gateway_url(configured if number is None else number)
    if gateway is None:
        return here, None
    named = os.environ.get("OPENCLAW_GATEWAY_URL")
    if gateway.mode == "remote" and gateway.remote.url and named in (None, "", gateway.remote.url):
        return gateway.remote.url, gateway.remote.token
    return here, gateway.auth.token if is_local_gateway(here) else None
