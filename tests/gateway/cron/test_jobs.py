"""What can be asked of the clock, what it answers, and what it refuses."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from openclaw_mcp.core.agents import AgentProfile, AgentRoster
from openclaw_mcp.core.channel import ChatAddress
from openclaw_mcp.core.errors import ToolError
from openclaw_mcp.core.model import Caller, Grant, Json, ToolCall
from openclaw_mcp.core.ports import NULL_CONTEXT
from openclaw_mcp.core.rpc import RpcError, scope_error
from openclaw_mcp.gateway.cron.cron_tool import CronTool
from openclaw_mcp.gateway.cron.rpc_methods import CronCall

from ..sessions.gateways import TwinLink
from .gateways import EVENT, TURN, CronHarness, MemoryDelivery, ms, open_cron

AT = {"kind": "at", "at": "2027-02-01T09:00:00Z"}
EVERY = {"kind": "every", "everyMs": 60_000}
STREAM = {"kind": "stream", "command": ["true"]}


@pytest.fixture
def scenario(tmp_path: Path) -> Callable[..., None]:
    def tell(what: Callable[[CronHarness], Awaitable[None]], **more: Any) -> None:
        async def run_story() -> None:
            async with open_cron(str(tmp_path / "openclaw.sqlite"), **more) as cron:
                await what(cron)

        asyncio.run(run_story())

    return tell


def test_a_new_job_is_answered_in_full(scenario: Callable[..., None]) -> None:
    async def what(cron: CronHarness) -> None:
        job = await cron.call("cron.add", {"name": "j", "schedule": EVERY, "payload": TURN})
        assert {name: job[name] for name in ("name", "enabled", "sessionTarget", "wakeMode", "delivery")} == {
            "name": "j", "enabled": True, "sessionTarget": "isolated", "wakeMode": "now",
            "delivery": {"mode": "announce"},
        }  # fmt: skip
        assert job["schedule"] == {"kind": "every", "everyMs": 60_000, "anchorMs": cron.time.now()}
        assert job["payload"] == {**TURN, "toolsAllow": ["*"]}
        assert job["scheduledToolPolicy"] == {"version": 1, "mode": "trusted"}
        assert job["configRevision"].startswith("sha256:")
        assert job["nextRunAtMs"] == job["state"]["nextRunAtMs"] == cron.time.now() + 60_000
        assert job["deliveryPreview"]["label"] == "announce -> last"
        (added,) = cron.received("cron", action="added")
        assert (added["jobId"], added["nextRunAtMs"]) == (job["id"], job["nextRunAtMs"])

    scenario(what)


@pytest.mark.parametrize(
    ("fields", "expected"),
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
def test_a_job_may_be_written_in_several_ways(scenario: Callable[..., None], fields: Json, expected: Json) -> None:
    async def what(cron: CronHarness) -> None:
        job = await cron.call("cron.add", fields)
        assert {name: job[name] for name in expected} == expected

    scenario(what)


@pytest.mark.parametrize(
    ("params", "words"),
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
    scenario: Callable[..., None], params: Any, words: str
) -> None:
    async def what(cron: CronHarness) -> None:
        with pytest.raises(RpcError, match=words):
            await cron.service.add(
                CronCall(params=params, caller=Caller(kind="operator", name="me"), policy_caller=None)
            )

    scenario(what)


def test_an_isolated_event_is_refused_with_the_code_that_clients_know(scenario: Callable[..., None]) -> None:
    async def what(cron: CronHarness) -> None:
        params = {"schedule": EVERY, "payload": EVENT, "sessionTarget": "isolated"}
        with pytest.raises(RpcError) as refused:
            await cron.service.add(
                CronCall(params=params, caller=Caller(kind="operator", name="me"), policy_caller=None)
            )
        assert refused.value.kind == "UNAVAILABLE"

    scenario(what)


def test_a_change_touches_what_it_names_and_nothing_else(scenario: Callable[..., None]) -> None:
    async def what(cron: CronHarness) -> None:
        job = await cron.add(EVERY, {**TURN, "model": "a/b", "timeoutSeconds": 5}, description="why")
        cron.time.after(10)

        async def change(**patch: Any) -> Json:
            changed: Json = await cron.call("cron.update", {"jobId": job["id"], "patch": patch})
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
        assert changed["schedule"]["anchorMs"] == cron.time.now()
        assert changed["nextRunAtMs"] == cron.time.now() + 120_000
        with pytest.raises(RpcError, match="main cron jobs require"):
            await change(sessionTarget="main")

    scenario(what)


def test_a_change_of_what_another_client_changed_is_refused(scenario: Callable[..., None]) -> None:
    async def what(cron: CronHarness) -> None:
        job = await cron.add(EVERY)
        params = {"id": job["id"], "patch": {"name": "b"}, "expectedConfigRevision": job["configRevision"]}
        assert (await cron.call("cron.update", params))["name"] == "b"
        with pytest.raises(RpcError) as refused:
            await cron.call("cron.update", params)
        assert refused.value.details["code"] == "CRON_JOB_CHANGED"

    scenario(what)


def test_a_declared_job_is_made_once(scenario: Callable[..., None]) -> None:
    async def what(cron: CronHarness) -> None:
        first = await cron.add(EVERY, declarationKey="k")
        cron.time.after(5)
        again = await cron.add(EVERY, declarationKey="k")
        other = await cron.add(EVERY, {**TURN, "message": "else"}, declarationKey="k")
        assert (first["created"], again["created"], again["updated"], other["updated"]) == (True, False, False, True)
        assert first["job"]["id"] == other["job"]["id"]
        assert other["job"]["payload"]["message"] == "else"
        assert (await cron.call("cron.list"))["total"] == 1

    scenario(what)


@pytest.mark.parametrize("method", ["cron.get", "cron.update", "cron.remove", "cron.run", "cron.runs"])
def test_a_job_there_is_not_is_refused_by_name(scenario: Callable[..., None], method: str) -> None:
    async def what(cron: CronHarness) -> None:
        with pytest.raises(RpcError) as refused:
            await cron.call(method, {"id": "nope", **({"patch": {}} if method == "cron.update" else {})})
        assert refused.value.details == {"code": "CRON_JOB_NOT_FOUND", "jobId": "nope"}

    scenario(what)


def test_changing_jobs_takes_an_administrator_and_looking_a_reader(scenario: Callable[..., None]) -> None:
    async def what(cron: CronHarness) -> None:
        reader = TwinLink("operator.read")
        for name in ("cron.status", "cron.list", "cron.runs"):
            await cron.call(name, link=reader)
        for name in ("cron.add", "cron.update", "cron.remove", "cron.run", "wake"):
            with pytest.raises(type(scope_error("x")), match="missing scope"):
                await cron.call(name, {}, link=reader)

    scenario(what)


def test_lists_are_filtered_sorted_and_paged(scenario: Callable[..., None]) -> None:
    async def what(cron: CronHarness) -> None:
        for n in range(5):
            await cron.add({"kind": "every", "everyMs": 60_000 * (5 - n)}, name=f"job {n}")
        await cron.add(AT, EVENT, name="once", enabled=False)

        async def names(**params: Any) -> list[str]:
            page = await cron.call("cron.list", params)
            return [job["name"] for job in page["jobs"]]

        assert await names() == [f"job {n}" for n in (4, 3, 2, 1, 0)]
        assert await names(sortBy="name", limit=2, offset=2) == ["job 2", "job 3"]
        assert await names(includeDisabled=True, scheduleKind="at") == ["once"]
        assert await names(enabled="disabled") == ["once"]
        assert await names(query="JOB 3") == await names(filter="job 3") == ["job 3"]
        assert len(await names(filter={"name": "job 3"})) == 5, "another form of filter than ours is not an error"
        assert await names(includeDisabled=True, query="100%") == []
        page = await cron.call("cron.list", {"limit": 2, "compact": True})
        assert (page["total"], page["hasMore"], page["nextOffset"]) == (5, True, 2)
        assert page["jobs"][0]["scheduleKind"] == "every"

    scenario(what)


def test_the_log_is_filtered_and_paged(scenario: Callable[..., None]) -> None:
    async def what(cron: CronHarness) -> None:
        good = await cron.add(EVERY, {**TURN, "message": "!say a heron"})
        bad = await cron.add(EVERY, {**TURN, "message": "!fail no"})
        for job in (good, bad, good):
            run = await cron.call("cron.run", {"id": job["id"]})
            await cron.until("cron", action="finished", runId=run["runId"])
        assert [entry["status"] for entry in await cron.runs()] == ["ok", "error", "ok"]
        assert [entry["status"] for entry in await cron.runs(status="error")] == ["error"]
        assert len(await cron.runs(query="heron")) == 2
        assert [entry["runId"] for entry in await cron.runs(runId=run["runId"])] == [run["runId"]]
        page = await cron.call("cron.runs", {"id": good["id"], "limit": 1})
        assert (page["total"], page["hasMore"], page["nextOffset"]) == (2, True, 1)
        assert page["entries"][0]["usage"]["total_tokens"] > 0
        assert page["entries"][0]["sessionKey"].startswith(f"agent:main:cron:{good['id']}:run:")

    scenario(what)


def test_a_job_without_an_agent_is_listed_with_those_of_the_default_agent(scenario: Callable[..., None]) -> None:
    roster = AgentRoster(agents=(AgentProfile(id="main"), AgentProfile(id="rook")), default_id="rook")

    async def what(cron: CronHarness) -> None:
        for name, agent in (("none", None), ("rook", "rook"), ("main", "main")):
            job = await cron.add(EVERY, name=name, agentId=agent)
            run = await cron.call("cron.run", {"id": job["id"]})
            await cron.until("cron", action="finished", runId=run["runId"])

        async def names(agent: str) -> tuple[list[str], list[str]]:
            jobs = (await cron.call("cron.list", {"agentId": agent, "sortBy": "name"}))["jobs"]
            entries = await cron.runs(scope="all", agentId=agent)
            return [job["name"] for job in jobs], [entry["jobName"] for entry in entries]

        assert await names("rook") == (["none", "rook"], ["none", "rook"])
        assert await names("main") == (["main"], ["main"])

    scenario(what, roster=roster)


def test_only_so_many_jobs_are_kept(scenario: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("openclaw_mcp.gateway.cron.rpc_methods.MAX_JOBS", 2)

    async def what(cron: CronHarness) -> None:
        await cron.add(EVERY)
        await cron.add(EVERY)
        with pytest.raises(RpcError, match="2 jobs already"):
            await cron.add(EVERY)

    scenario(what)


def test_the_log_of_a_job_is_bounded(scenario: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("openclaw_mcp.store.cron_jobs.PRUNE_EVERY", 1)

    async def what(cron: CronHarness) -> None:
        job = await cron.add(EVERY, EVENT)
        other = await cron.add(EVERY, EVENT)
        for _ in range(6):
            for one in (job, other):
                run = await cron.call("cron.run", {"id": one["id"]})
                await cron.until("cron", action="finished", runId=run["runId"])
        assert len(await cron.runs(id=job["id"])) == len(await cron.runs(id=other["id"])) == 3

    scenario(what, runLog={"keepLines": 3})


def test_sessions_of_old_runs_are_forgotten(scenario: Callable[..., None]) -> None:
    async def what(cron: CronHarness) -> None:
        job = await cron.add(EVERY)
        run = await cron.call("cron.run", {"id": job["id"]})
        key = (await cron.until("cron", action="finished", runId=run["runId"]))["sessionKey"]
        assert await cron.memory.sessions.get(key) is not None
        cron.time.after(3600)
        await cron.quiet()
        cron.time.after(3600)
        cron.service.scheduler.wake()
        await cron.quiet()
        assert await cron.memory.sessions.get(key) is None

    scenario(what, sessionRetention="1h")


# ---- system events ---------------------------------------------------------------------------------------------------


def test_an_event_for_an_agent_comes_with_its_next_prompt_once(scenario: Callable[..., None]) -> None:
    async def what(cron: CronHarness) -> None:
        job = await cron.add(EVERY, {"kind": "systemEvent", "text": "the kettle boils"})
        run = await cron.call("cron.run", {"id": job["id"]})
        await cron.until("cron", action="finished", runId=run["runId"])
        await cron.call("wake", {"mode": "next-heartbeat", "text": "the door rings"})
        await cron.say("hello", run="r1")
        await cron.say("again", run="r2")
        history = await cron.call("chat.history", {"sessionKey": "main"})
        prompts = [message["content"] for message in history["messages"] if message["role"] == "user"]
        assert [text.rpartition("] ")[2] for text in prompts] == [
            "the kettle boils",
            "the door rings",
            "hello",
            "again",
        ]
        answers = [message["content"][0]["text"] for message in history["messages"] if message["role"] == "assistant"]
        assert "the kettle boils" in answers[0]
        assert "the door rings" in answers[0]
        assert "kettle" not in answers[1]

    scenario(what)


def test_at_most_twenty_events_wait_and_the_oldest_give_way(scenario: Callable[..., None]) -> None:
    async def what(cron: CronHarness) -> None:
        for n in range(25):
            await cron.call("wake", {"mode": "next-heartbeat", "text": f"event {n}."})
        await cron.say("hello", run="r1")
        history = await cron.call("chat.history", {"sessionKey": "main"})
        reported = [m["content"].rpartition("] ")[2] for m in history["messages"] if m["role"] == "user"]
        assert reported == [*(f"event {n}." for n in range(5, 25)), "hello"]

    scenario(what)


def test_a_wake_now_has_the_agent_answer_at_once_and_its_person_hears_it(scenario: Callable[..., None]) -> None:
    post = MemoryDelivery(route=ChatAddress(channel="telegram", account="default", to="7"))

    async def what(cron: CronHarness) -> None:
        job = await cron.add(EVERY, {"kind": "systemEvent", "text": "!say time to go"}, wakeMode="now")
        run = await cron.call("cron.run", {"id": job["id"]})
        ended = await cron.until("cron", action="finished", runId=run["runId"])
        assert (ended["status"], ended["sessionKey"]) == ("ok", "agent:main:main")
        assert post.texts == [("telegram", "7", "time to go")]
        await cron.call("wake", {"mode": "now", "text": "!say awake"})
        await cron.until("chat", state="final", sessionKey="agent:main:main")

    scenario(what, channels=post)


# ---- the tool --------------------------------------------------------------------------------------------------------

GRANT = Grant(agent="main", channel="telegram", account="bot", to="42", thread="9", owner=True,
              tools=frozenset({"message_send", "cron"}))  # fmt: skip
AGENT = Caller(kind="agent", name="run r1", session="agent:main:telegram:direct:42", grant=GRANT)


async def tool(cron: CronHarness, caller: Caller = AGENT, **arguments: Any) -> Any:
    source = CronTool(cron.service, cron.memory.sessions)
    result = await source.call(ToolCall(caller=caller, name="cron", arguments=arguments, context=NULL_CONTEXT))
    return result.structured


def test_an_agents_job_belongs_to_its_session_and_answers_in_its_conversation(scenario: Callable[..., None]) -> None:
    async def what(cron: CronHarness) -> None:
        start = cron.time.now()
        job = await tool(cron, action="add", job={"schedule": AT, "payload": {"message": "stretch"}})
        assert (job["agentId"], job["sessionKey"]) == ("main", AGENT.session)
        there = {"channel": "telegram", "to": "42", "accountId": "bot", "threadId": "9"}
        assert job["delivery"] == {"mode": "announce", **there}
        assert job["payload"]["toolsAllow"] == ["cron", "message_send"]  # no more than it has itself
        assert await cron.jobs.count_added_since(AGENT.session or "", start) == 1
        assert await cron.jobs.count_added_since(AGENT.session or "", start + 1) == 0
        bare = await tool(cron, action="add", at=AT["at"], message="bare", sessionKey=None, delivery={"mode": "none"})
        assert "sessionKey" not in bare
        assert bare["delivery"] == {"mode": "none"}

    scenario(what)


def test_an_agent_may_not_have_programs_started(scenario: Callable[..., None]) -> None:
    async def what(cron: CronHarness) -> None:
        for job in (
            {"schedule": AT, "payload": {"kind": "command", "argv": ["true"]}},
            {"schedule": {"kind": "on-exit", "command": "true"}, "payload": TURN},
            {"schedule": STREAM, "payload": TURN},
        ):
            with pytest.raises(ToolError, match="made by operators"):
                await tool(cron, action="add", job=job)
        mine = await tool(cron, action="add", job={"schedule": AT, "payload": TURN})
        with pytest.raises(ToolError, match="made by operators"):
            await tool(cron, action="update", jobId=mine["id"], patch={"payload": {"kind": "command", "argv": ["x"]}})

    scenario(what)


def test_streams_can_be_switched_off(scenario: Callable[..., None]) -> None:
    async def what(cron: CronHarness) -> None:
        assert (await cron.call("cron.status"))["triggersEnabled"] is False
        with pytest.raises(RpcError, match=r"cron\.triggers\.enabled"):
            await cron.add(STREAM)

    scenario(what, triggers={"enabled": False})


def test_the_tool_does_all_the_methods_do(scenario: Callable[..., None]) -> None:
    async def what(cron: CronHarness) -> None:
        await cron.say("remember the milk", run="r1", key=AGENT.session or "")
        fields = {"schedule": EVERY, "payload": {"kind": "systemEvent", "text": "buy it"}, "name": "milk"}
        job = await tool(cron, action="add", job=fields, contextMessages=3)
        assert "remember the milk" in job["payload"]["text"]
        assert "delivery" not in job
        assert (await tool(cron, action="status"))["jobs"] == 1
        assert [j["id"] for j in (await tool(cron, action="list"))["jobs"]] == [job["id"]]
        changed = await tool(cron, action="update", jobId=job["id"], patch={"name": "bread"})
        assert changed["name"] == "bread"
        run = await tool(cron, action="run", id=job["id"])
        await cron.until("cron", action="finished", runId=run["runId"])
        assert (await tool(cron, action="runs", jobId=job["id"]))["total"] == 1
        assert await tool(cron, action="wake", text="hello", mode="next-heartbeat") == {"ok": True}
        assert (await tool(cron, action="remove", jobId=job["id"]))["removed"] is True
        wrong: dict[str, Json] = {
            "needs jobId": {"action": "remove"},
            "needs job: ": {"action": "add"},
            "needs text": {"action": "wake"},
            "not found": {"action": "runs", "jobId": "x"},
        }
        for words, arguments in wrong.items():
            with pytest.raises(ToolError, match=words):
                await tool(cron, **arguments)

    scenario(what)


def test_the_status_shows_the_next_time_of_a_job(scenario: Callable[..., None]) -> None:
    async def what(cron: CronHarness) -> None:
        assert (await cron.call("cron.status"))["nextWakeAtMs"] is None
        await cron.add(AT)
        status = await cron.call("cron.status")
        assert (status["jobs"], status["nextWakeAtMs"]) == (1, ms("2027-02-01T09:00:00"))
        assert (status["enabled"], status["triggersEnabled"]) == (True, True)

    scenario(what)
