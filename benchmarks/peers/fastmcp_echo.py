"""The echo server on FastMCP; asynchronous, so that no worker thread is paid for."""

from fastmcp import FastMCP  # type: ignore[import-not-found]  # in the peer's environment, not in ours


async def echo(text: str) -> str:
    """Echo text"""
    return text


def echo_server() -> FastMCP:
    server: FastMCP = FastMCP("echo", version="1")
    server.tool(echo)
    return server
