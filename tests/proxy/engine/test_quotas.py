"""How many sessions one address may have, and who gives way when there is no room."""

import asyncio
from typing import Any

import pytest

from openclaw_mcp.net.peers import peer_key
from openclaw_mcp.proxy import settings
from openclaw_mcp.proxy.engine.app_session import AppRegistration, TooManySessions
from openclaw_mcp.proxy.engine.limits import UNCLAIMED_TIMEOUT, SessionLimits
from openclaw_mcp.proxy.engine.quotas import SessionQuota
from openclaw_mcp.proxy.engine.tool_list import EMPTY_MANIFEST, ToolManifest
from openclaw_mcp.proxy.settings import ProxySettings

from ...web_client import Answer
from ..engines import Start, one_redis, proxies, redis
from ..proxies import Proxy

__all__ = ["one_redis", "proxies", "redis"]

ELSEWHERE = ("192.0.2.7", 1)


async def register(proxy: Proxy) -> Answer:
    return await proxy.send("POST", "/v1/chat/sessions", {})


def test_one_address_does_not_fill_the_proxy_for_every_client(proxies: Start) -> None:
    async def main() -> None:
        async with proxies(most_sessions=8, most_sessions_of_a_peer=5) as proxy:
            answers = [await register(proxy) for _ in range(20)]
            assert [answer.status for answer in answers] == [200] * 5 + [429] * 15
            assert answers[-1].json["detail"].startswith("5 sessions are open already from your address")
            assert "OPENCLAW_PROXY_MAX_SESSIONS_PER_PEER" in answers[-1].json["detail"]
            assert answers[-1].headers["retry-after"] == "30"
            for _ in range(3):
                await proxy.state.register(b"{}", client=ELSEWHERE)
            with pytest.raises(TooManySessions, match=r"^8 sessions are open already; "):
                await proxy.state.register(b"{}", client=("192.0.2.8", 1))

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
    assert settings.read_settings(environment, folder=tmp_path).session_limits.sessions_per_peer == most
    assert ProxySettings().session_limits.sessions_per_peer == 15_000


@pytest.mark.parametrize(
    ("environment", "most", "of_a_peer"),
    [
        ({}, 128 << 20, 96 << 20),
        ({"OPENCLAW_PROXY_APP_TOKEN": "x"}, 128 << 20, 128 << 20),
        ({"OPENCLAW_PROXY_MAX_REGISTERED_BYTES": "1000"}, 1000, 750),
        ({"OPENCLAW_PROXY_APP_TOKEN": "x", "OPENCLAW_PROXY_MAX_REGISTERED_BYTES": "1000"}, 1000, 1000),
    ],
)
def test_how_many_bytes_may_be_registered(
    environment: dict[str, str], most: int, of_a_peer: int, tmp_path: Any
) -> None:
    room = settings.read_settings(environment, folder=tmp_path).session_limits
    assert (room.bytes, room.bytes_per_peer) == (most, of_a_peer)


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
    assert peer_key((address, 1)) == peer
    assert peer_key(None) == ""


# ---- who gives way ----


def session(id: str, peer: str) -> AppRegistration:
    return AppRegistration(id=id, created=0.0, about=b"{}", peer=peer)


def refusal(places: SessionQuota, peer: str) -> TooManySessions:
    found = places.refusal(peer, 0)
    assert found is not None
    return found


def test_a_session_no_app_came_for_gives_way_after_a_while() -> None:
    assert UNCLAIMED_TIMEOUT == 10.0
    places = SessionQuota(SessionLimits(sessions=5, sessions_per_peer=3))
    for number, id in enumerate(("a", "b", "c")):
        places.add(session(id, "here"), EMPTY_MANIFEST, float(number))
    places.claim("a")
    full = refusal(places, "here")
    assert places.refusal("there", 0) is None
    with pytest.raises(TooManySessions, match=r"^3 sessions are open already from your address"):
        places.pick_evictable("here", 11.0, full)
    assert places.pick_evictable("here", 11.1, full) == "b", "the oldest whose app never came"
    places.remove("b")
    assert places.refusal("here", 0) is None


def test_a_session_whose_app_has_left_gives_way_after_a_while() -> None:
    places = SessionQuota(SessionLimits(sessions=5, sessions_per_peer=2))
    for id in ("a", "b"):
        places.add(session(id, "here"), EMPTY_MANIFEST, 0.0)
        places.claim(id)
    full = refusal(places, "here")
    places.unclaim("a", 100.0)
    with pytest.raises(TooManySessions):
        places.pick_evictable("here", 110.0, full)
    assert places.pick_evictable("here", 110.1, full) == "a"
    places.claim("a")
    with pytest.raises(TooManySessions):
        places.pick_evictable("here", 1000.0, full)
    places.unclaim("unknown", 0.0)


def test_where_all_are_full_the_oldest_of_all_gives_way() -> None:
    places = SessionQuota(SessionLimits(sessions=4, sessions_per_peer=3))
    for number, (id, peer) in enumerate([("a", "one"), ("b", "two"), ("c", "one"), ("d", "two")]):
        places.add(session(id, peer), EMPTY_MANIFEST, float(number))
    full = refusal(places, "three")
    with pytest.raises(TooManySessions, match=r"^4 sessions are open already; "):
        places.pick_evictable("three", 10.0, full)
    assert places.pick_evictable("three", 10.1, full) == "a"
    for id in ("a", "b", "c", "d"):
        places.claim(id)
    with pytest.raises(TooManySessions):
        places.pick_evictable("three", 1000.0, full)
    for id in ("a", "b", "c", "d", "d", "unknown"):
        places.remove(id)
    assert places.refusal("one", 0) is None


def test_what_sessions_share_is_counted_once_and_what_goes_is_counted_off() -> None:
    places = SessionQuota(SessionLimits(sessions=9, sessions_per_peer=9, bytes=1000, bytes_per_peer=300))
    menu, other = ToolManifest(b"x" * 200, ()), ToolManifest(b"y" * 200, ())
    assert places.added_bytes(session("a", "here"), menu) == 202
    places.add(session("a", "here"), menu, 0.0)
    assert places.added_bytes(session("b", "here"), menu) == 2
    assert places.added_bytes(session("b", "there"), menu) == 202
    places.add(session("b", "here"), menu, 0.0)
    assert places.refusal("here", 96) is None
    assert places.refusal("here", 97) is not None
    with pytest.raises(TooManySessions, match="from your address"):
        places.replace_tools(session("b", "here"), other)
    places.remove("a")
    places.replace_tools(session("b", "here"), other)
    assert places.refusal("here", 98) is None
    assert places.refusal("here", 99) is not None
    for number in range(3):
        places.add(session(f"c{number}", f"peer {number}"), ToolManifest(b"z" * 200, ()), 0.0)
    assert places.refusal("new", 192) is None
    full = places.refusal("new", 193)
    assert full is not None
    assert not full.per_peer
    places.remove("b")
    assert places.refusal("new", 300) is None


def test_each_menu_of_a_peer_counts() -> None:
    places = SessionQuota(SessionLimits(sessions=9, sessions_per_peer=9, bytes=1000, bytes_per_peer=1000))
    first, second = ToolManifest(b"x" * 200, ()), ToolManifest(b"y" * 300, ())
    places.add(session("a", "here"), first, 0.0)
    places.add(session("b", "here"), second, 0.0)
    assert places.refusal("here", 496) is None
    assert places.refusal("here", 497) is not None
    places.replace_tools(session("b", "here"), first)
    assert places.refusal("here", 796) is None, "it shares the first one's tools now"
    assert places.refusal("here", 797) is not None


def test_other_tools_are_taken_to_the_last_byte_and_those_of_a_neighbour_for_nothing() -> None:
    places = SessionQuota(SessionLimits(sessions=9, sessions_per_peer=9, bytes=1000, bytes_per_peer=506))
    first, second, third = (ToolManifest(letter * 250, ()) for letter in (b"x", b"y", b"z"))
    for id, menu in (("a", first), ("b", first), ("c", second)):
        places.add(session(id, "here"), menu, 0.0)
    assert places.refusal("here", 1) is not None, "full to the last byte"
    places.replace_tools(session("b", "here"), second)
    places.replace_tools(session("b", "here"), second)
    with pytest.raises(
        TooManySessions, match=r"^with this, the sessions open from your address .* \(506 now\)$"
    ) as full:
        places.replace_tools(session("b", "here"), third)
    assert full.value.per_peer
    places.replace_tools(session("a", "here"), third)  # no other session had the first
    places.add(session("d", "there"), ToolManifest(b"x" * 492, ()), 0.0)
    assert places.refusal("elsewhere", 1) is not None
    with pytest.raises(TooManySessions, match=r"^with this, the sessions open would take .* \(1000 now\)$") as full:
        places.replace_tools(session("d", "there"), ToolManifest(b"y" * 493, ()))
    assert not full.value.per_peer
    places.replace_tools(session("d", "there"), ToolManifest(b"y" * 491, ()))
    assert places.refusal("elsewhere", 1) is None
    assert places.refusal("elsewhere", 2) is not None
    places.replace_tools(session("unknown", "there"), third)
    assert places.refusal("elsewhere", 1) is None


def test_what_the_last_one_let_go_costs_its_bytes_again() -> None:
    places = SessionQuota(SessionLimits(sessions=9, sessions_per_peer=9))
    menu = ToolManifest(b"x" * 200, ())
    places.add(session("a", "here"), menu, 0.0)
    places.add(session("b", "here"), menu, 0.0)
    places.remove("a")
    assert places.added_bytes(session("c", "here"), menu) == 2
    places.remove("b")
    assert places.added_bytes(session("c", "here"), menu) == 202
    places.add(session("c", "here"), menu, 0.0)
    places.replace_tools(session("c", "here"), EMPTY_MANIFEST)
    assert places.added_bytes(session("d", "here"), menu) == 202


@pytest.mark.parametrize("of_a_peer", [True, False])
def test_by_default_128_mebibytes_may_be_registered(of_a_peer: bool) -> None:
    more = {"bytes" if of_a_peer else "bytes_per_peer": 1 << 40}
    places = SessionQuota(SessionLimits(sessions=1, sessions_per_peer=1, **more))
    assert places.refusal("here", 134_217_728) is None
    full = places.refusal("here", 134_217_729)
    assert full is not None
    assert full.per_peer is of_a_peer


def tools(size: int) -> Any:
    return [{"name": "a", "description": "d" * size}]


def test_on_every_engine_one_address_does_not_fill_the_proxy_with_bytes(proxies: Start) -> None:
    async def main() -> None:
        async with proxies(most_bytes=400_000) as proxy:
            answers = [await proxy.send("POST", "/v1/chat/sessions", {"tools": tools(90_000 + n)}) for n in range(6)]
            assert [answer.status for answer in answers] == [200] * 3 + [429] * 3
            assert "from your address" in answers[-1].json["detail"]
            assert "OPENCLAW_PROXY_MAX_REGISTERED_BYTES" in answers[-1].json["detail"]
            await proxy.state.register(b"{}", client=ELSEWHERE)
            id = answers[0].json["mcpSessionId"]
            more = await proxy.send("PUT", f"/v1/chat/sessions/{id}/tools", {"tools": tools(150_000)})
            assert more.status == 429
            less = await proxy.send("PUT", f"/v1/chat/sessions/{id}/tools", {"tools": tools(10)})
            assert less.status == 200
            assert (await proxy.send("POST", "/v1/chat/sessions", {"tools": tools(89_000)})).status == 200

    asyncio.run(main())


def test_on_every_engine_bytes_of_unserved_sessions_give_way(proxies: Start) -> None:
    async def main() -> None:
        async with proxies(most_bytes=400_000, unclaimed=-1.0) as proxy:
            ids = []
            for number in range(6):
                answer = await proxy.send("POST", "/v1/chat/sessions", {"tools": tools(90_000 + number)})
                ids.append(answer.json["mcpSessionId"])
            there = [(await proxy.send("GET", f"/v1/chat/sessions/{id}")).status for id in ids]
            assert there == [404] * 3 + [200] * 3

    asyncio.run(main())


def test_on_every_engine_a_session_whose_app_has_left_gives_way(proxies: Start) -> None:
    async def main() -> None:
        async with proxies(most_sessions=3, most_sessions_of_a_peer=2, unclaimed=-1.0) as proxy:
            left = (await register(proxy)).json["mcpSessionId"]
            async with proxy.app(left):
                pass
            async with proxy.app((await register(proxy)).json["mcpSessionId"]):
                while (await proxy.send("GET", f"/v1/chat/sessions/{left}")).json["connected"]:
                    pass
                assert (await register(proxy)).status == 200
                listed = (await proxy.send("GET", "/v1/chat/sessions")).json["sessions"]
                assert left not in [session["mcpSessionId"] for session in listed]

    asyncio.run(main())


def test_on_every_engine_a_session_no_app_came_for_gives_way(proxies: Start) -> None:
    """With an app at its bridge a session stays, without one it goes."""

    async def main() -> None:
        async with proxies(most_sessions=3, most_sessions_of_a_peer=2, unclaimed=-1.0) as proxy:
            open_id = (await register(proxy)).json["mcpSessionId"]
            async with proxy.app(open_id):
                first = (await register(proxy)).json["mcpSessionId"]
                second = (await register(proxy)).json["mcpSessionId"]
                assert (await proxy.send("GET", f"/v1/chat/sessions/{open_id}")).status == 200
                assert (await proxy.send("GET", f"/v1/chat/sessions/{first}")).status == 404
                async with proxy.app(second):
                    assert (await register(proxy)).status == 429
                    created = await proxy.state.register(b"{}", client=ELSEWHERE)
                    again = await proxy.state.register(b"{}", client=("192.0.2.8", 1))
                    assert (await proxy.send("GET", f"/v1/chat/sessions/{created.registration.id}")).status == 404
                    assert (await proxy.send("GET", f"/v1/chat/sessions/{again.registration.id}")).status == 200

    asyncio.run(main())
