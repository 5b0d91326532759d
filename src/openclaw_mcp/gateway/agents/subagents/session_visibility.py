"""Which other sessions a session's agent may see and change: RPC methods, each with a check before it."""

import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from msgspec import structs

from ....core import session_keys
from ....core.agents import AgentRoster
from ....core.model import Caller, Json
from ....core.ports import RunExecutor
from ....core.repositories import SessionRepository, SubagentRepository
from ....core.rpc import RpcCall, RpcError, RpcMethod, RpcModule
from ....core.transcript import is_answer_public, redact_for_others, redact_row
from .settings import DelegationSettings

MAX_ROWS: Final = 1000  # sessions read for one tree; the most a page of the list may hold
DEFAULT_TREE_ROWS: Final = 200  # rows of a tree, unless another limit is given
MOST_ANCESTORS: Final = 16  # steps from a session up to the one that started it all; deeper is a cycle
SESSION_PARAMETERS: Final = {
    "sessions.describe": "key",
    "sessions.get": "key",
    "sessions.patch": "key",
    "sessions.send": "key",
    "sessions.abort": "key",
    "chat.send": "sessionKey",
    "chat.history": "sessionKey",
    "chat.message.get": "sessionKey",
    "chat.abort": "sessionKey",
    "agent": "sessionKey",
}
"""Methods an agent may use, and the parameter that names the session. Without it, the caller's own is meant."""
MODEL_FIELDS: Final = frozenset({"model", "provider"})
MODEL_CHANGE_REFUSAL: Final = (
    "an agent's run may not change a session's model while rules for tools go by provider (byProvider)"
)
ANSWER_FIELDS: Final = frozenset({"result", "terminalReply", "terminalReceipt"})
"""Fields in which methods about a run return its text and effects."""
OPEN_METHODS: Final = frozenset({"agents.list", "agent.identity.get"})
"""Methods an agent may use with any visibility: they reveal no session."""

RpcHandler = Callable[[RpcCall], Awaitable[Any]]

_AGENT_PARAMS: Final = re.compile(r"sessionId|agentId|spawnedBy|cwd|deliver")


class SessionVisibility:
    """`guard_methods` wraps RPC methods: operators use them as before, agents as far as their visibility reaches."""

    def __init__(
        self,
        sessions: SessionRepository,
        subagents: SubagentRepository,
        runner: RunExecutor,
        *,
        settings: Callable[[], DelegationSettings],
        roster: Callable[[], AgentRoster],
    ) -> None:
        self._sessions, self._subagents, self._runner = sessions, subagents, runner
        self._settings, self._roster = settings, roster

    def guard_methods(self, methods: Sequence[RpcMethod]) -> RpcModule:
        return _GuardedMethods([structs.replace(method, handle=self._guard_method(method)) for method in methods])

    def canonical_key(self, key: str, agent_id: str | None = None) -> str:
        return session_keys.normalize_key(key, self._roster(), agent_id=agent_id)

    async def check_visible(self, caller: Caller, key: str) -> None:
        """Raises RpcError unless `caller` may see the session of this canonical key."""
        if caller.kind != "agent":
            return
        reason = await self._refusal_reason(caller, key)
        if reason is not None:
            raise RpcError(f"session {key} is out of sight: {reason}", kind="FORBIDDEN")

    async def hides_subagent(self, caller: Caller, key: str) -> bool:
        """Whether `key` is the session of a sub-agent that works for the owner, and `caller` an agent that does not. A
        sub-agent that is not stored counts as the owner's."""
        if caller.kind != "agent" or caller.is_owner or ":subagent:" not in key or key == caller.session:
            return False
        child = await self._subagents.get(key)
        return child is None or child.grant.owner

    async def _refusal_reason(self, caller: Caller, key: str) -> str | None:
        own = caller_session(caller)
        if await self.hides_subagent(caller, key):
            return "it works for the owner, and this run does not"
        if key == own or await self._is_descendant(key, own):
            return None
        settings = self._settings()
        if settings.visibility in ("self", "tree"):
            return f"tools.sessions.visibility is {settings.visibility}: a session sees itself and what it spawned"
        return settings.separation_reason(session_keys.split_key(own)[0], session_keys.split_key(key)[0])

    async def _is_descendant(self, key: str, own: str) -> bool:
        if self._settings().visibility == "self":
            return False
        for _ in range(MOST_ANCESTORS):
            session = await self._sessions.get(key)
            if session is None or session.spawned_by is None:
                return False
            if session.spawned_by == own:
                return True
            key = session.spawned_by
        return False

    def _guard_method(self, method: RpcMethod) -> RpcHandler:
        name, run = method.name, method.handle
        guards = {
            "sessions.list": self._guard_list, "sessions.resolve": self._guard_resolve, "agent.wait": self._guard_wait,
        }  # fmt: skip

        async def guarded(call: RpcCall) -> Any:
            if name == "sessions.patch" and call.caller.acts_in_session:
                self._check_model(call.params)
            if call.caller.kind != "agent" or name in OPEN_METHODS:
                return await run(call)
            if name in guards:
                return await guards[name](call, run)
            if name == "sessions.search":
                raise RpcError("an agent searches no transcripts but by reading them", kind="FORBIDDEN")
            if name not in SESSION_PARAMETERS:
                raise RpcError(f"{name} is not for agents", kind="FORBIDDEN")
            params = await self._fill_session(call, SESSION_PARAMETERS[name])
            answer = await run(structs.replace(call, params=params))
            return answer if call.caller.is_owner else await self._redact_for_others(answer, call.caller)

        return guarded

    def _check_model(self, params: Json) -> None:
        """Raises RpcError when a session's agent would choose a model, and with it the rules for tools."""
        if not MODEL_FIELDS.isdisjoint(params) and self._settings().provider_rules:
            raise RpcError(f"{MODEL_CHANGE_REFUSAL}: ask a person to do it", kind="FORBIDDEN")

    async def _guard_wait(self, call: RpcCall, run: RpcHandler) -> Any:
        """How a run ended, if its session is visible: to know a run's id gives no right to it."""
        answer = await run(call)
        ended = await self._runner.wait(str(call.params.get("runId")), seconds=0)
        if ended is not None and await self._refusal_reason(call.caller, ended.session_key) is not None:
            raise RpcError("this run is of a session out of sight", kind="FORBIDDEN")
        if not call.caller.is_owner:
            answer = await self._redact_for_others(answer, call.caller)
        return answer if ended is not None else {"runId": call.params.get("runId"), "status": "timeout"}

    async def _redact_for_others(self, answer: Json, caller: Caller) -> Json:
        """A method's answer about a session or run, without tool results of the owner's runs and texts for the owner
        only. Runs of an operator's job, and those it started, may also read what jobs did."""
        grant = caller.grant
        operators = grant is not None and grant.sends_anywhere and grant.sender is None
        kept = {name: value for name, value in answer.items() if name != "pendingInputs"}
        if isinstance(kept.get("messages"), list):
            kept["messages"] = [
                message
                for body in kept["messages"]
                if (message := redact_for_others(body, include_operators=operators))["content"]
            ]
        if isinstance(kept.get("message"), dict):
            kept["message"] = redact_for_others(kept["message"], include_operators=operators)
        if isinstance(kept.get("session"), dict):
            kept["session"] = redact_row(kept["session"])
        if not ANSWER_FIELDS.isdisjoint(kept):
            ended = await self._runner.wait(str(kept.get("runId")), seconds=0)
            if ended is None or not is_answer_public(ended.options, include_operators=operators):
                kept = {name: value for name, value in kept.items() if name not in ANSWER_FIELDS}
        return kept

    async def _guard_resolve(self, call: RpcCall, run: RpcHandler) -> Any:
        """A session that is not visible is answered like one that does not exist, by whichever name."""
        if call.params.get("shortId") is not None:
            raise RpcError("an agent names a session by its key, sessionId or label", kind="FORBIDDEN")
        key, other = call.params.get("key"), call.params.get("label") or call.params.get("sessionId")
        if key is not None:
            await self.check_visible(
                call.caller, self.canonical_key(str(key), _text_or_none(call.params.get("agentId")))
            )
        try:
            found = await run(call)
            if found.get("ok"):
                await self.check_visible(call.caller, found["key"])
        except RpcError:
            if key is not None or other is None:
                raise
            if call.params.get("allowMissing"):
                return {"ok": False}
            raise not_visible_error(str(other)) from None
        return found

    async def _fill_session(self, call: RpcCall, parameter: str) -> Json:
        """The parameters with the session's full key; by default the caller's own."""
        key, named = caller_session(call.caller), call.params.get(parameter)
        if named is not None:
            key = self.canonical_key(str(named), _text_or_none(call.params.get("agentId")))
        await self.check_visible(call.caller, key)
        kept = {name: value for name, value in call.params.items() if not _AGENT_PARAMS.fullmatch(name)}
        return {**kept, parameter: key}

    async def _guard_list(self, call: RpcCall, run: RpcHandler) -> Any:
        """The visible rows."""
        listed = await self._visible_rows(call, run)
        rows = [row for row in listed["sessions"] if not await self.hides_subagent(call.caller, row["key"])]
        if not call.caller.is_owner:
            wanted = str(call.params.get("search") or "").lower()
            rows = [redact_row(row) for row in rows if _mentions(row, wanted)]
        hidden = len(listed["sessions"]) - len(rows)
        return {**listed, "sessions": rows, "count": len(rows), "totalCount": listed["totalCount"] - hidden}

    async def _visible_rows(self, call: RpcCall, run: RpcHandler) -> Any:
        """The rows that `visibility` allows. One agent's are queried by agent, so that its pages are full."""
        own = caller_session(call.caller)
        settings = self._settings()
        if settings.visibility in ("self", "tree"):
            return await self._tree_rows(call, run, own)
        if settings.visibility == "agent" or not settings.tools.agent_to_agent.enabled:
            return await run(structs.replace(call, params={**call.params, "agentId": session_keys.split_key(own)[0]}))
        listed = await run(call)
        apart = settings.separation_reason
        rows = [row for row in listed["sessions"] if apart(session_keys.split_key(own)[0], row["agentId"]) is None]
        return {**listed, "sessions": rows, "count": len(rows), "totalCount": len(rows)}

    async def _tree_rows(self, call: RpcCall, run: RpcHandler, own: str) -> Any:
        async def page(**more: Any) -> Any:
            return await run(structs.replace(call, params={**call.params, "limit": MAX_ROWS, **more}))

        limit = call.params.get("limit") or DEFAULT_TREE_ROWS
        listed = await page(search=own)
        wanted = str(call.params.get("search") or "").lower()
        rows = [row for row in listed["sessions"] if row["key"] == own and wanted in own]
        parents = [own] if self._settings().visibility == "tree" else []
        while parents and len(rows) < MAX_ROWS:
            found = [row for parent in parents for row in (await page(spawnedBy=parent))["sessions"]]
            rows += found
            parents = [row["key"] for row in found][:DEFAULT_TREE_ROWS]
        shown = rows[:limit]
        whole: Json = {"count": len(shown), "totalCount": len(rows), "limitApplied": limit, "nextOffset": None}
        return {**listed, **whole, "hasMore": len(rows) > len(shown), "sessions": shown}


class _GuardedMethods:
    def __init__(self, methods: Sequence[RpcMethod]) -> None:
        self._methods = methods

    def methods(self) -> Sequence[RpcMethod]:
        return self._methods


def not_visible_error(name: str) -> RpcError:
    """The same error for a session that does not exist and for one that is not visible."""
    return RpcError(
        f"session {name} is not there, or out of sight; sessions_list names those you see", kind="FORBIDDEN"
    )


def _mentions(row: Json, text: str) -> bool:
    """Whether a row was found by its names, not by the text of its messages."""
    return any(text in str(row.get(name) or "").lower() for name in ("key", "label", "displayName", "sessionId"))


def caller_session(caller: Caller) -> str:
    if caller.session is None:
        raise RpcError("this credential belongs to no session, so there is none to act in", kind="FORBIDDEN")
    return caller.session


def _text_or_none(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None
