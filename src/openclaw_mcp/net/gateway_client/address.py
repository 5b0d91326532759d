"""Where a gateway is, and whether that is this machine. Imports nothing heavy."""

import os
from typing import Final
from urllib.parse import urlsplit

DEFAULT_GATEWAY_PORT: Final = 18789


def gateway_url(port: int) -> str:
    """$OPENCLAW_GATEWAY_URL, or that port of this machine."""
    return os.environ.get("OPENCLAW_GATEWAY_URL") or f"ws://127.0.0.1:{port}"


def is_local_gateway(url: str) -> bool:
    """Whether it is this machine's gateway, which may get the token stored here; another may not."""
    return urlsplit(url).hostname in ("localhost", "127.0.0.1", "::1")
