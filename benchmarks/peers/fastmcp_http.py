"""Peer: FastMCP over HTTP, JSON and stateless. Usage: fastmcp_http.py PORT."""

import sys

from fastmcp_echo import echo_server
from serving import serve

if __name__ == "__main__":
    serve(echo_server().http_app(json_response=True, stateless_http=True), port=int(sys.argv[1]))
