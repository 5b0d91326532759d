"""The gateway's own tools, for agents and whoever else may: adapters over its methods, called from within."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import msgspec
from msgspec import structs

from ....core.errors import ToolArguments, ToolNotFound
from ....core.model import Caller, Json, Text, ToolCall, ToolResult, ToolSpec, said
from ....core.rpc import ADMIN, READ, WRITE, Fault
from ....core.signal import Bell
from . import transcript_excerpt
from .tool_specs import SPECS

MESSAGES_OF_ONE: Final = 1000
ROW: Final = (
    "key", "kind", "classification", "label", "displayName", "derivedTitle", "lastMessagePreview", "channel", "agentId",
    "sessionId", "status", "updatedAt", "startedAt", "endedAt", "hasActiveRun", "modelProvider", "model",
    "inputTokens", "outputTokens", "totalTokens", "spawnedBy", "spawnDepth", "archived", "messages",
)  # fmt: skip

Ask = Callable[[str, Json, Caller], Awaitable[Any]]
"""Call a method of the gateway as somebody."""

_pretty = msgspec.json.Encoder().encode


class HouseTools:
    """A `ToolSource`. The desk has decided already; each tool asks with the least scope its work needs."""

    def __init__(self, ask: Ask, *, main: Callable[[], str]) -> None:
        self.changed: Bell[None] = Bell()
        self._ask = ask
        self._main = main
        """The session of callers that belong to none."""
        self._tools: dict[str, Callable[[Caller, Json], Awaitable[Any]]] = {
            "sessions_list": self._list,
            "sessions_history": self._history,
            "sessions_send": self._send,
            "sessions_spawn": self._spawn,
            "session_status": self._status,
            "agents_list": self._agents,
            "subagents": self._subagents,
            "gateway": self._gateway,
        }

    def specs(self) -> Sequence[ToolSpec]:
        return SPECS

    async def call(self, call: ToolCall) -> ToolResult:
        tool = self._tools.get(call.name)
        if tool is None:
            raise ToolNotFound(f"Unknown tool: {call.name}")
        try:
            told = await tool(call.caller, call.arguments)
        except Fault as fault:
            return said(str(fault), failed=True)
        failed = isinstance(told, dict) and told.get("status") in ("error", "forbidden")
        text = msgspec.json.format(_pretty(told), indent=2).decode()
        return ToolResult((Text(text),), structured=told, failed=failed)

    async def _as(self, caller: Caller, scope: str, method: str, params: Json) -> Any:
        given = {name: value for name, value in params.items() if value is not None}
        return await self._ask(method, given, structs.replace(caller, scopes=frozenset({scope})))

    def _own(self, caller: Caller) -> str:
        return caller.session or self._main()

    # ---- sessions ------------------------------------------------------------------------------------------------

    async def _list(self, caller: Caller, asked: Json) -> Json:
        kinds = set(asked.get("kinds") or ())
        limit = asked.get("limit")
        params = {"search": asked.get("filter"), "limit": None if kinds else limit}
        params |= {
            "activeMinutes": asked.get("activeMinutes"),
            "includeDerivedTitles": True,
            "includeLastMessage": True,
        }
        listed = await self._as(caller, READ, "sessions.list", params)
        rows = [row for row in listed["sessions"] if not kinds or transcript_excerpt.kind(row) in kinds][:limit]
        most = int(asked.get("messageLimit") or 0)
        for row in rows if most else ():
            history = await self._as(caller, READ, "chat.history", {"sessionKey": row["key"], "limit": most})
            row["messages"] = transcript_excerpt.shown(history["messages"], tools=False)["messages"]
        shown = [{name: row[name] for name in ROW if row.get(name) is not None} for row in rows]
        return {"count": len(shown), "sessions": shown}

    async def _history(self, caller: Caller, asked: Json) -> Json:
        key = await self._resolved(caller, asked["sessionKey"])
        limit = min(int(asked.get("limit") or 200), MESSAGES_OF_ONE)
        history = await self._as(caller, READ, "chat.history", {"sessionKey": key, "limit": limit})
        return {
            "sessionKey": key,
            **transcript_excerpt.shown(history["messages"], tools=bool(asked.get("includeTools"))),
        }

    async def _resolved(self, caller: Caller, name: str) -> str:
        """A key as it stands, or the key of the session with that id. Raises Fault when there is neither."""
        for how in ("sessionId", "key"):
            found = await self._as(caller, READ, "sessions.resolve", {how: name, "allowMissing": True})
            if found["ok"]:
                return str(found["key"])
        raise Fault(f"there is no session {name}; sessions_list names those you may see")

    async def _send(self, caller: Caller, asked: Json) -> Any:
        seconds = asked.get("timeoutSeconds", asked.get("timeout"))
        params = {name: asked.get(name) for name in ("sessionKey", "label", "agentId", "message")}
        params |= {"timeoutSeconds": seconds, "sourceSessionKey": caller.session}
        return await self._as(caller, WRITE, "sessions.converse", params)

    async def _spawn(self, caller: Caller, asked: Json) -> Any:
        return await self._as(caller, WRITE, "sessions.spawn", {**asked, "sessionKey": self._own(caller)})

    async def _status(self, caller: Caller, asked: Json) -> Json:
        named = asked.get("sessionKey")
        key = self._own(caller) if named is None else await self._resolved(caller, named)
        model = asked.get("model")
        if model is not None:
            if not caller.owner:
                raise Fault("only the owner sets a session's model", kind="FORBIDDEN")
            changed = None if model == "default" else model
            wanted = {"key": key, "model": changed}
            await self._ask("sessions.patch", wanted, structs.replace(caller, scopes=frozenset({ADMIN})))
        told = await self._as(caller, READ, "sessions.describe", {"key": key})
        row = told["session"]
        if row is None:
            return {"sessionKey": key, "session": None, "status": "not started"}
        return {"sessionKey": key, "session": {name: row[name] for name in ROW if row.get(name) is not None}}

    async def _agents(self, caller: Caller, asked: Json) -> Any:
        return await self._as(caller, READ, "agents.allowed", {"sessionKey": self._own(caller)})

    async def _subagents(self, caller: Caller, asked: Json) -> Any:
        inner = asked.get("params") or {}
        params = {name: value for name, value in {**asked, **inner}.items() if name != "params"}
        return await self._as(caller, WRITE, "sessions.subagents", {**params, "sessionKey": self._own(caller)})

    # ---- the gateway itself --------------------------------------------------------------------------------------

    async def _gateway(self, caller: Caller, asked: Json) -> Any:
        action = asked["action"]
        if action == "restart":
            return await self._as(caller, ADMIN, "gateway.restart.request", {"reason": asked.get("reason")})
        if action == "config.get":
            got = await self._as(caller, READ, "config.get", {})
            return {"hash": got["hash"], "config": transcript_excerpt.part(got["config"], asked.get("path"))}
        if action == "config.schema":
            if asked.get("path"):
                return await self._as(caller, READ, "config.schema.lookup", {"path": asked["path"]})
            return await self._as(caller, READ, "config.schema", {})
        if not asked.get("raw"):
            raise ToolArguments(f"{action} needs raw: the config, or a part of it, as JSON")
        base = asked.get("baseHash") or (await self._as(caller, READ, "config.get", {}))["hash"]
        params = {"raw": asked["raw"], "baseHash": base, "note": asked.get("note")}
        return await self._as(caller, ADMIN, action, params)
