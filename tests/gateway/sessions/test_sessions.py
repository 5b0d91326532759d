"""Sessions: found, listed, made, changed, forgotten, searched, followed."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from openclaw_mcp.core import session_keys as keys
from openclaw_mcp.core.agents import AgentProfile, AgentRoster
from openclaw_mcp.core.rpc import RpcError
from tests.gateway.sessions.gateways import TwinLink, open_harness

TWO = AgentRoster(agents=(AgentProfile(id="main"), AgentProfile(id="second", name="Second")))


@pytest.mark.parametrize(
    ("short", "full", "kind"),
    [
        ("main", "agent:main:main", "main"),
        ("Agent:Main:MAIN", "agent:main:main", "main"),
        ("project", "agent:main:project", "custom"),
        ("telegram:group:42", "agent:main:telegram:group:42", "group"),
        ("telegram:direct:42", "agent:main:telegram:direct:42", "direct"),
        ("agent:second:subagent:1", "agent:second:subagent:1", "subagent"),
        ("cron:1:run:2", "agent:main:cron:1:run:2", "cron"),
    ],
)
def test_keys_have_one_full_form(short: str, full: str, kind: str) -> None:
    assert keys.normalize_key(short, TWO) == full
    assert keys.normalize_key(full, TWO) == full
    assert keys.classify_key(full, TWO) == kind


def test_a_configured_main_key_is_what_main_means() -> None:
    roster = AgentRoster(main_key="home")
    assert {keys.normalize_key(key, roster) for key in ("main", "home", "agent:main:main")} == {"agent:main:home"}


def test_a_session_is_made_listed_described_resolved_and_forgotten(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with open_harness(str(tmp_path / "db")) as harness:
            created = await harness.call("sessions.create", {"label": "Trip", "idempotencyKey": "c1"})
            assert created["ok"]
            assert created["key"].startswith("agent:main:dashboard:")
            assert not created["runStarted"]
            again = await harness.call("sessions.create", {"label": "Trip", "idempotencyKey": "c1"})
            assert again["key"] == created["key"]
            with pytest.raises(RpcError, match="label already in use"):
                await harness.call("sessions.create", {"label": "Trip"})
            listed = await harness.call("sessions.list")
            assert (listed["count"], listed["totalCount"], listed["hasMore"]) == (1, 1, False)
            assert (listed["limitApplied"], listed["nextOffset"]) == (100, None)
            row = listed["sessions"][0]
            assert (row["key"], row["label"], row["kind"]) == (created["key"], "Trip", "direct")
            assert row["classification"] == "dashboard"
            assert (await harness.call("sessions.describe", {"key": created["key"]}))["session"]["label"] == "Trip"
            assert (await harness.call("sessions.describe", {"key": "none"}))["session"] is None
            for query in ({"label": "Trip"}, {"sessionId": created["sessionId"]}, {"key": created["key"]}):
                found = await harness.call("sessions.resolve", query)
                assert found == {"ok": True, "key": created["key"], "agentId": "main"}
            assert await harness.call("sessions.resolve", {"key": "nope", "allowMissing": True}) == {"ok": False}
            with pytest.raises(RpcError, match="No session found"):
                await harness.call("sessions.resolve", {"label": "nope"})
            with pytest.raises(RpcError, match="exactly one"):
                await harness.call("sessions.resolve", {"key": "a", "label": "b"})
            gone = await harness.call("sessions.delete", {"key": created["key"]})
            assert gone == {"ok": True, "key": created["key"], "deleted": True, "archived": []}
            assert not (await harness.call("sessions.delete", {"key": created["key"]}))["deleted"]
            with pytest.raises(RpcError, match="Cannot delete the main session"):
                await harness.call("sessions.delete", {"key": "main"})

    asyncio.run(scenario())


def test_create_with_a_message_starts_a_run(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with open_harness(str(tmp_path / "db")) as harness:
            created = await harness.call("sessions.create", {"message": "!say hello"})
            assert (created["runStarted"], created["status"]) == (True, "started")
            ended = await harness.call("agent.wait", {"runId": created["runId"], "timeoutMs": 10_000})
            assert ended["terminalReply"]["text"] == "hello"
            preview = await harness.call("sessions.preview", {"keys": [created["key"], "none"]})
            assert [(p["status"], [i["text"] for i in p["items"]]) for p in preview["previews"]] == [
                ("ok", ["!say hello", "hello"]),
                ("missing", []),
            ]
            row = (await harness.call("sessions.list", {"includeDerivedTitles": True, "includeLastMessage": True}))[
                "sessions"
            ][0]
            assert (row["derivedTitle"], row["lastMessagePreview"], row["status"]) == ("!say hello", "hello", "done")

    asyncio.run(scenario())


def test_patch_sets_and_clears_and_asks_for_the_right_scope(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with open_harness(str(tmp_path / "db")) as harness:
            await harness.say("!say hi", run="r1")
            changes = {"key": "main", "label": "L", "pinned": True, "icon": "x"}
            entry = (await harness.call("sessions.patch", changes))["entry"]
            assert (entry["label"], entry["pinned"], entry["icon"]) == ("L", True, "x")
            entry = (await harness.call("sessions.patch", {"key": "main", "label": None, "icon": None}))["entry"]
            assert "label" not in entry
            assert "icon" not in entry
            writer = TwinLink("operator.write")
            await harness.call("sessions.patch", {"key": "main", "label": "W"}, link=writer)
            with pytest.raises(RpcError, match=r"missing scope: operator\.admin"):
                await harness.call("sessions.patch", {"key": "main", "execSecurity": "full"}, link=writer)
            with pytest.raises(RpcError, match="missing scope"):
                await harness.call("sessions.delete", {"key": "x"}, link=writer)
            with pytest.raises(RpcError, match="boolean"):
                await harness.call("sessions.patch", {"key": "main", "pinned": "yes"})
            with pytest.raises(RpcError, match="changed since"):
                await harness.call("sessions.patch", {"key": "main", "pinned": True, "expectedSessionId": "other"})
            assert (await harness.call("sessions.list", {"pinned": True}))["count"] == 1

    asyncio.run(scenario())


def test_reset_empties_the_transcript_and_stops_the_run(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with open_harness(str(tmp_path / "db")) as harness:
            await harness.say("!say secret", run="r1")
            before = (await harness.call("sessions.describe", {"key": "main"}))["session"]
            await harness.call("chat.send", {"sessionKey": "main", "message": "!sleep 60", "idempotencyKey": "r2"})
            result = await harness.call("sessions.reset", {"key": "main", "reason": "new"})
            assert result["ok"]
            assert result["entry"]["sessionId"] == before["sessionId"]
            assert result["entry"]["lifecycleRevision"] != before["lifecycleRevision"]
            assert not result["entry"]["hasActiveRun"]
            assert (await harness.call("chat.history", {"sessionKey": "main"}))["messages"] == []
            assert (await harness.call("sessions.search", {"query": "secret"}))["results"] == []

    asyncio.run(scenario())


def test_lists_are_narrowed_and_paged(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with open_harness(str(tmp_path / "db"), roster=lambda: TWO) as harness:
            for n in range(6):
                await harness.call("sessions.create", {"key": f"n{n}"})
            await harness.call("sessions.create", {"key": "other", "agentId": "second"})
            child = {"key": "subagent:1", "parentSessionKey": "n0", "spawnDepth": 1}
            await harness.call("sessions.create", child)

            async def names(**query: Any) -> list[str]:
                rows = (await harness.call("sessions.list", query))["sessions"]
                return [row["key"].removeprefix("agent:main:") for row in rows]

            assert await names(spawnedBy="n0") == ["subagent:1"]
            assert await names(agentId="second") == ["agent:second:other"]
            assert "subagent:1" not in await names(excludeSubagents=True)
            assert await names(search="N3") == ["n3"]
            first = await harness.call("sessions.list", {"limit": 3})
            assert (first["hasMore"], first["nextOffset"], first["totalCount"]) == (True, 3, 8)
            by_offset = await names(limit=3, offset=3)
            assert by_offset == await names(limit=3, cursor=first["nextCursor"])
            await harness.call("sessions.patch", {"key": "n1", "archived": True})
            assert "n1" not in await names()
            assert await names(archived=True) == ["n1"]
            assert len(await names(archived="all")) == 8
            with pytest.raises(RpcError, match="cursor"):
                await names(cursor="x")

    asyncio.run(scenario())


def test_search_brings_messages_with_their_sessions(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with open_harness(str(tmp_path / "db")) as harness:
            await harness.say("!say the heron stands still", run="r1", key="birds")
            await harness.say("!say nothing", run="r2")
            results = (await harness.call("sessions.search", {"query": "heron stands"}))["results"]
            assert {(r["sessionKey"], r["role"]) for r in results} == {
                ("agent:main:birds", "user"),
                ("agent:main:birds", "assistant"),
            }
            assert all("heron" in r["snippet"] and r["score"] > 0 for r in results)
            inside = {"query": "heron", "sessionKeys": ["main"]}
            assert (await harness.call("sessions.search", inside))["results"] == []

    asyncio.run(scenario())


def test_followers_hear_what_they_asked_for(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with open_harness(str(tmp_path / "db")) as harness:
            link = TwinLink()
            assert await harness.call("sessions.subscribe", {}, link=link) == {"subscribed": True}
            followed = await harness.call("sessions.messages.subscribe", {"key": "main"}, link=link)
            assert followed == {"subscribed": True, "key": "agent:main:main"}
            assert link.subscriptions() == {"sessions", "session:agent:main:main"}
            await harness.say("!say hi", run="r1")
            messages = [event for event in harness.events if event.name == "session.message"]
            assert [(e.topic, e.other_topic) for e in messages] == [("session:agent:main:main", "sessions")] * 2
            assert [e.payload["messageSeq"] for e in messages] == [1, 2]
            assert messages[-1].payload["message"]["role"] == "assistant"
            changed = harness.received("sessions.changed", sessionKey="agent:main:main")
            assert [(c.get("reason"), c.get("phase")) for c in changed] == [("send", None), (None, "end")]
            assert changed[0]["session"]["hasActiveRun"]
            await harness.call("sessions.messages.unsubscribe", {"key": "main"}, link=link)
            await harness.call("sessions.unsubscribe", {}, link=link)
            assert link.subscriptions() == set()

    asyncio.run(scenario())


def test_agents_are_listed(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with open_harness(str(tmp_path / "db"), roster=lambda: TWO) as harness:
            listed = await harness.call("agents.list")
            assert (listed["defaultId"], listed["mainKey"], listed["scope"]) == ("main", "main", "per-sender")
            assert [agent["id"] for agent in listed["agents"]] == ["main", "second"]
            named = await harness.call("agent.identity.get", {"agentId": "second"})
            assert (named["name"], named["nameSource"]) == ("Second", "config")

    asyncio.run(scenario())
