"""Whatever nodes and operators say, the gateway answers in words and goes on."""

from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from openclaw_mcp.core.rpc import RpcError

from ..rpc.gateways import within
from .gateways import machines

NODES = (
    "node.invoke.result", "node.invoke.progress", "node.event", "node.pluginTools.update", "node.pending.drain",
    "node.pending.ack", "exec.approval.resolve",
)  # fmt: skip
OPERATORS = (
    "node.describe", "node.invoke", "node.rename", "node.pair.approve", "node.pair.reject",
    "node.pending.enqueue", "exec.approvals.set", "exec.approvals.node.get", "exec.approvals.node.set",
    "exec.approval.get", "exec.approval.resolve", "exec.approval.waitDecision", "approval.get", "approval.resolve",
    "approval.history",
)  # fmt: skip
WORDS = (
    "id", "nodeId", "ok", "payload", "payloadJSON", "error", "invokeId", "seq", "chunk", "event", "tools", "ids",
    "file",
    "decision", "command", "params", "timeoutMs", "idempotencyKey", "requestId", "displayName", "baseHash", "limit",
    "type", "maxItems", "kind",
)  # fmt: skip

plain = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False) | st.text(max_size=20)
anything = st.recursive(
    plain, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(WORDS), inner, max_size=3)
)
spoken = st.lists(
    st.tuples(st.sampled_from((*NODES, *OPERATORS)), st.dictionaries(st.sampled_from(WORDS), anything, max_size=6)),
    min_size=20,
    max_size=40,
)


@given(words=spoken)
@settings(max_examples=8, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
def test_odd_words_are_refused_or_answered(tmp_path: Path, words: list[tuple[str, dict[str, Any]]]) -> None:
    async def test() -> None:
        async with (
            machines(tmp_path) as harness,
            harness.gateway.client() as operator,
            harness.approved(operator) as node,
        ):
            for method, params in words:
                client = node.client if method in NODES else operator
                try:
                    await client.call(method, {"nodeId": node.id, **params}, within=5)
                except RpcError as fault:
                    assert str(fault) != "internal error", (method, params)
            assert (await operator.call("node.list"))["nodes"] is not None

    within(test())
