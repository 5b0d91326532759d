"""A request that a reverse proxy passes on is refused unless the config trusts the proxy, at every way in."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import InvalidStatus

from tests import web_client
from tests.gateway.rpc.gateways import CONNECT, TOKEN, running, within
from tests.gateway.wiring.gateways import world

BEARER = {"Authorization": f"Bearer {TOKEN}"}
NAMES = ["X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "X-Forwarded-Port", "X-Real-IP", "Forwarded"]


@pytest.mark.parametrize("name", NAMES)
def test_a_forwarded_request_without_a_trusted_proxy_is_refused(tmp_path: Path, name: str) -> None:
    async def test() -> None:
        async with running(tmp_path) as gateway:
            with pytest.raises(InvalidStatus) as refused:
                async with gateway.stranger(**{name: "192.0.2.1"}):
                    pass
            upgrade = refused.value.response
            assert (upgrade.status_code, upgrade.headers["Content-Type"]) == (403, "application/json; charset=utf-8")
            error = json.loads(upgrade.body or b"")["error"]
            assert error["type"] == "proxy_attribution_required"
            assert "gateway.trustedProxies" in error["message"]

            def post(path: str) -> Any:
                return web_client.send(f"{gateway.http}{path}", "POST", {}, **BEARER, **{name: "192.0.2.1"})

            for path in ("/tools/invoke", "/mcp"):
                reply = await asyncio.to_thread(post, path)
                assert (reply.status, reply.json["error"]["type"]) == (403, "proxy_attribution_required")
            probe = await asyncio.to_thread(web_client.send, f"{gateway.http}/healthz", "GET", **{name: "192.0.2.1"})
            assert probe.status == 200

    within(test())


@pytest.mark.parametrize(
    ("trusted", "forwarded", "comes_in"),
    [
        (["127.0.0.1"], "192.0.2.1", True),
        (["127.0.0.0/8"], "192.0.2.1", True),
        (["127.0.0.1", "10.0.0.0/8"], "192.0.2.1, 10.1.2.3", True),
        (["127.0.0.1"], "127.0.0.1", False),  # the proxy says nothing of who it is
        (["127.0.0.1"], "unknown", False),
        (["10.0.0.0/8"], "192.0.2.1", False),
        (["not a network"], "192.0.2.1", False),
    ],
)
def test_a_trusted_proxy_names_the_client(
    tmp_path: Path, trusted: list[str], forwarded: str, comes_in: bool
) -> None:  # fmt: skip
    async def test() -> None:
        async with running(tmp_path, trusted_proxies=trusted) as gateway:
            try:
                async with gateway.stranger(**{"X-Forwarded-For": forwarded}) as peer:
                    await peer.event("connect.challenge")
                    answer = await peer.ask("connect", CONNECT)
                    connection = next(iter(gateway.gateway.connections.values()))
                    assert (answer["ok"], connection.peer_info.address) == (True, "192.0.2.1")
                    assert not connection.peer_info.is_local
            except InvalidStatus:
                assert not comes_in
            else:
                assert comes_in
            async with gateway.client() as beside:  # a program of this machine needs no proxy
                assert (await beside.call("health"))["ok"]

    within(test())


def test_a_proxy_is_trusted_from_the_moment_the_config_names_it(tmp_path: Path) -> None:
    def ask(server: Any) -> int:
        headers = {**server.bearer, "X-Forwarded-For": "192.0.2.1"}
        url = f"{server.served.http}/mcp"
        return int(web_client.ask(url, "tools/list", {}, **headers).status)

    with world(tmp_path, {}) as server:
        assert ask(server) == 403
        patch = {"gateway": {"trustedProxies": ["127.0.0.1"]}}
        server.ask("config.patch", raw=json.dumps(patch), baseHash=server.ask("config.get")["hash"])
        assert ask(server) == 200


def test_a_runs_token_is_for_programs_of_this_machine_over_http_too(tmp_path: Path) -> None:
    """A trusted proxy names another machine as the client: on the WebSocket the token is refused there."""
    with world(tmp_path, {"gateway": {"trustedProxies": ["127.0.0.1"]}}) as server:
        bearer = {"Authorization": f"Bearer {server.ask('attach.grant')['token']}"}
        url = f"{server.served.http}/mcp"
        assert web_client.ask(url, "tools/list", {}, **bearer).status == 200
        refused = web_client.ask(url, "tools/list", {}, **bearer, **{"X-Forwarded-For": "192.0.2.1"})
        assert (refused.status, refused.json["error"]["type"]) == (403, "forbidden")
