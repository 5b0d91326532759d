"""Results that are for a person: through the outbox of the channel they write on, once."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from openclaw_mcp.core.agents import AgentRoster
from openclaw_mcp.core.channel import ChatAddress, OutboundMessage, PostResult
from openclaw_mcp.core.model import Grant
from openclaw_mcp.core.session_keys import new_session
from openclaw_mcp.core.sessions import Run, RunRequest
from openclaw_mcp.gateway.agents.subagents import subagents as room
from openclaw_mcp.gateway.agents.subagents.agent_messages import AgentMessenger, ConverseRequest
from openclaw_mcp.gateway.agents.subagents.settings import DelegationSettings
from openclaw_mcp.gateway.agents.subagents.subagents import SpawnRequest, SubagentSupervisor
from openclaw_mcp.gateway.wiring.runs import StoreServices
from openclaw_mcp.net import tasks
from openclaw_mcp.store.subagents import SqlSubagentRepository
from tests.gateway.sessions.gateways import GatewayHarness, open_harness

HOME = "agent:main:local:direct:ann"
ANN = ChatAddress(channel="local", account="default", to="ann")


class Mailbox:
    """A `MessageDelivery` in memory: a key is posted once."""

    def __init__(self) -> None:
        self.posted: dict[str, tuple[ChatAddress, str]] = {}
        self.news = asyncio.Event()
        self.is_open = True
        self.written = ""
        """An answer that holds this was sent by the agent itself."""

    async def has_run_message(self, run: Run, address: ChatAddress) -> bool:
        return bool(self.written) and self.written in (run.result.text or "")

    async def post(
        self, address: ChatAddress, message: OutboundMessage, *, key: str, wait: float = 0.0, session: str | None = None
    ) -> PostResult:
        self.posted.setdefault(key, (address, message.text))
        self.news.set()
        return PostResult(id=key, status="sent")

    async def find_address(self, session: str) -> ChatAddress | None:
        if not self.is_open:
            await asyncio.Event().wait()
        return ANN if session == HOME else None


class Scene:
    def __init__(
        self,
        rooms: GatewayHarness,
        memory: StoreServices,
        box: Mailbox,
        supervisor: SubagentSupervisor,
        messenger: AgentMessenger,
    ) -> None:
        self.rooms, self.memory, self.box, self.supervisor, self.messenger = rooms, memory, box, supervisor, messenger

    async def spawn(self, task: str, requester: str = HOME) -> str:
        child = await self.supervisor.spawn(SpawnRequest(requester=requester, grant=Grant(), task=task, agent="main"))
        return child.child_key


def play(where: Path, scenario: Callable[[Scene], Awaitable[None]]) -> None:
    async def run() -> None:
        box, instances = Mailbox(), []

        @asynccontextmanager
        async def around(memory: StoreServices) -> AsyncIterator[None]:
            common: dict[str, Any] = {"settings": DelegationSettings, "roster": AgentRoster}
            who = (SqlSubagentRepository(memory.store), memory.sessions, memory.runs, lambda _: None)
            async with (
                AgentMessenger(memory.sessions, memory.runs, **common, channels=box) as messenger,
                SubagentSupervisor(*who, **common, channels=box) as supervisor,
            ):
                instances.append((messenger, supervisor))
                yield

        async with open_harness(str(where / "x.sqlite"), run_scope=around) as rooms:
            messenger, supervisor = instances[0]
            await scenario(Scene(rooms, rooms.memory, box, supervisor, messenger))

    asyncio.run(asyncio.wait_for(run(), 60))


def test_what_the_agent_makes_of_a_result_goes_to_whom_it_speaks_with(tmp_path: Path) -> None:
    async def scenario(scene: Scene) -> None:
        await scene.spawn("!say the answer is 42")
        await scene.box.news.wait()
        ((address, text),) = scene.box.posted.values()
        assert address == ANN
        assert "the answer is 42" in text

    play(tmp_path, scenario)


def test_what_the_agent_reported_itself_is_not_reported_again(tmp_path: Path) -> None:
    async def scenario(scene: Scene) -> None:
        scene.box.written = "told already"
        await scene.spawn("!say told already")
        key = await scene.spawn("!say not yet told")
        await scene.box.news.wait()
        (name,) = scene.box.posted
        assert key in name

    play(tmp_path, scenario)


def test_a_session_without_a_person_posts_nothing(tmp_path: Path) -> None:
    async def scenario(scene: Scene) -> None:
        await scene.spawn("!say unheard", requester="agent:main:alone")
        key = await scene.spawn("!say heard")
        await scene.box.news.wait()
        assert [name.split(":subagent:")[0] for name in scene.box.posted] == ["announce:v1:agent:main"]
        assert key in next(iter(scene.box.posted))

    play(tmp_path, scenario)


def test_what_a_crash_kept_from_the_outbox_goes_out_later_and_once(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(room, "SWEEP_SECONDS", 0.2)

    async def before(scene: Scene) -> None:
        scene.box.is_open = False  # as if we died between the run's end and the outbox
        key = await scene.spawn("!say late but here")
        child = await SqlSubagentRepository(scene.memory.store).get(key)
        assert child is not None
        assert await scene.memory.runs.wait(f"announce:v1:{key}:{child.run_id}", seconds=20) is not None

    async def after(scene: Scene) -> None:
        await scene.box.news.wait()
        assert len(scene.box.posted) == 1
        assert "late but here" in next(iter(scene.box.posted.values()))[1]

    play(tmp_path, before)
    play(tmp_path, after)


def test_a_sweep_that_failed_is_done_again(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(room, "SWEEP_SECONDS", 0.02)
    monkeypatch.setattr(tasks, "FIRST_BACK_OFF", 0.02)
    swept: asyncio.Queue[int] = asyncio.Queue()

    async def prune(self: SqlSubagentRepository, before: int) -> None:
        swept.put_nowait(before)
        if swept.qsize() == 1:
            raise ValueError("a row that can't be read")

    monkeypatch.setattr(SqlSubagentRepository, "prune", prune)

    async def scenario(scene: Scene) -> None:
        while swept.qsize() < 3:  # noqa: ASYNC110  (a patched method has no event)
            await asyncio.sleep(0.01)

    play(tmp_path, scenario)


def test_a_run_that_ends_while_it_is_looked_for_is_not_said_never_to_have_begun(tmp_path: Path) -> None:
    async def scenario(scene: Scene) -> None:
        runs, active = scene.memory.runs, scene.memory.sessions.active_runs
        key = await scene.spawn("!sleep 600")
        child = await SqlSubagentRepository(scene.memory.store).get(key)
        assert child is not None

        async def too_late(keys: Sequence[str]) -> dict[str, tuple[str, ...]]:
            if key in keys:
                await runs.abort(key)
                assert await runs.wait(child.run_id, seconds=20) is not None
            return await active(keys)

        scene.memory.sessions.active_runs = too_late  # type: ignore[method-assign]
        await runs.submit(
            RunRequest(run_id="r2", session=new_session(key, AgentRoster()), message="x", mode="followup")
        )
        await runs.abort(key, run_id="r2")  # an end in its session: it is looked after
        await scene.box.news.wait()
        ended = await SqlSubagentRepository(scene.memory.store).get(key)
        assert ended is not None
        assert ended.outcome == "aborted"

    play(tmp_path, scenario)


def test_an_exchange_of_agents_ends_in_the_targets_channel_unless_it_is_skipped(tmp_path: Path) -> None:
    async def scenario(scene: Scene) -> None:
        note = ConverseRequest(
            source="agent:main:a", target=HOME, message="!say REPLY_SKIP", grant=Grant(), wait_seconds=20
        )
        received = await scene.messenger.send(note)
        assert received["reply"] == "REPLY_SKIP"
        await scene.box.news.wait()
        ((address, text),) = scene.box.posted.values()
        assert address == ANN
        assert "announce step" in text  # the demo repeats what it was asked

    play(tmp_path, scenario)
