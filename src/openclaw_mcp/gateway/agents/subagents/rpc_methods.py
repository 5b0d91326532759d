"""`sessions.spawn`, `sessions.subagents`, `sessions.converse`: giving work to sub-agents and other sessions."""

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Final, Literal

from msgspec import Meta, Struct, structs

from ....core import session_keys
from ....core.agents import AGENT_ID_PATTERN, AgentRoster
from ....core.fields import NonEmptyStr
from ....core.json_values import drop_none
from ....core.model import Caller, Json
from ....core.model_name import check_model_name
from ....core.numbers import parse_whole_number
from ....core.rpc import (
    READ,
    WRITE,
    RpcCall,
    RpcError,
    RpcMethod,
    RpcModule,
    has_scope,
    read_params,
    scope_error,
)
from ....core.session_target import child_grant
from ....core.sessions import Subagent, now_ms
from . import prompts
from .agent_messages import MAX_MESSAGE_LENGTH, AgentMessenger, ConverseRequest
from .session_visibility import RpcHandler, SessionVisibility, caller_session, not_visible_error
from .settings import DelegationSettings
from .subagents import REQUESTER_STOPPED, SpawnRequest, SubagentSupervisor

MAX_TASK: Final = 200_000  # characters; more belongs in a file the task names
MAX_ORDER: Final = 4000
MAX_RUN: Final = 24 * 3600
RECENT_MINUTES: Final = 30  # minutes an ended sub-agent stays in the list
MOST_RECENT_MINUTES: Final = 1440
SPAWN_NOTE: Final = "The result comes to this session by itself; there is no need to ask for it again and again."

Label = Annotated[str, Meta(min_length=1, max_length=512)]
Seconds = Annotated[float, Meta(ge=0, le=MAX_RUN)]


class SpawnParams(Struct, frozen=True, kw_only=True, rename="camel"):
    task: Annotated[str, Meta(max_length=MAX_TASK)] | None = None
    prompt: Annotated[str, Meta(max_length=MAX_TASK)] | None = None
    session_key: NonEmptyStr | None = None
    agent_id: NonEmptyStr | None = None
    label: Label | None = None
    model: NonEmptyStr | None = None
    thinking: NonEmptyStr | None = None
    run_timeout_seconds: Seconds | None = None
    timeout_seconds: Seconds | None = None
    thread: bool = False
    mode: Literal["run", "session"] = "run"
    cleanup: Literal["keep", "delete"] = "keep"
    idempotency_key: Annotated[str, Meta(min_length=1, max_length=256)] | None = None


class SubagentParams(Struct, frozen=True, kw_only=True, rename="camel"):
    action: str | None = None
    session_key: NonEmptyStr | None = None
    run_id: NonEmptyStr | None = None
    child_session_key: NonEmptyStr | None = None
    target: str | int | None = None
    message: Annotated[str, Meta(max_length=MAX_ORDER)] | None = None
    reason: Annotated[str, Meta(max_length=1000)] | None = None
    recent_minutes: Annotated[int, Meta(ge=1, le=MOST_RECENT_MINUTES)] = RECENT_MINUTES


class ConverseParams(Struct, frozen=True, kw_only=True, rename="camel"):
    message: Annotated[str, Meta(min_length=1, max_length=MAX_MESSAGE_LENGTH)]
    session_key: NonEmptyStr | None = None
    label: Label | None = None
    agent_id: NonEmptyStr | None = None
    timeout_seconds: Annotated[float, Meta(ge=0, le=MAX_RUN)] = 30.0
    source_session_key: NonEmptyStr | None = None


STOP_METHODS: Final = {
    "chat.abort": "sessionKey",
    "sessions.abort": "key",
    "sessions.reset": "key",
    "sessions.delete": "key",
}
"""Methods that stop a session, and the parameter that names it."""


class DelegationMethods:
    """A session's agent acts for that session, whichever one the parameters name; an operator names one."""

    def __init__(
        self,
        supervisor: SubagentSupervisor,
        messenger: AgentMessenger,
        visibility: SessionVisibility,
        *,
        settings: Callable[[], DelegationSettings],
        roster: Callable[[], AgentRoster],
        model_problem: Callable[[str, str], str | None],
    ) -> None:
        """`model_problem` returns why an agent can't use a model; None: it can."""
        self._supervisor, self._messenger, self._visibility = supervisor, messenger, visibility
        self._settings, self._roster, self._model_problem = settings, roster, model_problem

    def methods(self) -> Sequence[RpcMethod]:
        return (
            RpcMethod("sessions.spawn", WRITE, self._spawn),
            RpcMethod("sessions.subagents", READ, self._subagents),
            RpcMethod("sessions.converse", WRITE, self._converse, advertised=False),
            RpcMethod("agents.allowed", READ, self._list_agents, advertised=False),
        )

    def _requester_key(self, caller: Caller, named: str | None) -> str:
        if caller.acts_in_session:
            named = caller_session(caller)
        if named is None:
            raise RpcError("sessionKey is required")
        return self._visibility.canonical_key(named)

    # ---- spawning ------------------------------------------------------------------------------------------------

    async def _spawn(self, call: RpcCall) -> Json:
        """A limit is an answer (`status: forbidden`), so that a model reads it; a wrong parameter is an RpcError."""
        asked = read_params(drop_none(call.params), SpawnParams, call.method)
        task = (asked.task or asked.prompt or "").strip()
        if not task:
            raise RpcError("task is required")
        requester = self._requester_key(call.caller, asked.session_key)
        try:
            child = await self._supervisor.spawn(self._build_request(call.caller, asked, requester, task))
        except RpcError as exc:
            return {"status": "forbidden" if exc.kind == "FORBIDDEN" else "error", "error": str(exc)}
        return {
            "status": "accepted",
            "childSessionKey": child.child_key,
            "runId": child.run_id,
            "mode": child.mode,
            "expectsCompletionMessage": True,
            "context": "isolated",
            "modelApplied": child.model is not None,
            "note": SPAWN_NOTE,
            **({"resolvedModel": child.model} if child.model else {}),
        }

    def _build_request(self, caller: Caller, params: SpawnParams, requester: str, task: str) -> SpawnRequest:
        if params.mode == "session" and not params.thread:
            raise RpcError("mode session needs thread true")
        if params.thread:
            raise RpcError("no channel here ties a thread to a sub-agent; leave out thread and mode session")
        own = session_keys.split_key(requester)[0]
        agent = (params.agent_id or own).strip().lower()
        if AGENT_ID_PATTERN.fullmatch(agent) is None:
            raise RpcError(f"agentId {agent!r} is malformed; agents_list lists the agents")
        settings = self._settings()
        check_model_name(params.model)
        model = params.model or settings.default_model(own)
        if model is not None and (problem := self._model_problem(agent, model)) is not None:
            raise RpcError(problem)
        seconds = params.run_timeout_seconds if params.run_timeout_seconds is not None else params.timeout_seconds
        seconds = settings.subagents.run_timeout_seconds if seconds is None else seconds
        return SpawnRequest(
            requester=requester,
            grant=child_grant(caller),
            task=task,
            agent=agent,
            label=params.label,
            model=model,
            thinking=params.thinking,
            timeout_ms=int(seconds * 1000),
            cleanup=params.cleanup,
            idempotency_key=params.idempotency_key,
        )

    async def _list_agents(self, call: RpcCall) -> Json:
        """The agents that a session's agent may spawn, for the tool `agents_list`."""
        requester = self._requester_key(call.caller, call.params.get("sessionKey") or self._roster().main_key)
        own = session_keys.split_key(requester)[0]
        allowed, roster = self._settings().spawnable_agents(own), self._roster()
        named = {card.id: card.name for card in roster.agents}
        ids = [own, *(id for id in (named if "*" in allowed else allowed) if id != own)]
        agents = [{"id": id, "name": named.get(id) or id, "configured": id in named} for id in ids]
        return {"requester": own, "allowAny": "*" in allowed, "agents": agents}

    # ---- managing ------------------------------------------------------------------------------------------------

    async def _subagents(self, call: RpcCall) -> Json:
        asked = read_params(drop_none(call.params), SubagentParams, call.method)
        action = (asked.action or "list").strip().lower() or "list"
        requester = self._requester_key(call.caller, asked.session_key)
        if action == "list":
            return {"status": "ok", "action": action, "runs": await self._runs(call.caller, requester, asked)}
        if action == "status":
            return await self._status(call.caller, requester, asked)
        if action not in ("cancel", "kill", "steer"):
            raise RpcError(f"unsupported action: {action}; there are list, status, cancel, kill, steer")
        if not has_scope(call.caller.scopes, WRITE):
            raise scope_error(WRITE)
        if action == "steer":
            return await self._steer(call.caller, requester, asked)
        return await self._kill(call.caller, requester, asked, action)

    async def _visible_children(self, caller: Caller, children: Sequence[Subagent]) -> Sequence[Subagent]:
        """The children a caller may see, stop and steer."""
        return [child for child in children if not await self._visibility.hides_subagent(caller, child.child_key)]

    async def _children(self, caller: Caller, requester: str) -> Sequence[Subagent]:
        return await self._visible_children(caller, await self._supervisor.children(requester))

    async def _runs(self, caller: Caller, requester: str, params: SubagentParams) -> list[Json]:
        since = now_ms() - params.recent_minutes * 60_000
        children = await self._children(caller, requester)
        recent = [child for child in children if child.ended_at is None or child.ended_at >= since]
        return [{"index": number, **prompts.subagent_row(child)} for number, child in enumerate(recent, 1)]

    async def _status(self, caller: Caller, requester: str, params: SubagentParams) -> Json:
        if params.run_id is None and params.child_session_key is None and params.target is None:
            return {"status": "ok", "action": "status", "runs": await self._runs(caller, requester, params)}
        found = await self._find(caller, requester, params)
        return {"status": "ok", "action": "status", "run": prompts.subagent_row(found[0]) if found else None}

    async def _kill(self, caller: Caller, requester: str, params: SubagentParams, action: str) -> Json:
        every = str(params.target or "").strip().lower() in ("all", "*")
        found = await (self._children(caller, requester) if every else self._find(caller, requester, params))
        if not found and not every:
            raise _unknown_child()
        terminated = 0
        for child in found:
            terminated += await self._supervisor.kill(child, reason=params.reason or "cancelled")
        done = "ok" if terminated else "done"
        return {"status": done, "action": action, "terminated": terminated, "killed": terminated}

    async def _steer(self, caller: Caller, requester: str, params: SubagentParams) -> Json:
        message = (params.message or "").strip()
        if not message:
            raise RpcError("message is required")
        found = await self._find(caller, requester, params)
        if not found:
            raise _unknown_child()
        if found[0].delivery == "killed":
            return {"status": "done", "action": "steer", "error": "it was stopped for good; spawn another"}
        child = await self._supervisor.steer(found[0], message, grant=child_grant(caller))
        return {**prompts.subagent_row(child), "status": "accepted", "action": "steer"}

    async def _find(self, caller: Caller, requester: str, params: SubagentParams) -> Sequence[Subagent]:
        """By run id, session key, label or place in the list; only the requester's own descendants."""
        wanted = params.run_id or params.child_session_key or params.target
        if wanted is None:
            raise RpcError("name the sub-agent: target, runId or childSessionKey")
        text = str(wanted).strip()
        number = parse_whole_number(text)
        if number is not None:
            rows = await self._runs(caller, requester, params)
            keys = [row["childSessionKey"] for row in rows if row["index"] == number]
            return [child for child in await self._supervisor.children(requester) if child.child_key in keys]
        own = await self._visible_children(caller, await self._supervisor.descendants(requester))
        exact = [child for child in own if text in (child.run_id, child.child_key) or text.lower() == child.child_key]
        labelled = [child for child in own if child.label == text]
        if not exact and len(labelled) > 1:
            raise RpcError(f"several sub-agents are labelled {text!r}; name one by its run id")
        return exact or labelled

    def cascade_stops(self, module: RpcModule) -> Sequence[RpcMethod]:
        """The module's methods; those that stop or reset a session also stop its sub-agents."""
        return [
            structs.replace(m, handle=self._cascade_stop(m)) if m.name in STOP_METHODS else m for m in module.methods()
        ]

    def _cascade_stop(self, method: RpcMethod) -> RpcHandler:
        parameter = STOP_METHODS[method.name]

        async def stop(call: RpcCall) -> Any:
            done = await method.handle(call)
            key, agent, params = call.params.get(parameter), call.params.get("agentId"), call.params
            if isinstance(key, str) and params.get("runId") is None:
                key = self._visibility.canonical_key(key, agent if isinstance(agent, str) else None)
                for child in await self._children(call.caller, key):
                    await self._supervisor.kill(child, reason=REQUESTER_STOPPED)
            return done

        return stop

    # ---- conversing----------------------------------------------------------------------------------------------

    async def _converse(self, call: RpcCall) -> Json:
        asked = read_params(drop_none(call.params), ConverseParams, call.method)
        if (asked.session_key is None) == (asked.label is None):
            raise RpcError("give either sessionKey or label, not both and not neither")
        source = call.caller.session if call.caller.acts_in_session else asked.source_session_key
        target = await self._target(call.caller, asked)
        return await self._messenger.send(
            ConverseRequest(
                source=None if source is None else self._visibility.canonical_key(source),
                target=target,
                message=asked.message,
                grant=child_grant(call.caller),
                wait_seconds=asked.timeout_seconds,
            )
        )

    async def _target(self, caller: Caller, params: ConverseParams) -> str:
        """The session meant. Raises RpcError: for an agent the same for one that does not exist and one not visible."""
        key, label, agent = params.session_key or "", params.label, params.agent_id
        try:
            if label is not None:
                target = await self._messenger.find_by_label(label, agent)
            else:
                target = await self._messenger.resolve_key(key, agent)
            await self._visibility.check_visible(caller, target)
        except RpcError:
            if caller.kind != "agent":
                raise
            if label is None:  # the key may have been an id, which must not reveal its session's key
                await self._visibility.check_visible(caller, self._visibility.canonical_key(key, agent))
            raise not_visible_error(label or key) from None
        return target


def _unknown_child() -> RpcError:
    return RpcError("this session has no such sub-agent; action list names those it has")
