"""A plain HTTP client for tests: every header, status and byte in view."""

import contextlib
import http.client
import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

WAIT = 20.0
META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
}
BOTH = "application/json, text/event-stream"


class Answer:
    def __init__(self, response: http.client.HTTPResponse) -> None:
        self.status = response.status
        self.headers = {key.lower(): value for key, value in response.getheaders()}
        self.body = response.read()

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def messages(self) -> list[Any]:
        """The messages of a stream."""
        return [
            json.loads(line[5:]) for line in self.body.splitlines() if line.startswith(b"data:") and line[5:].strip()
        ]


@contextlib.contextmanager
def opened(address: str, method: str, body: Any = None, **headers: str) -> Iterator[http.client.HTTPResponse]:
    """A request whose answer is still being read. Header names are given with underscores."""
    parts = urlsplit(address)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=WAIT)
    all_headers = {key.replace("_", "-"): value for key, value in headers.items()}
    data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
    if data is not None:
        all_headers.setdefault("Content-Type", "application/json")
    try:
        target = parts._replace(scheme="", netloc="", fragment="").geturl() or "/"
        connection.request(method, target, data, {"Accept": BOTH, **all_headers})
        yield connection.getresponse()
    finally:
        connection.close()


def send(address: str, method: str, body: Any = None, **headers: str) -> Answer:
    with opened(address, method, body, **headers) as response:
        return Answer(response)


def rpc(method: str, params: Any = None, id: Any = 1) -> Any:
    return {"jsonrpc": "2.0", "id": id, "method": method, "params": params or {}}


def stateless(method: str, params: Any = None, *, capabilities: Any = None, id: Any = 1) -> tuple[Any, dict[str, str]]:
    """The body and headers of a request of the stateless era."""
    params = dict(params or {})
    meta = {**META, **params.get("_meta", {})}
    if capabilities is not None:
        meta["io.modelcontextprotocol/clientCapabilities"] = capabilities
    params["_meta"] = meta
    headers = {"MCP_Protocol_Version": "2026-07-28", "Mcp_Method": method}
    name = params.get("name") or params.get("uri") or params.get("taskId")
    if name:
        headers["Mcp_Name"] = name
    return rpc(method, params, id), headers


def ask(address: str, method: str, params: Any = None, **more: str) -> Answer:
    body, headers = stateless(method, params)
    return send(address, "POST", body, **{**headers, **more})
