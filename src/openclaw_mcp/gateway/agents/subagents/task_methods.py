"""`tasks.list`, `tasks.get`, `tasks.cancel`: sub-agents as tasks; the last two know runs of `agent` too."""

from collections.abc import Sequence
from typing import Annotated, Final, Literal

from msgspec import Meta, Struct

from ....core.fields import NonEmptyStr
from ....core.model import Json
from ....core.numbers import parse_whole_number
from ....core.ports import RunExecutor
from ....core.repositories import SubagentRepository
from ....core.rpc import READ, WRITE, RpcCall, RpcError, RpcMethod, read_params
from ....core.run_tasks import is_task, run_task
from ....core.sessions import Run, Subagent, SubagentQuery
from . import prompts
from .session_visibility import SessionVisibility
from .subagents import SubagentSupervisor

STOP_WAIT: Final = 10.0  # seconds a cancelled run has to end before its task is shown
Status = Literal["queued", "running", "completed", "failed", "cancelled", "timed_out"]
OUTCOMES: Final[dict[Status, tuple[str | None, ...]]] = {
    "queued": (),  # a sub-agent runs from the first moment
    "running": (None,),
    "completed": ("ok",),
    "failed": ("error",),
    "cancelled": ("aborted", "killed"),
    "timed_out": ("timeout",),
}


class TaskListParams(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    status: Status | list[Status] | None = None
    agent_id: NonEmptyStr | None = None
    session_key: NonEmptyStr | None = None
    limit: Annotated[int, Meta(ge=1, le=500)] = 100
    cursor: Annotated[str, Meta(max_length=512)] | None = None
    sort_by: Literal["updatedAt", "endedAt"] = "updatedAt"


class GetParams(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    task_id: NonEmptyStr


class CancelParams(GetParams, frozen=True, kw_only=True):
    reason: Annotated[str, Meta(max_length=1000)] | None = None


class TaskMethods:
    """For operators: a run's grant gives no access; an agent has the tool `subagents` for its own."""

    def __init__(
        self, supervisor: SubagentSupervisor, subagents: SubagentRepository, visibility: SessionVisibility,
        runner: RunExecutor,
    ) -> None:  # fmt: skip
        self._supervisor, self._subagents, self._visibility = supervisor, subagents, visibility
        self._runner = runner

    def methods(self) -> Sequence[RpcMethod]:
        return (
            RpcMethod("tasks.list", READ, self._list),
            RpcMethod("tasks.get", READ, self._get),
            RpcMethod("tasks.cancel", WRITE, self._cancel),
        )

    async def _list(self, call: RpcCall) -> Json:
        asked = read_params(call.params, TaskListParams, call.method)
        wanted = asked.status if isinstance(asked.status, list) else [asked.status] if asked.status else None
        query = SubagentQuery(
            outcomes=None if wanted is None else tuple(end for status in wanted for end in OUTCOMES[status]),
            agent_id=asked.agent_id,
            session_key=None if asked.session_key is None else self._visibility.canonical_key(asked.session_key),
            after=None if asked.cursor is None else _parse_cursor(asked.cursor),
            limit=asked.limit + 1,
        )
        found = await self._subagents.page(query)
        shown = found[: asked.limit]
        more = {"nextCursor": _cursor(shown[-1])} if len(found) > len(shown) else {}
        return {"tasks": [prompts.task_view(child) for _, child in shown], **more}

    async def _get(self, call: RpcCall) -> Json:
        asked = read_params(call.params, GetParams, call.method)
        child = await self._subagents.find(asked.task_id)
        if child is not None:
            return {"task": prompts.task_view(child)}
        run = await self._find_run(asked.task_id)
        if run is None:
            raise RpcError(f"task not found: {asked.task_id}")
        return {"task": run_task(run)}

    async def _find_run(self, task_id: str) -> Run | None:
        run = await self._runner.find(task_id)
        return run if run is not None and is_task(run) else None

    async def _cancel(self, call: RpcCall) -> Json:
        """It has ended when this answers, and so have its own sub-agents."""
        asked = read_params(call.params, CancelParams, call.method)
        child = await self._subagents.find(asked.task_id)
        if child is None:
            return await self._cancel_run(asked.task_id)
        stopped = await self._supervisor.kill(child, reason=asked.reason or "cancelled")
        after = await self._subagents.find(asked.task_id) or child
        done: Json = {"found": True, "cancelled": bool(stopped), "task": prompts.task_view(after)}
        return done if stopped else {**done, "reason": "it has ended already"}

    async def _cancel_run(self, task_id: str) -> Json:
        run = await self._find_run(task_id)
        if run is None:
            return {"found": False, "cancelled": False, "reason": "task not found"}
        stopped = await self._runner.abort(run.session_key, run_id=task_id)
        after = await self._runner.wait(task_id, seconds=STOP_WAIT) or run
        done: Json = {"found": True, "cancelled": bool(stopped), "task": run_task(after)}
        return done if stopped else {**done, "reason": "it has ended already"}


def _cursor(last: tuple[int, Subagent]) -> str:
    position, child = last
    return f"v1.{prompts.active_at(child)}.{position}"


def _parse_cursor(cursor: str) -> tuple[int, int]:
    version, _, rest = cursor.partition(".")
    first, _, second = rest.partition(".")
    at, position = parse_whole_number(first), parse_whole_number(second)
    if version != "v1" or at is None or position is None:
        raise RpcError("cursor is not one that tasks.list returned; ask for the first page again")
    return at, position
