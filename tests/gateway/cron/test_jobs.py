"""What can be asked of the clock, what it answers, and what it refuses."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from openclaw_mcp.core.channel import ChatAddress
from openclaw_mcp.core.errors import ToolError
from openclaw_mcp.core.model import Caller, Grant, Json, ToolCall
from openclaw_mcp.core.ports import NULL_CONTEXT
from openclaw_mcp.core.rpc import RpcError, scope_error
from openclaw_mcp.gateway.cron.cron_tool import CronTool

from ..sessions.gateways import TwinLink
from .gateways import EVENT, TURN, Clockwork, Mailbox, clockwork, ms

AT = {"kind": "at", "at": "2027-02-01T09:00:00Z"}
EVERY = {"kind": "every", "everyMs": 60_000}
STREAM = {"kind": "stream", "command": ["true"]}


@pytest.fixture
def story(tmp_path: Path) -> Callable[..., None]:
    def tell(what: Callable[[Clockwork], Awaitable[None]], **more: Any) -> None:
        async def told() -> None:
            async with clockwork(str(tmp_path / "openclaw.sqlite"), **more) as works:
                await what(works)

        asyncio.run(told())

    return tell


def test_a_new_job_is_answered_in_full(story: Callable[..., None]) -> None:
    async def what(works: Clockwork) -> None:
        job = await works.call("cron.add", {"name": "j", "schedule": EVERY, "payload": TURN})
        assert {name: job[name] for name in ("name", "enabled", "sessionTarget", "wakeMode", "delivery")} == {
            "name": "j", "enabled": True, "sessionTarget": "isolated", "wakeMode": "now",
            "delivery": {"mode": "announce"},
        }  # fmt: skip
        assert job["schedule"] == {"kind": "every", "everyMs": 60_000, "anchorMs": works.time.now()}
        assert job["payload"] == {**TURN, "toolsAllow": ["*"]}
        assert job["scheduledToolPolicy"] == {"version": 1, "mode": "trusted"}
        assert job["configRevision"].startswith("sha256:")
        assert job["nextRunAtMs"] == job["state"]["nextRunAtMs"] == works.time.now() + 60_000
        assert job["deliveryPreview"]["label"] == "announce -> last"
        (added,) = works.heard("cron", action="added")
        assert (added["jobId"], added["nextRunAtMs"]) == (job["id"], job["nextRunAtMs"])

    story(what)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"job": {"schedule": EVERY, "payload": TURN}}, {"name": "!say done"}),
        ({"data": {"schedule": {"atMs": 1_800_000_000_000}, "payload": EVENT}}, {"sessionTarget": "main"}),
        ({"at": "2027-02-01T09:00", "text": "water the plants"}, {"name": "water the plants", "deleteAfterRun": True}),
        ({"schedule": "0 9 * * 1", "message": "m"}, {"schedule": {"kind": "cron", "expr": "0 9 * * 1"}}),
        ({"schedule": {"kind": "CRON", "cron": "0 9 * * 1"}, "payload": {"kind": "AgentTurn", "text": "m"}}, {}),
        ({"schedule": EVERY, "payload": {**TURN, "deliver": False}}, {"delivery": {"mode": "none"}}),
        ({"schedule": EVERY, "payload": {**TURN, "channel": "telegram", "to": "1"}},
         {"delivery": {"mode": "announce", "channel": "telegram", "to": "1"}}),
        ({"schedule": EVERY, "payload": TURN, "sessionTarget": "current"}, {"sessionTarget": "isolated"}),
        ({"schedule": EVERY, "payload": TURN, "sessionTarget": "current", "sessionKey": "agent:main:x"},
         {"sessionTarget": "current"}),
    ],
)  # fmt: skip
def test_a_job_may_be_written_in_several_ways(story: Callable[..., None], given: Json, expected: Json) -> None:
    async def what(works: Clockwork) -> None:
        job = await works.call("cron.add", given)
        assert {name: job[name] for name in expected} == expected

    story(what)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"name": "x"}, "must have required property 'schedule'"),
        ({"schedule": EVERY}, "must have required property 'payload'"),
        ({"schedule": {"kind": "every", "everyMs": 0}, "payload": TURN}, "at /schedule/everyMs: must be >= 1"),
        ({"schedule": {"kind": "sometimes"}, "payload": TURN}, "at /schedule/kind: must be one of at, every, cron"),
        ({"schedule": {"kind": "cron", "expr": "99 * * * *"}, "payload": TURN}, "bad minute"),
        ({"schedule": {"kind": "at", "at": "2020-01-01T00:00:00Z"}, "payload": TURN}, "schedule.at is in the past"),
        ({"schedule": EVERY, "payload": TURN, "sessionTarget": "main"}, "main cron jobs require"),
        ({"schedule": EVERY, "payload": EVENT, "sessionTarget": "isolated"}, "isolated cron jobs require"),
        ({"schedule": EVERY, "payload": TURN, "sessionTarget": "elsewhere"}, "/sessionTarget"),
        ({"schedule": EVERY, "payload": TURN, "delivery": {"mode": "webhook", "to": "ftp://x"}}, "http\\(s\\) URL"),
        ({"schedule": EVERY, "payload": TURN, "delivery": {"mode": "webhook", "to": "http://a:b@x/"}}, "http\\(s\\)"),
        ({"schedule": EVERY, "payload": {"kind": "script", "script": "1"}}, "script payloads are not served here"),
        ({"schedule": {**STREAM, "mode": "match", "match": "x"}, "payload": TURN}, "a stream's match is not served"),
        ({"schedule": STREAM, "payload": {"kind": "command", "argv": ["x"]}}, "a stream tells an agent"),
        ({"schedule": {"kind": "stream", "command": []}, "payload": TURN}, "/schedule/command"),
        ({"schedule": EVERY, "payload": TURN, "trigger": {"script": "1"}}, "trigger is not served here"),
        ({"schedule": EVERY, "payload": TURN, "pacing": {"min": "15m"}}, "pacing is not served here"),
        ({"schedule": EVERY, "payload": {"kind": "heartbeat"}}, "heartbeat payloads are not served here"),
        ({"schedule": EVERY, "payload": TURN, "agentId": "nobody"}, 'unknown agent id "nobody"'),
        ({"schedule": EVERY, "payload": {"kind": "agentTurn", "message": "x" * 100_001}}, "longer than 100000"),
        ([], "must be object"),
    ],
)
def test_a_job_that_makes_no_sense_is_refused_with_the_reason(
    story: Callable[..., None], given: Any, words: str
) -> None:
    async def what(works: Clockwork) -> None:
        with pytest.raises(RpcError, match=words):
            await works.room.add(given, Caller(kind="operator", name="me"), None)

    story(what)


def test_a_change_touches_what_it_names_and_nothing_else(story: Callable[..., None]) -> None:
    async def what(works: Clockwork) -> None:
        job = await works.add(EVERY, {**TURN, "model": "a/b", "timeoutSeconds": 5}, description="why")
        works.time.after(10)

        async def change(**patch: Any) -> Json:
            changed: Json = await works.call("cron.update", {"jobId": job["id"], "patch": patch})
            return changed

        changed = await change(payload={"kind": "agentTurn", "model": None, "thinking": "low"}, name="new")
        assert changed["payload"] == {**TURN, "toolsAllow": ["*"], "timeoutSeconds": 5, "thinking": "low"}
        assert (changed["name"], changed["nextRunAtMs"]) == ("new", job["nextRunAtMs"])
        changed = await change(delivery={"mode": "announce", "channel": "telegram", "to": "5"}, description=None)
        assert "description" not in changed
        changed = await change(delivery={"to": None})
        assert changed["delivery"] == {"mode": "announce", "channel": "telegram"}
        changed = await change(enabled=False)
        assert "nextRunAtMs" not in changed
        changed = await change(enabled=True, schedule={"kind": "every", "everyMs": 120_000})
        assert changed["schedule"]["anchorMs"] == works.time.now()
        assert changed["nextRunAtMs"] == works.time.now() + 120_000
        with pytest.raises(RpcError, match="main cron jobs require"):
            await change(sessionTarget="main")

    story(what)


def test_a_change_of_what_somebody_else_changed_is_refused(story: Callable[..., None]) -> None:
    async def what(works: Clockwork) -> None:
        job = await works.add(EVERY)
        params = {"id": job["id"], "patch": {"name": "b"}, "expectedConfigRevision": job["configRevision"]}
        assert (await works.call("cron.update", params))["name"] == "b"
        with pytest.raises(RpcError) as refused:
            await works.call("cron.update", params)
        assert refused.value.details["code"] == "CRON_JOB_CHANGED"

    story(what)


def test_a_declared_job_is_made_once(story: Callable[..., None]) -> None:
    async def what(works: Clockwork) -> None:
        first = await works.add(EVERY, declarationKey="k")
        works.time.after(5)
        again = await works.add(EVERY, declarationKey="k")
        other = await works.add(EVERY, {**TURN, "message": "else"}, declarationKey="k")
        assert (first["created"], again["created"], again["updated"], other["updated"]) == (True, False, False, True)
        assert first["job"]["id"] == other["job"]["id"]
        assert other["job"]["payload"]["message"] == "else"
        assert (await works.call("cron.list"))["total"] == 1

    story(what)


@pytest.mark.parametrize("method", ["cron.get", "cron.update", "cron.remove", "cron.run", "cron.runs"])
def test_a_job_there_is_not_is_refused_by_name(story: Callable[..., None], method: str) -> None:
    async def what(works: Clockwork) -> None:
        with pytest.raises(RpcError) as refused:
            await works.call(method, {"id": "nope", "patch": {}})
        assert refused.value.details == {"code": "CRON_JOB_NOT_FOUND", "jobId": "nope"}

    story(what)


def test_changing_jobs_takes_an_administrator_and_looking_a_reader(story: Callable[..., None]) -> None:
    async def what(works: Clockwork) -> None:
        reader = TwinLink("operator.read")
        for name in ("cron.status", "cron.list", "cron.runs"):
            await works.call(name, link=reader)
        for name in ("cron.add", "cron.update", "cron.remove", "cron.run", "wake"):
            with pytest.raises(type(scope_error("x")), match="missing scope"):
                await works.call(name, {}, link=reader)

    story(what)


def test_lists_are_filtered_sorted_and_paged(story: Callable[..., None]) -> None:
    async def what(works: Clockwork) -> None:
        for n in range(5):
            await works.add({"kind": "every", "everyMs": 60_000 * (5 - n)}, name=f"job {n}")
        await works.add(AT, EVENT, name="once", enabled=False)

        async def names(**params: Any) -> list[str]:
            page = await works.call("cron.list", params)
            return [job["name"] for job in page["jobs"]]

        assert await names() == [f"job {n}" for n in (4, 3, 2, 1, 0)]
        assert await names(sortBy="name", limit=2, offset=2) == ["job 2", "job 3"]
        assert await names(includeDisabled=True, scheduleKind="at") == ["once"]
        assert await names(enabled="disabled") == ["once"]
        assert await names(query="JOB 3") == await names(filter="job 3") == ["job 3"]
        assert await names(includeDisabled=True, query="100%") == []
        page = await works.call("cron.list", {"limit": 2, "compact": True})
        assert (page["total"], page["hasMore"], page["nextOffset"]) == (5, True, 2)
        assert page["jobs"][0]["scheduleKind"] == "every"

    story(what)


def test_the_log_is_filtered_and_paged(story: Callable[..., None]) -> None:
    async def what(works: Clockwork) -> None:
        good = await works.add(EVERY, {**TURN, "message": "!say a heron"})
        bad = await works.add(EVERY, {**TURN, "message": "!fail no"})
        for job in (good, bad, good):
            run = await works.call("cron.run", {"id": job["id"]})
            await works.until("cron", action="finished", runId=run["runId"])
        assert [entry["status"] for entry in await works.runs()] == ["ok", "error", "ok"]
        assert [entry["status"] for entry in await works.runs(status="error")] == ["error"]
        assert len(await works.runs(query="heron")) == 2
        assert [entry["runId"] for entry in await works.runs(runId=run["runId"])] == [run["runId"]]
        page = await works.call("cron.runs", {"id": good["id"], "limit": 1})
        assert (page["total"], page["hasMore"], page["nextOffset"]) == (2, True, 1)
        assert page["entries"][0]["usage"]["total_tokens"] > 0
        assert page["entries"][0]["sessionKey"].startswith(f"agent:main:cron:{good['id']}:run:")

    story(what)


def test_only_so_many_jobs_are_kept(story: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("openclaw_mcp.gateway.cron.rpc_methods.MAX_JOBS", 2)

    async def what(works: Clockwork) -> None:
        await works.add(EVERY)
        await works.add(EVERY)
        with pytest.raises(RpcError, match="2 jobs already"):
            await works.add(EVERY)

    story(what)


def test_the_log_of_a_job_is_bounded(story: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("openclaw_mcp.store.cron_jobs.PRUNE_EVERY", 1)

    async def what(works: Clockwork) -> None:
        job = await works.add(EVERY, EVENT)
        other = await works.add(EVERY, EVENT)
        for _ in range(6):
            for one in (job, other):
                run = await works.call("cron.run", {"id": one["id"]})
                await works.until("cron", action="finished", runId=run["runId"])
        assert len(await works.runs(id=job["id"])) == len(await works.runs(id=other["id"])) == 3

    story(what, runLog={"keepLines": 3})


def test_sessions_of_old_runs_are_forgotten(story: Callable[..., None]) -> None:
    async def what(works: Clockwork) -> None:
        job = await works.add(EVERY)
        run = await works.call("cron.run", {"id": job["id"]})
        key = (await works.until("cron", action="finished", runId=run["runId"]))["sessionKey"]
        assert await works.memory.sessions.get(key) is not None
        works.time.after(3600)
        await works.quiet()
        works.time.after(3600)
        works.room.scheduler.wake()
        await works.quiet()
        assert await works.memory.sessions.get(key) is None

    story(what, sessionRetention="1h")


# ---- system events ---------------------------------------------------------------------------------------------------


def test_what_an_agent_is_told_comes_with_its_next_prompt_once(story: Callable[..., None]) -> None:
    async def what(works: Clockwork) -> None:
        job = await works.add(EVERY, {"kind": "systemEvent", "text": "the kettle boils"})
        run = await works.call("cron.run", {"id": job["id"]})
        await works.until("cron", action="finished", runId=run["runId"])
        await works.call("wake", {"mode": "next-heartbeat", "text": "the door rings"})
        await works.say("hello", run="r1")
        await works.say("again", run="r2")
        history = await works.call("chat.history", {"sessionKey": "main"})
        asked = [message["content"] for message in history["messages"] if message["role"] == "user"]
        assert [text.rpartition("] ")[2] for text in asked] == ["the kettle boils", "the door rings", "hello", "again"]
        answers = [message["content"][0]["text"] for message in history["messages"] if message["role"] == "assistant"]
        assert "the kettle boils" in answers[0]
        assert "the door rings" in answers[0]
        assert "kettle" not in answers[1]

    story(what)


def test_at_most_twenty_events_wait_and_the_oldest_give_way(story: Callable[..., None]) -> None:
    async def what(works: Clockwork) -> None:
        for n in range(25):
            await works.call("wake", {"mode": "next-heartbeat", "text": f"event {n}."})
        await works.say("hello", run="r1")
        history = await works.call("chat.history", {"sessionKey": "main"})
        told = [m["content"].rpartition("] ")[2] for m in history["messages"] if m["role"] == "user"]
        assert told == [*(f"event {n}." for n in range(5, 25)), "hello"]

    story(what)


def test_a_wake_now_has_the_agent_answer_at_once_and_its_person_hears_it(story: Callable[..., None]) -> None:
    post = Mailbox(route=ChatAddress(channel="telegram", account="default", to="7"))

    async def what(works: Clockwork) -> None:
        job = await works.add(EVERY, {"kind": "systemEvent", "text": "!say time to go"}, wakeMode="now")
        run = await works.call("cron.run", {"id": job["id"]})
        ended = await works.until("cron", action="finished", runId=run["runId"])
        assert (ended["status"], ended["sessionKey"]) == ("ok", "agent:main:main")
        assert post.said == [("telegram", "7", "time to go")]
        await works.call("wake", {"mode": "now", "text": "!say awake"})
        await works.until("chat", state="final", sessionKey="agent:main:main")

    story(what, mailroom=post)


# ---- the tool --------------------------------------------------------------------------------------------------------

GRANT = Grant(agent="main", channel="telegram", account="bot", to="42", thread="9", owner=True,
              tools=frozenset({"message_send", "cron"}))  # fmt: skip
AGENT = Caller(kind="agent", name="run r1", session="agent:main:telegram:direct:42", grant=GRANT)


async def tool(works: Clockwork, caller: Caller = AGENT, **arguments: Any) -> Any:
    source = CronTool(works.room, works.memory.sessions)
    result = await source.call(ToolCall(caller=caller, name="cron", arguments=arguments, context=NULL_CONTEXT))
    return result.structured


def test_an_agents_job_belongs_to_its_session_and_answers_in_its_conversation(story: Callable[..., None]) -> None:
    async def what(works: Clockwork) -> None:
        begun = works.time.now()
        job = await tool(works, action="add", job={"schedule": AT, "payload": {"message": "stretch"}})
        assert (job["agentId"], job["sessionKey"]) == ("main", AGENT.session)
        there = {"channel": "telegram", "to": "42", "accountId": "bot", "threadId": "9"}
        assert job["delivery"] == {"mode": "announce", **there}
        assert job["payload"]["toolsAllow"] == ["cron", "message_send"]  # no more than it has itself
        assert await works.book.count_added_since(AGENT.session or "", begun) == 1
        assert await works.book.count_added_since(AGENT.session or "", begun + 1) == 0
        bare = await tool(works, action="add", at=AT["at"], message="bare", sessionKey=None, delivery={"mode": "none"})
        assert "sessionKey" not in bare
        assert bare["delivery"] == {"mode": "none"}

    story(what)


def test_an_agent_may_not_have_programs_started(story: Callable[..., None]) -> None:
    async def what(works: Clockwork) -> None:
        for job in (
            {"schedule": AT, "payload": {"kind": "command", "argv": ["true"]}},
            {"schedule": {"kind": "on-exit", "command": "true"}, "payload": TURN},
            {"schedule": STREAM, "payload": TURN},
        ):
            with pytest.raises(ToolError, match="made by operators"):
                await tool(works, action="add", job=job)
        mine = await tool(works, action="add", job={"schedule": AT, "payload": TURN})
        with pytest.raises(ToolError, match="made by operators"):
            await tool(works, action="update", jobId=mine["id"], patch={"payload": {"kind": "command", "argv": ["x"]}})

    story(what)


def test_streams_can_be_switched_off(story: Callable[..., None]) -> None:
    async def what(works: Clockwork) -> None:
        assert (await works.call("cron.status"))["triggersEnabled"] is False
        with pytest.raises(RpcError, match=r"cron\.triggers\.enabled"):
            await works.add(STREAM)

    story(what, triggers={"enabled": False})


def test_the_tool_does_all_the_methods_do(story: Callable[..., None]) -> None:
    async def what(works: Clockwork) -> None:
        await works.say("remember the milk", run="r1", key=AGENT.session or "")
        asked = {"schedule": EVERY, "payload": {"kind": "systemEvent", "text": "buy it"}, "name": "milk"}
        job = await tool(works, action="add", job=asked, contextMessages=3)
        assert "remember the milk" in job["payload"]["text"]
        assert "delivery" not in job
        assert (await tool(works, action="status"))["jobs"] == 1
        assert [j["id"] for j in (await tool(works, action="list"))["jobs"]] == [job["id"]]
        changed = await tool(works, action="update", jobId=job["id"], patch={"name": "bread"})
        assert changed["name"] == "bread"
        run = await tool(works, action="run", id=job["id"])
        await works.until("cron", action="finished", runId=run["runId"])
        assert (await tool(works, action="runs", jobId=job["id"]))["total"] == 1
        assert await tool(works, action="wake", text="hello", mode="next-heartbeat") == {"ok": True}
        assert (await tool(works, action="remove", jobId=job["id"]))["removed"] is True
        wrong: dict[str, Json] = {
            "needs jobId": {"action": "remove"},
            "needs job: ": {"action": "add"},
            "needs text": {"action": "wake"},
            "not found": {"action": "runs", "jobId": "x"},
        }
        for words, arguments in wrong.items():
            with pytest.raises(ToolError, match=words):
                await tool(works, **arguments)

    story(what)


def test_the_next_time_of_a_job_is_told_by_the_status(story: Callable[..., None]) -> None:
    async def what(works: Clockwork) -> None:
        assert (await works.call("cron.status"))["nextWakeAtMs"] is None
        await works.add(AT)
        status = await works.call("cron.status")
        assert (status["jobs"], status["nextWakeAtMs"]) == (1, ms("2027-02-01T09:00:00"))
        assert (status["enabled"], status["triggersEnabled"]) == (True, True)

    story(what)
