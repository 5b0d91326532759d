"""Methods that send messages and read transcripts: `chat.*`, `sessions.send`, `sessions.steer`, `agent*`."""

from collections.abc import Sequence
from typing import Final, Literal

import msgspec

from ...core.ids import new_id
from ...core.json_values import drop_none
from ...core.model import Json
from ...core.model_name import check_model_name
from ...core.numbers import parse_whole_number
from ...core.rpc import (
    ADMIN,
    READ,
    WRITE,
    Publish,
    RpcCall,
    RpcError,
    RpcEvent,
    RpcMethod,
    has_scope,
    make_method,
    scope_error,
)
from ...core.session_keys import classify_key, new_session, split_key
from ...core.session_target import child_grant
from ...core.sessions import (
    HistoryPage,
    MessageDraft,
    QueueMode,
    RunAdmission,
    RunOptions,
    RunRequest,
    Session,
    TranscriptMessage,
    is_internal_run,
)
from . import params, views
from .run_events import assistant_message
from .session_operations import SessionOperations
from .views import RunReply

HISTORY_BYTES: Final = 6 * 1024 * 1024  # of messages in one answer; well under the largest frame
MAX_MESSAGE_LENGTH: Final = 2_000_000  # characters
MAX_WAIT: Final = 24 * 3600.0  # seconds; agent.wait with more is a mistake in units
WAIT_MARGIN: Final = 30.0  # seconds past a run's own limit that `agent` waits for its end to be stored
DEFAULT_TIMEOUT_MS: Final = 600_000

_encode = msgspec.json.Encoder().encode


class ChatMethods(SessionOperations, frozen=True, kw_only=True):
    """Sends messages to agents; their answers are published as events."""

    publish: Publish

    def methods(self) -> Sequence[RpcMethod]:
        return (
            make_method("chat.send", WRITE, params.ChatSendParams, self.send),
            make_method("chat.history", READ, params.HistoryParams, self._history),
            make_method("chat.message.get", READ, params.MessageGetParams, self._get_message),
            make_method("chat.abort", WRITE, params.ChatAbortParams, self._abort),
            make_method("chat.inject", ADMIN, params.InjectParams, self._inject, advertised=False),
            make_method("sessions.send", WRITE, params.SessionSendParams, self.send),
            make_method("sessions.steer", WRITE, params.SessionSendParams, self._steer, advertised=False),
            make_method("agent", WRITE, params.AgentParams, self._agent),
            make_method("agent.wait", WRITE, params.WaitParams, self._wait),
        )

    # ---- sending -------------------------------------------------------------------------------------------------

    async def _steer(self, call: RpcCall, asked: params.SessionSendParams) -> RunReply:
        busy = bool(await self.sessions.active_runs([self.canonical_key(asked.key, asked.agent_id)]))
        return {**await self.send(call, asked, "interrupt"), "interruptedActiveRun": busy}

    async def send(
        self, call: RpcCall, request: params.SessionSendParams, mode: QueueMode | None = None
    ) -> RunReply:  # fmt: skip
        """Admit a message; the answer is published as events."""
        if mode is None:
            mode = request.queue_mode if isinstance(request, params.ChatSendParams) else "steer"
        key = self.canonical_key(request.key, request.agent_id)
        done = await self._run_command(call, key, request.message.strip(), request.idempotency_key)
        if done is not None:
            return done
        admission = await self._submit(
            call, key, request.message, run_id=request.idempotency_key or new_id(), mode=mode,
            attachments=request.attachments, timeout_ms=request.timeout_ms,
            options=RunOptions(thinking=request.thinking),
        )  # fmt: skip
        return {"runId": admission.run.run_id, "status": _admission_status(admission)}

    async def _submit(
        self, call: RpcCall, key: str, message: str, *, run_id: str, mode: QueueMode,
        attachments: Sequence[params.AttachmentParams] | None, timeout_ms: int | None, options: RunOptions,
        label: str | None = None, spawned_by: str | None = None,
    ) -> RunAdmission:  # fmt: skip
        if len(message) > MAX_MESSAGE_LENGTH:
            raise RpcError(f"message is longer than {MAX_MESSAGE_LENGTH} characters; send it as an attachment")
        if is_internal_run(run_id):
            raise RpcError("idempotencyKey begins as ids of the gateway's own runs do; use another, such as a UUID")
        files = params.read_attachments(attachments or ())
        if not message.strip() and not files:
            raise RpcError("message or attachment required")
        new = new_session(key, self.roster(), label=label, spawned_by=spawned_by)
        admission = await self.runner.submit(
            RunRequest(
                run_id=run_id,
                session=new,
                message=message,
                attachments=files,
                mode=mode,
                timeout_ms=timeout_ms,
                options=msgspec.structs.replace(options, sender=call.caller.name, grant=child_grant(call.caller)),
            )
        )
        if admission.run.session_key != key:
            raise RpcError("idempotencyKey was already used in another session; make a new one for each message")
        return admission

    async def _run_command(self, call: RpcCall, key: str, text: str, run_id: str | None) -> RunReply | None:
        """`/stop`, `/new` and `/reset` are commands to the gateway; any other text is for the agent."""
        if text not in ("/stop", "/new", "/reset"):
            return None
        if text == "/stop":
            await self.runner.abort(key)
            reply = "Stopped."
        else:
            if not has_scope(call.caller.scopes, ADMIN):
                raise scope_error(ADMIN)
            await self.reset_session(key)
            reply = "A new conversation begins."
        run_id = run_id or new_id()
        payload = {"runId": run_id, "sessionKey": key, "agentId": split_key(key)[0], "seq": 1, "state": "final"}
        self.publish(RpcEvent(name="chat", payload={**payload, "message": assistant_message(reply)}))
        return {"runId": run_id, "status": "started"}

    async def _agent(self, call: RpcCall, asked: params.AgentParams) -> RunReply:
        key = await self._resolve_session(asked)
        done = await self._run_command(call, key, asked.message.strip(), asked.idempotency_key)
        if done is not None:
            return {**done, "status": "ok", "summary": "completed", "result": {"payloads": [], "meta": {}}}
        timeout_ms = None if asked.timeout is None else asked.timeout * 1000
        options = RunOptions(
            thinking=asked.thinking, model=asked.model, provider=asked.provider, cwd=asked.cwd,
            extra_system_prompt=asked.extra_system_prompt, input_provenance=asked.input_provenance, lane=asked.lane,
        )  # fmt: skip
        check_model_name(asked.model)
        if asked.cwd is not None and not has_scope(call.caller.scopes, ADMIN):
            raise scope_error(ADMIN)
        admission = await self._submit(
            call, key, asked.message, run_id=asked.idempotency_key, mode="followup", attachments=asked.attachments,
            timeout_ms=timeout_ms, options=options, label=asked.label, spawned_by=asked.spawned_by,
        )  # fmt: skip
        if not admission.run.is_over:
            first = {"runId": admission.run.run_id, "sessionKey": key, "agentId": admission.run.agent_id}
            await call.peer.acknowledge({**first, "status": "accepted", "acceptedAt": admission.run.accepted_at})
        limit = MAX_WAIT if timeout_ms == 0 else (timeout_ms or DEFAULT_TIMEOUT_MS) / 1000 + WAIT_MARGIN
        run = await self.runner.wait(admission.run.run_id, seconds=limit)
        if run is None:  # it waits behind others: the caller may continue with agent.wait
            return {"runId": admission.run.run_id, "status": "timeout", "summary": "still waiting or running"}
        return views.agent_result(run)

    async def _resolve_session(self, request: params.AgentParams) -> str:
        if request.session_key is not None:
            return self.canonical_key(request.session_key, request.agent_id)
        if request.session_id is not None:
            found = await self.sessions.find(session_id=request.session_id)
            if not found:
                raise RpcError(f"No session found: {request.session_id}")
            return found[0].key
        return self.canonical_key("main", request.agent_id)

    async def _wait(self, call: RpcCall, asked: params.WaitParams) -> Json:
        run = await self.runner.wait(asked.run_id, seconds=min(asked.timeout_ms / 1000, MAX_WAIT))
        return {"runId": asked.run_id, "status": "timeout"} if run is None else views.wait_result(run)

    async def _abort(self, call: RpcCall, asked: params.ChatAbortParams) -> dict[str, bool | list[str]]:
        key = self.canonical_key(asked.session_key, asked.agent_id)
        ended = await self.runner.abort(key, run_id=asked.run_id)
        return {"ok": True, "aborted": bool(ended), "runIds": list(ended)}

    async def _inject(self, call: RpcCall, asked: params.InjectParams) -> dict[str, bool | str]:
        key = self.canonical_key(asked.session_key, asked.agent_id)
        text = f"[{asked.label}]\n\n{asked.message}" if asked.label else asked.message
        body = {"role": "assistant", "content": [{"type": "text", "text": text}], "stopReason": "stop"}
        draft = MessageDraft(
            role="assistant", body={**body, "provider": "openclaw", "model": "gateway-injected"}, text=text
        )
        added = await self.sessions.append(key, [draft])
        if added is None:
            raise RpcError(f"session not found: {key}")
        session, (message,) = added
        self.events.publish_message(message, session)
        payload = {"runId": f"inject-{message.uid}", "sessionKey": key, "agentId": session.agent_id, "seq": 0}
        self.publish(
            RpcEvent(name="chat", payload={**payload, "state": "final", "message": views.format_message(message)})
        )
        return {"ok": True, "messageId": message.uid}

    # ---- reading -------------------------------------------------------------------------------------------------

    async def _history(self, call: RpcCall, asked: params.HistoryParams) -> Json:
        key = self.canonical_key(asked.session_key, asked.agent_id)
        if asked.cursor is not None and (asked.offset is not None or asked.message_id is not None):
            raise RpcError("cursor cannot be used with offset or messageId")
        after = None if asked.cursor is None else _parse_cursor(asked.cursor)
        offset = asked.offset or 0
        if asked.message_id is not None:
            offset = await self._find_offset(key, asked.message_id, asked.limit)
        page = await self.sessions.history(key, limit=asked.limit, offset=offset, after=after)
        messages = _fit_messages(page.messages, asked, newest=after is None)
        return await self._history_result(page, messages, asked, offset)

    async def _history_result(
        self, page: HistoryPage, messages: Sequence[Json], request: params.HistoryParams, offset: int
    ) -> Json:
        session, roster = page.session, self.roster()
        if request.cursor is not None and (page.has_more or session is None):
            return {"kind": "reset"}
        if session is None:
            key = self.canonical_key(request.session_key, request.agent_id)
            info, waiting = views.placeholder_row(key, classify_key(key, roster), roster), []
        else:
            info, waiting = await self.session_row(session), list(await self.sessions.pending_runs(session.key))
        pending = [
            {"runId": run.run_id, "text": run.message, "queueMode": run.mode, "acceptedAt": run.accepted_at}
            for run in waiting
        ]
        result = {
            "messages": messages,
            "pendingInputs": {"items": pending, "total": len(pending)},
            "sessionInfo": info,
            "deltaCursor": None if session is None else _format_cursor(session, page),
        }
        if request.cursor is not None:
            return {"kind": "delta", **result}
        more = page.has_more or len(messages) < len(page.messages)
        return drop_none(
            {
                **result, "sessionKey": request.session_key,
                "sessionId": None if session is None else session.session_id,
                "defaults": views.session_defaults(roster), "hasMore": more, "totalMessages": page.total,
                "offset": offset or None, "nextOffset": offset + len(messages) if more else None,
            }
        )  # fmt: skip

    async def _find_offset(self, key: str, uid: str, limit: int) -> int:
        """The page with that message in its middle."""
        message = await self.sessions.message(key, uid)
        page = await self.sessions.history(key, limit=1)
        if message is None or page.session is None or message.epoch != page.session.epoch:
            raise RpcError(f"message not found: {uid}")
        return max(0, page.total - message.seq - limit // 2)

    async def _get_message(self, call: RpcCall, asked: params.MessageGetParams) -> Json:
        message = await self.sessions.message(self.canonical_key(asked.session_key, asked.agent_id), asked.message_id)
        if message is None:
            return {"ok": False, "unavailableReason": "not_found"}
        return {"ok": True, "message": views.format_message(message, max_chars=asked.max_chars, inline=True)}


def _admission_status(admission: RunAdmission) -> Literal["started", "in_flight", "ok", "error"]:
    if admission.is_new:
        return "started"
    return "in_flight" if not admission.run.is_over else "ok" if admission.run.status == "ok" else "error"


def _fit_messages(
    messages: Sequence[TranscriptMessage], request: params.HistoryParams, *, newest: bool
) -> Sequence[Json]:
    """As many as fit the answer; those left out are the oldest (of a delta: the newest, which come next time)."""
    left = min(request.max_bytes or HISTORY_BYTES, HISTORY_BYTES)
    kept: list[Json] = []
    for message in reversed(messages) if newest else messages:
        shaped = views.format_message(message, max_chars=request.max_chars)
        left -= len(_encode(shaped))
        if left < 0 and kept:
            break
        kept.append(shaped)
    return kept[::-1] if newest else kept


def _format_cursor(session: Session, page: HistoryPage) -> str:
    return f"v1.{session.session_id}.{session.epoch}.{page.messages[-1].seq if page.messages else page.total}"


def _parse_cursor(cursor: str) -> tuple[int, int]:
    version, _, rest = cursor.partition(".")
    _, _, numbers = rest.partition(".")
    first, _, second = numbers.partition(".")
    epoch, seq = parse_whole_number(first), parse_whole_number(second)
    if version != "v1" or epoch is None or seq is None:
        raise RpcError("cursor is not one that chat.history gave; read the history again without it")
    return epoch, seq
