"""Peer: the official Python SDK's low-level server over stdio."""

import anyio
from mcp.server.stdio import stdio_server
from sdk_echo import echo_server


async def main() -> None:
    server = echo_server()
    async with stdio_server() as (incoming, outgoing):
        await server.run(incoming, outgoing, server.create_initialization_options())


if __name__ == "__main__":
    anyio.run(main)
