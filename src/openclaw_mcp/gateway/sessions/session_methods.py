"""Methods on sessions: list, find, create, change, delete, search, subscribe."""

import uuid
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from msgspec import to_builtins
from msgspec.structs import replace

from ...core.json_values import drop_none
from ...core.model import Json
from ...core.numbers import parse_whole_number
from ...core.repositories import IdempotencyRepository
from ...core.rpc import (
    ADMIN,
    READ,
    WRITE,
    RpcCall,
    RpcError,
    RpcMethod,
    has_scope,
    make_method,
    read_params,
    scope_error,
)
from ...core.session_keys import classify_key, new_session, normalize_key
from ...core.sessions import QueueMode, SearchHit, Session, SessionQuery, now_ms
from . import params, views
from .patch_params import WRITE_SCOPE_FIELDS, PatchParams, check_model_choice, check_values, split_changes
from .run_events import SESSIONS_TOPIC, session_topic
from .session_operations import SessionOperations
from .short_ids import find_by_short_id, resolution
from .views import RunReply, SessionChanged, SessionRow, StopReply

DEFAULT_PAGE: Final = 100  # rows when the caller names no limit
MAX_PAGE: Final = 1000  # rows
NO_SESSION: Final = "no sessionId"  # as OpenClaw puts it
NO_COMPACTION: Final = "this gateway keeps every message and compacts none"
ADMIN_CREATE_FIELDS: Final = ("permissionMode", "toolOverrides", "execNode", "cwd")
SESSION_NAMES: Final = {"key": "", "session_id": " with sessionId", "label": " with label", "short_id": ""}
"""The ways to name a session, and how a refusal puts each."""

SendMessage = Callable[[RpcCall, params.SessionSendParams, QueueMode], Awaitable[RunReply | StopReply]]


class SessionMethods(SessionOperations, frozen=True, kw_only=True):
    """`sessions.*`. `send` sends a message as `chat.send` does; `path` is the store's location."""

    idempotency: IdempotencyRepository
    path: str
    send: SendMessage

    def methods(self) -> Sequence[RpcMethod]:
        return (
            make_method("sessions.list", READ, params.SessionListParams, self._list),
            make_method("sessions.describe", READ, params.KeyParams, self._describe),
            make_method("sessions.get", READ, params.KeyParams, self._get, advertised=False),
            make_method("sessions.preview", READ, params.PreviewParams, self._preview),
            make_method("sessions.resolve", READ, params.ResolveParams, self._resolve, advertised=False),
            make_method("sessions.search", READ, params.SearchParams, self._search),
            RpcMethod("sessions.subscribe", READ, self._subscribe),
            RpcMethod("sessions.unsubscribe", READ, self._unsubscribe),
            make_method("sessions.messages.subscribe", READ, params.KeyParams, self._subscribe_messages),
            make_method("sessions.messages.unsubscribe", READ, params.KeyParams, self._unsubscribe_messages),
            make_method("sessions.create", WRITE, params.CreateParams, self._create),
            make_method("sessions.patch", WRITE, PatchParams, self._patch),
            make_method("sessions.reset", ADMIN, params.ResetParams, self._reset),
            make_method("sessions.compact", ADMIN, params.CompactParams, self._compact),
            make_method("sessions.delete", WRITE, params.DeleteParams, self._delete),
            make_method("sessions.abort", WRITE, params.AbortParams, self._abort),
            RpcMethod("agents.list", READ, self._list_agents),
            make_method("agent.identity.get", READ, params.SessionParams, self._get_identity),
        )

    # ---- reading -------------------------------------------------------------------------------------------------

    async def _list(self, call: RpcCall, asked: params.SessionListParams) -> Json:
        limit = min(asked.limit or DEFAULT_PAGE, MAX_PAGE)
        query = _build_query(asked, limit)
        if asked.spawned_by is not None:
            query = replace(query, spawned_by=self.canonical_key(asked.spawned_by))
        page, roster = await self.sessions.page(query), self.roster()
        rows = views.session_rows(
            page.sessions,
            roster,
            page.active,
            include_titles=asked.include_derived_titles,
            include_last=asked.include_last_message,
        )
        seen = asked.offset + len(rows)
        more = len(rows) == limit and (asked.cursor is not None or seen < page.total)
        cursor = {}
        if more:
            last = page.sessions[-1]
            when = last.last_interaction_at if asked.sort_by == "lastInteractionAt" else last.updated_at
            cursor = {"nextCursor": f"{when}.{last.position}"}
        return {
            "ts": now_ms(), "path": self.path, "count": len(rows), "totalCount": page.total, "limitApplied": limit,
            "hasMore": more, "nextOffset": seen if more else None, **cursor, "owners": [],
            "defaults": views.session_defaults(roster), "sessions": rows,
        }  # fmt: skip

    async def _describe(self, call: RpcCall, asked: params.KeyParams) -> dict[str, SessionRow | None]:
        session = await self.sessions.get(self.canonical_key(asked.key, asked.agent_id))
        if session is None:
            return {"session": None}
        titles, last = asked.include_derived_titles, asked.include_last_message
        return {"session": await self.session_row(session, include_titles=titles, include_last=last)}

    async def _get(self, call: RpcCall, asked: params.KeyParams) -> Json:
        page = await self.sessions.history(
            self.canonical_key(asked.key, asked.agent_id), limit=min(asked.limit or DEFAULT_PAGE, MAX_PAGE)
        )
        return {"messages": [views.format_message(message) for message in page.messages]}

    async def _preview(self, call: RpcCall, asked: params.PreviewParams) -> Json:
        previews = []
        for key in asked.keys:
            page = await self.sessions.history(self.canonical_key(key), limit=min(asked.limit, 50))
            items = [
                {"role": message.role, "text": text[: asked.max_chars]}
                for message in page.messages
                if (text := views.message_text(message))
            ]
            status = "missing" if page.session is None else "ok" if items else "empty"
            previews.append({"key": key, "status": status, "items": items})
        return {"ts": now_ms(), "previews": previews}

    async def _resolve(self, call: RpcCall, asked: params.ResolveParams) -> Json:
        given = [name for name in SESSION_NAMES if getattr(asked, name) is not None]
        if len(given) != 1:
            raise RpcError("sessions.resolve needs exactly one of key, sessionId, label, shortId")
        if asked.short_id is not None:
            meant = await find_by_short_id(self.sessions, asked.short_id, agent_id=asked.agent_id, slug=asked.slug_hint)
            if meant or asked.allow_missing:
                return resolution(meant)
            found = []
        elif asked.key is not None:
            session = await self.sessions.get(self.canonical_key(asked.key, asked.agent_id))
            found = [session] if session else []
        else:
            found = list(
                await self.sessions.find(session_id=asked.session_id, label=asked.label, agent_id=asked.agent_id)
            )
        if len(found) == 1:
            return resolution(found)
        if asked.allow_missing and not found:
            return {"ok": False}
        if found:
            names = ", ".join(session.key for session in found)
            raise RpcError(f"several sessions fit: {names}; name one by its key or add agentId")
        raise RpcError(f"No session found{SESSION_NAMES[given[0]]}: {getattr(asked, given[0])}")

    async def _search(self, call: RpcCall, asked: params.SearchParams) -> Json:
        within = None if asked.session_keys is None else [self.canonical_key(key) for key in asked.session_keys]
        agent_id = asked.agent_id or (None if asked.scope is None else asked.scope.agent_id)
        hits = await self.sessions.search(asked.query, keys=within, agent_id=agent_id, limit=asked.limit)
        found = {"results": to_builtins(hits), "truncated": len(hits) == asked.limit}
        return found if asked.scope is None else {**found, "sessions": await self._rows_of(hits)}

    async def _rows_of(self, hits: Sequence[SearchHit]) -> list[SessionRow]:
        keys = dict.fromkeys(hit.session_key for hit in hits)
        sessions = [session for key in keys if (session := await self.sessions.get(key)) is not None]
        active = await self.sessions.active_runs([session.key for session in sessions])
        return views.session_rows(sessions, self.roster(), active, include_titles=True)

    # ---- following -----------------------------------------------------------------------------------------------

    async def _subscribe(self, call: RpcCall) -> Json:
        call.peer.subscriptions().add(SESSIONS_TOPIC)
        if not call.params:
            return {"subscribed": True}
        asked = read_params(call.params, params.SessionListParams, call.method)
        return {"subscribed": True, "list": await self._list(call, asked)}

    async def _unsubscribe(self, call: RpcCall) -> dict[str, bool]:
        call.peer.subscriptions().discard(SESSIONS_TOPIC)
        return {"subscribed": False}

    async def _subscribe_messages(self, call: RpcCall, asked: params.KeyParams) -> dict[str, bool | str]:
        key = self.canonical_key(asked.key, asked.agent_id)
        call.peer.subscriptions().add(session_topic(key))
        return {"subscribed": True, "key": key}

    async def _unsubscribe_messages(self, call: RpcCall, asked: params.KeyParams) -> dict[str, bool | str]:
        key = self.canonical_key(asked.key, asked.agent_id)
        call.peer.subscriptions().discard(session_topic(key))
        return {"subscribed": False, "key": key}

    # ---- changing ------------------------------------------------------------------------------------------------

    async def _create(self, call: RpcCall, asked: params.CreateParams) -> Json:
        if any(call.params.get(name) is not None for name in ADMIN_CREATE_FIELDS) and not has_scope(
            call.caller.scopes, ADMIN
        ):
            raise scope_error(ADMIN)
        check_values({"thinkingLevel": asked.thinking_level})
        key = normalize_key(asked.key or "dashboard", self.roster(), agent_id=asked.agent_id)
        check_model_choice({"model": asked.model}, key.split(":")[1], self.roster())
        if asked.idempotency_key is None:
            return await self._create_session(call, asked)
        known = await self.idempotency.get(call.method, asked.idempotency_key)
        return known or await self.idempotency.put_if_absent(
            call.method, asked.idempotency_key, await self._create_session(call, asked)
        )

    async def _create_session(self, call: RpcCall, request: params.CreateParams) -> Json:
        roster = self.roster()
        name = request.key or f"dashboard:{_session_uuid(request.idempotency_key)}"
        key = normalize_key(name, roster, agent_id=request.agent_id)
        parent = None if request.parent_session_key is None else self.canonical_key(request.parent_session_key)
        if parent is not None and await self.sessions.get(parent) is None:
            raise RpcError(f"unknown parent session: {parent}")
        wanted = {"model": request.model, "thinkingLevel": request.thinking_level}
        new = new_session(
            key, roster, label=request.label, display_name=request.display_name, parent_key=parent,
            spawned_by=parent if request.spawn_depth else None, spawn_depth=request.spawn_depth,
            entry={name: value for name, value in wanted.items() if value is not None},
        )  # fmt: skip
        session, fresh = await self.sessions.create(new)
        if fresh:
            self.events.publish_session(session, reason="create")
        made = {**await self.change_result(session), "sessionId": session.session_id, "runStarted": False}
        text = request.message if request.message is not None else request.task
        if (text and text.strip()) or request.attachments:
            run_id = request.idempotency_key or str(uuid.uuid4())
            send = params.SessionSendParams(
                key=key, message=text or "", idempotency_key=run_id, attachments=request.attachments,
                timeout_ms=request.timeout_ms,
            )  # fmt: skip
            try:
                return {**made, "runStarted": True, **await self.send(call, send, "followup")}
            except RpcError:
                if fresh:
                    await self._remove_unused(session)
                raise
        return made

    async def _remove_unused(self, session: Session) -> None:
        """Delete a session whose first message was refused, unless it is in use by now."""
        found = await self.sessions.get(session.key)
        in_use = await self.sessions.active_runs([session.key])
        if found is not None and not found.message_count and not in_use:
            await self.sessions.delete(session.key, transcript=True)
            self.events.publish_deletion(session.key, session.agent_id)

    async def _patch(self, call: RpcCall, asked: PatchParams) -> SessionChanged:
        changes = asked.changes
        if not changes.keys() <= WRITE_SCOPE_FIELDS and not has_scope(call.caller.scopes, ADMIN):
            raise scope_error(ADMIN)
        check_values(changes)
        key, roster = self.canonical_key(asked.key, asked.agent_id), self.roster()
        check_model_choice(changes, key.split(":")[1], roster)
        columns, entry = split_changes(changes)
        if columns.get("unread") is False:
            entry["lastReadAt"] = now_ms()
        await self._check_expectations(key, asked, asked.expected_fields)
        session = await self.sessions.patch(key, columns, entry)
        if session is None:
            session, _ = await self.sessions.create(new_session(key, roster))
            session = await self.sessions.patch(key, columns, entry) or session
        self.events.publish_session(session, reason="patch")
        return {**await self.change_result(session), "path": self.path}

    async def _check_expectations(self, key: str, request: params.ChangeParams, fields: Json | None = None) -> None:
        """Raises RpcError when the session is another than the request expects, or these fields of its entry are."""
        id, revision = request.expected_session_id, request.expected_lifecycle_revision
        if not id and not revision and not fields:
            return
        session = await self.sessions.get(key)
        entry = session.entry if session else {}
        for name, expected, found in (
            ("sessionId", id or None, session and session.session_id),
            ("lifecycleRevision", revision or None, session and session.revision),
        ):
            if expected is not None and found != expected:
                raise RpcError(_changed(key, name))
        for name, expected in (fields or {}).items():
            if entry.get(name) != expected:
                raise RpcError(_changed(key, name))

    async def _reset(self, call: RpcCall, asked: params.ResetParams) -> SessionChanged:
        key = self.canonical_key(asked.key, asked.agent_id)
        await self._check_expectations(key, asked)
        return await self.reset_session(key)

    async def _compact(self, call: RpcCall, asked: params.CompactParams) -> Json:
        """That nothing was done, which is no failure: after one, the Control UI holds back what its user typed."""
        key = self.canonical_key(asked.key, asked.agent_id)
        reason = NO_SESSION if await self.sessions.get(key) is None else NO_COMPACTION
        return {"ok": True, "key": key, "compacted": False, "reason": reason}

    async def _delete(self, call: RpcCall, asked: params.DeleteParams) -> Json:
        if not asked.archived_only and not has_scope(call.caller.scopes, ADMIN):
            raise scope_error(ADMIN)
        key = self.canonical_key(asked.key, asked.agent_id)
        if classify_key(key, self.roster()) == "main":
            raise RpcError(f"Cannot delete the main session ({key}).")
        await self._check_expectations(key, asked)
        session = await self.sessions.get(key)
        if session is None or (asked.archived_only and not session.archived):
            return {"ok": True, "key": key, "deleted": False, "archived": []}
        await self.stop_runs(key, reason="deleted")
        deleted = await self.sessions.delete(key, transcript=asked.delete_transcript)
        if deleted:
            self.events.publish_deletion(key, session.agent_id)
        kept = [] if asked.delete_transcript else [f"agent:{session.agent_id}:deleted:{session.session_id}"]
        return {"ok": True, "key": key, "deleted": deleted, "archived": kept}

    async def _abort(self, call: RpcCall, asked: params.AbortParams) -> dict[str, bool | str | None]:
        if asked.key is None:
            raise RpcError("sessions.abort needs the key of the session")
        key = self.canonical_key(asked.key, asked.agent_id)
        ended = await self.runner.abort(key, run_id=asked.run_id, include_queued=asked.clear_queued)
        status = "aborted" if ended else "no-active-run"
        return {"ok": True, "abortedRunId": ended[0] if ended else None, "status": status}

    # ---- agents --------------------------------------------------------------------------------------------------

    async def _list_agents(self, call: RpcCall) -> Json:
        roster = self.roster()
        names = ("agentRuntime", "thinkingLevels", "thinkingOptions", "thinkingDefault")
        agents = []
        for card in roster.agents:
            chosen = views.agent_settings(card.id, roster)
            model = {"primary": f"{chosen['modelProvider']}/{chosen['model']}"}
            named = drop_none({"name": card.name or None, "workspace": card.workspace or None})
            agents.append({"id": card.id, "kind": "agent", **{n: chosen[n] for n in names}, "model": model, **named})
        return {
            "defaultId": roster.default_id, "ownership": "sole", "selectionRequired": False,
            "mainKey": roster.main_key, "scope": "per-sender", "agents": agents,
        }  # fmt: skip

    async def _get_identity(self, call: RpcCall, asked: params.SessionParams) -> dict[str, str]:
        roster = self.roster()
        card = roster.get_agent(asked.agent_id or roster.default_id)
        source = "config" if card.name else "default"
        return {"agentId": card.id, "name": card.name or card.id, "nameSource": source, "avatarStatus": "none"}


def _build_query(request: params.SessionListParams, limit: int) -> SessionQuery:
    exclude = {"subagent": request.exclude_subagents, "cron": request.exclude_cron, "hook": request.exclude_system}
    since = None if request.active_minutes is None else now_ms() - request.active_minutes * 60_000
    return SessionQuery(
        limit=limit,
        offset=0 if request.cursor else request.offset,
        after=_parse_cursor(request.cursor),
        sort="last_interaction_at"
        if request.sort_by == "lastInteractionAt" or request.require_last_interaction
        else "updated_at",
        agent_id=request.agent_id,
        label=request.label,
        archived=None if request.archived == "all" else bool(request.archived),
        pinned=request.pinned,
        active_since=since,
        active_only=request.active_only,
        exclude=tuple(name for name, out in exclude.items() if out),
        search=request.search or None,
    )


def _parse_cursor(cursor: str | None) -> tuple[int, int] | None:
    if cursor is None:
        return None
    first, _, second = cursor.partition(".")
    when, position = parse_whole_number(first), parse_whole_number(second)
    if when is None or position is None:
        raise RpcError("cursor is not one that sessions.list gave; list again without it")
    return when, position


def _changed(key: str, field: str) -> str:
    return f"session {key} changed since it was read (expected{field[0].upper()}{field[1:]}); describe it and retry"


def _session_uuid(seed: str | None) -> str:
    """A repeated request gets the same session even when the first answer was lost."""
    return str(uuid.uuid4() if seed is None else uuid.uuid5(uuid.NAMESPACE_URL, f"openclaw:sessions.create:{seed}"))
