"""The life of sub-agents: sent off within limits, heard of when they end, stopped with all they started."""

import asyncio
import logging
import uuid
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, Self

from msgspec import Struct

from ....core import session_keys
from ....core.agents import Roster
from ....core.channel import Mailroom
from ....core.errors import OpenClawError
from ....core.model import Grant, Json
from ....core.ports import Runner
from ....core.repositories import SessionBook, SubagentBook
from ....core.rpc import Event, Fault, Publish
from ....core.sessions import Run, RunNews, RunOver, RunRequest, Subagent, now_ms
from . import prompts
from .announcements import Announcer
from .prompts import ANNOUNCEMENT
from .settings import Settings

logger = logging.getLogger(__name__)

STOP_WAIT: Final = 10.0  # seconds a stopped run has to be over; its runtime is given half of that
STEER_EVERY: Final = 2.0  # seconds between two orders to the same sub-agent: each throws away what it was doing
STEER_WAIT: Final = 5.0  # seconds the run has to end that a new order takes the place of
ROUND: Final = 60.0  # seconds between looks for sessions to put away
KEPT_MS: Final = 30 * 24 * 3600 * 1000  # milliseconds after its end that a sub-agent stays on the books
MOST_ORDERS: Final = 1024  # pairs remembered for `STEER_EVERY`


class Errand(Struct, frozen=True, kw_only=True):
    """What is to be done, and by whom."""

    requester: str
    grant: Json
    task: str
    agent: str
    label: str | None = None
    model: str | None = None
    thinking: str | None = None
    timeout_ms: int = 0
    cleanup: str = "keep"
    once: str | None = None
    """The caller's idempotency key: the same again is the same sub-agent."""


class Family:
    """`async with` it around the runs. Every sub-agent's end is heard, also one that came while nobody listened."""

    def __init__(
        self,
        book: SubagentBook,
        sessions: SessionBook,
        runner: Runner,
        publish: Publish,
        *,
        settings: Callable[[], Settings],
        roster: Callable[[], Roster],
        mailroom: Callable[[], Mailroom | None] = lambda: None,
    ) -> None:
        self._book = book
        self._sessions = sessions
        self._runner = runner
        self._publish = publish
        self._settings = settings
        self._roster = roster
        self._announcer = Announcer(book, sessions, runner, roster=roster, mailroom=mailroom)
        self._tasks: set[asyncio.Task[None]] = set()
        self._settling: dict[str, bool] = {}
        """Those being settled, and whether more was heard of them since."""
        self._spawning = asyncio.Lock()
        self._ordered: dict[str, float] = {}
        self._quiet: Callable[[], None] = lambda: None

    async def __aenter__(self) -> Self:
        self._quiet = self._runner.news.listen(self._hear)
        self._own(self._take_up())
        self._own(self._rounds())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._quiet()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # ---- sending off ---------------------------------------------------------------------------------------------

    async def spawn(self, errand: Errand) -> Subagent:
        """Raises Fault (kind FORBIDDEN where a limit says no)."""
        settings = self._settings()
        depth = max(await self._depth(errand.requester), errand.grant.get("depth", 0))
        own = session_keys.parts(errand.requester)[0]
        id = _id(errand)
        known = await self._book.get(f"agent:{errand.agent}:subagent:{id}") if errand.once else None
        if known is not None:
            return known
        _check_depth(depth, settings)
        async with self._spawning:  # so that two at once do not both find the last place free
            children = await self._book.children(errand.requester)
            _check_places(children, settings)
            _check_agent(errand.agent, own, settings)
            key = f"agent:{errand.agent}:subagent:{id}"
            new = session_keys.new_session(
                key, self._roster(), label=errand.label, spawned_by=errand.requester, parent_key=errand.requester,
                spawn_depth=depth + 1,
            )  # fmt: skip
            at = now_ms()
            child = Subagent(
                child_key=key, run_id=id, requester_key=errand.requester, grant=errand.grant,
                task=errand.task, label=errand.label, model=errand.model, cleanup=errand.cleanup,
                timeout_ms=errand.timeout_ms, created_at=at, started_at=at,
            )  # fmt: skip
            await self._book.put(child)  # before the run, so that no end goes unheard
        options = {"extraSystemPrompt": prompts.briefing(child, depth + 1), "thinking": errand.thinking}
        try:
            await self._sessions.create(new)
            await self._start(child, errand.task, options)
        except OpenClawError:
            await self._book.drop(key)
            raise
        self._tell(child)
        return child

    async def _start(self, child: Subagent, message: str, options: Json) -> None:
        given: Json = {"lane": "subagent", "sender": child.requester_key, "grant": child.grant, "model": child.model}
        given |= options
        given["inputProvenance"] = {"kind": "inter_session", "sourceSessionKey": child.requester_key}
        await self._runner.submit(
            RunRequest(
                run_id=child.run_id,
                session=session_keys.new_session(child.child_key, self._roster()),
                message=message,
                mode="followup",
                timeout_ms=child.timeout_ms,
                options={name: value for name, value in given.items() if value is not None},
            )
        )

    async def _depth(self, key: str) -> int:
        session = await self._sessions.get(key)
        if session is not None and session.spawn_depth is not None:
            return session.spawn_depth
        return key.split(":").count("subagent")

    # ---- looking after -------------------------------------------------------------------------------------------

    async def children(self, key: str) -> Sequence[Subagent]:
        return await self._book.children(key)

    async def descendants(self, key: str) -> list[Subagent]:
        """Children, their children and so on, also below those that have ended; the nearest first."""
        found: list[Subagent] = []
        parents = [key]
        while parents:
            below = [child for parent in parents for child in await self._book.children(parent)]
            found += below
            parents = [child.child_key for child in below]
        return found

    async def kill(self, child: Subagent, *, reason: str) -> int:
        """Stop it and all below it; how many were going. They are over when this returns."""
        below = await self.descendants(child.child_key)
        going = [each for each in (child, *below) if each.delivery in ("pending", "steering")]
        for each in going:  # the nearest first: who is stopped spawns no more
            await self._book.change(each.child_key, delivery="killed")
            await self._stop(each.child_key, STOP_WAIT)
            ended = await self._book.change(
                each.child_key, ended_at=each.ended_at or now_ms(), outcome="killed", error=reason
            )
            if ended is not None:
                self._tell(ended)
        if going and ":subagent:" in child.requester_key:
            self._own(self._settle(child.requester_key))  # it may have waited for this one alone
        return len(going)

    async def steer(self, child: Subagent, message: str, *, grant: Grant) -> Subagent:
        """Throw away what it does and give it this to do instead, in the same session. Raises Fault.

        From here on it acts for whoever gave this order (`grant`), and with no more than it had."""
        now = asyncio.get_running_loop().time()
        wait = self._ordered.get(child.child_key, -STEER_EVERY) + STEER_EVERY - now
        if wait > 0:
            raise Fault(
                f"this sub-agent was given an order just now; wait {wait:.1f} s", kind="UNAVAILABLE",
                retryable=True, retry_after_ms=int(wait * 1000) + 1, details={"status": "rate_limited"},
            )  # fmt: skip
        if len(self._ordered) >= MOST_ORDERS:
            self._ordered.clear()
        self._ordered[child.child_key] = now
        await self._book.change(child.child_key, delivery="steering")
        await self._stop(child.child_key, STEER_WAIT)
        fresh = await self._book.change(
            child.child_key, run_id=str(uuid.uuid4()), started_at=now_ms(), ended_at=None, outcome=None, error=None,
            tries=0, delivery="pending", archived=False, grant=prompts.lesser_of(child.grant, grant),
        )  # fmt: skip
        if fresh is None:
            raise Fault("the sub-agent is gone")
        try:
            await self._start(fresh, message, {})
        except OpenClawError:
            await self._book.change(child.child_key, run_id=child.run_id, delivery=child.delivery)
            self._own(self._settle(child.child_key))
            raise
        self._tell(fresh)
        return fresh

    async def _stop(self, key: str, seconds: float) -> None:
        for run_id in await self._runner.abort(key):
            if await self._runner.wait(run_id, seconds=seconds) is None:
                logger.warning("run %s of a sub-agent does not end", run_id)

    # ---- hearing of their end ------------------------------------------------------------------------------------

    def _hear(self, news: RunNews) -> None:
        if isinstance(news, RunOver) and ":subagent:" in news.run.session_key:
            self._own(self._settle(news.run.session_key))
        elif isinstance(news, RunOver) and news.run.run_id.startswith(ANNOUNCEMENT):
            self._own(self._announcer.pass_on(news.run))

    async def _take_up(self) -> None:
        """What was going, or was to be told, when the house was last closed."""
        for child in await self._book.unsettled():
            if child.delivery == "steering":
                await self._book.change(child.child_key, delivery="pending")
            self._own(self._settle(child.child_key))

    async def _settle(self, key: str) -> None:
        """Note its end, and tell the requester once nothing goes in it or below it any more."""
        if key in self._settling:
            self._settling[key] = True
            return
        try:
            self._settling[key] = True
            while self._settling[key]:  # again when more was heard of it meanwhile
                self._settling[key] = False
                child = await self._book.get(key)
                if child is None or child.delivery != "pending":
                    return
                child = await self._noted(child)
                if child is not None and child.ended_at is not None and await self._is_quiet(child):
                    await self._settled(child, await self._announcer.announce(child))
        finally:
            self._settling.pop(key, None)

    async def _noted(self, child: Subagent) -> Subagent | None:
        if child.ended_at is not None:
            return child
        run = await self._run(child)
        if run is None and (await self._sessions.active([child.child_key])).get(child.child_key):
            return child  # its end will be heard
        run = run or await self._run(child)  # it may have ended between the two looks
        if run is None and await self._sessions.get(child.child_key) is None:
            await self._book.drop(child.child_key)
            return None
        ended = await self._book.change(child.child_key, **_ending(run))
        if ended is not None:
            self._tell(ended)
        return ended

    async def _run(self, child: Subagent) -> Run | None:
        """The run that did its work, once that has ended."""
        run = await self._runner.wait(child.run_id, seconds=0)
        if run is not None and run.merged_into is not None:
            await self._book.change(child.child_key, run_id=run.merged_into)
            run = await self._runner.wait(run.merged_into, seconds=0)
        return run

    async def _is_quiet(self, child: Subagent) -> bool:
        if (await self._sessions.active([child.child_key])).get(child.child_key):
            return False
        return not any(each.delivery in ("pending", "steering") for each in await self._book.children(child.child_key))

    async def _settled(self, child: Subagent, delivery: str) -> None:
        settled = await self._book.change(child.child_key, delivery=delivery) or child
        self._tell(settled)
        if child.cleanup == "delete":
            await self._sessions.delete(child.child_key, transcript=True)
        if ":subagent:" in child.requester_key:
            self._own(self._settle(child.requester_key))

    # ---- within --------------------------------------------------------------------------------------------------

    async def _rounds(self) -> None:
        """Put sessions away that nobody needs any more, and forget those sent off long ago."""
        while True:
            await asyncio.sleep(ROUND)
            try:
                await self._announcer.pass_on_again()
                await self._book.forget(now_ms() - KEPT_MS)
                minutes = self._settings().spawning.archive_after_minutes
                for child in await self._book.idle_since(now_ms() - minutes * 60_000) if minutes else ():
                    await self._sessions.patch(child.child_key, {"archived": True}, {})
                    await self._book.change(child.child_key, archived=True)
            except OpenClawError as exc:
                logger.warning("sub-agents' sessions can't be put away now: %s", exc)

    def _tell(self, child: Subagent) -> None:
        self._publish(Event(name="task", payload={"action": "upserted", "task": prompts.task(child)}))

    def _own(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._over)

    def _over(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (exc := task.exception()) is not None:
            logger.error("looking after a sub-agent failed", exc_info=exc)


def _id(errand: Errand) -> str:
    """Of its session and its first run. A repeated request must name the same even when its first answer was lost."""
    if errand.once is None:
        return str(uuid.uuid4())
    return str(uuid.uuid5(uuid.NAMESPACE_URL, f"openclaw:sessions.spawn:{errand.requester}:{errand.once}"))


def _ending(run: Run | None) -> Json:
    if run is None:
        return {"ended_at": now_ms(), "outcome": "error", "error": "it never began: the gateway stopped before"}
    outcome = "timeout" if run.stop_reason == "timeout" else run.status
    return {"ended_at": run.ended_at or now_ms(), "outcome": outcome, "error": run.error}


def _check_depth(depth: int, settings: Settings) -> None:
    deepest = settings.spawning.max_spawn_depth
    if depth >= deepest:
        reason = f"this session is {depth} spawns deep and agents.defaults.subagents.maxSpawnDepth is {deepest}"
        raise Fault(f"sessions_spawn is not allowed here: {reason}", kind="FORBIDDEN")


def _check_places(children: Sequence[Subagent], settings: Settings) -> None:
    most = settings.spawning.max_children_per_agent
    going = sum(child.ended_at is None for child in children)
    if going >= most:
        reason = f"{going} of this session's sub-agents are at work and maxChildrenPerAgent is {most}; wait or stop one"
        raise Fault(f"sessions_spawn is not allowed now: {reason}", kind="FORBIDDEN")


def _check_agent(agent: str, own: str, settings: Settings) -> None:
    allowed = settings.helpers(own)
    if agent != own and "*" not in allowed and agent not in allowed:
        names = ", ".join(allowed) or "none"
        raise Fault(f"{own} may not spawn {agent}; its subagents.allowAgents: {names}", kind="FORBIDDEN")
