"""The options of a command whose errand is at the gateway, and the connection they ask for."""

import argparse
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from ..rpc.client import Client
from ..state import state_dir
from . import operator
from .commands import port
from .place import DEFAULT_PORT


def arguments(parser: argparse.ArgumentParser) -> None:
    """Where the gateway is."""
    operator.arguments(parser)
    words = f"its port here (default $OPENCLAW_GATEWAY_PORT, that of openclaw up, the config's, {DEFAULT_PORT})"
    parser.add_argument("--port", type=port, help=words)
    parser.add_argument("--state-dir", help="where state is kept (default ~/.openclaw-mcp)")


@asynccontextmanager
async def dialled(options: argparse.Namespace) -> AsyncIterator[Client]:
    """A client with every scope. Raises CannotConnect with a sentence."""
    folder = state_dir(options.state_dir)
    async with operator.operator(folder, url=options.url, token=options.token, port=options.port) as client:
        yield client
