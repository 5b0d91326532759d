"""Questions and what becomes of them: who may answer, which answer counts, what is dropped."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
import pytest

from openclaw_mcp.core.approvals import ExecApprovalDecision
from openclaw_mcp.core.json_values import drop_none
from openclaw_mcp.core.rpc import RpcError
from openclaw_mcp.gateway.nodes.approval_queue import (
    SHARED_TOKEN,
    ApprovalRequester,
    ExecApprovalQueue,
    ExecApprovalRecord,
    ExecApprovalRequest,
    ExecApprovalView,
    device_credential,
    new_approval_request,
)

DEVICE, OTHER = "ab" * 32, "cd" * 32


def _device(id: str, connection: str, *more: str, silent: bool = False) -> ApprovalRequester:
    return ApprovalRequester(
        connection_id=connection, name=id, credentials=(device_credential(id), *more), is_silent=silent
    )


NODE = msgspec.structs.replace(_device(DEVICE, "c1"), is_node=True)
ASKER = _device(DEVICE, "c1")
SENDER = ApprovalRequester(
    connection_id="sender", name="telegram:1", credentials=("sender telegram:1",), in_conversation=True
)
PERSON = _device(OTHER, "c2", SHARED_TOKEN)
PROGRAM = ApprovalRequester(connection_id="c3", name="gateway-client", credentials=(SHARED_TOKEN,))


def _approval_request(asker: ApprovalRequester = NODE, **more: Any) -> ExecApprovalRequest:
    view = ExecApprovalView(command="ls")
    return new_approval_request(view, requester=asker, **({"seconds": 60, "allow_always": True} | more))


def within(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(work())


# ---- who is who ----


@pytest.mark.parametrize(
    ("asker", "other", "same", "may_be"),
    [
        (NODE, NODE, True, True),
        (NODE, _device(DEVICE, "c9"), True, True),
        (NODE, ApprovalRequester(connection_id="c1", name="x", credentials=("t",)), True, True),
        (NODE, PERSON, False, False),
        (NODE, PROGRAM, False, False),
        (NODE, ApprovalRequester(connection_id="c9", name="x"), False, True),
        (
            PROGRAM,
            ApprovalRequester(connection_id="c9", name="gateway-client", credentials=(SHARED_TOKEN,)),
            False,
            True,
        ),
        (PROGRAM, PERSON, False, False),
        (PROGRAM, _device(OTHER, "c2", SHARED_TOKEN, silent=True), False, True),
        (PERSON, PROGRAM, False, True),
        (NODE, _device(OTHER, "c2", SHARED_TOKEN, silent=True), False, False),
        (
            ApprovalRequester(connection_id="c1", name="x"),
            ApprovalRequester(connection_id="c2", name="x", credentials=("t",)),
            False,
            False,
        ),
    ],
)
def test_who_can_show_to_be_another_requester(
    asker: ApprovalRequester, other: ApprovalRequester, same: bool, may_be: bool
) -> None:
    assert asker.is_same(other) is same
    assert asker.may_be(other) is may_be


# ---- one answer ----

EVERY: tuple[ExecApprovalDecision, ...] = ("allow-once", "allow-always", "deny")


@pytest.mark.parametrize("decision", EVERY)
@pytest.mark.parametrize(
    ("by", "more", "owner", "refused"),
    [
        (PERSON, {}, False, None),
        (PROGRAM, {}, False, None),
        (ASKER, {"asker": ASKER}, False, "the requester can't allow it"),
        (ASKER, {"asker": ASKER}, True, "the requester can't allow it"),
        (SENDER, {}, True, None),
        (
            PERSON,
            {"on_behalf_of": frozenset({device_credential(OTHER)})},
            False,
            "who began the command can't allow it",
        ),
        (PERSON, {"on_behalf_of": frozenset({SHARED_TOKEN})}, False, "who began the command can't allow it"),
        (PERSON, {"on_behalf_of": frozenset({SHARED_TOKEN})}, True, None),
        (PERSON, {"on_behalf_of": frozenset({"somebody else"})}, False, None),
        (PERSON, {"reviewers": (OTHER,)}, False, None),
        (PERSON, {"reviewers": ("ef" * 32,)}, False, "for other reviewers"),
    ],
)
def test_every_operator_may_say_no_and_only_some_may_say_yes(
    decision: ExecApprovalDecision, by: ApprovalRequester, more: dict[str, Any], owner: bool, refused: str | None
) -> None:
    async def test() -> None:
        decisions = ExecApprovalQueue()
        matter = decisions.put(_approval_request(**more))
        answering = msgspec.structs.replace(by, is_owner=owner)
        if refused is not None and decision != "deny":
            with pytest.raises(RpcError, match=refused) as caught:
                decisions.decide(matter, decision, answering)
            assert caught.value.kind == "FORBIDDEN"
            assert matter.outcome is None
            return
        outcome = decisions.decide(matter, decision, answering)
        assert outcome == matter.outcome
        assert (outcome.decision, outcome.reason, outcome.by) == (decision, "user", by.name)

    within(test)


def test_a_node_takes_its_own_question_back_and_answers_none() -> None:
    async def test() -> None:
        decisions = ExecApprovalQueue()
        own, other = decisions.put(_approval_request()), decisions.put(_approval_request(PROGRAM))
        refused: list[tuple[ExecApprovalRecord, ExecApprovalDecision]] = [
            (own, "allow-once"), (own, "allow-always"), (other, "deny"), (other, "allow-once"),
        ]  # fmt: skip
        for matter, decision in refused:
            with pytest.raises(RpcError, match=r"missing scope: operator\.approvals"):
                decisions.decide(matter, decision, NODE)
            assert matter.outcome is None
        outcome = decisions.decide(own, "deny", NODE)
        assert (outcome.decision, outcome.reason) == (None, "run-aborted")

    within(test)


@pytest.mark.parametrize("decision", EVERY)
def test_a_sender_on_a_channel_who_is_not_the_owner_answers_nothing(decision: ExecApprovalDecision) -> None:
    async def test() -> None:
        decisions = ExecApprovalQueue()
        matter = decisions.put(_approval_request())
        with pytest.raises(RpcError, match="only the owner"):
            decisions.decide(matter, decision, SENDER)
        assert matter.outcome is None

    within(test)


def test_a_question_ends_with_the_call_it_is_about() -> None:
    async def test() -> None:
        decisions = ExecApprovalQueue()
        one, two = (
            decisions.put(msgspec.structs.replace(_approval_request(), invocation=call))
            for call in ("call-1", "call-2")
        )
        decisions.on_invocation_end("call-1")
        assert one.outcome is not None
        assert (one.outcome.decision, one.outcome.reason) == (None, "run-aborted")
        assert two.outcome is None

    within(test)


def test_always_can_be_chosen_only_where_it_is_offered() -> None:
    async def test() -> None:
        decisions = ExecApprovalQueue()
        offered, unoffered = _approval_request(), _approval_request(allow_always=False)
        view = drop_none(msgspec.json.decode(msgspec.json.encode(offered.view)))
        assert view == {"command": "ls", "allowedDecisions": list(EVERY)}
        assert drop_none(msgspec.json.decode(msgspec.json.encode(unoffered.view))) == {
            "command": "ls",
            "allowedDecisions": ["allow-once", "deny"],
            "unavailableDecisions": ["allow-always"],
        }
        matter = decisions.put(unoffered)
        with pytest.raises(RpcError, match="allow-always can't be chosen here; allowed: allow-once, deny"):
            decisions.decide(matter, "allow-always", PERSON)
        assert decisions.decide(matter, "allow-once", PERSON).decision == "allow-once"

    within(test)


def test_the_first_answer_counts_and_is_published_once() -> None:
    async def test() -> None:
        decisions = ExecApprovalQueue()
        requested: list[str] = []
        reported: list[tuple[str, str | None]] = []
        decisions.requested.connect(lambda question: requested.append(question.id))
        decisions.settled.connect(lambda news: reported.append((news[0].id, news[1].decision)))
        matter = decisions.put(_approval_request(id="q1"))
        assert matter.timer is not None

        first = decisions.decide(matter, "deny", PERSON)
        assert decisions.decide(matter, "allow-once", PROGRAM) == first
        decisions.drop(matter, "no-route")
        decisions.close()

        assert matter.outcome == first
        assert matter.timer.cancelled()
        assert (requested, reported) == (["q1"], [("q1", "deny")])

    within(test)


def test_a_question_lasts_as_long_as_it_says_and_ends_as_a_no() -> None:
    async def test() -> None:
        decisions = ExecApprovalQueue()
        request = _approval_request(seconds=90.5, clock=lambda: 1000)
        assert (request.created_at_ms, request.expires_at_ms) == (1000, 91_500)
        outcome = await decisions.put(request).outcome_future  # long past, by our clock
        assert (outcome.decision, outcome.reason, outcome.by) == (None, "timeout", None)

        matter = decisions.put(_approval_request(seconds=100_000))
        loop = asyncio.get_running_loop()
        assert matter.timer is not None
        assert 99_980 < matter.timer.when() - loop.time() <= 100_000
        decisions.close()

    within(test)


# ---- many ----


def test_an_id_is_used_once() -> None:
    async def test() -> None:
        decisions = ExecApprovalQueue()
        matter = decisions.put(_approval_request(id="q1"))
        with pytest.raises(RpcError, match="approval id already pending"):
            decisions.put(_approval_request(id="q1"))
        decisions.drop(matter, "no-route")
        with pytest.raises(RpcError, match="approval id already used"):
            decisions.put(_approval_request(id="q1"))
        assert decisions.find("q1") is matter
        assert decisions.find("q2") is None
        assert _approval_request().id != _approval_request().id

    within(test)


def _everybody(count: int) -> list[ApprovalRequester]:
    return [ApprovalRequester(connection_id=f"c{number}", name="x") for number in range(count)]


@pytest.mark.parametrize(("askers", "most"), [([NODE] * 17, 16), (_everybody(257), 256)], ids=["of one", "of all"])
def test_so_many_wait_at_once_and_no_more(askers: list[ApprovalRequester], most: int) -> None:
    async def test() -> None:
        decisions = ExecApprovalQueue()
        matters = [decisions.put(_approval_request(asker)) for asker in askers[:most]]
        with pytest.raises(RpcError, match="too many approvals wait already") as caught:
            decisions.put(_approval_request(askers[most]))
        assert (caught.value.kind, caught.value.retryable) == ("UNAVAILABLE", True)
        assert len(decisions.open_requests()) == most
        decisions.decide(matters[0], "deny", PERSON)
        decisions.put(_approval_request(askers[most]))
        decisions.close()
        assert decisions.open_requests() == []

    within(test)


def test_decisions_are_listed_latest_first_and_dropped_in_the_end() -> None:
    async def test() -> None:
        decisions = ExecApprovalQueue()
        for number in range(514):
            decisions.drop(decisions.put(_approval_request(id=f"q{number}")), "no-route")
        waiting = decisions.put(_approval_request(id="open"))

        ids = [matter.request.id for matter in decisions.history()]
        assert len(ids) == 512
        assert decisions.find("q0") is None
        assert decisions.find("q1") is None
        assert decisions.find("q2") is not None
        assert waiting.request.id not in ids
        times = [_at(matter) for matter in decisions.history()]
        assert times == sorted(times, reverse=True)
        decisions.close()

    within(test)


def _at(matter: ExecApprovalRecord) -> int:
    assert matter.outcome is not None
    return matter.outcome.at_ms


def test_the_latest_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        decisions = ExecApprovalQueue()
        for number in (2, 1, 3):
            monkeypatch.setattr("openclaw_mcp.gateway.nodes.approval_queue.now_ms", lambda at=number: at)
            decisions.drop(decisions.put(_approval_request(id=f"q{number}")), "no-route")
        assert [matter.request.id for matter in decisions.history()] == ["q3", "q2", "q1"]

    within(test)


def test_a_connection_that_ends_takes_its_own_questions_along_unless_they_outlive_it() -> None:
    async def test() -> None:
        decisions = ExecApprovalQueue()
        own = decisions.put(_approval_request())
        lasting = decisions.put(_approval_request(outlives_connection=True))
        of_another = decisions.put(_approval_request(PERSON))

        decisions.on_disconnect(NODE.connection_id)

        assert own.outcome is not None
        assert (own.outcome.decision, own.outcome.reason, own.outcome.by) == (None, "run-aborted", None)
        assert lasting.outcome is None
        assert of_another.outcome is None
        decisions.close()
        assert lasting.outcome is not None

    within(test)
