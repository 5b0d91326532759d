"""A connection to the gateway for a command's errand."""

import argparse
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from .. import __version__
from ..core.rpc import ADMIN, APPROVALS, PAIRING, READ, WRITE
from ..rpc.client import Client, gateway_url
from ..rpc.handshake import ClientInfo, Credentials, Introduction
from ..state import known_gateway_token, state_dir
from .commands import port

DEFAULT_PORT: Final = 18789


def arguments(parser: argparse.ArgumentParser) -> None:
    """Where the gateway is."""
    number = os.environ.get("OPENCLAW_GATEWAY_PORT", str(DEFAULT_PORT))
    parser.add_argument("--url", help="the gateway's address (default $OPENCLAW_GATEWAY_URL, else this machine's)")
    parser.add_argument("--port", type=port, default=number, help="its port on this machine (default %(default)s)")
    parser.add_argument("--token", help="its token (default $OPENCLAW_GATEWAY_TOKEN, else the one kept here)")
    parser.add_argument("--state-dir", help="where state is kept (default ~/.openclaw-mcp)")


@asynccontextmanager
async def dialled(options: argparse.Namespace) -> AsyncIterator[Client]:
    """A client with every scope. Raises CannotConnect with a sentence."""
    url = options.url or gateway_url(options.port)
    me = ClientInfo(id="cli", mode="cli", version=__version__, platform=sys.platform)
    token = options.token or known_gateway_token(state_dir(options.state_dir))
    told = Introduction(client=me, scopes=(READ, WRITE, ADMIN, APPROVALS, PAIRING))
    async with Client(url, told, credentials=Credentials(token=token), redial=False) as client:
        yield client
