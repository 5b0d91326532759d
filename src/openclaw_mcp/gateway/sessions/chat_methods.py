"""Methods that send messages and read transcripts: `chat.*`, `sessions.send`, `sessions.steer`, `agent*`."""

from collections.abc import Sequence
from typing import Final, Literal

import msgspec

from ...core.chat_commands import STOPPING_COMMANDS, ChatCommand, CommandRunner, CommandSender, parse_command
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
from ...core.session_keys import classify_key, new_chat_session, new_session
from ...core.session_target import child_grant
from ...core.sessions import (
    HistoryPage,
    MessageDraft,
    NewSession,
    QueueMode,
    Run,
    RunAdmission,
    RunOptions,
    RunRequest,
    Session,
    TranscriptMessage,
    is_internal_run,
)
from ...core.transcript import GATEWAY_MODEL
from . import params, views
from .session_operations import SessionOperations
from .views import RunReply, StopReply

HISTORY_BYTES: Final = 6 * 1024 * 1024  # of messages in one answer; well under the largest frame
MAX_MESSAGE_LENGTH: Final = 2_000_000  # characters
MAX_WAIT: Final = 24 * 3600.0  # seconds; agent.wait with more is a mistake in units
WAIT_MARGIN: Final = 30.0  # seconds past a run's own limit that `agent` waits for its end to be stored
DEFAULT_TIMEOUT_MS: Final = 600_000
WEBCHAT: Final = "webchat"
"""The channel of messages that come over this protocol itself."""
RESET_REFUSAL: Final = "You may not begin a new conversation here: it needs the scope operator.admin."

_encode = msgspec.json.Encoder().encode


class ChatMethods(SessionOperations, frozen=True, kw_only=True):
    """Sends messages to agents; their answers are published as events."""

    publish: Publish
    run_command: CommandRunner

    def methods(self) -> Sequence[RpcMethod]:
        return (
            make_method("chat.send", WRITE, params.ChatSendParams, self.send),
            make_method("chat.history", READ, params.HistoryParams, self.history),
            make_method("chat.message.get", READ, params.MessageGetParams, self._get_message),
            make_method("chat.abort", WRITE, params.ChatAbortParams, self._abort),
            make_method("chat.inject", ADMIN, params.InjectParams, self._inject, advertised=False),
            make_method("sessions.send", WRITE, params.SessionSendParams, self.send),
            make_method("sessions.steer", WRITE, params.SessionSendParams, self._steer, advertised=False),
            make_method("agent", WRITE, params.AgentParams, self._agent),
            make_method("agent.wait", WRITE, params.WaitParams, self._wait),
        )

    # ---- sending -------------------------------------------------------------------------------------------------

    async def _steer(self, call: RpcCall, asked: params.SessionSendParams) -> Json:
        busy = bool(await self.sessions.active_runs([self.canonical_key(asked.key, asked.agent_id)]))
        sent: Json = {**await self.send(call, asked, "interrupt")}
        return sent | {"interruptedActiveRun": busy}

    async def send(
        self, call: RpcCall, request: params.SessionSendParams, mode: QueueMode | None = None
    ) -> RunReply | StopReply:  # fmt: skip
        """Run a chat command, or admit a message; the answer is published as events."""
        if mode is None:
            mode = request.queue_mode if isinstance(request, params.ChatSendParams) else "steer"
        key, message = self.canonical_key(request.key, request.agent_id), request.message
        run_id = request.idempotency_key or new_id()
        _check_message(message, run_id)
        as_said = isinstance(request, params.ChatSendParams) and request.suppress_command_interpretation
        command = None if request.attachments or as_said else parse_command(message)
        if command is not None:
            done = await self._answer_command(call, key, command, message.strip(), run_id)
            if done is not None:
                return done
            message = command.rest
        admission = await self._submit(
            call, new_chat_session(key, self.roster()), message, run_id=run_id, mode=mode,
            attachments=request.attachments, timeout_ms=request.timeout_ms,
            options=RunOptions(thinking=request.thinking),
        )  # fmt: skip
        return {"runId": admission.run.run_id, "status": _admission_status(admission)}

    async def _submit(
        self, call: RpcCall, new: NewSession, message: str, *, run_id: str, mode: QueueMode,
        attachments: Sequence[params.AttachmentParams] | None, timeout_ms: int | None, options: RunOptions,
    ) -> RunAdmission:  # fmt: skip
        files = params.read_attachments(attachments or ())
        if not message.strip() and not files:
            raise RpcError("message or attachment required")
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
        _check_session(admission.run, new.key)
        return admission

    async def _answer_command(
        self, call: RpcCall, key: str, command: ChatCommand, text: str, run_id: str
    ) -> RunReply | StopReply | None:
        """Run a chat command; the answer, or None: the text after it is for the agent still.

        A stop has an answer and no place in the transcript; the reply to another command is a run that is over.
        """
        known = await self.runner.find(run_id) or await self.runner.wait(run_id, seconds=0)
        if known is not None:
            _check_session(known, key)
            return {"runId": run_id, "status": "ok" if known.is_over else "in_flight"}
        reply = await self.run_command(command, key, _command_sender(call))
        if command.name == "/stop":
            stopped = list(reply.stopped_run_ids)
            return {"ok": True, "aborted": bool(stopped), "runIds": stopped}
        if command.rest and reply.done:
            return None
        options = RunOptions(sender=call.caller.name, grant=child_grant(call.caller))
        new = new_chat_session(key, self.roster())
        await self.runner.record(RunRequest(run_id=run_id, session=new, message=text, options=options), reply.text)
        return {"runId": run_id, "status": "started"}

    async def _agent(self, call: RpcCall, asked: params.AgentParams) -> RunReply:
        new = await self._resolve_session(asked)
        key, message = new.key, asked.message
        _check_message(message, asked.idempotency_key)
        command = parse_command(message)
        if command is not None and command.name in STOPPING_COMMANDS:  # any other is a task
            done = await self._answer_command(call, key, command, message.strip(), asked.idempotency_key)
            if done is not None:
                ended = await self.runner.wait(asked.idempotency_key, seconds=0)
                return views.agent_result(ended) if ended is not None else _stopped_result(asked.idempotency_key)
            message = command.rest
        timeout_ms = None if asked.timeout is None else asked.timeout * 1000
        options = RunOptions(
            thinking=asked.thinking, model=asked.model, provider=asked.provider, cwd=asked.cwd,
            extra_system_prompt=asked.extra_system_prompt, input_provenance=asked.input_provenance, lane=asked.lane,
            is_task=True,
        )  # fmt: skip
        check_model_name(asked.model)
        if asked.cwd is not None and not has_scope(call.caller.scopes, ADMIN):
            raise scope_error(ADMIN)
        admission = await self._submit(
            call, new, message, run_id=asked.idempotency_key, mode="followup", attachments=asked.attachments,
            timeout_ms=timeout_ms, options=options,
        )  # fmt: skip
        if not admission.run.is_over:
            first = {"runId": admission.run.run_id, "sessionKey": key, "agentId": admission.run.agent_id}
            await call.peer.acknowledge({**first, "status": "accepted", "acceptedAt": admission.run.accepted_at})
        limit = MAX_WAIT if timeout_ms == 0 else (timeout_ms or DEFAULT_TIMEOUT_MS) / 1000 + WAIT_MARGIN
        run = await self.runner.wait(admission.run.run_id, seconds=limit)
        if run is None:  # it waits behind others: the caller may continue with agent.wait
            return {"runId": admission.run.run_id, "status": "timeout", "summary": "still waiting or running"}
        return views.agent_result(run)

    async def _resolve_session(self, request: params.AgentParams) -> NewSession:
        """The session meant; one with a new `sessionId` is created with that id."""
        more = {"label": request.label, "spawned_by": request.spawned_by}
        if request.session_key is not None or request.session_id is None:
            key = self.canonical_key(request.session_key or "main", request.agent_id)
            return new_session(key, self.roster(), **more)
        found = await self.sessions.find(session_id=request.session_id)
        if found:
            return new_session(found[0].key, self.roster(), **more)
        key = self.canonical_key(f"explicit:{request.session_id}", request.agent_id)
        return new_session(key, self.roster(), session_id=request.session_id, **more)

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
        draft = MessageDraft(role="assistant", body={**body, "provider": "openclaw", "model": GATEWAY_MODEL}, text=text)
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

    async def history(self, call: RpcCall, asked: params.HistoryParams) -> Json:
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


def _check_message(message: str, run_id: str) -> None:
    """What holds for every message, also for one that is a command. Raises RpcError."""
    if len(message) > MAX_MESSAGE_LENGTH:
        raise RpcError(f"message is longer than {MAX_MESSAGE_LENGTH} characters; send it as an attachment")
    if is_internal_run(run_id):
        raise RpcError("idempotencyKey begins as ids of the gateway's own runs do; use another, such as a UUID")


def _check_session(run: Run, key: str) -> None:
    """Raises RpcError for a run of another session: to know its id gives no right to it."""
    if run.session_key != key:
        raise RpcError("idempotencyKey was already used in another session; make a new one for each message")


def _command_sender(call: RpcCall) -> CommandSender:
    caller = call.caller
    return CommandSender(
        name=caller.name, channel=WEBCHAT, may_stop=True, may_reset=has_scope(caller.scopes, ADMIN),
        may_choose_model=not caller.acts_in_session, refusal=RESET_REFUSAL,
    )  # fmt: skip


def _stopped_result(run_id: str) -> RunReply:
    return {"runId": run_id, "status": "ok", "summary": "completed", "result": {"payloads": [], "meta": {}}}


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
