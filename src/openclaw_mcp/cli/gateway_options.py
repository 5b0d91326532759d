"""The options of a command whose errand is at the gateway, and the connection they ask for."""

import argparse
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from ..net.gateway_client.client import GatewayClient
from ..net.state_dir import state_dir
from . import operator_client
from .address import DEFAULT_GATEWAY_PORT
from .commands import parse_port


def arguments(parser: argparse.ArgumentParser) -> None:
    """Where the gateway is."""
    operator_client.arguments(parser)
    words = f"its port here (default $OPENCLAW_GATEWAY_PORT, that of openclaw up, the config's, {DEFAULT_GATEWAY_PORT})"
    parser.add_argument("--port", type=parse_port, help=words)
    parser.add_argument("--state-dir", help="where state is kept (default ~/.openclaw-mcp)")


@asynccontextmanager
async def connect_from_options(options: argparse.Namespace) -> AsyncIterator[GatewayClient]:
    """A client with every scope. Raises CannotConnect with a sentence."""
    folder = state_dir(options.state_dir)
    async with operator_client.connect_operator(
        folder, url=options.url, token=options.token, port=options.port
    ) as client:
        yield client
