"""Methods on sessions: list, find, create, change, delete, search, subscribe."""

import uuid
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from msgspec.structs import replace

from ...core.agents import AgentRoster
from ...core.model import Json
from ...core.model_name import check_model_name
from ...core.numbers import parse_whole_number
from ...core.ports import RunExecutor
from ...core.repositories import IdempotencyRepository, SessionRepository
from ...core.rpc import ADMIN, READ, WRITE, RpcCall, RpcError, RpcMethod, has_scope, read_params, scope_error
from ...core.session_keys import classify_key, new_session, normalize_key
from ...core.sessions import QueueMode, Session, SessionPage, SessionQuery, now_ms
from . import params, views
from .run_events import SESSIONS_TOPIC, RunEventPublisher, session_topic
from .session_reset import SessionReset

DEFAULT_PAGE: Final = 100  # rows when the caller names no limit
MAX_PAGE: Final = 1000  # rows
WRITE_SCOPE_FIELDS: Final = frozenset(
    {"label", "autoLabel", "icon", "color", "category", "boardFace", "boardPresentation", "statusNote", "attention"}
    | {"ttlMinutes", "archived", "pinned", "unread", "model", "agentRuntime"}
)
"""Fields of `sessions.patch` that need write scope; all others need admin."""
NON_ENTRY_FIELDS: Final = frozenset(
    {"key", "agentId", "label", "archived", "archivedAt", "pinned", "unread", "displayName"}
)
ADMIN_CREATE_FIELDS: Final = ("permissionMode", "toolOverrides", "execNode", "cwd")
MAX_ENTRY_VALUE_LENGTH: Final = 8192

SendMessage = Callable[[RpcCall, params.SessionSendParams, QueueMode], Awaitable[Json]]


class SessionMethods:
    """`sessions.*`. `send` sends a message as `chat.send` does."""

    def __init__(
        self,
        sessions: SessionRepository,
        idempotency: IdempotencyRepository,
        runner: RunExecutor,
        events: RunEventPublisher,
        *,
        roster: Callable[[], AgentRoster],
        path: str,
        send: SendMessage,
        reset: SessionReset,
    ) -> None:
        self._sessions = sessions
        self._idempotency = idempotency
        self._runner = runner
        self._events = events
        self._roster = roster
        self._path = path
        self._send = send
        self._reset_session = reset

    def methods(self) -> Sequence[RpcMethod]:
        return (
            RpcMethod("sessions.list", READ, self._list),
            RpcMethod("sessions.describe", READ, self._describe),
            RpcMethod("sessions.get", READ, self._get, advertised=False),
            RpcMethod("sessions.preview", READ, self._preview),
            RpcMethod("sessions.resolve", READ, self._resolve, advertised=False),
            RpcMethod("sessions.search", READ, self._search),
            RpcMethod("sessions.subscribe", READ, self._subscribe),
            RpcMethod("sessions.unsubscribe", READ, self._unsubscribe),
            RpcMethod("sessions.messages.subscribe", READ, self._subscribe_messages),
            RpcMethod("sessions.messages.unsubscribe", READ, self._unsubscribe_messages),
            RpcMethod("sessions.create", WRITE, self._create),
            RpcMethod("sessions.patch", WRITE, self._patch),
            RpcMethod("sessions.reset", ADMIN, self._reset),
            RpcMethod("sessions.delete", WRITE, self._delete),
            RpcMethod("sessions.abort", WRITE, self._abort),
            RpcMethod("agents.list", READ, self._list_agents),
            RpcMethod("agent.identity.get", READ, self._get_identity),
        )

    def _canonical_key(self, key: str, agent_id: str | None = None) -> str:
        return normalize_key(key, self._roster(), agent_id=agent_id)

    # ---- reading -------------------------------------------------------------------------------------------------

    async def _list(self, call: RpcCall) -> Json:
        asked = read_params(call.params, params.SessionListParams, call.method)
        limit = min(asked.limit or DEFAULT_PAGE, MAX_PAGE)
        query = _build_query(asked, limit)
        if asked.spawned_by is not None:
            query = replace(query, spawned_by=self._canonical_key(asked.spawned_by))
        page = await self._sessions.page(query)
        return self._list_result(page, asked, limit)

    def _list_result(self, page: SessionPage, request: params.SessionListParams, limit: int) -> Json:
        roster = self._roster()
        rows = views.session_rows(
            page.sessions,
            roster,
            page.active,
            include_titles=request.include_derived_titles,
            include_last=request.include_last_message,
        )
        seen = request.offset + len(rows)
        more = len(rows) == limit and (request.cursor is not None or seen < page.total)
        listed: Json = {"ts": now_ms(), "path": self._path, "count": len(rows), "totalCount": page.total}
        listed |= {"limitApplied": limit, "hasMore": more, "nextOffset": seen if more else None, "owners": []}
        if more:
            last = page.sessions[-1]
            when = last.last_interaction_at if request.sort_by == "lastInteractionAt" else last.updated_at
            listed["nextCursor"] = f"{when}.{last.position}"
        return {**listed, "defaults": views.session_defaults(roster), "sessions": rows}

    async def _describe(self, call: RpcCall) -> Json:
        asked = read_params(call.params, params.KeyParams, call.method)
        session = await self._sessions.get(self._canonical_key(asked.key, asked.agent_id))
        if session is None:
            return {"session": None}
        titles, last = asked.include_derived_titles, asked.include_last_message
        return {"session": await self._session_row(session, include_titles=titles, include_last=last)}

    async def _session_row(self, session: Session, **include: bool) -> Json:
        active = await self._sessions.active_runs([session.key])
        return views.session_row(session, self._roster(), active=active.get(session.key, ()), **include)

    async def _get(self, call: RpcCall) -> Json:
        asked = read_params(call.params, params.KeyParams, call.method)
        page = await self._sessions.history(
            self._canonical_key(asked.key, asked.agent_id), limit=min(asked.limit or DEFAULT_PAGE, MAX_PAGE)
        )
        return {"messages": [views.format_message(message) for message in page.messages]}

    async def _preview(self, call: RpcCall) -> Json:
        asked = read_params(call.params, params.PreviewParams, call.method)
        previews = []
        for key in asked.keys:
            page = await self._sessions.history(self._canonical_key(key), limit=min(asked.limit, 50))
            items = [
                {"role": message.role, "text": text[: asked.max_chars]}
                for message in page.messages
                if (text := views.message_text(message.body))
            ]
            status = "missing" if page.session is None else "ok" if items else "empty"
            previews.append({"key": key, "status": status, "items": items})
        return {"ts": now_ms(), "previews": previews}

    async def _resolve(self, call: RpcCall) -> Json:
        asked = read_params(call.params, params.ResolveParams, call.method)
        given = [name for name in ("key", "session_id", "label") if getattr(asked, name) is not None]
        if len(given) != 1:
            raise RpcError("sessions.resolve needs exactly one of key, sessionId, label")
        if asked.key is not None:
            session = await self._sessions.get(self._canonical_key(asked.key, asked.agent_id))
            found = [session] if session else []
        else:
            found = list(
                await self._sessions.find(session_id=asked.session_id, label=asked.label, agent_id=asked.agent_id)
            )
        if len(found) == 1:
            named = {"displayName": found[0].display_name} if found[0].display_name else {}
            return {"ok": True, "key": found[0].key, "agentId": found[0].agent_id, **named}
        if asked.allow_missing and not found:
            return {"ok": False}
        if found:
            names = ", ".join(session.key for session in found)
            raise RpcError(f"several sessions fit: {names}; name one by its key or add agentId")
        how = {"key": "", "session_id": " with sessionId", "label": " with label"}[given[0]]
        raise RpcError(f"No session found{how}: {getattr(asked, given[0])}")

    async def _search(self, call: RpcCall) -> Json:
        asked = read_params(call.params, params.SearchParams, call.method)
        within = None if asked.session_keys is None else [self._canonical_key(key) for key in asked.session_keys]
        hits = await self._sessions.search(asked.query, keys=within, agent_id=asked.agent_id, limit=asked.limit)
        results = [
            {
                "sessionKey": hit.session_key,
                "sessionId": hit.session_id,
                "messageId": hit.uid,
                "role": hit.role,
                "timestamp": hit.at,
                "snippet": hit.snippet,
                "score": hit.score,
            }
            for hit in hits
        ]
        return {"results": results, "truncated": len(results) == asked.limit}

    # ---- following -----------------------------------------------------------------------------------------------

    async def _subscribe(self, call: RpcCall) -> Json:
        call.peer.subscriptions().add(SESSIONS_TOPIC)
        subscribed: Json = {"subscribed": True}
        if call.params:
            subscribed["list"] = await self._list(call)
        return subscribed

    async def _unsubscribe(self, call: RpcCall) -> Json:
        call.peer.subscriptions().discard(SESSIONS_TOPIC)
        return {"subscribed": False}

    async def _subscribe_messages(self, call: RpcCall) -> Json:
        asked = read_params(call.params, params.KeyParams, call.method)
        key = self._canonical_key(asked.key, asked.agent_id)
        call.peer.subscriptions().add(session_topic(key))
        return {"subscribed": True, "key": key}

    async def _unsubscribe_messages(self, call: RpcCall) -> Json:
        asked = read_params(call.params, params.KeyParams, call.method)
        key = self._canonical_key(asked.key, asked.agent_id)
        call.peer.subscriptions().discard(session_topic(key))
        return {"subscribed": False, "key": key}

    # ---- changing ------------------------------------------------------------------------------------------------

    async def _create(self, call: RpcCall) -> Json:
        asked = read_params(call.params, params.CreateParams, call.method)
        if any(call.params.get(name) is not None for name in ADMIN_CREATE_FIELDS) and not has_scope(
            call.caller.scopes, ADMIN
        ):
            raise scope_error(ADMIN)
        check_model_name(asked.model)
        if asked.idempotency_key is None:
            return await self._create_session(call, asked)
        known = await self._idempotency.get(call.method, asked.idempotency_key)
        return known or await self._idempotency.put_if_absent(
            call.method, asked.idempotency_key, await self._create_session(call, asked)
        )

    async def _create_session(self, call: RpcCall, request: params.CreateParams) -> Json:
        roster = self._roster()
        name = request.key or f"dashboard:{_session_uuid(request.idempotency_key)}"
        key = normalize_key(name, roster, agent_id=request.agent_id)
        parent = None if request.parent_session_key is None else self._canonical_key(request.parent_session_key)
        wanted = {"model": request.model, "thinkingLevel": request.thinking_level}
        new = new_session(
            key, roster, label=request.label, display_name=request.display_name, parent_key=parent,
            spawned_by=parent if request.spawn_depth else None, spawn_depth=request.spawn_depth,
            entry={name: value for name, value in wanted.items() if value is not None},
        )  # fmt: skip
        session, fresh = await self._sessions.create(new)
        if fresh:
            self._events.publish_session(session, reason="create")
        made: Json = {"ok": True, "key": key, "sessionId": session.session_id, "runStarted": False}
        made |= {"entry": await self._session_row(session), "resolved": views.model_selection(session.agent_id, roster)}
        text = request.message if request.message is not None else request.task
        if text or request.attachments:
            run_id = request.idempotency_key or str(uuid.uuid4())
            send = params.SessionSendParams(
                key=key, message=text or "", idempotency_key=run_id, attachments=request.attachments,
                timeout_ms=request.timeout_ms,
            )  # fmt: skip
            made |= {"runStarted": True, **await self._send(call, send, "followup")}
        return made

    async def _patch(self, call: RpcCall) -> Json:
        asked = read_params(call.params, params.ChangeParams, call.method)
        changes = {name: value for name, value in call.params.items() if not name.startswith("expected")}
        if not changes.keys() <= WRITE_SCOPE_FIELDS | {"key", "agentId"} and not has_scope(call.caller.scopes, ADMIN):
            raise scope_error(ADMIN)
        check_model_name(changes.get("model"))
        key = self._canonical_key(asked.key, asked.agent_id)
        columns, entry = _split_changes(changes)
        await self._check_expectations(key, asked)
        session = await self._sessions.patch(key, columns, entry)
        if session is None:
            session, _ = await self._sessions.create(new_session(key, self._roster()))
            session = await self._sessions.patch(key, columns, entry) or session
        self._events.publish_session(session, reason="patch")
        resolved = views.model_selection(session.agent_id, self._roster())
        return {
            "ok": True,
            "path": self._path,
            "key": key,
            "entry": await self._session_row(session),
            "resolved": resolved,
        }

    async def _check_expectations(self, key: str, request: params.ChangeParams) -> None:
        id, revision = request.expected_session_id, request.expected_lifecycle_revision
        if not id and not revision:
            return
        session = await self._sessions.get(key)
        for name, expected, found in (
            ("expectedSessionId", id, session and session.session_id),
            ("expectedLifecycleRevision", revision, session and session.revision),
        ):
            if expected and found != expected:
                raise RpcError(f"session {key} changed since it was read ({name}); describe it and retry")

    async def _reset(self, call: RpcCall) -> Json:
        asked = read_params(call.params, params.ResetParams, call.method)
        key = self._canonical_key(asked.key, asked.agent_id)
        await self._check_expectations(key, asked)
        return await self._reset_session(key)

    async def _delete(self, call: RpcCall) -> Json:
        asked = read_params(call.params, params.DeleteParams, call.method)
        if not asked.archived_only and not has_scope(call.caller.scopes, ADMIN):
            raise scope_error(ADMIN)
        key = self._canonical_key(asked.key, asked.agent_id)
        if classify_key(key, self._roster()) == "main":
            raise RpcError(f"Cannot delete the main session ({key}).")
        await self._check_expectations(key, asked)
        session = await self._sessions.get(key)
        if session is None or (asked.archived_only and not session.archived):
            return {"ok": True, "key": key, "deleted": False, "archived": []}
        await self._reset_session.stop_runs(key)
        deleted = await self._sessions.delete(key, transcript=asked.delete_transcript)
        if deleted:
            self._events.publish_deletion(key, session.agent_id)
        kept = [] if asked.delete_transcript else [f"agent:{session.agent_id}:deleted:{session.session_id}"]
        return {"ok": True, "key": key, "deleted": deleted, "archived": kept}

    async def _abort(self, call: RpcCall) -> Json:
        asked = read_params(call.params, params.AbortParams, call.method)
        if asked.key is None:
            raise RpcError("sessions.abort needs the key of the session")
        key = self._canonical_key(asked.key, asked.agent_id)
        ended = await self._runner.abort(key, run_id=asked.run_id, include_queued=asked.clear_queued)
        status = "aborted" if ended else "no-active-run"
        return {"ok": True, "abortedRunId": ended[0] if ended else None, "status": status}

    # ---- agents --------------------------------------------------------------------------------------------------

    async def _list_agents(self, call: RpcCall) -> Json:
        roster = self._roster()
        agents = []
        for card in roster.agents:
            chosen = views.agent_settings(card.id, roster)
            names = ("agentRuntime", "thinkingLevels", "thinkingOptions", "thinkingDefault")
            agent: Json = {"id": card.id, "kind": "agent", **{name: chosen[name] for name in names}}
            agent["model"] = {"primary": f"{chosen['modelProvider']}/{chosen['model']}"}
            agents.append(agent | {n: v for n, v in (("name", card.name), ("workspace", card.workspace)) if v})
        listed: Json = {"defaultId": roster.default_id, "ownership": "sole", "selectionRequired": False}
        return {**listed, "mainKey": roster.main_key, "scope": "per-sender", "agents": agents}

    async def _get_identity(self, call: RpcCall) -> Json:
        asked = read_params(call.params, params.SessionParams, call.method)
        roster = self._roster()
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


def _split_changes(patch: Json) -> tuple[Json, Json]:
    """The changes of columns, and those of the session's entry."""
    columns: Json = {}
    for name in ("archived", "pinned", "unread"):
        if name in patch:
            if not isinstance(patch[name], bool):
                raise RpcError(f"invalid sessions.patch params: at /{name}: must be boolean")
            columns[name] = patch[name]
    if "label" in patch:
        label = patch["label"]
        if label is not None and not (isinstance(label, str) and 0 < len(label) <= 512):
            raise RpcError("invalid sessions.patch params: at /label: must be a text of 1 to 512 characters, or null")
        columns["label"] = label
    if "displayName" in patch:
        columns["display_name"] = patch["displayName"] and str(patch["displayName"])[:500]
    entry = {name: value for name, value in patch.items() if name not in NON_ENTRY_FIELDS}
    for name, value in entry.items():
        if len(str(value)) > MAX_ENTRY_VALUE_LENGTH:
            raise RpcError(
                f"invalid sessions.patch params: at /{name}: longer than {MAX_ENTRY_VALUE_LENGTH} characters"
            )
    return columns, entry


def _session_uuid(seed: str | None) -> str:
    """A repeated request gets the same session even when the first answer was lost."""
    return str(uuid.uuid4() if seed is None else uuid.uuid5(uuid.NAMESPACE_URL, f"openclaw:sessions.create:{seed}"))
