"""What a session's agent may see and do of other sessions: the methods of rooms, with a guard before each."""

import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from msgspec import structs

from ....core import session_keys
from ....core.agents import Roster
from ....core.model import Caller, Json
from ....core.ports import Runner
from ....core.repositories import SessionBook, SubagentBook
from ....core.rpc import Fault, Method, Room, RpcCall
from ....core.transcript import answer_is_for_others, for_others, row_for_others
from .settings import Settings

MOST_ROWS: Final = 1000  # sessions looked at for one family; what a page of the list may hold
WHOLE_FAMILY: Final = 200  # sessions one session is told to have spawned, unless it asks for fewer
FARTHEST: Final = 16  # steps from a session up to the one that started it all; deeper is a ring
WHOSE: Final = {
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
"""Methods an agent may use, and the parameter that names the session. Without one it is its own."""
CHOOSES_MODEL: Final = frozenset({"model", "provider"})
NOT_ITS_MODEL: Final = (
    "an agent's run may not change a session's model while rules for tools go by provider (byProvider)"
)
ANSWERS: Final = frozenset({"result", "terminalReply", "terminalReceipt"})
"""Where methods about a run tell what it said and did."""
OPEN: Final = frozenset({"agents.list", "agent.identity.get"})
"""Methods an agent may use whatever its sight: they tell of no session."""

_AGENT_PARAMS: Final = re.compile(r"sessionId|agentId|spawnedBy|cwd|deliver")


class Sight:
    """`over(methods)` is a room as everybody may use it: operators as before, agents as far as they may see."""

    def __init__(
        self,
        book: SessionBook,
        subagents: SubagentBook,
        runner: Runner,
        *,
        settings: Callable[[], Settings],
        roster: Callable[[], Roster],
    ) -> None:
        self._book = book
        self._subagents = subagents
        self._runner = runner
        self._settings = settings
        self._roster = roster

    def over(self, methods: Sequence[Method]) -> Room:
        return _Guarded([structs.replace(method, run=self._guard(method)) for method in methods])

    def key(self, key: str, agent_id: str | None = None) -> str:
        return session_keys.canonical(key, self._roster(), agent_id=agent_id)

    async def check(self, caller: Caller, key: str) -> None:
        """Raises Fault unless `caller` may see the session `key`, which is canonical."""
        if caller.kind != "agent":
            return
        reason = await self._why_not(caller, key)
        if reason is not None:
            raise Fault(f"session {key} is out of sight: {reason}", kind="FORBIDDEN")

    async def hides(self, caller: Caller, key: str) -> bool:
        """Whether `key` is a sub-agent's that works for the owner, and `caller` an agent that does not. One nobody
        remembers sending off counts as the owner's."""
        if caller.kind != "agent" or caller.owner or ":subagent:" not in key or key == caller.session:
            return False
        child = await self._subagents.get(key)
        return child is None or child.grant.get("owner") is True

    async def _why_not(self, caller: Caller, key: str) -> str | None:
        own = own_key(caller)
        if await self.hides(caller, key):
            return "it works for the owner, and this run does not"
        if key == own or await self._descends(key, own):
            return None
        settings = self._settings()
        if settings.visibility in ("self", "tree"):
            return f"tools.sessions.visibility is {settings.visibility}: a session sees itself and what it spawned"
        return settings.why_apart(session_keys.parts(own)[0], session_keys.parts(key)[0])

    async def _descends(self, key: str, own: str) -> bool:
        if self._settings().visibility == "self":
            return False
        for _ in range(FARTHEST):
            session = await self._book.get(key)
            if session is None or session.spawned_by is None:
                return False
            if session.spawned_by == own:
                return True
            key = session.spawned_by
        return False

    def _guard(self, method: Method) -> Callable[[RpcCall], Awaitable[Any]]:
        name, run = method.name, method.run

        async def guarded(call: RpcCall) -> Any:
            if name == "sessions.patch" and call.caller.bound:
                self._check_model(call.params)
            if call.caller.kind != "agent" or name in OPEN:
                return await run(call)
            if name == "sessions.list":
                return await self._listed(call, run)
            if name == "sessions.resolve":
                return await self._resolved(call, run)
            if name == "agent.wait":
                return await self._waited(call, run)
            if name == "sessions.search":
                raise Fault("an agent searches no transcripts but by reading them", kind="FORBIDDEN")
            if name not in WHOSE:
                raise Fault(f"{name} is not for agents", kind="FORBIDDEN")
            params = await self._placed(call, WHOSE[name])
            told = await run(structs.replace(call, params=params))
            return told if call.caller.owner else await self._told_to_others(told, call.caller)

        return guarded

    def _check_model(self, params: Json) -> None:
        """Raises Fault when a session's agent would choose a model, and with it the rules."""
        if not CHOOSES_MODEL.isdisjoint(params) and self._settings().provider_rules:
            raise Fault(f"{NOT_ITS_MODEL}: ask a person to do it", kind="FORBIDDEN")

    async def _waited(self, call: RpcCall, run: Callable[[RpcCall], Awaitable[Any]]) -> Any:
        """How a run ended, whose session is within sight: that somebody knows its id says nothing."""
        told = await run(call)
        ended = await self._runner.wait(str(call.params.get("runId")), seconds=0)
        if ended is not None and await self._why_not(call.caller, ended.session_key) is not None:
            raise Fault("this run is of a session out of sight", kind="FORBIDDEN")
        if not call.caller.owner:
            told = await self._told_to_others(told, call.caller)
        return told if ended is not None else {"runId": call.params.get("runId"), "status": "timeout"}

    async def _told_to_others(self, told: Json, caller: Caller) -> Json:
        """An answer of a method about a session or a run, without what the owner's runs had from tools or said to the
        owner alone. What jobs did, an operator's job and what it started are told."""
        grant = caller.grant
        operators = grant is not None and grant.sends_anywhere and grant.sender is None
        kept = {name: value for name, value in told.items() if name != "pendingInputs"}
        if isinstance(kept.get("messages"), list):
            kept["messages"] = [
                message for body in kept["messages"] if (message := for_others(body, operators=operators))["content"]
            ]
        if isinstance(kept.get("message"), dict):
            kept["message"] = for_others(kept["message"], operators=operators)
        if isinstance(kept.get("session"), dict):
            kept["session"] = row_for_others(kept["session"])
        if not ANSWERS.isdisjoint(kept):
            ended = await self._runner.wait(str(kept.get("runId")), seconds=0)
            if ended is None or not answer_is_for_others(ended.options, operators=operators):
                kept = {name: value for name, value in kept.items() if name not in ANSWERS}
        return kept

    async def _resolved(self, call: RpcCall, run: Callable[[RpcCall], Awaitable[Any]]) -> Any:
        """By whatever name: what is out of sight is answered as what is not there."""
        key, other = call.params.get("key"), call.params.get("label") or call.params.get("sessionId")
        if key is not None:
            await self.check(call.caller, self.key(str(key), _text(call.params.get("agentId"))))
        try:
            found = await run(call)
            if found.get("ok"):
                await self.check(call.caller, found["key"])
        except Fault:
            if key is not None or other is None:
                raise
            if call.params.get("allowMissing"):
                return {"ok": False}
            raise not_seen(str(other)) from None
        return found

    async def _placed(self, call: RpcCall, parameter: str) -> Json:
        """The parameters with the session's full key; who names none means its own."""
        given = call.params.get(parameter)
        key = own_key(call.caller) if given is None else self.key(str(given), _text(call.params.get("agentId")))
        await self.check(call.caller, key)
        kept = {name: value for name, value in call.params.items() if not _AGENT_PARAMS.fullmatch(name)}
        return {**kept, parameter: key}

    async def _listed(self, call: RpcCall, run: Callable[[RpcCall], Awaitable[Any]]) -> Any:
        """The rows within sight."""
        listed = await self._near(call, run)
        rows = [row for row in listed["sessions"] if not await self.hides(call.caller, row["key"])]
        if not call.caller.owner:
            wanted = str(call.params.get("search") or "").lower()
            rows = [row_for_others(row) for row in rows if _mentions(row, wanted)]
        hidden = len(listed["sessions"]) - len(rows)
        return {**listed, "sessions": rows, "count": len(rows), "totalCount": listed["totalCount"] - hidden}

    async def _near(self, call: RpcCall, run: Callable[[RpcCall], Awaitable[Any]]) -> Any:
        """The rows `visibility` lets it see; one agent's are asked for as such, so that its pages are whole."""
        own = own_key(call.caller)
        settings = self._settings()
        if settings.visibility in ("self", "tree"):
            return await self._family(call, run, own)
        if settings.visibility == "agent" or not settings.tools.agent_to_agent.enabled:
            return await run(structs.replace(call, params={**call.params, "agentId": session_keys.parts(own)[0]}))
        listed = await run(call)
        apart = settings.why_apart
        rows = [row for row in listed["sessions"] if apart(session_keys.parts(own)[0], row["agentId"]) is None]
        return {**listed, "sessions": rows, "count": len(rows), "totalCount": len(rows)}

    async def _family(self, call: RpcCall, run: Callable[[RpcCall], Awaitable[Any]], own: str) -> Any:
        async def page(**more: Any) -> Any:
            return await run(structs.replace(call, params={**call.params, "limit": MOST_ROWS, **more}))

        limit = call.params.get("limit") or WHOLE_FAMILY
        listed = await page(search=own)
        wanted = str(call.params.get("search") or "").lower()
        rows = [row for row in listed["sessions"] if row["key"] == own and wanted in own]
        parents = [own] if self._settings().visibility == "tree" else []
        while parents and len(rows) < MOST_ROWS:
            found = [row for parent in parents for row in (await page(spawnedBy=parent))["sessions"]]
            rows += found
            parents = [row["key"] for row in found][:WHOLE_FAMILY]
        shown = rows[:limit]
        whole: Json = {"count": len(shown), "totalCount": len(rows), "limitApplied": limit, "nextOffset": None}
        return {**listed, **whole, "hasMore": len(rows) > len(shown), "sessions": shown}


class _Guarded:
    def __init__(self, methods: Sequence[Method]) -> None:
        self._methods = methods

    def methods(self) -> Sequence[Method]:
        return self._methods


def not_seen(name: str) -> Fault:
    """One sentence for a session that is not there and for one that is out of sight."""
    return Fault(f"session {name} is not there, or out of sight; sessions_list names those you see", kind="FORBIDDEN")


def _mentions(row: Json, words: str) -> bool:
    """Whether a row was found by its names, not by what was said there."""
    return any(words in str(row.get(name) or "").lower() for name in ("key", "label", "displayName", "sessionId"))


def own_key(caller: Caller) -> str:
    if caller.session is None:
        raise Fault("this credential belongs to no session, so there is none to act in", kind="FORBIDDEN")
    return caller.session


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None
