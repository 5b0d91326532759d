"""The methods that talk: `chat.*`, `sessions.send`, `sessions.steer`, `agent`, `agent.wait`."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import msgspec

from ...core.agents import Roster
from ...core.ids import new_id
from ...core.model import Json
from ...core.model_name import check_model_name
from ...core.numbers import whole
from ...core.ports import Runner
from ...core.repositories import SessionBook
from ...core.rpc import ADMIN, READ, WRITE, Event, Fault, Method, Publish, RpcCall, covers, missing_scope, read_params
from ...core.session_target import passed_on
from ...core.sessions import Admission, Draft, HistoryPage, Message, QueueMode, RunRequest, is_house_run, now_ms
from . import keys, params, views
from .run_events import Feed

HISTORY_BYTES: Final = 6 * 1024 * 1024  # of messages in one answer; well under the largest frame
LONGEST_MESSAGE: Final = 2_000_000  # characters
LONGEST_WAIT: Final = 24 * 3600.0  # seconds; agent.wait with more is a mistake in units
AFTER_LIMIT: Final = 30.0  # seconds past a run's own limit that `agent` waits for its end to be stored
DEFAULT_LIMIT_MS: Final = 600_000

_encode = msgspec.json.Encoder().encode


class ChatRoom:
    """Messages in, answers out."""

    def __init__(
        self, book: SessionBook, runner: Runner, feed: Feed, publish: Publish, *, roster: Callable[[], Roster]
    ) -> None:
        self._book = book
        self._runner = runner
        self._feed = feed
        self._publish = publish
        self._roster = roster
        self.reset: Callable[[str], Awaitable[Json]] | None = None
        """How `/new` and `/reset` begin a session anew; set by the caretaker."""

    def methods(self) -> Sequence[Method]:
        return (
            Method("chat.send", WRITE, self._chat_send),
            Method("chat.history", READ, self._history),
            Method("chat.message.get", READ, self._message),
            Method("chat.abort", WRITE, self._abort),
            Method("chat.inject", ADMIN, self._inject, advertised=False),
            Method("sessions.send", WRITE, self._sessions_send),
            Method("sessions.steer", WRITE, self._steer, advertised=False),
            Method("agent", WRITE, self._agent),
            Method("agent.wait", WRITE, self._wait),
        )

    def _key(self, key: str, agent_id: str | None = None) -> str:
        return keys.canonical(key, self._roster(), agent_id=agent_id)

    # ---- sending -------------------------------------------------------------------------------------------------

    async def _chat_send(self, call: RpcCall) -> Json:
        asked = read_params(call.params, params.ChatSendParams, call.method)
        send = params.SendParams(
            key=asked.session_key, agent_id=asked.agent_id, message=asked.message, attachments=asked.attachments,
            idempotency_key=asked.idempotency_key, thinking=asked.thinking, timeout_ms=asked.timeout_ms,
        )  # fmt: skip
        return await self.send(call, send, asked.queue_mode)

    async def _sessions_send(self, call: RpcCall) -> Json:
        return await self.send(call, read_params(call.params, params.SendParams, call.method), "steer")

    async def _steer(self, call: RpcCall) -> Json:
        asked = read_params(call.params, params.SendParams, call.method)
        key = self._key(asked.key, asked.agent_id)
        busy = bool(await self._book.active([key]))
        return {**await self.send(call, asked, "interrupt"), "interruptedActiveRun": busy}

    async def send(self, call: RpcCall, asked: params.SendParams, mode: str) -> Json:
        """Admit a message; the answer comes as events."""
        key = self._key(asked.key, asked.agent_id)
        done = await self._command(call, key, asked.message.strip(), asked.idempotency_key)
        if done is not None:
            return done
        admission = await self._submit(
            call, key, asked.message, run_id=asked.idempotency_key or new_id(), mode=mode,
            attachments=asked.attachments, timeout_ms=asked.timeout_ms, options=_given(thinking=asked.thinking),
        )  # fmt: skip
        return {"runId": admission.run.run_id, "status": _status(admission)}

    async def _submit(
        self, call: RpcCall, key: str, message: str, *, run_id: str, mode: str, attachments: list[Json] | None,
        timeout_ms: int | None, options: Json, label: str | None = None, spawned_by: str | None = None,
    ) -> Admission:  # fmt: skip
        if len(message) > LONGEST_MESSAGE:
            raise Fault(f"message is longer than {LONGEST_MESSAGE} characters; send it as an attachment")
        if is_house_run(run_id):
            raise Fault("idempotencyKey begins as ids of the gateway's own runs do; use another, such as a UUID")
        files = params.read_attachments(attachments)
        if not message.strip() and not files:
            raise Fault("message or attachment required")
        new = keys.new_session(key, self._roster(), label=label, spawned_by=spawned_by)
        sent_mode: QueueMode = mode  # type: ignore[assignment]  # read_params let only these through
        admission = await self._runner.submit(
            RunRequest(
                run_id=run_id,
                session=new,
                message=message,
                attachments=files,
                mode=sent_mode,
                timeout_ms=timeout_ms,
                options={**options, "sender": call.caller.name, "grant": msgspec.to_builtins(passed_on(call.caller))},
            )
        )
        if admission.run.session_key != key:
            raise Fault("idempotencyKey was already used in another session; make a new one for each message")
        return admission

    async def _command(self, call: RpcCall, key: str, text: str, run_id: str | None) -> Json | None:
        """`/stop`, `/new`, `/reset` are orders to us; anything else is for the agent."""
        if text not in ("/stop", "/new", "/reset"):
            return None
        if text == "/stop":
            await self._runner.abort(key)
            said = "Stopped."
        else:
            if not covers(call.caller.scopes, ADMIN):
                raise missing_scope(ADMIN)
            assert self.reset is not None
            await self.reset(key)
            said = "A new conversation begins."
        run_id = run_id or new_id()
        payload = {"runId": run_id, "sessionKey": key, "agentId": keys.parts(key)[0], "seq": 1, "state": "final"}
        content = [{"type": "text", "text": said}]
        payload["message"] = {"role": "assistant", "content": content, "timestamp": now_ms()}
        self._publish(Event(name="chat", payload=payload))
        return {"runId": run_id, "status": "started"}

    async def _agent(self, call: RpcCall) -> Json:
        asked = read_params(call.params, params.AgentParams, call.method)
        key = await self._session_of(asked)
        done = await self._command(call, key, asked.message.strip(), asked.idempotency_key)
        if done is not None:
            return {**done, "status": "ok", "summary": "completed", "result": {"payloads": [], "meta": {}}}
        timeout_ms = None if asked.timeout is None else asked.timeout * 1000
        options = _given(
            thinking=asked.thinking, model=asked.model, provider=asked.provider, cwd=asked.cwd,
            extraSystemPrompt=asked.extra_system_prompt, inputProvenance=asked.input_provenance, lane=asked.lane,
        )  # fmt: skip
        check_model_name(asked.model)
        if asked.cwd is not None and not covers(call.caller.scopes, ADMIN):
            raise missing_scope(ADMIN)
        admission = await self._submit(
            call, key, asked.message, run_id=asked.idempotency_key, mode="followup", attachments=asked.attachments,
            timeout_ms=timeout_ms, options=options, label=asked.label, spawned_by=asked.spawned_by,
        )  # fmt: skip
        if not admission.run.ended:
            first = {"runId": admission.run.run_id, "sessionKey": key, "agentId": admission.run.agent_id}
            await call.link.accepted({**first, "status": "accepted", "acceptedAt": admission.run.accepted_at})
        limit = LONGEST_WAIT if timeout_ms == 0 else (timeout_ms or DEFAULT_LIMIT_MS) / 1000 + AFTER_LIMIT
        run = await self._runner.wait(admission.run.run_id, seconds=limit)
        if run is None:  # it waits behind others: the caller may go on with agent.wait
            return {"runId": admission.run.run_id, "status": "timeout", "summary": "still waiting or running"}
        return views.agent_result(run)

    async def _session_of(self, asked: params.AgentParams) -> str:
        if asked.session_key is not None:
            return self._key(asked.session_key, asked.agent_id)
        if asked.session_id is not None:
            found = await self._book.find(session_id=asked.session_id)
            if not found:
                raise Fault(f"No session found: {asked.session_id}")
            return found[0].key
        return self._key("main", asked.agent_id)

    async def _wait(self, call: RpcCall) -> Json:
        asked = read_params(call.params, params.WaitParams, call.method)
        run = await self._runner.wait(asked.run_id, seconds=min(asked.timeout_ms / 1000, LONGEST_WAIT))
        return {"runId": asked.run_id, "status": "timeout"} if run is None else views.waited(run)

    async def _abort(self, call: RpcCall) -> Json:
        asked = read_params(call.params, params.ChatAbortParams, call.method)
        key = self._key(asked.session_key, asked.agent_id)
        ended = await self._runner.abort(key, run_id=asked.run_id)
        return {"ok": True, "aborted": bool(ended), "runIds": list(ended)}

    async def _inject(self, call: RpcCall) -> Json:
        asked = read_params(call.params, params.InjectParams, call.method)
        key = self._key(asked.session_key, asked.agent_id)
        text = f"[{asked.label}]\n\n{asked.message}" if asked.label else asked.message
        body: Json = {"role": "assistant", "content": [{"type": "text", "text": text}], "stopReason": "stop"}
        body |= {"provider": "openclaw", "model": "gateway-injected"}
        added = await self._book.append(key, [Draft(role="assistant", body=body, text=text)])
        if added is None:
            raise Fault(f"session not found: {key}")
        session, (message,) = added
        self._feed.message(message, session)
        payload = {"runId": f"inject-{message.uid}", "sessionKey": key, "agentId": session.agent_id, "seq": 0}
        self._publish(Event(name="chat", payload={**payload, "state": "final", "message": views.message(message)}))
        return {"ok": True, "messageId": message.uid}

    # ---- reading -------------------------------------------------------------------------------------------------

    async def _history(self, call: RpcCall) -> Json:
        asked = read_params(call.params, params.HistoryParams, call.method)
        key = self._key(asked.session_key, asked.agent_id)
        if asked.cursor is not None and (asked.offset is not None or asked.message_id is not None):
            raise Fault("cursor cannot be used with offset or messageId")
        after = None if asked.cursor is None else _read_cursor(asked.cursor)
        offset = asked.offset or 0
        if asked.message_id is not None:
            offset = await self._offset_of(key, asked.message_id, asked.limit)
        page = await self._book.history(key, limit=asked.limit, offset=offset, after=after)
        messages = _bounded(page.messages, asked, newest=after is None)
        return await self._told(page, messages, asked, offset)

    async def _told(self, page: HistoryPage, messages: list[Json], asked: params.HistoryParams, offset: int) -> Json:
        session = page.session
        waiting = [] if session is None else await self._book.pending(session.key)
        active = {} if session is None else await self._book.active([session.key])
        told: Json = {"messages": messages, "pendingInputs": views.pending(waiting)}
        if session is None:
            key, roster = self._key(asked.session_key, asked.agent_id), self._roster()
            told["sessionInfo"] = views.nobody(key, keys.classification(key, roster), roster)
        else:
            ids = active.get(session.key, ())
            told["sessionInfo"] = views.session_row(session, self._roster(), active=ids)
            told["deltaCursor"] = _cursor(page)
        if asked.cursor is not None:
            return {"kind": "reset"} if page.more or session is None else {"kind": "delta", **told}
        more = page.more or len(messages) < len(page.messages)
        told |= {"sessionKey": asked.session_key, "hasMore": more, "totalMessages": page.total}
        told["defaults"] = views.defaults(self._roster())
        if session is not None:
            told["sessionId"] = session.session_id
        if offset:
            told["offset"] = offset
        if more:
            told["nextOffset"] = offset + len(messages)
        return told

    async def _offset_of(self, key: str, uid: str, limit: int) -> int:
        """The page with that message in its middle."""
        message = await self._book.message(key, uid)
        page = await self._book.history(key, limit=1)
        if message is None or page.session is None or message.epoch != page.session.epoch:
            raise Fault(f"message not found: {uid}")
        return max(0, page.total - message.seq - limit // 2)

    async def _message(self, call: RpcCall) -> Json:
        asked = read_params(call.params, params.MessageGetParams, call.method)
        message = await self._book.message(self._key(asked.session_key, asked.agent_id), asked.message_id)
        if message is None:
            return {"ok": False, "unavailableReason": "not_found"}
        return {"ok": True, "message": views.message(message, max_chars=asked.max_chars, inline=True)}


def _given(**options: object) -> Json:
    return {name: value for name, value in options.items() if value is not None}


def _status(admission: Admission) -> str:
    if admission.fresh:
        return "started"
    return "in_flight" if not admission.run.ended else "ok" if admission.run.status == "ok" else "error"


def _bounded(found: Sequence[Message], asked: params.HistoryParams, *, newest: bool) -> list[Json]:
    """As many as fit the answer; when some must go, the oldest (of a delta: the newest, which come next time)."""
    room = min(asked.max_bytes or HISTORY_BYTES, HISTORY_BYTES)
    kept: list[Json] = []
    for message in reversed(found) if newest else found:
        shaped = views.message(message, max_chars=asked.max_chars)
        room -= len(_encode(shaped))
        if room < 0 and kept:
            break
        kept.append(shaped)
    return kept[::-1] if newest else kept


def _cursor(page: HistoryPage) -> str:
    session = page.session
    assert session is not None
    return f"v1.{session.session_id}.{session.epoch}.{page.messages[-1].seq if page.messages else page.total}"


def _read_cursor(cursor: str) -> tuple[int, int]:
    version, _, rest = cursor.partition(".")
    _, _, numbers = rest.partition(".")
    first, _, second = numbers.partition(".")
    epoch, seq = whole(first), whole(second)
    if version != "v1" or epoch is None or seq is None:
        raise Fault("cursor is not one that chat.history gave; read the history again without it")
    return epoch, seq
