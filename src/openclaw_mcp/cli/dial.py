"""The options of a command whose errand is at the gateway, and the connection they ask for."""

import argparse
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from ..rpc.client import Client
from ..state import state_dir
from . import operator
from .commands import port


def arguments(parser: argparse.ArgumentParser) -> None:
    """Where the gateway is."""
    operator.arguments(parser)
    number = os.environ.get("OPENCLAW_GATEWAY_PORT", str(operator.DEFAULT_PORT))
    parser.add_argument("--port", type=port, default=number, help="its port on this machine (default %(default)s)")
    parser.add_argument("--state-dir", help="where state is kept (default ~/.openclaw-mcp)")


@asynccontextmanager
async def dialled(options: argparse.Namespace) -> AsyncIterator[Client]:
    """A client with every scope. Raises CannotConnect with a sentence."""
    folder = state_dir(options.state_dir)
    async with operator.operator(folder, url=options.url, token=options.token, port=int(options.port)) as client:
        yield client
