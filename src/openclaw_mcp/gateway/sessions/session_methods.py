"""The methods on sessions themselves: list, find, make, change, forget, search, follow."""

import uuid
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeVar

from ...core.agents import Roster
from ...core.model import Json
from ...core.model_name import check_model_name
from ...core.numbers import whole
from ...core.ports import Runner
from ...core.repositories import Answers, SessionBook
from ...core.rpc import ADMIN, READ, WRITE, Fault, Method, RpcCall, covers, missing_scope, read_params
from ...core.sessions import Session, SessionPage, SessionQuery, now_ms
from . import keys, params, views
from .run_events import SESSIONS, Feed, topic

T = TypeVar("T")

PAGE: Final = 100  # rows when the caller names no limit
LARGEST_PAGE: Final = 1000
ANYONE_MAY_SET: Final = frozenset(
    {"label", "autoLabel", "icon", "color", "category", "boardFace", "boardPresentation", "statusNote", "attention"}
    | {"ttlMinutes", "archived", "pinned", "unread", "model", "agentRuntime"}
)
"""Fields of `sessions.patch` that need write scope; all others need admin."""
NOT_ENTRY: Final = frozenset({"key", "agentId", "label", "archived", "archivedAt", "pinned", "unread", "displayName"})
ADMIN_CREATES: Final = ("permissionMode", "toolOverrides", "execNode", "cwd")
LONGEST_ENTRY_VALUE: Final = 8192
STOP_WAIT: Final = 10.0  # seconds a run has to end before its session is reset or deleted

Start = Callable[[RpcCall, params.SendParams, str], Awaitable[Json]]


class SessionRoom:
    """`sessions.*`. `start` sends a message as `chat.send` would."""

    def __init__(
        self,
        book: SessionBook,
        answers: Answers,
        runner: Runner,
        feed: Feed,
        *,
        roster: Callable[[], Roster],
        path: str,
        start: Start,
    ) -> None:
        self._book = book
        self._answers = answers
        self._runner = runner
        self._feed = feed
        self._roster = roster
        self._path = path
        self._start = start

    def methods(self) -> Sequence[Method]:
        return (
            Method("sessions.list", READ, self._list),
            Method("sessions.describe", READ, self._describe),
            Method("sessions.get", READ, self._get, advertised=False),
            Method("sessions.preview", READ, self._preview),
            Method("sessions.resolve", READ, self._resolve, advertised=False),
            Method("sessions.search", READ, self._search),
            Method("sessions.subscribe", READ, self._subscribe),
            Method("sessions.unsubscribe", READ, self._unsubscribe),
            Method("sessions.messages.subscribe", READ, self._follow),
            Method("sessions.messages.unsubscribe", READ, self._unfollow),
            Method("sessions.create", WRITE, self._create),
            Method("sessions.patch", WRITE, self._patch),
            Method("sessions.reset", ADMIN, self._reset),
            Method("sessions.delete", WRITE, self._delete),
            Method("sessions.abort", WRITE, self._abort),
            Method("agents.list", READ, self._agents),
            Method("agent.identity.get", READ, self._identity),
        )

    def _key(self, key: str, agent_id: str | None = None) -> str:
        return keys.canonical(key, self._roster(), agent_id=agent_id)

    # ---- reading -------------------------------------------------------------------------------------------------

    async def _list(self, call: RpcCall) -> Json:
        asked = read_params(call.params, params.ListParams, call.method)
        limit = min(asked.limit or PAGE, LARGEST_PAGE)
        query = _query(asked, limit)
        if asked.spawned_by is not None:
            query = _replace(query, spawned_by=self._key(asked.spawned_by))
        page = await self._book.page(query)
        return self._listed(page, asked, limit)

    def _listed(self, page: SessionPage, asked: params.ListParams, limit: int) -> Json:
        roster = self._roster()
        rows = [
            views.session_row(
                session,
                roster,
                active=page.active.get(session.key, ()),
                titles=asked.include_derived_titles,
                last=asked.include_last_message,
            )
            for session in page.sessions
        ]
        seen = asked.offset + len(rows)
        more = len(rows) == limit and (asked.cursor is not None or seen < page.total)
        listed: Json = {"ts": now_ms(), "path": self._path, "count": len(rows), "totalCount": page.total}
        listed |= {"limitApplied": limit, "hasMore": more, "nextOffset": seen if more else None, "owners": []}
        if more:
            last = page.sessions[-1]
            when = last.last_interaction_at if asked.sort_by == "lastInteractionAt" else last.updated_at
            listed["nextCursor"] = f"{when}.{last.position}"
        return {**listed, "defaults": views.defaults(roster), "sessions": rows}

    async def _describe(self, call: RpcCall) -> Json:
        asked = read_params(call.params, params.KeyParams, call.method)
        session = await self._book.get(self._key(asked.key, asked.agent_id))
        if session is None:
            return {"session": None}
        titles = {"titles": asked.include_derived_titles, "last": asked.include_last_message}
        return {"session": await self._row(session, **titles)}

    async def _row(self, session: Session, **how: bool) -> Json:
        active = await self._book.active([session.key])
        return views.session_row(session, self._roster(), active=active.get(session.key, ()), **how)

    async def _get(self, call: RpcCall) -> Json:
        asked = read_params(call.params, params.KeyParams, call.method)
        page = await self._book.history(
            self._key(asked.key, asked.agent_id), limit=min(asked.limit or PAGE, LARGEST_PAGE)
        )
        return {"messages": [views.message(message) for message in page.messages]}

    async def _preview(self, call: RpcCall) -> Json:
        asked = read_params(call.params, params.PreviewParams, call.method)
        previews = []
        for key in asked.keys:
            page = await self._book.history(self._key(key), limit=min(asked.limit, 50))
            items = [
                {"role": message.role, "text": text[: asked.max_chars]}
                for message in page.messages
                if (text := views.text_of(message.body))
            ]
            status = "missing" if page.session is None else "ok" if items else "empty"
            previews.append({"key": key, "status": status, "items": items})
        return {"ts": now_ms(), "previews": previews}

    async def _resolve(self, call: RpcCall) -> Json:
        asked = read_params(call.params, params.ResolveParams, call.method)
        given = [name for name in ("key", "session_id", "label") if getattr(asked, name) is not None]
        if len(given) != 1:
            raise Fault("sessions.resolve needs exactly one of key, sessionId, label")
        if asked.key is not None:
            session = await self._book.get(self._key(asked.key, asked.agent_id))
            found = [session] if session else []
        else:
            found = list(await self._book.find(session_id=asked.session_id, label=asked.label, agent_id=asked.agent_id))
        if len(found) == 1:
            named = {"displayName": found[0].display_name} if found[0].display_name else {}
            return {"ok": True, "key": found[0].key, "agentId": found[0].agent_id, **named}
        if asked.allow_missing and not found:
            return {"ok": False}
        if found:
            names = ", ".join(session.key for session in found)
            raise Fault(f"several sessions fit: {names}; name one by its key or add agentId")
        how = {"key": "", "session_id": " with sessionId", "label": " with label"}[given[0]]
        raise Fault(f"No session found{how}: {getattr(asked, given[0])}")

    async def _search(self, call: RpcCall) -> Json:
        asked = read_params(call.params, params.SearchParams, call.method)
        within = None if asked.session_keys is None else [self._key(key) for key in asked.session_keys]
        hits = await self._book.search(asked.query, keys=within, agent_id=asked.agent_id, limit=asked.limit)
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
        call.link.interests().add(SESSIONS)
        subscribed: Json = {"subscribed": True}
        if call.params:
            subscribed["list"] = await self._list(call)
        return subscribed

    async def _unsubscribe(self, call: RpcCall) -> Json:
        call.link.interests().discard(SESSIONS)
        return {"subscribed": False}

    async def _follow(self, call: RpcCall) -> Json:
        asked = read_params(call.params, params.KeyParams, call.method)
        key = self._key(asked.key, asked.agent_id)
        call.link.interests().add(topic(key))
        return {"subscribed": True, "key": key}

    async def _unfollow(self, call: RpcCall) -> Json:
        asked = read_params(call.params, params.KeyParams, call.method)
        key = self._key(asked.key, asked.agent_id)
        call.link.interests().discard(topic(key))
        return {"subscribed": False, "key": key}

    # ---- changing ------------------------------------------------------------------------------------------------

    async def _create(self, call: RpcCall) -> Json:
        asked = read_params(call.params, params.CreateParams, call.method)
        if any(call.params.get(name) is not None for name in ADMIN_CREATES) and not covers(call.caller.scopes, ADMIN):
            raise missing_scope(ADMIN)
        check_model_name(asked.model)
        if asked.idempotency_key is None:
            return await self._made(call, asked)
        known = await self._answers.recall(call.method, asked.idempotency_key)
        return known or await self._answers.keep(call.method, asked.idempotency_key, await self._made(call, asked))

    async def _made(self, call: RpcCall, asked: params.CreateParams) -> Json:
        roster = self._roster()
        name = asked.key or f"dashboard:{_uuid(asked.idempotency_key)}"
        key = keys.canonical(name, roster, agent_id=asked.agent_id)
        parent = None if asked.parent_session_key is None else self._key(asked.parent_session_key)
        wanted = {"model": asked.model, "thinkingLevel": asked.thinking_level}
        new = keys.new_session(
            key, roster, label=asked.label, display_name=asked.display_name, parent_key=parent,
            spawned_by=parent if asked.spawn_depth else None, spawn_depth=asked.spawn_depth,
            entry={name: value for name, value in wanted.items() if value is not None},
        )  # fmt: skip
        session, fresh = await self._book.create(new)
        if fresh:
            self._feed.changed(session, reason="create")
        made: Json = {"ok": True, "key": key, "sessionId": session.session_id, "runStarted": False}
        made |= {"entry": await self._row(session), "resolved": views.resolved(session.agent_id, roster)}
        text = asked.message if asked.message is not None else asked.task
        if text or asked.attachments:
            run_id = asked.idempotency_key or str(uuid.uuid4())
            send = params.SendParams(
                key=key, message=text or "", idempotency_key=run_id, attachments=asked.attachments,
                timeout_ms=asked.timeout_ms,
            )  # fmt: skip
            made |= {"runStarted": True, **await self._start(call, send, "followup")}
        return made

    async def _patch(self, call: RpcCall) -> Json:
        asked = read_params(call.params, params.KeyParams, call.method)
        changes = {name: value for name, value in call.params.items() if not name.startswith("expected")}
        if not changes.keys() <= ANYONE_MAY_SET | {"key", "agentId"} and not covers(call.caller.scopes, ADMIN):
            raise missing_scope(ADMIN)
        check_model_name(changes.get("model"))
        key = self._key(asked.key, asked.agent_id)
        columns, entry = _changes(changes)
        await self._expected(key, call.params)
        session = await self._book.patch(key, columns, entry)
        if session is None:
            session, _ = await self._book.create(keys.new_session(key, self._roster()))
            session = await self._book.patch(key, columns, entry) or session
        self._feed.changed(session, reason="patch")
        resolved = views.resolved(session.agent_id, self._roster())
        return {"ok": True, "path": self._path, "key": key, "entry": await self._row(session), "resolved": resolved}

    async def _expected(self, key: str, given: Json) -> None:
        wanted = {"expectedSessionId": "session_id", "expectedLifecycleRevision": "revision"}
        if not any(given.get(name) for name in wanted):
            return
        session = await self._book.get(key)
        for name, field in wanted.items():
            if given.get(name) and (session is None or getattr(session, field) != given[name]):
                raise Fault(f"session {key} changed since it was read ({name}); describe it and retry")

    async def _reset(self, call: RpcCall) -> Json:
        asked = read_params(call.params, params.ResetParams, call.method)
        key = self._key(asked.key, asked.agent_id)
        await self._expected(key, call.params)
        return await self.reset(key)

    async def reset(self, key: str) -> Json:
        """Stop what goes there, then begin its transcript anew."""
        await self._stop(key)
        session = await self._book.reset(key)
        if session is None:
            session, _ = await self._book.create(keys.new_session(key, self._roster()))
        self._feed.changed(session, reason="reset")
        resolved = views.resolved(session.agent_id, self._roster())
        return {"ok": True, "key": key, "entry": await self._row(session), "resolved": resolved}

    async def _stop(self, key: str) -> None:
        for run_id in await self._runner.abort(key):
            await self._runner.wait(run_id, seconds=STOP_WAIT)

    async def _delete(self, call: RpcCall) -> Json:
        asked = read_params(call.params, params.DeleteParams, call.method)
        if not asked.archived_only and not covers(call.caller.scopes, ADMIN):
            raise missing_scope(ADMIN)
        key = self._key(asked.key, asked.agent_id)
        if keys.classification(key, self._roster()) == "main":
            raise Fault(f"Cannot delete the main session ({key}).")
        await self._expected(key, call.params)
        session = await self._book.get(key)
        if session is None or (asked.archived_only and not session.archived):
            return {"ok": True, "key": key, "deleted": False, "archived": []}
        await self._stop(key)
        deleted = await self._book.delete(key, transcript=asked.delete_transcript)
        if deleted:
            self._feed.gone(key, session.agent_id)
        kept = [] if asked.delete_transcript else [f"agent:{session.agent_id}:deleted:{session.session_id}"]
        return {"ok": True, "key": key, "deleted": deleted, "archived": kept}

    async def _abort(self, call: RpcCall) -> Json:
        asked = read_params(call.params, params.AbortParams, call.method)
        if asked.key is None:
            raise Fault("sessions.abort needs the key of the session")
        key = self._key(asked.key, asked.agent_id)
        ended = await self._runner.abort(key, run_id=asked.run_id, queued=asked.clear_queued)
        status = "aborted" if ended else "no-active-run"
        return {"ok": True, "abortedRunId": ended[0] if ended else None, "status": status}

    # ---- agents --------------------------------------------------------------------------------------------------

    async def _agents(self, call: RpcCall) -> Json:
        roster = self._roster()
        agents = []
        for card in roster.agents:
            chosen = views.choices(card.id, roster)
            names = ("agentRuntime", "thinkingLevels", "thinkingOptions", "thinkingDefault")
            agent: Json = {"id": card.id, "kind": "agent", **{name: chosen[name] for name in names}}
            agent["model"] = {"primary": f"{chosen['modelProvider']}/{chosen['model']}"}
            agents.append(agent | {n: v for n, v in (("name", card.name), ("workspace", card.workspace)) if v})
        listed: Json = {"defaultId": roster.default_id, "ownership": "sole", "selectionRequired": False}
        return {**listed, "mainKey": roster.main_key, "scope": "per-sender", "agents": agents}

    async def _identity(self, call: RpcCall) -> Json:
        asked = read_params(call.params, params.Params, call.method)
        roster = self._roster()
        card = roster.card(asked.agent_id or roster.default_id)
        source = "config" if card.name else "default"
        return {"agentId": card.id, "name": card.name or card.id, "nameSource": source, "avatarStatus": "none"}


def _query(asked: params.ListParams, limit: int) -> SessionQuery:
    exclude = {"subagent": asked.exclude_subagents, "cron": asked.exclude_cron, "hook": asked.exclude_system}
    since = None if asked.active_minutes is None else now_ms() - asked.active_minutes * 60_000
    return SessionQuery(
        limit=limit,
        offset=0 if asked.cursor else asked.offset,
        after=_position(asked.cursor),
        sort="last_interaction_at"
        if asked.sort_by == "lastInteractionAt" or asked.require_last_interaction
        else "updated_at",
        agent_id=asked.agent_id,
        label=asked.label,
        archived=None if asked.archived == "all" else bool(asked.archived),
        pinned=asked.pinned,
        active_since=since,
        active_only=asked.active_only,
        exclude=tuple(name for name, out in exclude.items() if out),
        search=asked.search or None,
    )


def _replace(query: SessionQuery, **changes: Any) -> SessionQuery:
    return SessionQuery(**{name: getattr(query, name) for name in query.__struct_fields__} | changes)


def _position(cursor: str | None) -> tuple[int, int] | None:
    if cursor is None:
        return None
    first, _, second = cursor.partition(".")
    when, position = whole(first), whole(second)
    if when is None or position is None:
        raise Fault("cursor is not one that sessions.list gave; list again without it")
    return when, position


def _changes(given: Json) -> tuple[Json, Json]:
    """What goes into columns of its own, and what into the session's entry."""
    columns: Json = {}
    for name in ("archived", "pinned", "unread"):
        if name in given:
            if not isinstance(given[name], bool):
                raise Fault(f"invalid sessions.patch params: at /{name}: must be boolean")
            columns[name] = given[name]
    if "label" in given:
        label = given["label"]
        if label is not None and not (isinstance(label, str) and 0 < len(label) <= 512):
            raise Fault("invalid sessions.patch params: at /label: must be a text of 1 to 512 characters, or null")
        columns["label"] = label
    if "displayName" in given:
        columns["display_name"] = given["displayName"] and str(given["displayName"])[:500]
    entry = {name: value for name, value in given.items() if name not in NOT_ENTRY}
    for name, value in entry.items():
        if len(str(value)) > LONGEST_ENTRY_VALUE:
            raise Fault(f"invalid sessions.patch params: at /{name}: longer than {LONGEST_ENTRY_VALUE} characters")
    return columns, entry


def _uuid(seed: str | None) -> str:
    """A repeated request must name the same session even when the first answer was lost."""
    return str(uuid.uuid4() if seed is None else uuid.uuid5(uuid.NAMESPACE_URL, f"openclaw:sessions.create:{seed}"))
