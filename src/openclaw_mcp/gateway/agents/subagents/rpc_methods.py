"""`sessions.spawn`, `sessions.subagents`, `sessions.converse`: handing work on, over the intercom and to the tools."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Any, Final, Literal

from msgspec import Meta, Struct, structs, to_builtins

from ....core import session_keys
from ....core.agents import AGENT_ID, Roster
from ....core.model import Caller, Json
from ....core.model_name import check_model_name
from ....core.numbers import whole
from ....core.rpc import READ, WRITE, Fault, Method, Room, RpcCall, covers, missing_scope, read_params
from ....core.session_target import passed_on
from ....core.sessions import Subagent, now_ms
from . import prompts
from .agent_messages import LONGEST_MESSAGE, Letters, Note
from .session_visibility import Sight, not_seen, own_key
from .settings import Settings
from .subagents import Errand, Family

LONGEST_TASK: Final = 200_000  # characters; more belongs into a file the task names
LONGEST_ORDER: Final = 4000
LONGEST_RUN: Final = 24 * 3600
RECENT: Final = 30  # minutes an ended sub-agent stays on the list
MOST_RECENT: Final = 1440
NOTE: Final = "The result comes to this session by itself; there is no need to ask for it again and again."

Text = Annotated[str, Meta(min_length=1)]
Label = Annotated[str, Meta(min_length=1, max_length=512)]
Seconds = Annotated[float, Meta(ge=0, le=LONGEST_RUN)]


class SpawnParams(Struct, frozen=True, kw_only=True, rename="camel"):
    task: Annotated[str, Meta(max_length=LONGEST_TASK)] | None = None
    prompt: Annotated[str, Meta(max_length=LONGEST_TASK)] | None = None
    session_key: Text | None = None
    agent_id: Text | None = None
    label: Label | None = None
    model: Text | None = None
    thinking: Text | None = None
    run_timeout_seconds: Seconds | None = None
    timeout_seconds: Seconds | None = None
    thread: bool = False
    mode: Literal["run", "session"] = "run"
    cleanup: Literal["keep", "delete"] = "keep"
    idempotency_key: Annotated[str, Meta(min_length=1, max_length=256)] | None = None


class SubagentParams(Struct, frozen=True, kw_only=True, rename="camel"):
    action: str | None = None
    session_key: Text | None = None
    run_id: Text | None = None
    child_session_key: Text | None = None
    target: str | int | None = None
    message: Annotated[str, Meta(max_length=LONGEST_ORDER)] | None = None
    reason: Annotated[str, Meta(max_length=1000)] | None = None
    recent_minutes: Annotated[int, Meta(ge=1, le=MOST_RECENT)] = RECENT


class ConverseParams(Struct, frozen=True, kw_only=True, rename="camel"):
    message: Annotated[str, Meta(min_length=1, max_length=LONGEST_MESSAGE)]
    session_key: Text | None = None
    label: Label | None = None
    agent_id: Text | None = None
    timeout_seconds: Annotated[float, Meta(ge=0, le=LONGEST_RUN)] = 30.0
    source_session_key: Text | None = None


ENDS: Final = {
    "chat.abort": "sessionKey",
    "chat.send": "sessionKey",
    "sessions.abort": "key",
    "sessions.reset": "key",
    "sessions.delete": "key",
}
"""Methods that may stop a session, and the parameter that names it."""


class DelegationRoom:
    """A `Room`. A session's agent acts for that session, whatever the parameters say; an operator names one."""

    def __init__(
        self,
        family: Family,
        letters: Letters,
        sight: Sight,
        *,
        settings: Callable[[], Settings],
        roster: Callable[[], Roster],
        unusable: Callable[[str, str], str | None],
    ) -> None:
        """`unusable` says why an agent can't work with a model; None: nothing speaks against it."""
        self._unusable = unusable
        self._family = family
        self._letters = letters
        self._sight = sight
        self._settings = settings
        self._roster = roster

    def methods(self) -> Sequence[Method]:
        return (
            Method("sessions.spawn", WRITE, self._spawn),
            Method("sessions.subagents", READ, self._subagents),
            Method("sessions.converse", WRITE, self._converse, advertised=False),
            Method("agents.allowed", READ, self._allowed, advertised=False),
        )

    def _whose(self, caller: Caller, named: str | None) -> str:
        if caller.bound:
            named = own_key(caller)
        if named is None:
            raise Fault("sessionKey is required")
        return self._sight.key(named)

    # ---- spawning ------------------------------------------------------------------------------------------------

    async def _spawn(self, call: RpcCall) -> Json:
        """Limits are answers (`status: forbidden`), so that a model reads them; mistakes are faults."""
        asked = read_params(_given(call.params), SpawnParams, call.method)
        task = (asked.task or asked.prompt or "").strip()
        if not task:
            raise Fault("task is required")
        requester = self._whose(call.caller, asked.session_key)
        try:
            child = await self._family.spawn(self._errand(call.caller, asked, requester, task))
        except Fault as fault:
            return {"status": "forbidden" if fault.kind == "FORBIDDEN" else "error", "error": str(fault)}
        return {
            "status": "accepted",
            "childSessionKey": child.child_key,
            "runId": child.run_id,
            "mode": child.mode,
            "expectsCompletionMessage": True,
            "context": "isolated",
            "modelApplied": child.model is not None,
            "note": NOTE,
            **({"resolvedModel": child.model} if child.model else {}),
        }

    def _errand(self, caller: Caller, asked: SpawnParams, requester: str, task: str) -> Errand:
        if asked.mode == "session" and not asked.thread:
            raise Fault("mode session needs thread true")
        if asked.thread:
            raise Fault("no channel here ties a thread to a sub-agent; leave out thread and mode session")
        own = session_keys.parts(requester)[0]
        agent = (asked.agent_id or own).strip().lower()
        if AGENT_ID.fullmatch(agent) is None:
            raise Fault(f"agentId {agent!r} is malformed; agents_list names those there are")
        settings = self._settings()
        check_model_name(asked.model)
        model = asked.model or settings.model(own)
        if model is not None and (why := self._unusable(agent, model)) is not None:
            raise Fault(why)
        seconds = asked.run_timeout_seconds if asked.run_timeout_seconds is not None else asked.timeout_seconds
        seconds = settings.spawning.run_timeout_seconds if seconds is None else seconds
        return Errand(
            requester=requester,
            grant=to_builtins(passed_on(caller)),
            task=task,
            agent=agent,
            label=asked.label,
            model=model,
            thinking=asked.thinking,
            timeout_ms=int(seconds * 1000),
            cleanup=asked.cleanup,
            once=asked.idempotency_key,
        )

    async def _allowed(self, call: RpcCall) -> Json:
        """Whom a session's agent may spawn, as the tool `agents_list` tells it."""
        requester = self._whose(call.caller, call.params.get("sessionKey") or self._roster().main_key)
        own = session_keys.parts(requester)[0]
        allowed, roster = self._settings().helpers(own), self._roster()
        named = {card.id: card.name for card in roster.agents}
        ids = [own, *(id for id in (named if "*" in allowed else allowed) if id != own)]
        agents = [{"id": id, "name": named.get(id) or id, "configured": id in named} for id in ids]
        return {"requester": own, "allowAny": "*" in allowed, "agents": agents}

    # ---- looking after -------------------------------------------------------------------------------------------

    async def _subagents(self, call: RpcCall) -> Json:
        asked = read_params(_given(call.params), SubagentParams, call.method)
        action = (asked.action or "list").strip().lower() or "list"
        requester = self._whose(call.caller, asked.session_key)
        if action == "list":
            return {"status": "ok", "action": action, "runs": await self._runs(call.caller, requester, asked)}
        if action == "status":
            return await self._status(call.caller, requester, asked)
        if action not in ("cancel", "kill", "steer"):
            raise Fault(f"unsupported action: {action}; there are list, status, cancel, kill, steer")
        if not covers(call.caller.scopes, WRITE):
            raise missing_scope(WRITE)
        if action == "steer":
            return await self._steer(call.caller, requester, asked)
        return await self._kill(call.caller, requester, asked, action)

    async def _seen(self, caller: Caller, children: Sequence[Subagent]) -> Sequence[Subagent]:
        """Those a caller may know of, stop and direct."""
        return [child for child in children if not await self._sight.hides(caller, child.child_key)]

    async def _children(self, caller: Caller, requester: str) -> Sequence[Subagent]:
        return await self._seen(caller, await self._family.children(requester))

    async def _runs(self, caller: Caller, requester: str, asked: SubagentParams) -> list[Json]:
        since = now_ms() - asked.recent_minutes * 60_000
        children = await self._children(caller, requester)
        recent = [child for child in children if child.ended_at is None or child.ended_at >= since]
        return [{"index": number, **prompts.row(child)} for number, child in enumerate(recent, 1)]

    async def _status(self, caller: Caller, requester: str, asked: SubagentParams) -> Json:
        if asked.run_id is None and asked.child_session_key is None and asked.target is None:
            return {"status": "ok", "action": "status", "runs": await self._runs(caller, requester, asked)}
        found = await self._find(caller, requester, asked)
        return {"status": "ok", "action": "status", "run": prompts.row(found[0]) if found else None}

    async def _kill(self, caller: Caller, requester: str, asked: SubagentParams, action: str) -> Json:
        every = str(asked.target or "").strip().lower() in ("all", "*")
        found = await (self._children(caller, requester) if every else self._find(caller, requester, asked))
        if not found and not every:
            raise Fault("this session has no such sub-agent; action list names those it has")
        terminated = 0
        for child in found:
            terminated += await self._family.kill(child, reason=asked.reason or "cancelled")
        done = "ok" if terminated else "done"
        return {"status": done, "action": action, "terminated": terminated, "killed": terminated}

    async def _steer(self, caller: Caller, requester: str, asked: SubagentParams) -> Json:
        message = (asked.message or "").strip()
        if not message:
            raise Fault("message is required")
        found = await self._find(caller, requester, asked)
        if not found:
            raise Fault("this session has no such sub-agent; action list names those it has")
        if found[0].delivery == "killed":
            return {"status": "done", "action": "steer", "error": "it was stopped for good; spawn another"}
        child = await self._family.steer(found[0], message, grant=passed_on(caller))
        return {**prompts.row(child), "status": "accepted", "action": "steer"}

    async def _find(self, caller: Caller, requester: str, asked: SubagentParams) -> Sequence[Subagent]:
        """By run id, session key, label or place on the list. Only its own: children and what is below them."""
        wanted = asked.run_id or asked.child_session_key or asked.target
        if wanted is None:
            raise Fault("name the sub-agent: target, runId or childSessionKey")
        text = str(wanted).strip()
        number = whole(text)
        if number is not None:
            rows = await self._runs(caller, requester, asked)
            keys_ = [row["childSessionKey"] for row in rows if row["index"] == number]
            return [child for child in await self._family.children(requester) if child.child_key in keys_]
        own = await self._seen(caller, await self._family.descendants(requester))
        exact = [child for child in own if text in (child.run_id, child.child_key) or text.lower() == child.child_key]
        labelled = [child for child in own if child.label == text]
        if not exact and len(labelled) > 1:
            raise Fault(f"several sub-agents are labelled {text!r}; name one by its run id")
        return exact or labelled

    def over(self, room: Room) -> Sequence[Method]:
        """The room's methods; what stops a session, or begins it anew, stops those it sent off as well."""
        return [structs.replace(m, run=self._ending(m)) if m.name in ENDS else m for m in room.methods()]

    def _ending(self, method: Method) -> Callable[[RpcCall], Awaitable[Any]]:
        parameter = ENDS[method.name]

        async def ending(call: RpcCall) -> Any:
            done = await method.run(call)
            key, params = call.params.get(parameter), call.params
            whole = params.get("runId") is None and (method.name != "chat.send" or _stops(params.get("message")))
            if isinstance(key, str) and whole:
                agent = params.get("agentId")
                key = session_keys.canonical(key, self._roster(), agent_id=agent if isinstance(agent, str) else None)
                for child in await self._children(call.caller, key):
                    await self._family.kill(child, reason="the session that sent it off was stopped")
            return done

        return ending

    # ---- talking -------------------------------------------------------------------------------------------------

    async def _converse(self, call: RpcCall) -> Json:
        asked = read_params(_given(call.params), ConverseParams, call.method)
        if (asked.session_key is None) == (asked.label is None):
            raise Fault("give either sessionKey or label, not both and not neither")
        source = call.caller.session if call.caller.bound else asked.source_session_key
        target = await self._target(call.caller, asked)
        return await self._letters.send(
            Note(
                source=None if source is None else self._sight.key(source),
                target=target,
                message=asked.message,
                grant=to_builtins(passed_on(call.caller)),
                seconds=asked.timeout_seconds,
            )
        )

    async def _target(self, caller: Caller, asked: ConverseParams) -> str:
        """The session meant. Raises Fault, for an agent the same for one that is not there and one out of sight."""
        if caller.kind != "agent":
            return await self._letters.resolve(asked.session_key, asked.label, asked.agent_id)
        try:
            target = await self._letters.resolve(asked.session_key, asked.label, asked.agent_id)
            await self._sight.check(caller, target)
        except Fault:
            if asked.session_key is not None:  # it may have been an id, which tells of no key
                await self._sight.check(caller, self._sight.key(asked.session_key, asked.agent_id))
            raise not_seen(asked.label or asked.session_key or "") from None
        return target


def _stops(message: Any) -> bool:
    return isinstance(message, str) and message.strip() in ("/stop", "/new", "/reset")


def _given(params: Json) -> Json:
    """Without what is null: a client that fills in every field means the same as one that leaves it out."""
    return {name: value for name, value in params.items() if value is not None}
