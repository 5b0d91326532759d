"""Nodes at our gateway: the two gates, invocations and how they end, what operators see and decide."""

import asyncio
import json
import uuid
from pathlib import Path
from typing import Any

import pytest

from openclaw_mcp.core.rpc import ADMIN, PAIRING, READ, WRITE, RpcError
from openclaw_mcp.gateway.nodes import calls, rpc_methods

from ..rpc.gateways import within
from .gateways import COMMANDS, Failed, MemoryBook, approve, collect_events, machines, next_of, order


def refused(fault: RpcError) -> tuple[str, Any]:
    return fault.kind, fault.details


def test_a_node_that_joins_offers_nothing_until_a_person_approves_it(tmp_path: Path) -> None:
    async def test() -> None:
        async with machines(tmp_path) as harness, harness.gateway.client() as operator:
            requests, reported = (
                collect_events(operator, "node.pair.requested"),
                collect_events(operator, "node.pair.resolved"),
            )
            async with harness.node() as node:
                request = await next_of(requests)
                (entry,) = (await operator.call("node.list"))["nodes"]
                assert (entry["nodeId"], entry["connected"], entry["commands"], entry["caps"]) == (
                    node.id,
                    True,
                    [],
                    [],
                )
                assert entry["approvalState"] == "pending-approval"
                assert entry["pendingDeclaredCommands"] == list(COMMANDS)
                assert entry["pendingRequestId"] == request["requestId"]
                with pytest.raises(RpcError, match="not approved yet") as excinfo:
                    await operator.call("node.invoke", order(node.id))
                assert refused(excinfo.value) == ("UNAVAILABLE", {"code": "PAIRING_CHANGED"})
                assert node.invoked.empty()

                answer = await operator.call("node.pair.approve", {"requestId": request["requestId"]})
                assert answer["node"]["commands"] == list(COMMANDS)
                assert (await next_of(reported))["decision"] == (await next_of(node.resolved))["decision"] == "approved"
                result = await operator.call("node.invoke", order(node.id, params={"bins": ["ls"]}))
                assert result["payload"] == {"command": "system.which", "params": {"bins": ["ls"]}}
                assert json.loads(result["payloadJSON"]) == result["payload"]

    within(test())


def test_what_was_approved_survives_a_restart_and_new_commands_wait(tmp_path: Path) -> None:
    async def test() -> None:
        book = MemoryBook()
        async with (
            machines(tmp_path, book=book) as harness,
            harness.gateway.client() as operator,
            harness.approved(operator),
        ):
            pass
        async with machines(tmp_path, book=book) as harness, harness.gateway.client() as operator:
            (offline,) = (await operator.call("node.list"))["nodes"]
            assert (offline["connected"], offline["approvalState"]) == (False, "approved")
            more = (*COMMANDS, "camera.snap")
            async with harness.node(commands=more) as node:
                (entry,) = (await operator.call("node.list"))["nodes"]
                assert entry["approvalState"] == "pending-reapproval"
                assert entry["commands"] == list(COMMANDS)
                assert (await operator.call("node.invoke", order(node.id)))["ok"]
                with pytest.raises(RpcError, match="has not been approved"):
                    await operator.call("node.invoke", order(node.id, "camera.snap", key="2"))
                await approve(operator, node.id)
                assert (await operator.call("node.invoke", order(node.id, "camera.snap", key="3")))["ok"]
            async with harness.node(commands=("system.which",)) as node:
                with pytest.raises(RpcError, match="is not offered by the node now"):
                    await operator.call("node.invoke", order(node.id, "camera.snap", key="4"))
                assert (await operator.call("node.pair.list"))["pending"] == []

    within(test())


@pytest.mark.parametrize(
    ("commands", "scopes", "allowed"),
    [
        (("system.run",), (PAIRING, WRITE), False),
        (("system.run",), (PAIRING, ADMIN), True),
        (("device.info", "canvas.eval"), (PAIRING,), False),
        (("device.info", "canvas.eval"), (PAIRING, WRITE), True),
        (("a.command.nobody.knows",), (PAIRING, WRITE), False),
        ((), (PAIRING,), True),
    ],
)
def test_no_operator_approves_more_than_it_may_do_itself(
    tmp_path: Path, commands: tuple[str, ...], scopes: tuple[str, ...], allowed: bool
) -> None:
    async def test() -> None:
        async with (
            machines(tmp_path) as harness,
            harness.gateway.client(scopes=scopes) as operator,
            harness.node(commands=commands) as node,
        ):
            if allowed:
                assert (await approve(operator, node.id))["node"]["commands"] == list(commands)
            else:
                with pytest.raises(RpcError, match="missing scope"):
                    await approve(operator, node.id)

    within(test())


def test_a_rejected_node_stays_without_commands(tmp_path: Path) -> None:
    async def test() -> None:
        async with machines(tmp_path) as harness, harness.gateway.client() as operator, harness.node() as node:
            (request,) = (await operator.call("node.pair.list"))["pending"]
            assert (await operator.call("node.pair.reject", {"requestId": request["requestId"]}))["nodeId"] == node.id
            assert (await next_of(node.resolved))["decision"] == "rejected"
            (entry,) = (await operator.call("node.list"))["nodes"]
            assert (entry["approvalState"], entry["commands"]) == ("unapproved", [])
            with pytest.raises(RpcError, match="unknown requestId"):
                await operator.call("node.pair.approve", {"requestId": request["requestId"]})

    within(test())


def test_a_node_that_asks_for_something_else_is_not_rejected(tmp_path: Path) -> None:
    async def test() -> None:
        async with machines(tmp_path) as harness, harness.gateway.client() as operator:
            reported = collect_events(operator, "node.pair.resolved")
            async with harness.node():
                (first,) = (await operator.call("node.pair.list"))["pending"]
            async with harness.node() as node:
                assert (await operator.call("node.pair.list"))["pending"] == [first]  # the same wish, after a reconnect
            async with harness.node(commands=("device.info",)) as node:
                (second,) = (await operator.call("node.pair.list"))["pending"]
                assert second["requestId"] != first["requestId"]
                assert (await next_of(reported))["requestId"] == first["requestId"]
                await approve(operator, node.id)
                assert (await next_of(node.resolved))["decision"] == "approved"

    within(test())


def test_a_nodes_name_can_not_play_with_a_terminal(tmp_path: Path) -> None:
    async def test() -> None:
        async with (
            machines(tmp_path) as harness,
            harness.gateway.client() as operator,
            harness.node("a\x1b[2Jb\u202ec"),
        ):
            (entry,) = (await operator.call("node.list"))["nodes"]
            assert entry["displayName"] == "a[2Jbc"

    within(test())


def test_a_command_the_config_denies_is_neither_asked_for_nor_made(tmp_path: Path) -> None:
    async def test() -> None:
        config: dict[str, Any] = {}
        async with machines(tmp_path, config=config) as harness, harness.gateway.client() as operator:
            async with harness.approved(operator) as node:
                assert (await operator.call("node.invoke", order(node.id, "system.run")))["ok"]
                config["gateway"] = {"nodes": {"commands": {"deny": ["system.r*"]}}}
                with pytest.raises(RpcError, match=r"denied by gateway\.nodes\.commands\.deny"):
                    await operator.call("node.invoke", order(node.id, "system.run", key="2"))
            async with harness.node("other"):
                (request,) = (await operator.call("node.pair.list"))["pending"]
                assert request["commands"] == ["system.which", "device.info"]

    within(test())


def test_a_node_that_leaves_fails_its_waiting_calls_at_once_and_in_words(tmp_path: Path) -> None:
    async def test() -> None:
        async def never(command: str, params: Any) -> Any:
            await asyncio.Event().wait()

        async with machines(tmp_path) as harness, harness.gateway.client() as operator:
            async with harness.approved(operator, answer=never) as node:
                waiting = [
                    asyncio.ensure_future(operator.call("node.invoke", order(node.id, key=str(n), timeoutMs=60_000)))
                    for n in range(3)
                ]
                for _ in waiting:
                    await next_of(node.invoked)
            start = asyncio.get_running_loop().time()
            for call in waiting:
                with pytest.raises(RpcError, match="left before it answered") as excinfo:
                    await call
                assert excinfo.value.details["nodeError"]["code"] == "DISCONNECTED"
            assert asyncio.get_running_loop().time() - start < 10
            with pytest.raises(RpcError, match="node not connected") as excinfo:
                await operator.call("node.invoke", order(node.id, key="later"))
            assert excinfo.value.details["code"] == "NOT_CONNECTED"

    within(test())


def test_a_call_out_of_time_is_taken_back_and_its_late_answer_ignored(tmp_path: Path) -> None:
    async def test() -> None:
        go = asyncio.Event()

        async def slow(command: str, params: Any) -> Any:
            await go.wait()
            return "late"

        async with (
            machines(tmp_path) as harness,
            harness.gateway.client() as operator,
            harness.approved(operator, answer=slow) as node,
        ):
            with pytest.raises(RpcError, match="TIMEOUT: node invoke timed out"):
                await operator.call("node.invoke", order(node.id, timeoutMs=50))
            request = await next_of(node.invoked)
            assert request["timeoutMs"] == 50
            assert await next_of(node.cancelled) == {"invokeId": request["id"], "nodeId": node.id}
            go.set()
            assert await next_of(node.replies) == {"ok": True, "ignored": True}

    within(test())


def test_a_result_from_another_connection_or_for_another_node_is_passed_over(tmp_path: Path) -> None:
    async def test() -> None:
        go = asyncio.Event()

        async def slow(command: str, params: Any) -> Any:
            await go.wait()
            return "true"

        async with (
            machines(tmp_path) as harness,
            harness.gateway.client() as operator,
            harness.approved(operator, answer=slow) as node,
            harness.node("stranger") as stranger,
        ):
            call = asyncio.ensure_future(operator.call("node.invoke", order(node.id)))
            request = await next_of(node.invoked)
            forged = {"id": request["id"], "ok": True, "payload": "forged"}
            assert await stranger.client.call("node.invoke.result", forged) == {"ok": True, "ignored": True}
            with pytest.raises(RpcError, match="nodeId mismatch"):
                await stranger.client.call("node.invoke.result", forged | {"nodeId": node.id})
            with pytest.raises(RpcError, match="unauthorized role: operator"):
                await operator.call("node.invoke.result", forged)
            go.set()
            assert (await call)["payload"] == "true"
            assert await node.client.call("node.invoke.result", forged) == {"ok": True, "ignored": True}

    within(test())


def test_the_newer_of_two_connections_is_asked(tmp_path: Path) -> None:
    async def test() -> None:
        async with (
            machines(tmp_path) as harness,
            harness.gateway.client() as operator,
            harness.approved(operator) as first,
        ):
            async with harness.node() as second:
                await operator.call("node.invoke", order(first.id, key="1"))
                assert (first.invoked.qsize(), second.invoked.qsize()) == (0, 1)
                left = collect_events(operator, "presence")
            await next_of(left)
            await operator.call("node.invoke", order(first.id, key="2"))
            assert first.invoked.qsize() == 1

    within(test())


def test_the_same_key_is_carried_out_once(tmp_path: Path) -> None:
    async def test() -> None:
        go = asyncio.Event()

        async def once(command: str, params: Any) -> Any:
            await go.wait()
            if params == "fail":
                raise Failed("BOOM", "device said no")
            return uuid.uuid4().hex

        async with (
            machines(tmp_path) as harness,
            harness.gateway.client() as operator,
            harness.approved(operator, answer=once) as node,
        ):
            twice = [asyncio.ensure_future(operator.call("node.invoke", order(node.id))) for _ in range(2)]
            await next_of(node.invoked)
            go.set()
            first, second = await asyncio.gather(*twice)
            assert first == second == await operator.call("node.invoke", order(node.id))
            for _ in range(2):
                with pytest.raises(RpcError, match="BOOM: device said no") as excinfo:
                    await operator.call("node.invoke", order(node.id, key="f", params="fail"))
                assert excinfo.value.details["nodeCommandDispatched"] is True
            assert node.invoked.qsize() == 1
            with pytest.raises(RpcError, match="used for another request"):
                await operator.call("node.invoke", order(node.id, params={"other": 1}))
            assert (await operator.call("node.invoke", order(node.id, key="new")))["payload"] != first["payload"]

    within(test())


def test_a_node_that_is_not_ready_yet_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rpc_methods, "NOT_READY_PAUSE", 0.001)
    tries = 0

    async def waking(command: str, params: Any) -> Any:
        nonlocal tries
        tries += 1
        if tries < 4:
            raise Failed("NODE_NOT_READY", "still waking")
        return tries

    async def test() -> None:
        async with (
            machines(tmp_path) as harness,
            harness.gateway.client() as operator,
            harness.approved(operator, answer=waking) as node,
        ):
            assert (await operator.call("node.invoke", order(node.id)))["payload"] == 4

    within(test())


def test_a_busy_node_is_not_given_more_than_it_can_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "MAX_PENDING_CALLS", 2)

    async def test() -> None:
        go = asyncio.Event()

        async def slow(command: str, params: Any) -> Any:
            await go.wait()

        async with (
            machines(tmp_path) as harness,
            harness.gateway.client() as operator,
            harness.approved(operator, answer=slow) as node,
        ):
            waiting = [asyncio.ensure_future(operator.call("node.invoke", order(node.id, key=str(n)))) for n in (1, 2)]
            for _ in waiting:
                await next_of(node.invoked)
            with pytest.raises(RpcError, match="at work on 2 calls already"):
                await operator.call("node.invoke", order(node.id, key="3"))
            go.set()
            await asyncio.gather(*waiting)
            assert (await operator.call("node.invoke", order(node.id, key="3")))["ok"]

    within(test())


def test_only_the_gateway_vouches_for_a_command(tmp_path: Path) -> None:
    async def test() -> None:
        async with (
            machines(tmp_path) as harness,
            harness.gateway.client() as operator,
            harness.approved(operator) as node,
        ):
            params = {"command": ["rm", "-rf", "/"], "approved": True, "approvalDecision": "allow-once"}
            result = await operator.call("node.invoke", order(node.id, "system.run", params=params))
            sent = result["payload"]["params"]
            assert set(sent) == {"command", "runId"}

    within(test())


@pytest.mark.parametrize(
    ("params", "scopes", "reply"),
    [
        ({"command": "system.which"}, (READ,), "missing scope: operator.write"),
        ({"command": "browser.proxy"}, (READ, WRITE), "missing scope: operator.admin"),
        ({"command": "system.execApprovals.get"}, (WRITE,), r"use exec\.approvals\.node"),
        ({"command": ""}, (WRITE,), r"invalid node\.invoke params: at /command"),
        ({"command": "no.such"}, (WRITE,), "is not a command of this node"),
    ],
)
def test_an_order_that_can_not_be_given_says_why(
    tmp_path: Path, params: dict[str, str], scopes: tuple[str, ...], reply: str
) -> None:
    async def test() -> None:
        async with (
            machines(tmp_path) as harness,
            harness.gateway.client() as admin,
            harness.approved(admin) as node,
            harness.gateway.client(scopes=scopes) as operator,
        ):
            with pytest.raises(RpcError, match=reply):
                await operator.call("node.invoke", order(node.id) | params)
            assert node.invoked.empty()

    within(test())


def test_a_removed_node_is_disconnected_and_forgotten(tmp_path: Path) -> None:
    async def test() -> None:
        book = MemoryBook()
        async with machines(tmp_path, book=book) as harness, harness.gateway.client() as operator:
            reported = collect_events(operator, "node.pair.resolved")
            async with harness.approved(operator) as node:
                await next_of(reported)
                left = collect_events(operator, "presence")
                assert await operator.call("node.pair.remove", {"nodeId": node.id}) == {"nodeId": node.id}
                assert (await next_of(reported))["decision"] == "removed"
                assert book.rows == {}
                with pytest.raises(RpcError, match="not approved yet"):
                    await operator.call("node.invoke", order(node.id))
                await next_of(left)
            assert (await operator.call("node.list"))["nodes"] == []
            assert (await operator.call("device.pair.list"))["paired"] == []

    within(test())


def test_a_device_that_is_unpaired_takes_its_approval_with_it(tmp_path: Path) -> None:
    async def test() -> None:
        async with machines(tmp_path) as harness, harness.gateway.client() as operator:
            async with harness.approved(operator) as node:
                gone = collect_events(operator, "node.pair.resolved")
                await operator.call("device.pair.remove", {"deviceId": node.id})
                assert (await next_of(gone))["decision"] == "removed"
            async with harness.node() as node:
                (entry,) = (await operator.call("node.list"))["nodes"]
                assert (entry["approvalState"], entry["commands"]) == ("pending-approval", [])

    within(test())


def test_a_node_keeps_the_name_an_operator_gave_it(tmp_path: Path) -> None:
    async def test() -> None:
        book = MemoryBook()
        async with machines(tmp_path, book=book) as harness, harness.gateway.client() as operator:
            async with harness.approved(operator) as node:
                await operator.call("node.rename", {"nodeId": node.id, "displayName": "Kitchen"})
            with pytest.raises(RpcError, match="visible characters"):
                await operator.call("node.rename", {"nodeId": node.id, "displayName": "two\nlines"})
            with pytest.raises(RpcError, match="unknown nodeId"):
                await operator.call("node.rename", {"nodeId": "nobody", "displayName": "x"})
        async with machines(tmp_path, book=book) as harness, harness.gateway.client() as operator:
            entry = await operator.call("node.describe", {"nodeId": node.id})
            assert (entry["displayName"], entry["toolPrefix"]) == ("Kitchen", "kitchen")

    within(test())


def test_a_node_tells_how_it_is_doing(tmp_path: Path) -> None:
    async def test() -> None:
        async with (
            machines(tmp_path) as harness,
            harness.gateway.client() as operator,
            harness.approved(operator) as node,
        ):
            reported = collect_events(operator, "node.hostStats")
            stats = {"cpuCount": 4, "memoryTotalBytes": 8, "memoryFreeBytes": 4}
            reply = {"event": "node.host.stats", "payloadJSON": json.dumps(stats)}
            assert (await node.client.call("node.event", reply))["handled"] is True
            assert await next_of(reported) == {"nodeId": node.id, "hostStats": stats}
            assert (await operator.call("node.describe", {"nodeId": node.id}))["hostStats"] == stats
            unknown = await node.client.call("node.event", {"event": "something.else"})
            assert (unknown["handled"], unknown["reason"]) == (False, "unsupported_event")
            with pytest.raises(RpcError, match="payloadJSON is no JSON"):
                await node.client.call("node.event", {"event": "node.host.stats", "payloadJSON": "{"})

    within(test())


def test_errands_wait_until_the_node_fetches_them(tmp_path: Path) -> None:
    async def test() -> None:
        async with machines(tmp_path) as harness, harness.gateway.client() as operator, harness.node() as node:
            wanted = {"nodeId": node.id, "type": "location.request", "priority": "high"}
            queued = (await operator.call("node.pending.enqueue", wanted))["queued"]
            assert (await operator.call("node.pending.enqueue", wanted))["queued"] == queued
            drained = await node.client.call("node.pending.drain", {"maxItems": 10})
            assert [item["type"] for item in drained["items"]] == ["location.request", "status.request"]
            again = await node.client.call("node.pending.drain")
            assert [item["id"] for item in again["items"]] == ["baseline-status"]
            assert await node.client.call("node.pending.pull") == {"nodeId": node.id, "actions": []}
            with pytest.raises(RpcError, match="unknown nodeId"):
                await operator.call("node.pending.enqueue", wanted | {"nodeId": "nobody"})

    within(test())


def test_a_payload_that_is_no_json_fails_the_call_and_nothing_else(tmp_path: Path) -> None:
    async def test() -> None:
        async def silent(command: str, params: Any) -> Any:
            await asyncio.Event().wait()

        async with (
            machines(tmp_path) as harness,
            harness.gateway.client() as operator,
            harness.approved(operator, answer=silent) as node,
        ):
            call = asyncio.ensure_future(operator.call("node.invoke", order(node.id)))
            request = await next_of(node.invoked)
            await node.client.call("node.invoke.result", {"id": request["id"], "ok": True, "payloadJSON": "{"})
            with pytest.raises(RpcError, match="BAD_PAYLOAD"):
                await call

    within(test())


def test_a_large_payload_is_sent_once(tmp_path: Path) -> None:
    async def large(command: str, params: Any) -> Any:
        return {"base64": "x" * (2 << 20)}

    async def test() -> None:
        async with (
            machines(tmp_path) as harness,
            harness.gateway.client() as operator,
            harness.approved(operator, answer=large) as node,
        ):
            result = await operator.call("node.invoke", order(node.id))
            assert "payloadJSON" not in result
            assert len(result["payload"]["base64"]) == 2 << 20

    within(test())
