"""Whose tool a name means when an app offers one that a source of ours has, or may have."""

import pytest

from openclaw_mcp.core.bell import Bell
from openclaw_mcp.core.model import ToolCall, ToolResult, ToolSpec, said
from openclaw_mcp.tools.registry import Registry


class Source:
    def __init__(self, *names: str) -> None:
        self.changed: Bell[None] = Bell()
        self.names = names

    def specs(self) -> list[ToolSpec]:
        return [ToolSpec(name=name) for name in self.names]

    async def call(self, call: ToolCall) -> ToolResult:
        return said(call.name)


@pytest.mark.parametrize(
    ("ours", "names", "offered", "left"),
    [
        ("mcp/vault", ("vault__note",), "vault__note", ["mcp/vault"]),
        ("mcp/vault", (), "vault__note", []),  # it sleeps, or does not answer
        ("mcp/vault", ("vault__note",), "vault__other", []),
        ("node/desk", ("desk__system_run",), "desk__system_run", ["node/desk"]),
        ("node/desk", (), "desk__system_run", []),
        ("gateway", ("cron",), "cron", ["gateway"]),
        ("claw", ("extra",), "extra", ["claw"]),
        ("mcp/vault", ("vault__note",), "vaults__note", ["app/1"]),
        ("mcp/vault", ("vault__note",), "greet", ["app/1"]),
        ("app/2", ("greet",), "greet", ["app/1", "app/2"]),
    ],
)
@pytest.mark.parametrize("first", [True, False])
def test_an_app_never_competes_with_a_source_of_ours(
    ours: str, names: tuple[str, ...], offered: str, left: list[str], first: bool
) -> None:
    registry = Registry()
    sources = [("app/1", Source(offered)), (ours, Source(*names))]
    for name, source in sources if first else reversed(sources):
        registry.add(name, source)
    assert sorted(offer.name for offer in registry.offers().get(offered, [])) == left
