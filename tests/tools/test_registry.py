"""Whose tool a name means when an app offers one that a source of ours has, or may have; whose work an app is."""

import asyncio
from typing import Any

import pytest

from openclaw_mcp.core.model import LOCAL_CALLER, Caller, ToolCall, ToolResult, ToolSpec, text_result
from openclaw_mcp.core.signal import Signal
from openclaw_mcp.tools.dispatcher import ToolDispatcher
from openclaw_mcp.tools.policy import PolicyDecision, scope_policy
from openclaw_mcp.tools.registry import ToolRegistry


class Source:
    def __init__(self, *names: str) -> None:
        self.changed: Signal[None] = Signal()
        self.names = names
        self.asked = 0
        """How often its tools were looked at."""

    def specs(self) -> list[ToolSpec]:
        self.asked += 1
        return [ToolSpec(name=name) for name in self.names]

    async def call(self, call: ToolCall) -> ToolResult:
        return text_result(call.name)


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
    registry = ToolRegistry()
    sources = [("app/1", Source(offered)), (ours, Source(*names))]
    for name, source in sources if first else reversed(sources):
        registry.add(name, source)
    offers = registry.tools_by_name(["app/1", "app/2"])
    assert sorted(offer.source_name for offer in offers.get(offered, [])) == left
    assert [offer.source_name for offer in registry.tools_by_name().get(offered, [])] == [
        name for name in left if "app/" not in name
    ]


APP = Caller(kind="app", name="a", scopes=frozenset({"source:app/mine"}))
OTHERS = (LOCAL_CALLER, Caller(kind="agent", name="main", scopes=frozenset({"*", "source:app/other"})))


def come(registry: ToolRegistry) -> None:
    registry.add("app/new", Source("fresh"))


def change(registry: ToolRegistry, mine: Source) -> None:
    mine.names = ("greet", "wave")
    mine.changed.emit(None)


@pytest.mark.parametrize(
    ("happens", "sees"),
    [
        (lambda registry, mine: None, ["greet"]),
        (lambda registry, mine: come(registry), ["greet"]),
        (change, ["greet", "wave"]),
        (lambda registry, mine: registry.remove("app/mine"), []),
        (lambda registry, mine: registry.add("gateway", Source("greet")), []),
    ],
)
def test_what_an_app_does_is_work_for_those_alone_it_lends_its_tools(happens: Any, sees: list[str]) -> None:
    calls: list[tuple[str, str]] = []

    def policy(caller: Caller, source: str, spec: ToolSpec) -> PolicyDecision:
        calls.append((caller.name, source))
        return scope_policy(caller, source, spec)

    mine, own = Source("greet"), Source("read", "write")
    registry = ToolRegistry({"own": own, "app/mine": mine, "app/other": Source("look")})
    dispatcher = ToolDispatcher(registry, policy=policy)
    before = [asyncio.run(dispatcher.list(caller)) for caller in (*OTHERS, APP)]
    assert [spec.name for spec in before[-1]] == ["greet"]
    calls.clear()
    spec_requests, mine.asked, own.asked = mine.asked, 0, 0

    happens(registry, mine)

    after = [asyncio.run(dispatcher.list(caller)) for caller in OTHERS]
    if "gateway" not in registry._sources:  # a tool of ours concerns every caller
        assert after == before[:-1]
        assert all(now is then for now, then in zip(after, before, strict=False))
        assert (calls, own.asked, mine.asked) == ([], 0, 0)
    assert [spec.name for spec in asyncio.run(dispatcher.list(APP))] == sees
    assert spec_requests == 1
    assert mine.asked <= 1


def test_apps_that_come_and_go_by_the_hundred_are_announced_once() -> None:
    async def main() -> None:
        registry = ToolRegistry({"own": Source("read")})
        dispatcher = ToolDispatcher(registry, app_change_interval=0.05)
        changes: asyncio.Queue[None] = asyncio.Queue()
        dispatcher.changed.connect(changes.put_nowait)
        for number in range(300):
            registry.add(f"app/{number}", Source("greet"))
        for number in range(300):
            registry.remove(f"app/{number}")
        await asyncio.wait_for(changes.get(), 10)
        assert changes.empty()
        registry.add("app/again", Source("greet"))
        await asyncio.wait_for(changes.get(), 10)

    asyncio.run(main())
