"""Work beside the requests of a gateway: a failure is logged and the work goes on, or the owner ends with it."""

import asyncio
import contextlib
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from openclaw_mcp.cli import up
from openclaw_mcp.core.agents import AgentProfile, AgentRoster
from openclaw_mcp.core.errors import OpenClawError, StoreError
from openclaw_mcp.core.sessions import SessionPage, SessionQuery
from openclaw_mcp.gateway.rpc.server import RpcServer
from openclaw_mcp.gateway.wiring import gateway as gateways
from openclaw_mcp.gateway.wiring import mcp_servers
from openclaw_mcp.gateway.wiring.assembly import GatewayOptions, serve
from openclaw_mcp.gateway.wiring.gateway import GatewayServer
from openclaw_mcp.gateway.wiring.restart import InPlaceRestart
from openclaw_mcp.gateway.wiring.status import SessionStatus
from openclaw_mcp.net import listen, tasks
from openclaw_mcp.net.tasks import Tasks
from openclaw_mcp.tools.registry import ToolRegistry

WAIT = 20.0


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "FIRST_BACK_OFF", 0.01)


def within(work: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(WAIT):
            await work

    asyncio.run(bounded())


async def until(true: Any) -> None:
    while not true():  # noqa: ASYNC110 - what no event tells
        await asyncio.sleep(0.01)


class FailingSessions:
    """Its store fails at the first count."""

    def __init__(self) -> None:
        self.counts = 0

    async def page(self, query: SessionQuery) -> SessionPage:
        self.counts += 1
        if self.counts == 1:
            raise StoreError("the disk is full")
        return SessionPage(sessions=(), total=7, active={})


def test_sessions_are_counted_again_after_a_count_that_failed() -> None:
    async def main() -> None:
        roster = AgentRoster(agents=(AgentProfile(id="main"),))
        status = SessionStatus(FailingSessions(), "here", lambda: roster)  # type: ignore[arg-type]
        async with Tasks("test") as running:
            running.loop(status.refresh_on_change, name="count", on_failure="restart")
            status._changed.set()
            await until(lambda: status.health()["sessions"]["count"] == 7)

    within(main())


def test_a_wait_for_a_restart_that_fails_is_no_request_to_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = 0

    async def fail(self: InPlaceRestart) -> None:
        nonlocal failures
        failures += 1
        raise RuntimeError("the config could not be read")

    monkeypatch.setattr(InPlaceRestart, "wait_until_due", fail)

    async def main() -> None:
        listener, ready = listen.bind("127.0.0.1", 0), asyncio.Event()
        serving = asyncio.create_task(serve(GatewayOptions(folder=tmp_path, token="t" * 64), listener, ready=ready.set))
        await ready.wait()
        await until(lambda: failures > 1)
        assert not serving.done()
        serving.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await serving

    within(main())


def test_health_is_published_again_after_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateways, "HEALTH_INTERVAL", 0.01)
    published = 0

    def publish(self: RpcServer) -> None:
        nonlocal published
        published += 1
        if published == 1:
            raise ValueError("a module's health can't be encoded")

    monkeypatch.setattr(RpcServer, "publish_health", publish)

    async def main() -> None:
        serving = asyncio.create_task(GatewayServer(tmp_path, "t" * 64).serve(listen.bind("127.0.0.1", 0)))
        await until(lambda: published > 1)
        serving.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await serving

    within(main())


def test_a_server_that_cannot_be_ended_keeps_no_later_change_from_being_made(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        registry = ToolRegistry()
        async with mcp_servers.McpServers(registry, {"one": {"command": "true"}}) as servers:

            async def fail() -> None:
                raise RuntimeError("it does not end")

            monkeypatch.setattr(servers.pool.find("one"), "aclose", fail)
            servers.update({"two": {"command": "true"}})
            await until(lambda: list(servers._registered) == ["mcp/two"])
            servers.update({"three": {"command": "true"}})
            await until(lambda: list(servers._registered) == ["mcp/three"])

    within(main())


@pytest.mark.parametrize("fails", [True, False])
def test_up_ends_with_its_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: bool) -> None:
    """It used to go on without the node, until it was stopped."""

    class Host:
        def __init__(self, node: Any, *, announce: Any, **_: Any) -> None:
            self._announce = announce

        async def run(self, stop: asyncio.Event) -> None:
            self._announce("mcp: http://127.0.0.1:1/")
            await asyncio.sleep(0.05)
            if fails:
                raise OpenClawError("the node has lost its port")

    monkeypatch.setattr(up, "NodeHost", Host)

    async def main() -> None:
        with pytest.raises(OpenClawError, match="lost its port" if fails else "the node ended by itself"):
            async with up._serve_node(tmp_path, None, "ws://127.0.0.1:1") as surface:
                assert surface.address == "http://127.0.0.1:1/"
                await asyncio.Event().wait()

    within(main())
