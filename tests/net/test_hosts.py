"""Every HTTP path asks one gate for whom a request was meant and whose page it comes from."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from starlette.routing import Route

from openclaw_mcp.gateway.wiring import process_stats
from openclaw_mcp.gateway.wiring.assembly import GatewayOptions, assemble_gateway
from openclaw_mcp.gateway.wiring.gateway import GatewayServer
from openclaw_mcp.mcp.server.http import McpHttp
from openclaw_mcp.mcp.server.http_gate import HttpAccessRules
from openclaw_mcp.node.host import LocalNode, PortChoice, serve_mcp_http
from openclaw_mcp.proxy.http.api import Api
from openclaw_mcp.proxy.http.asgi import ProxyAsgi
from openclaw_mcp.proxy.settings import ProxySettings
from openclaw_mcp.proxy.state import open_proxy

from ..conversation import Tools, serving
from ..web_client import send

TOKEN = "secret"
App = Callable[[Any, Any, Any], Awaitable[None]]

FOREIGN: dict[str, list[tuple[str, str]]] = {
    "another's name": [("host", "evil.example")],
    "another's name with our port": [("host", "evil.example:18789")],
    "a name that begins like ours": [("host", "localhost.evil.example")],
    "a name that ends like ours": [("host", "evil.localhost")],
    "ours with a dot": [("host", "localhost.")],
    "ours behind somebody": [("host", "127.0.0.1@evil.example")],
    "an address of another machine": [("host", "192.0.2.7")],
    "any address": [("host", "0.0.0.0:1")],
    "an IPv6 address of another machine": [("host", "[2001:db8::7]:1")],
    "half an IPv6 address": [("host", "[::1")],
    "an IPv6 address and more": [("host", "[::1]evil.example")],
    "an IPv6 address without brackets": [("host", "::1")],
    "an empty one": [("host", "")],
    "none": [],
    "two": [("host", "evil.example"), ("host", "127.0.0.1")],
    "two, ours first": [("host", "127.0.0.1"), ("host", "evil.example")],
    "ours with a port that is none": [("host", "localhost:80:evil.example")],
    "ours with a name for a port": [("host", "127.0.0.1:x")],
    "ours with somebody for a port": [("host", "localhost:@evil.example")],
    "an IPv6 address with a name for a port": [("host", "[::1]:evil.example")],
    "another's page with us for its user": [("host", "127.0.0.1"), ("origin", "http://localhost:1@evil.example")],
    "another's page with us before its port": [("host", "127.0.0.1"), ("origin", "http://localhost:80:evil.example")],
    "another's page": [("host", "127.0.0.1"), ("origin", "https://evil.example")],
    "another's page, by IPv6": [("host", "[::1]:1"), ("origin", "http://[2001:db8::7]")],
    "a page of nowhere": [("host", "127.0.0.1"), ("origin", "null")],
    "a page in a file": [("host", "127.0.0.1"), ("origin", "file://localhost")],
    "an extension's page": [("host", "127.0.0.1"), ("origin", "chrome-extension://localhost")],
    "a page that begins like ours": [("host", "127.0.0.1"), ("origin", "http://localhost.evil.example")],
    "two pages": [("host", "127.0.0.1"), ("origin", "https://evil.example"), ("origin", "http://localhost")],
}
OURS: dict[str, list[tuple[str, str]]] = {
    "an address": [("host", "127.0.0.1")],
    "an address and a port": [("host", "127.0.0.1:18789")],
    "a name": [("host", "localhost")],
    "a name in capitals": [("host", "LocalHost:8000")],
    "IPv6": [("host", "[::1]")],
    "IPv6 and a port": [("host", "[::1]:18789")],
}
PAGES = {
    "a page of this machine": [("host", "127.0.0.1:1"), ("origin", "http://localhost:5173")],
    "a page of this machine, by IPv6": [("host", "[::1]:1"), ("origin", "http://[::1]:5173")],
}


async def request_status(
    app: App, path: str, method: str, headers: list[tuple[str, str]], peer: str = "127.0.0.1"
) -> int:
    """The status of one request, with the credential it needs."""
    all_headers = [*headers, ("authorization", f"Bearer {TOKEN}"), ("content-type", "application/json")]
    scope = {
        "type": "http", "http_version": "1.1", "scheme": "http", "method": method, "path": path, "query_string": b"",
        "root_path": "", "headers": [(k.encode(), v.encode()) for k, v in all_headers], "client": (peer, 1),
    }  # fmt: skip
    status = 0

    async def receive() -> Any:
        return {"type": "http.request", "body": b"{}", "more_body": False}

    async def answer(event: Any) -> None:
        nonlocal status
        status = event.get("status", status)

    async with asyncio.timeout(20):
        await app(scope, receive, answer)
    return status


@contextlib.asynccontextmanager
async def gateway(folder: Path, **plan: Any) -> AsyncIterator[GatewayServer]:
    async with assemble_gateway(GatewayOptions(folder=folder, token=TOKEN, **plan), "ws://127.0.0.1:1") as whole:
        yield whole.gateway


OPEN = {"/health", "/healthz", "/ready", "/readyz", "/channels/"}
METHODS = {"/tools/invoke": "POST", "/v1/chat/completions": "POST", "/v1/responses": "POST", "/mcp": "POST"}


def test_each_path_of_the_gateway_asks_the_gate(tmp_path: Path) -> None:
    async def main() -> None:
        async with gateway(tmp_path) as served:
            paths = [
                *served.http.exact_routes,
                *served.http.prefix_routes,
                "/",
                "/nothing",
                "/v1/models/openclaw",
                "//metrics",
                "/metrics/",
            ]
            assert {"/metrics", "/tools/invoke", "/v1/models", "/v1/responses", "/mcp", *OPEN} <= set(paths)
            for path in paths:
                method = METHODS.get(path, "GET")
                for name, headers in FOREIGN.items():
                    status = await request_status(served.http, path, method, headers)
                    assert (status != 403) is (path in OPEN), (path, name, status)
                for name, headers in {**OURS, **PAGES}.items():
                    assert await request_status(served.http, path, method, headers) != 403, (path, name)

    asyncio.run(main())


class _NewModule:
    def methods(self) -> tuple[()]:
        return ()

    def routes(self) -> Any:
        async def serve(scope: Any, receive: Any, send: Any) -> None:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b""})

        return {"/brand-new": serve, "/brand/new/": serve, "/health/details": serve}


def test_a_path_that_is_added_asks_the_gate_too(tmp_path: Path) -> None:
    async def main() -> None:
        served = GatewayServer(tmp_path, TOKEN)
        served.add_module(_NewModule())
        for path in ("/brand-new", "/brand/new/x", "/health/details"):
            assert await request_status(served.http, path, "GET", [("host", "evil.example")]) == 403
            assert await request_status(served.http, path, "GET", [("host", "localhost")]) == 200

    asyncio.run(main())


def test_each_path_of_the_proxy_asks_the_gate() -> None:
    async def main() -> None:
        async with open_proxy(ProxySettings(audit="off")) as state:
            front, routes = ProxyAsgi(state), Api(state).app().routes
            paths = [route.path.replace("{id}", "x") for route in routes if isinstance(route, Route)]
            assert {"/health", "/metrics", "/openapi.json", "/v1/chat/sessions"} <= set(paths)
            for path in [*paths, "/v1/mcp", "/v1/mcp/x", "/v1/mcp/x/"]:
                method = "PUT" if path.endswith("/tools") else "POST" if path.startswith("/v1/mcp") else "GET"
                for name, headers in FOREIGN.items():
                    status = await request_status(front, path, method, headers)
                    assert (status != 403) is (path == "/health"), (path, name, status)
                for name, headers in {**OURS, **PAGES}.items():
                    assert await request_status(front, path, method, headers) != 403, (path, name)

    asyncio.run(main())


def test_each_path_of_the_node_asks_the_gate(tmp_path: Path) -> None:
    """The node has one endpoint for all paths, and is nothing for pages."""
    tools = Tools()
    endpoint = McpHttp(
        serving(tools),
        access_rules=HttpAccessRules(allowed_origins=frozenset(), allow_browsers=False, loopback_only=True),
    )

    async def main() -> None:
        for path in ("/", "/mcp", "/health", "/anything"):
            for name, headers in {**FOREIGN, **PAGES}.items():
                assert await request_status(endpoint, path, "POST", headers) == 403, (path, name)
            for name, headers in OURS.items():
                assert await request_status(endpoint, path, "POST", headers) != 403, (path, name)
            assert await request_status(endpoint, path, "POST", OURS["a name"], peer="192.0.2.7") == 403
        async with serve_mcp_http(LocalNode(tmp_path), PortChoice(0)) as address:
            answer = await asyncio.to_thread(send, address + "health", "GET", Host="evil.example")
            assert (answer.status, answer.body) == (403, b"host not allowed")

    asyncio.run(main())


@pytest.mark.parametrize("path", ["/metrics", "/v1/models", "/mcp"])
def test_a_gateway_that_other_machines_reach_is_asked_by_address_and_by_its_names(tmp_path: Path, path: str) -> None:
    async def main() -> None:
        async with gateway(tmp_path, accepts_remote=True, hosts=frozenset({"0.0.0.0"})) as served:
            named = [f"{name}:18789" for name in process_stats.host_names()]
            for host in ("192.0.2.7:18789", "[2001:db8::7]:18789", "10.0.0.1", "127.0.0.1", *named):
                assert await request_status(served.http, path, "GET", [("host", host)]) != 403, host
            for host in ("evil.example", "evil.example:18789", "", "1.2.3.4.evil.example", "[evil]"):
                assert await request_status(served.http, path, "GET", [("host", host)]) == 403, host
            page = [("host", "192.0.2.7"), ("origin", "http://192.0.2.7")]
            assert await request_status(served.http, path, "GET", page) == 403, "a page of any address is none of ours"

    asyncio.run(main())


@pytest.mark.parametrize(
    ("configured", "host", "wanted"),
    [
        ("claw.example.com", "claw.example.com", False),
        ("claw.example.com", "claw.example.com:443", False),
        ("claw.example.com", "evil.example", True),
        ("*", "anything.example", False),
    ],
)
def test_a_configured_host_name_is_one_of_the_gateways_own(
    tmp_path: Path, configured: str, host: str, wanted: bool
) -> None:
    async def main() -> None:
        served = GatewayServer(tmp_path, TOKEN, hosts=frozenset({configured}))
        for path in ("/metrics", "/mcp"):
            assert (await request_status(served.http, path, "GET", [("host", host)]) == 403) is wanted
            foreign = [("host", host), ("origin", "https://evil.example")]
            assert await request_status(served.http, path, "GET", foreign) == 403

    asyncio.run(main())
