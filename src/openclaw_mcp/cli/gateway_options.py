"""The options of a command whose errand is at the gateway, and the connection they ask for."""

import argparse
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from ..net.gateway_client.client import Client
from ..net.state_dir import state_dir
from . import operator_client
from .address import DEFAULT_PORT
from .commands import port


def arguments(parser: argparse.ArgumentParser) -> None:
    """Where the gateway is."""
    operator_client.arguments(parser)
    words = f"its port here (default $OPENCLAW_GATEWAY_PORT, that of openclaw up, the config's, {DEFAULT_PORT})"
    parser.add_argument("--port", type=port, help=words)
    parser.add_argument("--state-dir", help="where state is kept (default ~/.openclaw-mcp)")


@asynccontextmanager
async def dialled(options: argparse.Namespace) -> AsyncIterator[Client]:
    """A client with every scope. Raises CannotConnect with a sentence."""
    folder = state_dir(options.state_dir)
    async with operator_client.operator(folder, url=options.url, token=options.token, port=options.port) as client:
        yield client
