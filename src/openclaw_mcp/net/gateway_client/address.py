"""Where a gateway is, and whether that is here. Nothing to load but this."""

import os
from urllib.parse import urlsplit


def gateway_url(port: int) -> str:
    """Where the gateway is: OPENCLAW_GATEWAY_URL, or that port of this machine."""
    return os.environ.get("OPENCLAW_GATEWAY_URL") or f"ws://127.0.0.1:{port}"


def is_local_gateway(url: str) -> bool:
    """Whether it is this machine's gateway, which may be given the token kept here; another may not."""
    return urlsplit(url).hostname in ("localhost", "127.0.0.1", "::1")
