"""Peer: FastMCP over stdio, without its banner and the search for updates that goes with it."""

from fastmcp_echo import echo_server

if __name__ == "__main__":
    echo_server().run("stdio", show_banner=False, log_level="WARNING")
