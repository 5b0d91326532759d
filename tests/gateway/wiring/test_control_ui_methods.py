"""What OpenClaw's Control UI and command line ask of a gateway, asked of ours. Both are driven in `tests/interop`."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from openclaw_mcp.core.rpc import RpcError
from openclaw_mcp.net.gateway_client.client import GatewayClient

from ..agents.models.fake import FakeModel, say
from ..agents.models.test_gateway import Talker, gateway, talking

CARD = {"id": "m-1", "name": "First", "contextWindow": 64000, "input": ["text"], "cost": {"input": 2, "output": 5}}
MAIN = {"sessionKey": "agent:main:main"}
WAIT = 60.0


def play(folder: Path, story: Any, *, with_model: bool = True, **config: Any) -> None:
    """The story with a client of a gateway whose agent has a scripted model."""

    async def connected(served: Any) -> None:
        async with asyncio.timeout(WAIT), talking(served) as talker:
            await story(talker)

    with FakeModel(say("Good morning.", usage=(1000, 200, 0))) as model:
        entry = {"baseUrl": f"{model.url}/v1", "apiKey": "${SCRIPTED_KEY}", "api": "openai", "models": [CARD]}
        if with_model:
            entry["apiKey"] = "k"
        models = {"providers": {"fake": entry}}
        with gateway(folder, {"models": models, "agents": {"defaults": {"model": "fake/m-1"}}, **config}) as served:
            asyncio.run(connected(served))


@pytest.mark.parametrize(
    ("method", "params", "answer"),
    [
        ("question.list", {}, {"questions": []}),
        ("sessions.observer.visibility", {"visible": True}, {"ok": True}),
        ("sessions.branches.list", MAIN, {"branches": []}),
        ("sessions.companion.state", {**MAIN, "agentId": "main"}, {"exchanges": []}),
        ("progressCard.get", MAIN, {"card": None}),
        ("environments.list", {"projection": "profiles"}, {"environments": []}),
        ("diagnostics.lanes", {}, {"lanes": [], "dynamic": None}),
        ("plugins.list", {}, {"plugins": [], "diagnostics": [], "mutationAllowed": False}),
        ("usage.status", {}, {"providers": []}),
        ("skills.library.list", {"scope": "all"}, {"entries": [], "profileId": None, "defaultTarget": "unavailable"}),
        ("artifacts.list", {**MAIN, "type": "image", "limit": 4}, {"artifacts": []}),
        ("worktrees.list", {}, {"worktrees": []}),
        ("transcripts.list", {"limit": 50}, {"sessions": [], "nextCursor": None}),
        ("hooks.status", {"agentId": "main"}, {"hooks": []}),
        ("users.list", {}, {"profiles": []}),
        ("skills.status", {"agentId": "main"}, {"skills": []}),
        ("update.status", {}, {"sentinel": None, "updateAvailable": None}),
        ("talk.catalog", {}, {"modes": [], "realtime": {"ready": False, "providers": []}}),
        ("audit.activity.list", {"limit": 100, "kind": "message", "direction": "inbound"}, {"events": []}),
        ("secrets.reload", {}, {"ok": True, "warningCount": 0}),
    ],
)
def test_what_this_gateway_has_none_of_is_answered_empty(tmp_path: Path, method: str, params: Any, answer: Any) -> None:
    async def story(talker: Talker) -> None:
        found = await talker.client.call(method, params)
        assert found == {**found, **answer}

    play(tmp_path, story)


@pytest.mark.parametrize(
    ("method", "params", "sentence"),
    [
        ("diagnostics.stability", {"limit": 25}, "keeps no record of stability events"),
        ("sessions.usage", {"range": "7d", "limit": 1000}, "use `usage.cost`"),
        ("set-heartbeats", {"enabled": False}, "has no heartbeats"),
        ("skills.search", {"query": "calendar"}, "searches no registry of skills"),
        ("themes.list", {}, "keeps no themes"),
    ],
)
def test_what_an_empty_answer_would_be_wrong_about_is_refused_with_a_sentence(
    tmp_path: Path, method: str, params: Any, sentence: str
) -> None:
    async def story(talker: Talker) -> None:
        with pytest.raises(RpcError, match=sentence) as refused:
            await talker.client.call(method, params)
        assert refused.value.kind == "UNAVAILABLE"

    play(tmp_path, story)


def test_the_gateways_host_is_an_environment(tmp_path: Path) -> None:
    async def story(talker: Talker) -> None:
        [host] = (await talker.client.call("environments.list", {}))["environments"]
        assert host == {
            "id": "gateway", "type": "local", "label": "Gateway local", "status": "available", "platform": sys.platform,
            "sessionHost": True, "trust": "persistent", "capabilities": ["agent.run", "sessions", "tools", "workspace"],
        }  # fmt: skip

    play(tmp_path, story)


def test_artifacts_are_asked_for_by_session_run_or_task(tmp_path: Path) -> None:
    async def story(talker: Talker) -> None:
        with pytest.raises(RpcError, match="require one of sessionKey, runId, or taskId"):
            await talker.client.call("artifacts.list", {"agentId": "main"})

    play(tmp_path, story)


def test_a_request_to_compact_is_answered_that_nothing_was(tmp_path: Path) -> None:
    """The page sends its next messages after this answer, and holds them back after a refusal."""

    async def story(talker: Talker) -> None:
        assert talker.client.hello is not None
        assert "sessions.compact" in talker.client.hello["features"]["methods"]
        answer = {"ok": True, "key": "agent:main:main", "compacted": False}
        found = await talker.client.call("sessions.compact", {"key": "main"})
        assert found == {**answer, "reason": "no sessionId"}
        await talker.say("Hello")
        before = (await talker.client.call("chat.history", MAIN))["messages"]
        found = await talker.client.call("sessions.compact", {"key": "main", "maxLines": 1})
        assert found == {**answer, "reason": "this gateway keeps every message and compacts none"}
        assert (await talker.client.call("chat.history", MAIN))["messages"] == before

    play(tmp_path, story)


def test_a_chat_is_opened_with_its_messages_models_and_commands(tmp_path: Path) -> None:
    async def story(talker: Talker) -> None:
        assert talker.client.hello is not None
        assert "published-model-catalog" in talker.client.hello["features"]["capabilities"]
        await talker.say("Hello")
        asked = {**MAIN, "limit": 80, "maxBytes": 262144, "inputRunIds": ["r-1"]}
        opened = await talker.client.call("chat.startup", asked)
        assert opened == {**await talker.client.call("chat.history", {**MAIN, "limit": 80}), **_moment(opened)}
        assert [message["role"] for message in opened["messages"]] == ["user", "assistant"]
        about = await talker.client.call("chat.metadata", {**MAIN, "agentId": "main"})
        assert {"/stop", "/new"} <= {name for row in about["commands"] for name in row["textAliases"]}
        assert about["commands"] == (await talker.client.call("commands.list", {}))["commands"]
        listed = (await talker.client.call("models.list", {"view": "configured", "agentId": "main"}))["models"]
        assert about["models"] == listed
        assert [listed[0][name] for name in ("provider", "id", "name", "contextWindow", "available", "tags")] == [
            "fake", "m-1", "First", 64000, True, ["default"],
        ]  # fmt: skip

    play(tmp_path, story)


def _moment(opened: Any) -> Any:
    """The part of an answer that tells when it was made."""
    return {"sessionInfo": opened["sessionInfo"]}


def test_a_model_without_its_key_is_listed_as_missing_it(tmp_path: Path) -> None:
    async def story(talker: Talker) -> None:
        row = (await talker.client.call("models.list", {"provider": "fake"}))["models"][0]
        assert (row["available"], row["unavailableReason"]) == (False, "missing-auth")
        auth = (await talker.client.call("models.authStatus", {"agentId": "main"}))["providers"]
        assert [(one["provider"], one["status"]) for one in auth] == [("fake", "missing")]
        with pytest.raises(RpcError, match="unknown agent id"):
            await talker.client.call("models.list", {"agentId": "nobody"})

    play(tmp_path, story, with_model=False)


def test_an_agent_without_a_model_has_the_demos(tmp_path: Path) -> None:
    async def story(talker: Talker) -> None:
        rows = (await talker.client.call("models.list", {}))["models"]
        assert (rows[0]["provider"], rows[0]["id"], rows[0]["available"]) == ("demo", "demo-echo", True)

    play(tmp_path, story, agents={"list": [{"id": "main"}]})


def test_a_session_is_found_by_the_short_id_of_its_link(tmp_path: Path) -> None:
    async def story(talker: Talker) -> None:
        client = talker.client
        key = (await client.call("sessions.create", {"label": "Herons at dawn"}))["key"]
        await client.call("chat.inject", {"sessionKey": key, "message": "Seven herons"})
        short = key.rpartition(":")[2].replace("-", "")
        for given in (short[:8], short[:12].upper(), short):
            asked = {"shortId": given, "agentId": "main", "slugHint": "herons-at-dawn"}
            found = await client.call("sessions.resolve", {**asked, "allowMissing": True})
            assert (found["ok"], found["key"], found["agentId"]) == (True, key, "main")
            opened = await client.call("chat.startup", {**asked, "limit": 80, "maxBytes": 262144})
            assert (opened["resolution"]["key"], len(opened["messages"])) == (key, 1)
        absent = {"shortId": "0" * 32, "agentId": "main"}
        assert await client.call("chat.startup", absent) == {"resolution": {"ok": False}}
        assert await client.call("sessions.resolve", {**absent, "allowMissing": True}) == {"ok": False}
        with pytest.raises(RpcError, match="No session found"):
            await client.call("sessions.resolve", absent)
        with pytest.raises(RpcError, match="needs sessionKey, or shortId"):
            await client.call("chat.startup", {})

    play(tmp_path, story)


def test_a_short_id_that_fits_several_names_them(tmp_path: Path) -> None:
    async def story(talker: Talker) -> None:
        ends = ("7f3a1c2e-0000-4000-8000-000000000001", "7f3a1c2e-0000-4000-8000-000000000002")
        keys = [f"agent:main:dashboard:{end}" for end in ends]
        for key in keys:
            await talker.client.call("sessions.create", {"key": key})
        found = await talker.client.call("sessions.resolve", {"shortId": "7f3a1c2e", "agentId": "main"})
        assert (found["ok"], sorted(one["key"] for one in found["candidates"])) == (False, keys)

    play(tmp_path, story)


def test_a_search_from_a_list_brings_the_rows_of_what_it_found(tmp_path: Path) -> None:
    async def story(talker: Talker) -> None:
        await talker.say("Where are the herons?")
        scope = {"includeGlobal": True, "configuredAgentsOnly": True, "agentId": "main"}
        found = await talker.client.call("sessions.search", {"query": "herons", "limit": 25, "scope": scope})
        assert [row["key"] for row in found["sessions"]] == [found["results"][0]["sessionKey"]]
        scope["agentId"] = "another"
        elsewhere = await talker.client.call("sessions.search", {"query": "herons", "scope": scope})
        assert (elsewhere["results"], elsewhere["sessions"]) == ([], [])

    play(tmp_path, story)


async def cost(client: GatewayClient, **params: Any) -> Any:
    return await client.call("usage.cost", params)


def test_what_was_used_is_counted_by_day_and_agent(tmp_path: Path) -> None:
    async def story(talker: Talker) -> None:
        await talker.say("Hello")
        await talker.say("And again")
        week = await cost(talker.client, days=7)
        assert (week["days"], len(week["daily"])) == (7, 7)
        assert (week["totals"]["totalTokens"], week["totals"]["missingCostEntries"]) == (2400, 0)
        assert week["totals"]["totalCost"] == pytest.approx(2 * (1000 * 2 + 200 * 5) / 1_000_000)
        assert {**week["daily"][-1], "date": ""} == {**week["totals"], "date": ""}
        today = week["daily"][-1]["date"]
        assert (await cost(talker.client, startDate=today, endDate=today))["totals"] == week["totals"]
        assert (await cost(talker.client, startDate="2020-01-01", endDate="2020-01-02"))["totals"]["totalTokens"] == 0
        assert (await cost(talker.client, days=1, agentScope="all"))["totals"] == week["totals"]
        for wrong in ({"startDate": today}, {"startDate": "2020-01-02", "endDate": "2020-01-01"}, {"days": 0}):
            with pytest.raises(RpcError):
                await cost(talker.client, **wrong)

    play(tmp_path, story)


def test_calls_of_tools_are_listed_for_whoever_may_read(tmp_path: Path) -> None:
    async def story(talker: Talker) -> None:
        client = talker.client
        await client.call("tools.invoke", {"name": "sessions_list", "sessionKey": "main"})
        await client.call("tools.invoke", {"name": "no_such_tool", "sessionKey": "main"})
        events: list[Any] = []
        while len(events) < 2:  # records are written a moment later
            events = (await client.call("audit.activity.list", {"limit": 100}))["events"]
        newest, first = events
        assert (first["toolName"], first["status"], first["action"]) == (
            "sessions_list", "succeeded", "tool.action.finished",
        )  # fmt: skip
        assert (newest["status"], newest["errorCode"]) == ("failed", "tool_failed")
        for status, meant in (("succeeded", [first]), ("failed", [newest]), ("blocked", []), ("started", [])):
            assert (await client.call("audit.activity.list", {"status": status}))["events"] == meant
        page = await client.call("audit.activity.list", {"limit": 1})
        rest = await client.call("audit.activity.list", {"limit": 1, "cursor": page["nextCursor"]})
        assert page["events"] + rest["events"] == events
        assert (await client.call("audit.activity.list", {"before": first["occurredAt"]}))["events"] == []
        with pytest.raises(RpcError, match=r"invalid audit\.activity\.list range or cursor"):
            await client.call("audit.activity.list", {"cursor": "x"})
        assert json.dumps(events).count("digest") == 0

    play(tmp_path, story)
