"""The fields of a session's row, and what a new session uses: as the protocol's clients know them."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from openclaw_mcp.config.roster import roster_from_config
from openclaw_mcp.core.config.config import read_config
from openclaw_mcp.gateway.sessions.titles import derive_title

from .gateways import GatewayHarness, open_harness

TOPIC = "hello world, please fix the bug in the parser and then write a very long summary of it"


async def row(harness: GatewayHarness, key: str = "main") -> Any:
    params = {"key": key, "includeDerivedTitles": True}
    return (await harness.call("sessions.describe", params))["session"]


@pytest.mark.parametrize(
    ("message", "title"),
    [
        ("go on", "Go on"),
        ("two\n\n  lines", "Two lines"),
        ("Hi. fix the bug. Later", "Fix the bug."),
        (TOPIC, "Hello world, please fix the bug in the parser and then…"),
        ("a" * 80, "A" + "a" * 58 + "…"),
        ("a" * 60, "A" + "a" * 59),
        ("/help", None),
        ("  ", None),
    ],
)
def test_a_title_is_the_task_of_the_first_message_cut_at_sixty(message: str, title: str | None) -> None:
    assert derive_title(message) == title
    assert title is None or len(title) <= 60


def test_a_row_has_a_given_name_before_a_title_made_of_its_first_message(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with open_harness(str(tmp_path / "db")) as harness:
            await harness.say("/status", run="c1")
            assert "derivedTitle" not in await row(harness)
            await harness.say(TOPIC, run="r1")
            assert len((await row(harness))["derivedTitle"]) <= 60
            await harness.call("sessions.patch", {"key": "main", "label": "Parser"})
            assert (await row(harness))["derivedTitle"] == "Parser"

    asyncio.run(scenario())


def test_a_session_is_unread_from_a_later_message_until_it_is_read(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with open_harness(str(tmp_path / "db")) as harness:

            async def unread() -> bool:
                return bool((await row(harness))["unread"])

            await harness.say("one", run="r1")
            assert not await unread()
            await harness.say("two", run="r2")
            assert await unread()
            await harness.call("sessions.patch", {"key": "main", "unread": False})
            assert not await unread()
            await harness.call("sessions.patch", {"key": "main", "unread": True})
            assert await unread()

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("key", "kind"),
    [("main", "main"), ("x", "direct"), ("foo:bar", "direct"), ("subagent:x", "subagent"), ("hook:x", "direct")],
)
def test_a_session_that_a_client_chats_in_is_a_direct_one(tmp_path: Path, key: str, kind: str) -> None:
    async def scenario() -> None:
        async with open_harness(str(tmp_path / "db")) as harness:
            await harness.say("hi", run="r1", key=f"agent:main:{key}")
            assert (await row(harness, f"agent:main:{key}"))["classification"] == kind

    asyncio.run(scenario())


@pytest.mark.parametrize(("key", "kind"), [("x", "custom"), ("explicit:x", "explicit"), ("tui-1", "tui")])
def test_a_session_made_without_a_chat_is_what_its_key_says(tmp_path: Path, key: str, kind: str) -> None:
    async def scenario() -> None:
        async with open_harness(str(tmp_path / "db")) as harness:
            await harness.call("agent", {"message": "hi", "sessionKey": f"agent:main:{key}", "idempotencyKey": "a1"})
            assert (await row(harness, f"agent:main:{key}"))["classification"] == kind

    asyncio.run(scenario())


def test_what_a_new_session_uses_names_the_tokens_its_model_holds(tmp_path: Path) -> None:
    models = [{"id": "m-1", "contextWindow": 64_000}]
    provider = {"baseUrl": "http://127.0.0.1:1/v1", "apiKey": "k", "api": "openai-completions", "models": models}
    config = {"models": {"providers": {"far": provider}}, "agents": {"defaults": {"model": "far/m-1"}}}

    async def scenario() -> None:
        roster = roster_from_config(read_config(config))
        async with open_harness(str(tmp_path / "db"), roster=lambda: roster) as harness:
            assert (await harness.call("sessions.list"))["defaults"]["contextTokens"] == 64_000

    asyncio.run(scenario())


def test_the_states_of_a_run_go_to_readers_of_either_event(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with open_harness(str(tmp_path / "db")) as harness:
            await harness.say("hi", run="r1")
            chat = [(event["seq"], event["phase"]) for event in harness.received("chat", runId="r1", state="status")]
            agent = harness.received("agent", runId="r1", stream="run_status")
            assert chat == [(event["seq"], event["data"]["phase"]) for event in agent]
            assert [phase for _, phase in chat] == ["preparing_workspace", "preparing_context", "starting_model"]

    asyncio.run(scenario())


def test_a_run_of_agent_is_a_task_and_one_of_a_chat_is_not(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with open_harness(str(tmp_path / "db")) as harness:
            await harness.say("hi", run="r1")
            assert not harness.received("task")
            await harness.call("agent", {"message": "do  it", "idempotencyKey": "a1"})
            begun, ended = (event["task"] for event in harness.received("task", action="upserted"))
            assert (begun["taskId"], begun["status"], begun["title"]) == ("a1", "running", "do it")
            assert (ended["status"], ended["terminalSummary"], ended["runId"]) == ("completed", "completed", "a1")
            assert begun["kind"] == begun["runtime"] == "cli"

    asyncio.run(scenario())


def test_a_row_says_why_the_last_run_failed_until_the_next_one_starts(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with open_harness(str(tmp_path / "db")) as harness:
            await harness.say("!fail no luck  today", run="r1")
            assert (await row(harness))["lastRunError"] == "no luck today"
            listed = (await harness.call("sessions.list"))["sessions"]
            assert [found["lastRunError"] for found in listed] == ["no luck today"]
            ended = await harness.until("sessions.changed", phase="end", runId="r1")
            assert ended["lastRunError"] == ended["session"]["lastRunError"] == "no luck today"
            await harness.say("hi", run="r2")
            assert "lastRunError" not in await row(harness)
            started = await harness.until("sessions.changed", reason="send", runId="r2")
            assert started["lastRunError"] is None, "a client that merges the event into its row forgets the error"
            assert "lastRunError" not in started["session"]

    asyncio.run(scenario())


def test_the_reason_of_a_failed_run_is_short_and_gone_with_a_reset(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with open_harness(str(tmp_path / "db")) as harness:
            await harness.say("!fail " + "a" * 300 + "z", run="r1")
            assert (await row(harness))["lastRunError"] == "a" * 51 + " ... " + "a" * 103 + "z"
            await harness.call("sessions.reset", {"key": "main"})
            assert "lastRunError" not in await row(harness)

    asyncio.run(scenario())
