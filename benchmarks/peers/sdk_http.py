"""Peer: the official Python SDK's low-level server over HTTP, JSON and stateless. Usage: sdk_http.py PORT."""

import sys

from sdk_echo import echo_server
from serving import serve

if __name__ == "__main__":
    serve(echo_server().streamable_http_app(json_response=True, stateless_http=True), port=int(sys.argv[1]))
