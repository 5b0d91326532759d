"""Questions to operators: who may ask, who may answer, and how a question ends without an answer."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from openclaw_mcp.core.approvals import QuestionOrigin
from openclaw_mcp.core.config.config import Config
from openclaw_mcp.core.rpc import APPROVALS, READ, RpcError
from openclaw_mcp.gateway.nodes import approval_queue
from openclaw_mcp.gateway.nodes.tools import NodeToolSources
from openclaw_mcp.gateway.wiring.gateway import GatewayServer
from openclaw_mcp.gateway.wiring.nodes import open_nodes

from ..rpc.gateways import running, within
from .gateways import MemoryBook, NodeHarness, collect_events, machines, next_of

ASK = {"command": "echo hi", "cwd": "/srv", "host": "gateway", "timeoutMs": 60_000}


@pytest.mark.parametrize("decision", ["allow-once", "allow-always", "deny"])
def test_an_operator_answers_and_every_client_is_notified(tmp_path: Path, decision: str) -> None:
    async def test() -> None:
        async with machines(tmp_path) as harness, harness.gateway.client() as asker, harness.reviewer() as operator:
            requests, settled = (
                collect_events(operator, "exec.approval.requested"),
                collect_events(operator, "exec.approval.resolved"),
            )
            question = asyncio.ensure_future(asker.call("exec.approval.request", ASK | {"id": "Q"}))
            event = await next_of(requests)
            assert (event["id"], event["request"]["command"]) == ("Q", "echo hi")
            assert await operator.call("exec.approval.list") == [event]
            approval = await operator.call("exec.approval.get", {"id": "Q"})
            assert (approval["commandText"], approval["host"]) == ("echo hi", "gateway")

            assert await operator.call("exec.approval.resolve", {"id": "Q", "decision": decision}) == {"ok": True}
            answer = await question
            assert (answer["id"], answer["decision"]) == ("Q", decision)
            assert (await next_of(settled))["decision"] == decision
            assert await operator.call("exec.approval.list") == []
            waited = await asker.call("exec.approval.waitDecision", {"id": "Q"})
            assert (waited["decision"], waited["terminalReason"]) == (decision, "user")
            with pytest.raises(RpcError, match="already resolved") as excinfo:
                await operator.call("exec.approval.resolve", {"id": "Q", "decision": "deny"})
            assert excinfo.value.details == {"reason": "APPROVAL_ALREADY_RESOLVED"}

    within(test())


def test_a_question_of_two_phases_is_accepted_and_outlives_its_connection(tmp_path: Path) -> None:
    async def test() -> None:
        async with machines(tmp_path) as harness, harness.reviewer() as operator:
            async with harness.gateway.client() as asker:
                accepted = await asker.call("exec.approval.request", ASK | {"id": "Q", "twoPhase": True})
                assert accepted["status"] == "accepted"
            waiting = asyncio.ensure_future(operator.call("exec.approval.waitDecision", {"id": "Q"}))
            await operator.call("exec.approval.resolve", {"id": "Q", "decision": "allow-once"})
            assert (await waiting)["decision"] == "allow-once"

    within(test())


def test_an_unanswered_question_expires_as_a_no(tmp_path: Path) -> None:
    async def test() -> None:
        async with machines(tmp_path) as harness, harness.gateway.client() as asker, harness.reviewer() as operator:
            settled = collect_events(operator, "exec.approval.resolved")
            answer = await asker.call("exec.approval.request", ASK | {"id": "Q", "timeoutMs": 30})
            assert answer["decision"] is None
            assert (await next_of(settled))["decision"] == "deny"
            record = (await operator.call("approval.get", {"id": "Q"}))["approval"]
            assert (record["status"], record["reason"]) == ("expired", "timeout")
            with pytest.raises(RpcError, match="unknown or expired approval id"):
                await operator.call("exec.approval.get", {"id": "Q"})

    within(test())


def test_a_question_ends_with_the_connection_that_asked_it(tmp_path: Path) -> None:
    async def test() -> None:
        async with machines(tmp_path) as harness, harness.gateway.client() as operator:
            requests, settled = (
                collect_events(operator, "exec.approval.requested"),
                collect_events(operator, "exec.approval.resolved"),
            )
            async with harness.gateway.client() as asker:
                lost = asyncio.ensure_future(asker.call("exec.approval.request", ASK))
                await next_of(requests)
            assert (await next_of(settled))["reason"] == "run-aborted"
            await asyncio.gather(lost, return_exceptions=True)
            assert await operator.call("exec.approval.list") == []

    within(test())


def test_where_a_delivery_route_is_required_and_there_is_none_it_is_a_no(tmp_path: Path) -> None:
    async def test() -> None:
        async with machines(tmp_path) as harness, harness.gateway.client() as asker:
            needs = ASK | {"requireDeliveryRoute": True}
            assert (await asker.call("exec.approval.request", needs))["decision"] is None
            async with harness.gateway.client(scopes=[READ]):
                assert (await asker.call("exec.approval.request", needs))["decision"] is None

    within(test())


def test_the_requester_can_not_allow_it(tmp_path: Path) -> None:
    async def test() -> None:
        async with machines(tmp_path) as harness, harness.gateway.client() as asker:
            await asker.call("exec.approval.request", ASK | {"id": "Q", "twoPhase": True})
            with pytest.raises(RpcError, match="another operator must"):
                await asker.call("exec.approval.resolve", {"id": "Q", "decision": "allow-once"})
            await asker.call("exec.approval.resolve", {"id": "Q", "decision": "deny"})
            record = (await asker.call("approval.get", {"id": "Q"}))["approval"]
            assert (record["status"], record["reason"], record["decision"]) == ("denied", "user", "deny")

    within(test())


def test_a_question_of_two_phases_is_answered_twice_on_one_request(tmp_path: Path) -> None:
    async def test() -> None:
        async with machines(tmp_path) as harness, harness.gateway.client() as asker, harness.reviewer() as operator:
            accepted: asyncio.Queue[Any] = asyncio.Queue()
            asking = asyncio.ensure_future(
                asker.call(
                    "exec.approval.request",
                    ASK | {"id": "Q", "twoPhase": True},
                    final=True,
                    on_accepted=accepted.put_nowait,
                )
            )
            assert (await next_of(accepted))["id"] == "Q"
            await operator.call("exec.approval.resolve", {"id": "Q", "decision": "allow-once"})
            answer = await asking
            assert (answer["id"], answer["decision"]) == ("Q", "allow-once")

    within(test())


def test_the_asker_is_not_sent_its_own_question_and_learns_its_end(tmp_path: Path) -> None:
    async def test() -> None:
        async with machines(tmp_path) as harness, harness.gateway.client() as asker, harness.reviewer() as operator:
            own, others = (collect_events(each, "exec.approval.requested") for each in (asker, operator))
            ended = collect_events(asker, "exec.approval.resolved")
            await asker.call("exec.approval.request", ASK | {"id": "Q", "twoPhase": True})
            assert (await next_of(others))["id"] == "Q"
            await operator.call("exec.approval.resolve", {"id": "Q", "decision": "deny"})
            assert (await next_of(ended))["id"] == "Q"
            assert own.empty()

    within(test())


def test_a_conversation_with_the_owner_is_a_delivery_route(tmp_path: Path) -> None:
    asked: asyncio.Queue[Any] = asyncio.Queue()
    sources: list[NodeToolSources] = []

    def is_reachable(origin: QuestionOrigin) -> bool:
        asked.put_nowait(origin)
        return True

    @contextlib.asynccontextmanager
    async def furnish(gateway: GatewayServer) -> AsyncIterator[None]:
        async with open_nodes(gateway, MemoryBook(), config=Config, is_reachable=is_reachable) as opened:
            sources.append(opened)
            yield

    async def test() -> None:
        async with running(tmp_path, furnish=furnish) as gateway:
            node = NodeHarness(gateway, tmp_path, sources[0]).node()
            async with node as laptop:
                needs = {"command": "ls", "id": "Q", "requireDeliveryRoute": True}
                question = asyncio.ensure_future(laptop.client.call("exec.approval.request", needs))
                await next_of(asked)
                async with gateway.client() as operator:
                    await operator.call("exec.approval.resolve", {"id": "Q", "decision": "allow-once"})
                assert (await question)["decision"] == "allow-once"

    within(test())


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("exec.approval.request", ASK),
        ("exec.approval.resolve", {"id": "Q", "decision": "deny"}),
        ("exec.approval.list", {}),
        ("exec.approval.get", {"id": "Q"}),
        ("exec.approval.waitDecision", {"id": "Q"}),
        ("approval.get", {"id": "Q"}),
        ("approval.resolve", {"id": "Q", "kind": "exec", "decision": "deny"}),
        ("approval.history", {}),
    ],
)
def test_without_the_scope_no_client_asks_sees_or_answers(tmp_path: Path, method: str, params: dict[str, Any]) -> None:
    async def test() -> None:
        async with machines(tmp_path) as harness, harness.gateway.client(scopes=[APPROVALS]) as asker:
            await asker.call("exec.approval.request", ASK | {"id": "Q", "twoPhase": True})
            async with harness.gateway.client(scopes=[READ]) as reader:
                with pytest.raises(RpcError, match=r"missing scope: operator\.approvals"):
                    await reader.call(method, params)
            assert len(await asker.call("exec.approval.list")) == 1

    within(test())


@pytest.mark.parametrize(
    ("params", "reply"),
    [
        ({"id": "Q", "decision": "perhaps"}, "invalid decision"),
        ({"id": "nope", "decision": "deny"}, "unknown or expired approval id"),
        ({"id": "Q", "decision": "allow-always"}, "allow-always can't be chosen here; allowed: allow-once, deny"),
        ({"id": "Q"}, "must have required property 'decision'"),
    ],
)
def test_an_answer_that_does_not_fit_says_why(tmp_path: Path, params: dict[str, str], reply: str) -> None:
    async def test() -> None:
        async with machines(tmp_path) as harness, harness.gateway.client() as asker, harness.reviewer() as operator:
            once = ASK | {"id": "Q", "twoPhase": True, "unavailableDecisions": ["allow-always"]}
            await asker.call("exec.approval.request", once)
            with pytest.raises(RpcError, match=reply):
                await operator.call("exec.approval.resolve", params)
            assert len(await operator.call("exec.approval.list")) == 1

    within(test())


@pytest.mark.parametrize(
    ("params", "reply"),
    [
        ({"host": "node"}, "nodeId is required"),
        ({"host": "node", "nodeId": "n"}, "systemRunPlan is required"),
        ({"command": None}, "command is required"),
        ({"command": "x" * 20_000}, "must not have more than 16384 characters"),
        ({"id": "Q"}, "approval id already pending"),
    ],
)
def test_a_question_that_can_not_be_put_says_why(tmp_path: Path, params: dict[str, Any], reply: str) -> None:
    async def test() -> None:
        async with machines(tmp_path) as harness, harness.gateway.client() as asker:
            await asker.call("exec.approval.request", ASK | {"id": "Q", "twoPhase": True})
            with pytest.raises(RpcError, match=reply):
                await asker.call("exec.approval.request", ASK | params)

    within(test())


def test_one_asker_does_not_crowd_the_others_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(approval_queue, "MAX_OPEN_PER_REQUESTER", 2)

    async def test() -> None:
        async with machines(tmp_path) as harness, harness.gateway.client() as asker, harness.gateway.client() as other:
            for _ in range(2):
                await asker.call("exec.approval.request", ASK | {"twoPhase": True})
            with pytest.raises(RpcError, match="too many approvals wait already"):
                await asker.call("exec.approval.request", ASK | {"twoPhase": True})
            assert (await other.call("exec.approval.request", ASK | {"twoPhase": True}))["status"] == "accepted"

    within(test())


def test_only_the_named_reviewers_may_allow(tmp_path: Path) -> None:
    async def test() -> None:
        async with machines(tmp_path) as harness, harness.gateway.client() as asker, harness.reviewer() as operator:
            named = ASK | {"id": "Q", "twoPhase": True, "approvalReviewerDeviceIds": ["f" * 64]}
            await asker.call("exec.approval.request", named)
            with pytest.raises(RpcError, match="for other reviewers"):
                await operator.call("exec.approval.resolve", {"id": "Q", "decision": "allow-once"})

    within(test())


def test_the_kind_neutral_methods_report_the_decision(tmp_path: Path) -> None:
    async def test() -> None:
        async with machines(tmp_path) as harness, harness.gateway.client() as asker, harness.reviewer() as operator:
            await asker.call("exec.approval.request", ASK | {"id": "Q", "twoPhase": True})
            pending = (await operator.call("approval.get", {"id": "Q"}))["approval"]
            assert (pending["status"], pending["presentation"]["kind"]) == ("pending", "exec")
            answer = {"id": "Q", "kind": "exec", "decision": "allow-once"}
            first = await operator.call("approval.resolve", answer)
            assert (first["applied"], first["approval"]["status"]) == (True, "allowed")
            later = await operator.call("approval.resolve", answer | {"decision": "deny"})
            assert (later["applied"], later["approval"]["decision"]) == (False, "allow-once")
            history = await operator.call("approval.history")
            assert [record["id"] for record in history["items"]] == ["Q"]
            for other in ("plugin.approval.list", "openclaw.approval.list"):
                assert await operator.call(other) == []
            with pytest.raises(RpcError, match="approval not found"):
                await operator.call("approval.get", {"id": "nope"})

    within(test())


def test_a_node_asks_about_itself_alone_and_answers_nothing(tmp_path: Path) -> None:
    async def test() -> None:
        async with machines(tmp_path) as harness, harness.gateway.client() as operator, harness.node() as node:
            requests = collect_events(operator, "exec.approval.requested")
            question = asyncio.ensure_future(node.client.call("exec.approval.request", {"command": "ls", "id": "Q"}))
            event = await next_of(requests)
            assert (event["request"]["host"], event["request"]["nodeId"]) == ("node", node.id)
            with pytest.raises(RpcError, match="missing scope"):
                await node.client.call("exec.approval.resolve", {"id": "Q", "decision": "allow-once"})
            with pytest.raises(RpcError, match="nodeId mismatch"):
                await node.client.call("exec.approval.request", {"command": "ls", "nodeId": "another"})
            async with harness.node("stranger") as stranger:
                with pytest.raises(RpcError, match="missing scope"):
                    await stranger.client.call("exec.approval.resolve", {"id": "Q", "decision": "deny"})
            await operator.call("exec.approval.resolve", {"id": "Q", "decision": "allow-once"})
            assert (await question)["decision"] == "allow-once"

    within(test())


# ---- the rules -------------------------------------------------------------------------------------------------------


def test_the_gateways_rules_are_read_and_replaced_by_a_client_that_has_read_them(tmp_path: Path) -> None:
    async def test() -> None:
        async with machines(tmp_path) as harness, harness.gateway.client() as operator:
            empty = await operator.call("exec.approvals.get")
            assert (empty["exists"], empty["file"]["version"]) == (False, 1)
            rules = {"version": 1, "agents": {"main": {"security": "allowlist", "allowlist": [{"pattern": "/bin/ls"}]}}}
            with pytest.raises(RpcError, match="base hash required"):
                await operator.call("exec.approvals.set", {"file": rules})
            with pytest.raises(RpcError, match="changed since last load"):
                await operator.call("exec.approvals.set", {"file": rules, "baseHash": "stale"})
            written = await operator.call("exec.approvals.set", {"file": rules, "baseHash": empty["hash"]})
            assert written["file"]["agents"]["main"]["allowlist"][0]["id"]
            assert written == await operator.call("exec.approvals.get")
            with pytest.raises(RpcError, match="changed since last load"):
                await operator.call("exec.approvals.set", {"file": rules, "baseHash": empty["hash"]})
            bad = {"version": 1, "defaults": {"security": "sometimes"}}
            with pytest.raises(RpcError, match="must be equal to one of the allowed values"):
                await operator.call("exec.approvals.set", {"file": bad, "baseHash": written["hash"]})

    within(test())


def test_rules_that_can_not_be_read_are_not_taken_for_none(tmp_path: Path) -> None:
    async def test() -> None:
        (tmp_path / "exec-approvals.json").write_text("{")
        async with machines(tmp_path) as harness, harness.gateway.client() as operator:
            with pytest.raises(RpcError, match="is no file of exec approvals"):
                await operator.call("exec.approvals.get")
        assert (tmp_path / "exec-approvals.json").read_text() == "{"

    within(test())


def test_a_nodes_rules_have_methods_of_their_own(tmp_path: Path) -> None:
    commands = ("system.run", "system.execApprovals.get", "system.execApprovals.set")

    async def test() -> None:
        async with (
            machines(tmp_path) as harness,
            harness.gateway.client() as operator,
            harness.approved(operator, commands=commands) as node,
        ):
            policy = await operator.call("exec.approvals.node.get", {"nodeId": node.id})
            assert policy == {"command": "system.execApprovals.get", "params": {}}
            rules = {"nodeId": node.id, "baseHash": "h", "rules": []}
            result = await operator.call("exec.approvals.node.set", rules)
            assert result["params"] == {"baseHash": "h", "rules": []}
            async with harness.gateway.client(scopes=[READ, APPROVALS]) as other:
                with pytest.raises(RpcError, match=r"missing scope: operator\.admin"):
                    await other.call("exec.approvals.node.get", {"nodeId": node.id})

    within(test())
