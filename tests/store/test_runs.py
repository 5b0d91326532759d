"""The book of runs: what waits, what joins, what goes on, and what an ended run leaves behind."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from openclaw_mcp.core.agent import Attachment
from openclaw_mcp.core.jobs import QueuedEvent
from openclaw_mcp.core.model import Json
from openclaw_mcp.core.rpc import RpcError
from openclaw_mcp.core.sessions import (
    FinishedRun,
    MessageDraft,
    QueueMode,
    RunClaim,
    RunOptions,
    RunOutcome,
    RunRequest,
    RunResult,
    RunStatus,
    RunUsage,
    Session,
)
from openclaw_mcp.store import rows
from openclaw_mcp.store.events import queue_events
from openclaw_mcp.store.runs import SqlRunRepository
from openclaw_mcp.store.sessions import SqlSessionRepository
from openclaw_mcp.store.store import SqlStore, open_store
from tests.store.test_store import OUTCOME, asking, draft

KEY = "agent:main:a"
GROUP = "agent:main:local:group:#g"


@pytest.fixture
def here(tmp_path: Path) -> str:
    """For tables: which database it is makes no difference to them."""
    return str(tmp_path / "openclaw.sqlite")


def on(where: str, scenario: Callable[[SqlStore, SqlRunRepository], Awaitable[None]]) -> None:
    async def opening() -> None:
        async with open_store(where) as store:
            await scenario(store, SqlRunRepository(store))

    asyncio.run(opening())


@asynccontextmanager
async def going(repository: SqlRunRepository, *waiting: RunRequest) -> AsyncIterator[None]:
    """`first` goes, the others wait."""
    assert (await repository.admit(asking("first"))).claim is not None
    for request in waiting:
        admission = await repository.admit(request)
        assert (admission.is_new, admission.claim) == (True, None)
        assert admission.blocking_run is not None
        assert admission.blocking_run.run_id == "first"
        assert (admission.run.status, admission.run.owner, admission.run.started_at) == ("queued", None, None)
    yield


async def finished(
    repository: SqlRunRepository, run_id: str, outcome: RunOutcome = OUTCOME, *, go_on: bool = True
) -> FinishedRun:
    result = await repository.finish(run_id, outcome, claim_next=go_on)
    assert result is not None
    return result


async def next_of(repository: SqlRunRepository, run_id: str) -> RunClaim:
    following = (await finished(repository, run_id)).next
    assert following is not None
    return following


# ---- what waits ------------------------------------------------------------------------------------------------------


def test_twenty_messages_wait_and_no_more(where: str) -> None:
    async def scenario(store: SqlStore, repository: SqlRunRepository) -> None:
        async with going(repository, *(asking(f"r{n}") for n in range(20))):
            with pytest.raises(RpcError, match="20 messages already wait in agent:main:a") as refused:
                await repository.admit(asking("one too many"))
            assert (refused.value.kind, refused.value.retryable) == ("UNAVAILABLE", True)
            assert await repository.get("one too many") is None
            assert (await repository.admit(asking("elsewhere", "b"))).claim is not None

    on(where, scenario)


MODES: list[tuple[QueueMode, QueueMode, bool]] = [
    ("steer", "steer", True),
    ("steer", "collect", True),
    ("collect", "interrupt", True),
    ("interrupt", "steer", True),
    ("followup", "followup", False),
    ("followup", "collect", False),
    ("collect", "followup", False),
]


@pytest.mark.parametrize(("one", "other", "together"), MODES)
def test_two_that_wait_are_answered_together_when_both_are_of_a_kind_to_join(
    here: str, one: QueueMode, other: QueueMode, together: bool
) -> None:
    async def scenario(store: SqlStore, repository: SqlRunRepository) -> None:
        async with going(repository, asking("r1", message="1", mode=one), asking("r2", message="2", mode=other)):
            claim = await next_of(repository, "first")
            assert (claim.run.run_id, claim.prompt) == (("r2", "1\n\n2") if together else ("r1", "1"))
            assert [run.run_id for run in claim.merged] == (["r1"] if together else [])
            joined = await repository.get("r1")
            assert joined is not None
            if together:
                assert (joined.status, joined.stop_reason, joined.merged_into) == ("ok", "steered", "r2")
                assert joined.ended_at is not None
                assert claim.merged == (joined,)

    on(here, scenario)


ANN, BOB = {"grant": {"sender": {"id": "ann"}}}, {"grant": {"sender": {"id": "bob"}}}
FROM_ANN, FROM_BOB = {"origin": {"sender": {"id": "ann"}}}, {"origin": {"sender": {"id": "bob"}}}


@pytest.mark.parametrize(
    ("options", "batches"),
    [
        ([ANN, ANN, ANN], [["r0", "r1", "r2"]]),
        ([ANN, ANN, BOB], [["r0", "r1"], ["r2"]]),
        ([ANN, BOB, ANN], [["r0"], ["r1"], ["r2"]]),
        ([ANN, {}, {}], [["r0"], ["r1", "r2"]]),
        ([FROM_ANN, FROM_ANN, FROM_BOB], [["r0", "r1"], ["r2"]]),
        ([FROM_ANN, {}], [["r0"], ["r1"]]),
        ([{"origin": None}, {}], [["r0", "r1"]]),
    ],
)
def test_what_several_people_wrote_is_not_answered_together(
    here: str, options: list[Json], batches: list[list[str]]
) -> None:
    async def scenario(store: SqlStore, repository: SqlRunRepository) -> None:
        async with going(
            repository,
            *(asking(f"r{n}", options=msgspec.convert(fields, RunOptions)) for n, fields in enumerate(options)),
        ):
            found, last = list[list[str]](), "first"
            while (following := (await finished(repository, last)).next) is not None:
                last = following.run.run_id
                found.append([*(run.run_id for run in following.merged), last])
            assert found == batches

    on(here, scenario)


def test_who_comes_where_nothing_goes_but_something_waits_takes_up_what_waits(where: str) -> None:
    async def scenario(store: SqlStore, repository: SqlRunRepository) -> None:
        async with going(repository, asking("r1", mode="followup")):
            assert (await finished(repository, "first", go_on=False)).next is None
            assert [run.run_id for run in await repository.list_active()] == []
            admission = await repository.admit(asking("r2", mode="followup"))
            assert admission.claim is not None
            assert admission.claim.run.run_id == "r1"
            assert (admission.run.run_id, admission.run.status, admission.blocking_run) == ("r2", "queued", None)
            assert [run.run_id for run in await repository.list_active()] == ["r1"]

    on(where, scenario)


def test_who_comes_where_it_can_join_what_waits_leads_it(where: str) -> None:
    async def scenario(store: SqlStore, repository: SqlRunRepository) -> None:
        async with going(repository, asking("r1", message="1")):
            await finished(repository, "first", go_on=False)
            admission = await repository.admit(asking("r2", message="2"))
            assert admission.claim is not None
            assert admission.claim.prompt == "1\n\n2"
            assert (admission.run.run_id, admission.run.status) == ("r2", "running")
            assert admission.run == admission.claim.run

    on(where, scenario)


def test_what_waits_can_be_dropped_all_or_one(where: str) -> None:
    async def scenario(store: SqlStore, repository: SqlRunRepository) -> None:
        async with going(repository, *(asking(f"r{n}", mode="followup") for n in range(3))):
            await repository.admit(asking("elsewhere", "b"))
            assert await repository.drop(KEY, run_id="first") == []
            assert await repository.drop("agent:main:b") == []
            assert [run.run_id for run in await repository.drop(KEY, run_id="r1")] == ["r1"]
            gone = await repository.drop(KEY)
            assert {run.run_id for run in gone} == {"r0", "r2"}
            assert {(run.status, run.stop_reason, run.error) for run in gone} == {("aborted", "rpc", "aborted")}
            assert all(run.ended_at for run in gone)
            assert await repository.drop(KEY) == []
            assert (await finished(repository, "first")).next is None

    on(where, scenario)


# ---- what goes -------------------------------------------------------------------------------------------------------


def test_what_goes_is_known_until_it_has_ended(where: str) -> None:
    async def scenario(store: SqlStore, repository: SqlRunRepository) -> None:
        assert (await repository.has_open_runs(), await repository.list_active()) == (False, [])
        async with going(repository, asking("r1", mode="followup")):
            assert await repository.has_open_runs()
            (run,) = await repository.list_active()
            assert (run.run_id, run.owner, run.started_at) == ("first", repository.instance, run.accepted_at)
            assert await repository.get("first") == run
            claim = await next_of(repository, "first")
            assert (claim.run.status, claim.run.owner) == ("running", repository.instance)
            assert await repository.get("r1") == claim.run
            assert await repository.has_open_runs()
            await finished(repository, "r1")
            assert (await repository.has_open_runs(), await repository.list_active()) == (False, [])

    on(where, scenario)


def test_whoever_is_asked_to_stop_or_waited_for_impatiently_hears_of_it(where: str) -> None:
    async def scenario(store: SqlStore, repository: SqlRunRepository) -> None:
        async with (
            going(repository, asking("r1", mode="followup"), asking("r2", mode="collect")),
            open_store(where) as other,
        ):
            assert await repository.pending_signals() == ([], [])
            await repository.request_stop(["r1", "elsewhere"])  # neither goes
            assert await repository.pending_signals() == ([], [])
            await repository.request_stop(["first"])
            assert await repository.pending_signals() == (["first"], [])
            await repository.admit(asking("r3", mode="interrupt"))
            assert await repository.pending_signals() == (["first"], ["first"])
            assert await SqlRunRepository(other).pending_signals() == ([], [])  # another process's to hear

    on(where, scenario)


@pytest.mark.parametrize(("mode", "received"), [("steer", True), ("interrupt", True), ("collect", False)])
def test_only_some_who_wait_are_impatient(here: str, mode: QueueMode, received: bool) -> None:
    async def scenario(store: SqlStore, repository: SqlRunRepository) -> None:
        async with going(repository, asking("r1", mode=mode)):
            await repository.admit(asking("elsewhere", "b"))
            assert await repository.pending_signals() == ([], ["first"] if received else [])

    on(here, scenario)


def test_a_sweep_takes_up_what_waits_where_nothing_goes_and_leaves_the_living_alone(where: str) -> None:
    async def scenario(store: SqlStore, repository: SqlRunRepository) -> None:
        async with going(repository, asking("r1", mode="followup")), open_store(where) as other:
            assert await SqlRunRepository(other).sweep() == ([], [])
            assert await repository.sweep() == ([], [])
            await finished(repository, "first", go_on=False)
            claims, cut = await SqlRunRepository(other).sweep()
            assert [(claim.run.run_id, claim.run.owner) for claim in claims] == [("r1", other.instance)]
            assert cut == []
            assert await repository.append_messages("r1", [draft("late")]) == ()  # not ours
            assert await repository.finish("r1", OUTCOME) is None

    on(where, scenario)


# ---- what is kept ----------------------------------------------------------------------------------------------------


def test_a_run_keeps_what_it_was_asked_with(where: str) -> None:
    async def scenario(store: SqlStore, repository: SqlRunRepository) -> None:
        options = RunOptions(input_provenance={"kind": "external"}, thinking="low")
        request = asking("r1", message="a\0b", timeout_ms=5, mode="collect", options=options)
        admission = await repository.admit(request)
        run, claim = admission.run, admission.claim
        assert (run.message, run.timeout_ms, run.mode, run.options) == ("ab", 5, "collect", options)
        assert (run.session_key, run.agent_id, run.status) == (KEY, "main", "running")
        assert await repository.get("r1") == run
        assert claim is not None
        assert (claim.prompt, claim.run, claim.merged, admission.ended_runs) == ("ab", run, (), ())
        assert (claim.session.status, claim.session.last_run_id) == ("running", "r1")
        assert (claim.session.run_started_at, claim.session.run_ended_at) == (run.started_at, None)
        (message,) = claim.messages
        assert (message.role, message.run_id, message.idempotency_key) == ("user", "r1", "r1:user")
        assert message.body["content"] == "ab"
        assert message.body["provenance"] == {"kind": "external"}
        assert "attachments" not in message.body
        again = await repository.admit(request)
        assert (again.run, again.is_new, again.claim) == (run, False, None)

    on(where, scenario)


PICTURE = Attachment(mime_type="image/png", name="a.png", data=b"\0\1")
EMPTY = Attachment(mime_type="text/plain")


def test_attachments_come_with_the_run_at_once_and_after_waiting(where: str) -> None:
    async def scenario(store: SqlStore, repository: SqlRunRepository) -> None:
        files = (PICTURE, EMPTY, PICTURE)
        expected = [("image/png", "a.png", b"\0\1"), ("text/plain", None, b""), ("image/png", "a.png", b"\0\1")]
        at_once = (await repository.admit(asking("first", attachments=files))).claim
        assert at_once is not None
        assert [(one.mime_type, one.name, one.data) for one in at_once.attachments] == expected
        assert [one.size_bytes for one in at_once.run.attachments] == [2, 0, 2]
        (attachments,) = [message.body["attachments"] for message in at_once.messages]
        assert [(one["mimeType"], one["sizeBytes"], one.get("fileName")) for one in attachments] == [
            ("image/png", 2, "a.png"), ("text/plain", 0, None), ("image/png", 2, "a.png"),
        ]  # fmt: skip
        await repository.admit(asking("r1", message="", attachments=files[:1]))
        await repository.admit(asking("r2", message="2", attachments=files[1:]))
        later = await next_of(repository, "first")
        assert [(one.mime_type, one.name, one.data) for one in later.attachments] == expected
        assert later.prompt == "2"  # a message without words adds none

    on(where, scenario)


def test_files_that_come_where_others_wait_are_all_there(where: str) -> None:
    async def scenario(store: SqlStore, repository: SqlRunRepository) -> None:
        async with going(repository, asking("r1", attachments=(PICTURE,))):
            await finished(repository, "first", go_on=False)
            text = Attachment(mime_type="text/plain", name="b.txt", data=b"b")
            claim = (await repository.admit(asking("r2", attachments=(text,)))).claim
            assert claim is not None
            assert [one.data for one in claim.attachments] == [b"\0\1", b"b"]

    on(where, scenario)


ENDS: list[tuple[RunStatus, str, str]] = [
    ("ok", "stop", "done"),
    ("aborted", "rpc", "killed"),
    ("error", "restart", "failed"),
    ("error", "timeout", "timeout"),
    ("ok", "timeout", "timeout"),
]


@pytest.mark.parametrize(("status", "reason", "session_status"), ENDS)
def test_how_a_run_ended_is_told_of_it_and_of_its_session(
    here: str, status: RunStatus, reason: str, session_status: str
) -> None:
    async def scenario(store: SqlStore, repository: SqlRunRepository) -> None:
        await repository.admit(asking("r1"))
        result = await finished(
            repository, "r1", RunOutcome(status=status, stop_reason=reason, error="why", result=RunResult(text="x"))
        )
        assert (result.run.status, result.run.stop_reason, result.run.error) == (status, reason, "why")
        assert (result.run.result, result.run.is_over) == (RunResult(text="x"), True)
        assert (result.session.status, result.session.run_ended_at) == (session_status, result.run.ended_at)
        assert await repository.get("r1") == result.run
        assert result.messages == ()

    on(here, scenario)


def test_a_session_adds_up_what_its_runs_used_and_keeps_who_answered_last(where: str) -> None:
    async def scenario(store: SqlStore, repository: SqlRunRepository) -> None:
        async def end(run_id: str, result: RunResult, resume: str | None = None) -> Session:
            await repository.admit(asking(run_id))
            outcome = RunOutcome(status="ok", stop_reason="stop", result=result, resume=resume)
            reply = await finished(repository, run_id, outcome)
            assert reply.run.result == result
            assert await SqlSessionRepository(store).get(KEY) == reply.session
            return reply.session

        used = await end(
            "r1", RunResult(usage=RunUsage(input=1, output=10), provider="p", model="m"), resume="thread-1"
        )
        assert (used.input_tokens, used.output_tokens) == (1, 10)
        assert (used.model_provider, used.model, used.entry) == ("p", "m", {"resume": "thread-1"})
        used = await end("r2", RunResult(usage=RunUsage(input=2, output=20)))
        assert (used.input_tokens, used.output_tokens) == (3, 30)
        assert (used.model_provider, used.model, used.entry) == ("p", "m", {"resume": "thread-1"})
        used = await end("r3", RunResult(provider="q", model="n"), resume="")
        assert (used.model_provider, used.model, used.entry) == ("q", "n", {"resume": ""})

    on(where, scenario)


def test_what_a_run_said_is_told_in_order_and_nothing_of_others(where: str) -> None:
    async def scenario(store: SqlStore, repository: SqlRunRepository) -> None:
        def answer(text: str, run_id: str) -> MessageDraft:
            return MessageDraft(role="assistant", body={"role": "assistant", "content": text}, text=text, run_id=run_id)

        await repository.admit(asking("first"))
        noted = await repository.append_messages("first", [answer("one", "first"), answer("two", "first")])
        assert [message.body["content"] for message in noted] == ["one", "two"]
        drafts = (answer("three", "first"),)
        result = await finished(repository, "first", RunOutcome(status="ok", stop_reason="stop", drafts=drafts))
        assert [message.body["content"] for message in result.messages] == ["three"]
        await repository.admit(asking("second"))
        await finished(
            repository, "second", RunOutcome(status="ok", stop_reason="stop", drafts=(answer("four", "second"),))
        )
        assert [message.body["content"] for message in await repository.answer_messages(result.run)] == [
            "one",
            "two",
            "three",
        ]
        assert await repository.append_messages("first", [answer("late", "first")]) == ()

    on(where, scenario)


def test_of_a_run_that_said_very_much_the_end_is_told(here: str) -> None:
    async def scenario(store: SqlStore, repository: SqlRunRepository) -> None:
        run = (await repository.admit(asking("first"))).run
        drafts = [
            MessageDraft(role="assistant", body={"content": str(n)}, text=str(n), run_id="first") for n in range(1005)
        ]
        await repository.append_messages("first", drafts)
        assert [message.body["content"] for message in await repository.answer_messages(run)] == [
            str(n) for n in range(5, 1005)
        ]

    on(here, scenario)


@pytest.mark.parametrize(
    ("key", "options", "texts", "marks"),
    [
        (KEY, {"grant": {"owner": True}}, ["for the owner"], {None}),
        (KEY, {"grant": {"owner": False}}, ["for the owner", "for others"], {None}),
        (KEY, {}, ["for the owner", "for others"], {None}),
        (KEY, {"grant": {"sender": {"id": "eve"}}}, ["for the owner", "for others"], {None, False}),
        (GROUP, {"grant": {"owner": True}}, ["for the owner"], {None}),
        (GROUP, {"grant": {"sender": {"id": "eve"}}}, ["for others"], {False}),
        (GROUP, {"grant": {"owner": False}}, ["for others"], {None}),
        (GROUP, {}, ["for others"], {None}),
    ],
)
def test_a_prompt_begins_with_what_the_gateway_has_to_report(
    here: str, key: str, options: Json, texts: list[str], marks: set[object]
) -> None:
    async def scenario(store: SqlStore, repository: SqlRunRepository) -> None:
        events = [
            QueuedEvent(session=key, key=name, text=text, at=1_798_797_600_000, owner=owner)
            for name, text, owner in (("k1", "for the owner", True), ("k2", "for others", False))
        ]
        await store.write(lambda connection: queue_events(connection, events))
        claim = (
            await repository.admit(
                asking("r1", key.removeprefix("agent:main:"), "hello", options=msgspec.convert(options, RunOptions))
            )
        ).claim
        assert claim is not None
        lines = [f"System: [2027-01-01 10:00:00 UTC] {text}" for text in texts]
        assert claim.prompt == "\n\n".join([*lines, "hello"])
        assert [message.body["content"] for message in claim.messages] == [*lines, "hello"]
        assert {message.body.get("forOwner") for message in claim.messages} == marks
        assert all(message.body["provenance"] == {"kind": "system_event"} for message in claim.messages[:-1])

    on(here, scenario)


def test_a_result_whose_token_counts_the_version_before_stored_as_they_came_is_read() -> None:
    stored = {"text": "hello", "usage": {"input": 10.5, "output": True, "totalTokens": None, "cost": {"total": 0.5}}}

    result = rows._read_result(json.dumps(stored))

    odd = rows._read_result(json.dumps({"usage": {"input": 1.5, "cost": {"total": None}}}))
    assert (odd.usage.input, odd.usage.cost) == (1, msgspec.UNSET)
    assert (result.text, result.usage.input, result.usage.output, result.usage.cost) == ("hello", 10, 0, {"total": 0.5})
