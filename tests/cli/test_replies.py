"""Answers of a gateway as commands read them."""

import pytest

from openclaw_mcp.cli.gateway_connection import read_reply
from openclaw_mcp.cli.nodes import NodeList, _match_nodes
from openclaw_mcp.cli.probe import GatewayProbe
from openclaw_mcp.cli.status import GatewayHealth
from openclaw_mcp.core.errors import OpenClawError

NODES = [
    {"nodeId": "a" * 64, "displayName": "Laptop", "toolPrefix": "laptop", "caps": ["unknown fields are ignored"]},
    {"nodeId": "b" * 64, "displayName": None, "commands": ["system.run"]},
]


@pytest.mark.parametrize("answer", [None, [], {"nodes": [{}]}, {"nodes": [{"nodeId": 7}]}])
def test_an_answer_of_another_form_is_an_error_with_a_reason(answer: object) -> None:
    with pytest.raises(OpenClawError, match="the gateway's answer is not understood"):
        read_reply(answer, NodeList)


@pytest.mark.parametrize(
    ("query", "ids"),
    [("a" * 64, "a"), ("LAPTOP", "a"), ("laptop", "a"), ("bbbb", "b"), ("b" * 12, "b"), ("bbb", ""), ("x", "")],
)
def test_a_node_is_found_by_id_name_or_beginning(query: str, ids: str) -> None:
    nodes = read_reply({"nodes": NODES}, NodeList).nodes
    assert [node.node_id[0] for node in _match_nodes(nodes, query)] == list(ids)
    assert [node.name for node in nodes] == ["Laptop", "b" * 12]


def test_a_report_uses_defaults_for_an_answer_of_another_form() -> None:
    probe = GatewayProbe(url="ws://x", is_configured=True, replies={"health": {"ok": "yes"}})
    assert probe.reply("health", GatewayHealth) == probe.reply("absent", GatewayHealth) == GatewayHealth()
