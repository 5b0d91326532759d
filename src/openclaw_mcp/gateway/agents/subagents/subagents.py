"""The life of sub-agents: started within limits, reported when they end, stopped with all they started."""

import asyncio
import logging
import uuid
from collections.abc import Callable, Sequence
from typing import Final, Self

from msgspec import Struct, structs

from ....core import session_keys
from ....core.agents import AgentRoster
from ....core.channel import MessageDelivery
from ....core.errors import OpenClawError
from ....core.model import Grant, Json
from ....core.owner import intersect_grants
from ....core.ports import RunExecutor
from ....core.repositories import SessionRepository, SubagentRepository
from ....core.rpc import Publish, RpcError, RpcEvent
from ....core.sessions import Run, RunEnded, RunEvent, RunOptions, RunRequest, Subagent, now_ms
from ....net.tasks import Tasks
from . import prompts
from .announcements import ResultAnnouncer
from .prompts import ANNOUNCEMENT_PREFIX
from .settings import DelegationSettings

logger = logging.getLogger(__name__)

STOP_WAIT: Final = 10.0  # seconds a stopped run has to be over; its runtime is given half of that
STEER_EVERY: Final = 2.0  # seconds between two orders to the same sub-agent: each discards the work under way
STEER_WAIT: Final = 5.0  # seconds for the replaced run to end
SWEEP_SECONDS: Final = 60.0  # seconds between sweeps for sessions to archive
RETENTION_MS: Final = 30 * 24 * 3600 * 1000  # milliseconds after its end that a sub-agent stays stored
REQUESTER_STOPPED: Final = "the session that started it was stopped"
MOST_STEER_TIMES: Final = 1024  # pairs remembered for `STEER_EVERY`


class SpawnRequest(Struct, frozen=True, kw_only=True):
    """A task, and the agent that is to do it."""

    requester: str
    grant: Grant
    task: str
    agent: str
    label: str | None = None
    model: str | None = None
    thinking: str | None = None
    timeout_ms: int = 0
    cleanup: str = "keep"
    idempotency_key: str | None = None
    """The caller's idempotency key: the same again is the same sub-agent."""


class SubagentSupervisor:
    """Open for as long as runs may be. It notices every sub-agent's end, also one while it was closed."""

    def __init__(
        self,
        subagents: SubagentRepository,
        sessions: SessionRepository,
        runner: RunExecutor,
        publish: Publish,
        *,
        settings: Callable[[], DelegationSettings],
        roster: Callable[[], AgentRoster],
        channels: MessageDelivery | None = None,
    ) -> None:
        self._subagents, self._sessions, self._runner, self._publish = subagents, sessions, runner, publish
        self._settings, self._roster = settings, roster
        self._announcer = ResultAnnouncer(subagents, sessions, runner, roster=roster, channels=channels)
        self._tasks = Tasks("subagents")
        self._settling: dict[str, bool] = {}
        """Children being settled, and whether something else happened to them since."""
        self._spawn_lock = asyncio.Lock()
        self._steer_times: dict[str, float] = {}
        self._disconnect: Callable[[], None] = lambda: None

    async def __aenter__(self) -> Self:
        self._disconnect = self._runner.events.connect(self._on_run_event)
        self._tasks.spawn(self._resume(), name="resuming")
        self._tasks.loop(self._sweep, name="sweep", every=SWEEP_SECONDS, on_failure="restart")
        return self

    async def __aexit__(self, *_: object) -> None:
        self._disconnect()
        await self._tasks.aclose()

    # ---- starting ------------------------------------------------------------------------------------------------

    async def spawn(self, request: SpawnRequest) -> Subagent:
        """Raises RpcError, of kind FORBIDDEN when a limit is reached."""
        settings = self._settings()
        depth = max(await self._depth(request.requester), request.grant.depth)
        own = session_keys.split_key(request.requester)[0]
        id = _spawn_id(request)
        key = f"agent:{request.agent}:subagent:{id}"
        if request.idempotency_key and (known := await self._subagents.get(key)) is not None:
            return known
        _check_depth(depth, settings)
        async with self._spawn_lock:  # so that two at once do not both take the last free place
            _check_limits(request.agent, own, await self._subagents.children(request.requester), settings)
            new = session_keys.new_session(
                key, self._roster(), label=request.label, spawned_by=request.requester, parent_key=request.requester,
                spawn_depth=depth + 1,
            )  # fmt: skip
            at = now_ms()
            child = Subagent(
                child_key=key, run_id=id, requester_key=request.requester, grant=request.grant,
                task=request.task, label=request.label, model=request.model, cleanup=request.cleanup,
                timeout_ms=request.timeout_ms, created_at=at, started_at=at,
            )  # fmt: skip
            await self._subagents.put(child)  # before the run, so that no end is missed
        options = RunOptions(extra_system_prompt=prompts.subagent_prompt(child, depth + 1), thinking=request.thinking)
        try:
            await self._sessions.create(new)
            await self._start(child, request.task, options)
        except OpenClawError:
            await self._subagents.drop(key)
            raise
        self._publish_task(child)
        return child

    async def _start(self, child: Subagent, message: str, options: RunOptions) -> None:
        provenance = {"kind": "inter_session", "sourceSessionKey": child.requester_key}
        await self._runner.submit(
            RunRequest(
                run_id=child.run_id,
                session=session_keys.new_session(child.child_key, self._roster()),
                message=message,
                mode="followup",
                timeout_ms=child.timeout_ms,
                options=structs.replace(
                    options,
                    lane="subagent",
                    sender=child.requester_key,
                    grant=child.grant,
                    model=child.model,
                    input_provenance=provenance,
                ),
            )
        )

    async def _depth(self, key: str) -> int:
        session = await self._sessions.get(key)
        if session is not None and session.spawn_depth is not None:
            return session.spawn_depth
        return key.split(":").count("subagent")

    # ---- managing ------------------------------------------------------------------------------------------------

    async def children(self, key: str) -> Sequence[Subagent]:
        return await self._subagents.children(key)

    async def descendants(self, key: str) -> list[Subagent]:
        """Children, their children and so on, also below those that have ended; the nearest first."""
        found: list[Subagent] = []
        parents = [key]
        while parents:
            below = [child for parent in parents for child in await self._subagents.children(parent)]
            found += below
            parents = [child.child_key for child in below]
        return found

    async def kill(self, child: Subagent, *, reason: str) -> int:
        """Stop it and all its descendants, and wait for their ends; how many were running."""
        below = await self.descendants(child.child_key)
        running = [each for each in (child, *below) if each.delivery in ("pending", "steering")]
        for each in running:  # the nearest first: a stopped one spawns no more
            await self._subagents.change(each.child_key, delivery="killed")
            await self._stop(each.child_key, STOP_WAIT)
            ended = await self._subagents.change(
                each.child_key, ended_at=each.ended_at or now_ms(), outcome="killed", error=reason
            )
            if ended is not None:
                self._publish_task(ended)
        if running and ":subagent:" in child.requester_key:
            self._settle_soon(child.requester_key)  # it may have waited for this one only
        return len(running)

    async def kill_children(self, key: str) -> int:
        """Stop all that a session's stopped work has started; how many were running."""
        return sum([await self.kill(child, reason=REQUESTER_STOPPED) for child in await self.children(key)])

    async def steer(self, child: Subagent, message: str, *, grant: Grant) -> Subagent:
        """Discard its work and give it another task, in the same session. Raises RpcError.

        From here on it acts under `grant`, the grant of the caller who steers it, as far as its own reaches."""
        now = asyncio.get_running_loop().time()
        wait = self._steer_times.get(child.child_key, -STEER_EVERY) + STEER_EVERY - now
        if wait > 0:
            raise RpcError(
                f"this sub-agent was given an order just now; wait {wait:.1f} s", kind="UNAVAILABLE",
                retryable=True, retry_after_ms=int(wait * 1000) + 1, details={"status": "rate_limited"},
            )  # fmt: skip
        if len(self._steer_times) >= MOST_STEER_TIMES:
            self._steer_times.clear()
        self._steer_times[child.child_key] = now
        await self._subagents.change(child.child_key, delivery="steering")
        await self._stop(child.child_key, STEER_WAIT)
        fresh = await self._subagents.change(
            child.child_key, run_id=str(uuid.uuid4()), started_at=now_ms(), ended_at=None, outcome=None, error=None,
            tries=0, delivery="pending", archived=False, grant=intersect_grants(child.grant, grant),
        )  # fmt: skip
        if fresh is None:
            raise RpcError("the sub-agent was removed")
        try:
            await self._start(fresh, message, RunOptions())
        except OpenClawError:
            await self._subagents.change(child.child_key, run_id=child.run_id, delivery=child.delivery)
            self._settle_soon(child.child_key)
            raise
        self._publish_task(fresh)
        return fresh

    async def _stop(self, key: str, seconds: float) -> None:
        for run_id in await self._runner.abort(key):
            if await self._runner.wait(run_id, seconds=seconds) is None:
                logger.warning("subagents: run %s did not end within %g s of being stopped", run_id, seconds)

    # ---- ends ----------------------------------------------------------------------------------------------------

    def _on_run_event(self, event: RunEvent) -> None:
        if isinstance(event, RunEnded) and ":subagent:" in event.run.session_key:
            self._settle_soon(event.run.session_key)
        elif isinstance(event, RunEnded) and event.run.run_id.startswith(ANNOUNCEMENT_PREFIX):
            self._tasks.spawn(self._announcer.deliver_reply(event.run), name=f"reply of run {event.run.run_id}")

    async def _resume(self) -> None:
        """Settle what ran, or was to be announced, when the gateway stopped."""
        for child in await self._subagents.list_awaiting_delivery():
            if child.delivery == "steering":
                await self._subagents.change(child.child_key, delivery="pending")
            self._settle_soon(child.child_key)

    async def _settle(self, key: str) -> None:
        """Store its end, and notify the requester once nothing runs in it or in its descendants."""
        if key in self._settling:
            self._settling[key] = True
            return
        try:
            self._settling[key] = True
            while self._settling[key]:  # again when something happened meanwhile
                self._settling[key] = False
                child = await self._subagents.get(key)
                if child is None or child.delivery != "pending":
                    return
                child = await self._record_end(child)
                if child is not None and child.ended_at is not None and await self._is_idle(child):
                    await self._finish(child, await self._announcer.announce(child, child.ended_at))
        finally:
            self._settling.pop(key, None)

    async def _record_end(self, child: Subagent) -> Subagent | None:
        if child.ended_at is not None:
            return child
        run = await self._find_ended_run(child)
        if run is None and (await self._sessions.active_runs([child.child_key])).get(child.child_key):
            return child  # an event will report its end
        run = run or await self._find_ended_run(child)  # it may have ended between the two reads
        if run is None and await self._sessions.get(child.child_key) is None:
            await self._subagents.drop(child.child_key)
            return None
        ended = await self._subagents.change(child.child_key, **_end_columns(run))
        if ended is not None:
            self._publish_task(ended)
        return ended

    async def _find_ended_run(self, child: Subagent) -> Run | None:
        """The run that did its work, if it has ended."""
        run = await self._runner.wait(child.run_id, seconds=0)
        if run is not None and run.merged_into is not None:
            await self._subagents.change(child.child_key, run_id=run.merged_into)
            run = await self._runner.wait(run.merged_into, seconds=0)
        return run

    async def _is_idle(self, child: Subagent) -> bool:
        if (await self._sessions.active_runs([child.child_key])).get(child.child_key):
            return False
        return not any(
            each.delivery in ("pending", "steering") for each in await self._subagents.children(child.child_key)
        )

    async def _finish(self, child: Subagent, delivery: str) -> None:
        settled = await self._subagents.change(child.child_key, delivery=delivery) or child
        self._publish_task(settled)
        if child.cleanup == "delete":
            await self._sessions.delete(child.child_key, transcript=True)
        if ":subagent:" in child.requester_key:
            self._settle_soon(child.requester_key)

    # ---- upkeep --------------------------------------------------------------------------------------------------

    async def _sweep(self) -> None:
        """Archive the sessions of sub-agents that ended, and remove those that ended long ago."""
        await self._announcer.redeliver_replies()
        await self._subagents.prune(now_ms() - RETENTION_MS)
        minutes = self._settings().subagents.archive_after_minutes
        for child in await self._subagents.list_idle(now_ms() - minutes * 60_000) if minutes else ():
            await self._sessions.patch(child.child_key, {"archived": True}, {})
            await self._subagents.change(child.child_key, archived=True)

    def _publish_task(self, child: Subagent) -> None:
        self._publish(RpcEvent(name="task", payload={"action": "upserted", "task": prompts.task_view(child)}))

    def _settle_soon(self, key: str) -> None:
        self._tasks.spawn(self._settle(key), name=f"settling {key}")


def _spawn_id(request: SpawnRequest) -> str:
    """The id of its session and first run: the same for a repeated request, also when the first answer was lost."""
    if request.idempotency_key is None:
        return str(uuid.uuid4())
    return str(uuid.uuid5(uuid.NAMESPACE_URL, f"openclaw:sessions.spawn:{request.requester}:{request.idempotency_key}"))


def _end_columns(run: Run | None) -> Json:
    if run is None:
        return {"ended_at": now_ms(), "outcome": "error", "error": "it never began: the gateway stopped before"}
    outcome = "timeout" if run.stop_reason == "timeout" else run.status
    return {"ended_at": run.ended_at or now_ms(), "outcome": outcome, "error": run.error}


def _check_depth(depth: int, settings: DelegationSettings) -> None:
    deepest = settings.subagents.max_spawn_depth
    if depth >= deepest:
        reason = f"this session is {depth} spawns deep and agents.defaults.subagents.maxSpawnDepth is {deepest}"
        raise RpcError(f"sessions_spawn is not allowed here: {reason}", kind="FORBIDDEN")


def _check_limits(agent: str, own: str, children: Sequence[Subagent], settings: DelegationSettings) -> None:
    running, most = sum(child.ended_at is None for child in children), settings.subagents.max_children_per_agent
    if running >= most:
        reason = f"{running} of this session's sub-agents are at work and maxChildrenPerAgent is {most}"
        raise RpcError(f"sessions_spawn is not allowed now: {reason}; wait or stop one", kind="FORBIDDEN")
    allowed = settings.spawnable_agents(own)
    if agent != own and "*" not in allowed and agent not in allowed:
        names = ", ".join(allowed) or "none"
        raise RpcError(f"{own} may not spawn {agent}; its subagents.allowAgents: {names}", kind="FORBIDDEN")
