"""How many sessions one address may have, and who gives way when there is no room."""

import asyncio
from typing import Any

import pytest

from openclaw_mcp.apps.guest import TooManySessions
from openclaw_mcp.apps.limits import UNCLAIMED
from openclaw_mcp.apps.places import Places
from openclaw_mcp.core.peers import peer_of
from openclaw_mcp.proxy import settings
from openclaw_mcp.proxy.settings import Settings

from ..web_client import Answer
from .engines import Start, one_redis, proxies, redis
from .world import Proxy

__all__ = ["one_redis", "proxies", "redis"]

ELSEWHERE = ("192.0.2.7", 1)


async def register(proxy: Proxy) -> Answer:
    return await proxy.send("POST", "/v1/chat/sessions", {})


def test_one_address_does_not_fill_the_proxy_for_everybody(proxies: Start) -> None:
    async def main() -> None:
        async with proxies(most_sessions=8, most_sessions_of_a_peer=5) as proxy:
            answers = [await register(proxy) for _ in range(20)]
            assert [answer.status for answer in answers] == [200] * 5 + [429] * 15
            assert answers[-1].json["detail"].startswith("5 sessions are open already from your address")
            assert "OPENCLAW_PROXY_MAX_SESSIONS_PER_PEER" in answers[-1].json["detail"]
            assert answers[-1].headers["retry-after"] == "30"
            for _ in range(3):
                await proxy.house.register(b"{}", client=ELSEWHERE)
            with pytest.raises(TooManySessions, match=r"^8 sessions are open already; "):
                await proxy.house.register(b"{}", client=("192.0.2.8", 1))

    asyncio.run(main())


def test_what_is_deleted_makes_room_again(proxies: Start) -> None:
    async def main() -> None:
        async with proxies(most_sessions=8, most_sessions_of_a_peer=2) as proxy:
            ids = [(await register(proxy)).json["mcpSessionId"] for _ in range(2)]
            assert (await register(proxy)).status == 429
            await proxy.send("DELETE", f"/v1/chat/sessions/{ids[0]}")
            assert [(await register(proxy)).status for _ in range(2)] == [200, 429]

    asyncio.run(main())


@pytest.mark.parametrize(
    ("environment", "most"),
    [
        ({}, 15_000),
        ({"OPENCLAW_PROXY_APP_TOKEN": "x"}, 20_000),
        ({"OPENCLAW_PROXY_MAX_SESSIONS": "100"}, 75),
        ({"OPENCLAW_PROXY_MAX_SESSIONS": "2"}, 2),
        ({"OPENCLAW_PROXY_MAX_SESSIONS_PER_PEER": "7"}, 7),
        ({"OPENCLAW_PROXY_MAX_SESSIONS_PER_PEER": "20000"}, 20_000),
        ({"OPENCLAW_PROXY_APP_TOKEN": "x", "OPENCLAW_PROXY_MAX_SESSIONS_PER_PEER": "7"}, 7),
    ],
)
def test_how_many_one_address_may_have(environment: dict[str, str], most: int, tmp_path: Any) -> None:
    assert settings.read(environment, folder=tmp_path).of_a_peer == most
    assert Settings().of_a_peer == 15_000


@pytest.mark.parametrize(
    ("address", "peer"),
    [
        ("127.0.0.1", "this machine"),
        ("127.9.9.9", "this machine"),
        ("::1", "this machine"),
        ("::ffff:127.0.0.1", "this machine"),
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::1", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("no address", ""),
    ],
)
def test_who_counts_as_one(address: str, peer: str) -> None:
    assert peer_of((address, 1)) == peer
    assert peer_of(None) == ""


# ---- who gives way ----


def test_a_session_no_app_came_for_gives_way_after_a_while() -> None:
    assert UNCLAIMED == 10.0
    places = Places(of_a_peer=3, in_all=5)
    for number, id in enumerate(("a", "b", "c")):
        places.add(id, "here", float(number))
    places.claim("a")
    assert places.full("here")
    assert not places.full("there")
    with pytest.raises(TooManySessions, match=r"^3 sessions are open already from your address"):
        places.giving_way("here", 11.0)
    assert places.giving_way("here", 11.1) == "b", "the oldest whose app never came"
    places.remove("b")
    assert not places.full("here")


def test_where_all_are_full_the_oldest_of_all_gives_way() -> None:
    places = Places(of_a_peer=3, in_all=4)
    for number, (id, peer) in enumerate([("a", "one"), ("b", "two"), ("c", "one"), ("d", "two")]):
        places.add(id, peer, float(number))
    assert places.full("three")
    with pytest.raises(TooManySessions, match=r"^4 sessions are open already; "):
        places.giving_way("three", 10.0)
    assert places.giving_way("three", 10.1) == "a"
    for id in ("a", "b", "c", "d"):
        places.claim(id)
    with pytest.raises(TooManySessions):
        places.giving_way("three", 1000.0)
    for id in ("a", "b", "c", "d", "d", "unknown"):
        places.remove(id)
    assert not places.full("one")


def test_on_every_engine_a_session_no_app_came_for_gives_way(proxies: Start) -> None:
    """With an app at its bridge a session stays, without one it goes."""

    async def main() -> None:
        async with proxies(most_sessions=3, most_sessions_of_a_peer=2, unclaimed=-1.0) as proxy:
            kept = (await register(proxy)).json["mcpSessionId"]
            async with proxy.app(kept):
                first = (await register(proxy)).json["mcpSessionId"]
                second = (await register(proxy)).json["mcpSessionId"]
                assert (await proxy.send("GET", f"/v1/chat/sessions/{kept}")).status == 200
                assert (await proxy.send("GET", f"/v1/chat/sessions/{first}")).status == 404
                async with proxy.app(second):
                    assert (await register(proxy)).status == 429
                    made = await proxy.house.register(b"{}", client=ELSEWHERE)
                    again = await proxy.house.register(b"{}", client=("192.0.2.8", 1))
                    assert (await proxy.send("GET", f"/v1/chat/sessions/{made.session.id}")).status == 404
                    assert (await proxy.send("GET", f"/v1/chat/sessions/{again.session.id}")).status == 200

    asyncio.run(main())
