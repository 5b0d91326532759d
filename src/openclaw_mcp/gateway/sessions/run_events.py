"""Events of runs as clients receive them: `chat`, `agent`, `session.message`, `sessions.changed`."""

import asyncio
from collections.abc import Callable
from typing import Any, Final

from ...core.agent import (
    AgentEvent,
    ModelSelected,
    PartialAnswer,
    ThinkingText,
    ToolOutcome,
    ToolUpdate,
    ToolUse,
    Usage,
)
from ...core.agents import AgentRoster
from ...core.json_values import drop_none
from ...core.model import Json
from ...core.rpc import Publish, RpcEvent
from ...core.run_tasks import is_task, run_task
from ...core.sessions import (
    MessagesAdded,
    Run,
    RunClaim,
    RunEnded,
    RunEvent,
    RunFailure,
    RunOutput,
    RunRecorded,
    RunStarted,
    Session,
    TranscriptMessage,
    now_ms,
)
from . import views

DELTA_INTERVAL: Final = 0.075  # seconds between two deltas: faster than eyes, slower than tokens
SESSIONS_TOPIC: Final = "sessions"
"""Topic of the connections that follow every session."""
ROUTE_FIELDS: Final = ("lastChannel", "lastTo", "lastAccountId", "lastThreadId")
"""The conversation of a session; each message has them too, for clients that forward it."""
TOOL_EVENTS_TOPIC: Final = "cap:tool-events"
"""Topic of the connections that declared that they read tool streams."""


def session_topic(key: str) -> str:
    return f"session:{key}"


class RunEventPublisher:
    """Publishes the events of a run executor."""

    def __init__(self, publish: Publish, roster: Callable[[], AgentRoster]) -> None:
        self._publish = publish
        self._roster = roster
        self._streams: dict[str, _RunStream] = {}

    def on_run_event(self, run_event: RunEvent) -> None:
        match run_event:
            case RunStarted(claim=claim):
                self._publish_start(claim)
            case RunOutput(run=run, event=event):
                if run.run_id not in self._streams:  # a run of another process: its start was not seen here
                    self._streams[run.run_id] = _RunStream(self._publish, run, None)
                self._streams[run.run_id].publish_event(event)
            case MessagesAdded(messages=messages):
                for message in messages:
                    self.publish_message(message, None)
            case RunEnded(run=run, session=session, messages=messages):
                ending = self._streams.pop(run.run_id, None) or _RunStream(self._publish, run, None)
                ending.end(run, next((m for m in reversed(messages) if m.role == "assistant"), None))
                for message in messages:
                    self.publish_message(message, session)
                if session is not None:
                    self.publish_session(session, phase="end", run_id=run.run_id)
                self._publish_task(run)
            case RunRecorded():
                self._publish_record(run_event)

    def _publish_start(self, claim: RunClaim) -> None:
        run, session = claim.run, claim.session
        stream = self._streams[run.run_id] = _RunStream(self._publish, run, session.spawned_by)
        self.publish_session(session, reason="send", run_id=run.run_id, active=(run.run_id,))
        for message in claim.messages:
            self.publish_message(message, session)
        self._publish_task(run)
        stream.begin()

    def _publish_task(self, run: Run) -> None:
        if is_task(run):
            self._publish(RpcEvent(name="task", payload={"action": "upserted", "task": run_task(run)}))

    def _publish_record(self, recorded: RunRecorded) -> None:
        """A message that the gateway has answered, the answer as the run's only event, then the answer's place."""
        run, session = recorded.run, recorded.session
        *asked, answer = recorded.messages
        for message in asked:
            self.publish_message(message, session)
        payload = {"runId": run.run_id, "sessionKey": run.session_key, "agentId": run.agent_id, "seq": 1}
        payload |= {"state": "final", "stopReason": run.stop_reason, "message": views.format_message(answer)}
        self._publish(RpcEvent(name="chat", payload=payload))
        self.publish_message(answer, session)
        self.publish_session(session, reason="command", run_id=run.run_id)

    def publish_phase(self, run_id: str, phase: str) -> None:
        """A phase of a run's life that its agent does not report, such as a wait for a person."""
        stream = self._streams.get(run_id)
        if stream is not None:
            stream.publish_phase(phase)

    def publish_session(
        self, session: Session, *, reason: str | None = None, phase: str | None = None, run_id: str | None = None,
        active: tuple[str, ...] = (),
    ) -> None:  # fmt: skip
        """To the connections that follow every session."""
        row = views.session_row(session, self._roster(), active=active)
        change = drop_none({"reason": reason, "phase": phase, "runId": run_id})
        payload = {"lastRunError": None, **row, **change, "sessionKey": session.key, "ts": now_ms(), "session": row}
        self._publish(RpcEvent(name="sessions.changed", payload=payload, topic=SESSIONS_TOPIC))

    def publish_deletion(self, key: str, agent_id: str) -> None:
        payload = {"sessionKey": key, "agentId": agent_id, "reason": "delete", "ts": now_ms()}
        self._publish(RpcEvent(name="sessions.changed", payload=payload, topic=SESSIONS_TOPIC))

    def publish_message(self, message: TranscriptMessage, session: Session | None) -> None:
        """To the connections that follow every session, and to those that follow this one."""
        row = None if session is None else views.session_row(session, self._roster())
        payload = {
            "sessionKey": message.session_key,
            "agentId": message.session_key.split(":")[1],
            "message": views.format_message(message),
            "messageId": message.uid,
            "messageSeq": message.seq,
            "runId": message.run_id,
            "session": row,
            **{name: value for name, value in (row or {}).items() if name in ROUTE_FIELDS},
        }
        self._publish(
            RpcEvent(
                name="session.message",
                payload=drop_none(payload),
                topic=session_topic(message.session_key),
                other_topic=SESSIONS_TOPIC,
            )
        )

    def close(self) -> None:
        for stream in self._streams.values():
            stream.cancel_timer()


class _RunStream:
    """The numbered events of one run; text deltas at most every `DELTA_INTERVAL`."""

    def __init__(self, publish: Publish, run: Run, spawned_by: str | None) -> None:
        self._publish = publish
        self._run = run
        self._base = {"runId": run.run_id, "sessionKey": run.session_key, "agentId": run.agent_id}
        if spawned_by is not None:
            self._base["spawnedBy"] = spawned_by
        self._seq = 0
        self._text = ""
        self._published_text = ""
        self._item_number = 1
        self._timer: asyncio.TimerHandle | None = None
        self._next_delta_at = 0.0
        self._tool_start_times: dict[str, int] = {}

    def begin(self) -> None:
        self._publish_status("preparing_workspace")
        self._publish_status("preparing_context")
        self._publish_agent("lifecycle", phase="start", startedAt=self._run.started_at)
        self._publish_status("starting_model")

    def publish_phase(self, phase: str) -> None:
        self._flush()
        self._publish_agent("lifecycle", phase=phase)

    def publish_event(self, event: AgentEvent) -> None:
        match event:
            case PartialAnswer(text=text, replace=replace):
                self._text = text if replace else self._text + text
                self._schedule_flush()
            case ModelSelected(provider=provider, model=model):
                self._publish_agent("lifecycle", phase="model", provider=provider, model=model)
            case Usage(output=output):
                self._publish_agent("usage", outputTokens=output)
            case ThinkingText(text=text):
                self._publish_agent("thinking", text=text, delta=text)
            case ToolUse() | ToolUpdate() | ToolOutcome():
                self._flush()
                self._item_number += 1
                self._publish_tool(event)
            case _:  # the end of the run publishes the rest
                pass

    def end(self, run: Run, answer: TranscriptMessage | None) -> None:
        self._flush()
        reason = views.stop_reason(run)
        ended = {"stopReason": reason, "aborted": run.status == "aborted", "endedAt": run.ended_at}
        if run.status == "ok":
            more = {"startedAt": run.started_at, "replayInvalid": False, "executionSettled": True}
            self._publish_agent("lifecycle", phase="end", **ended, **more, **views.terminal_fields(run))
            message = {} if answer is None else {"message": views.format_message(answer, inline=True)}
            self._publish_chat("final", stopReason=reason, **message)
        elif run.status == "aborted":
            unfinished = {"message": assistant_message(self._text)} if self._text else {}
            self._publish_agent("lifecycle", phase="end", **ended)
            self._publish_chat("aborted", stopReason=reason, **unfinished)
        else:
            failure = RunFailure(kind="timeout") if run.stop_reason == "timeout" else run.result.failure or RunFailure()
            detail = {} if failure.detail is None else {"errorDetail": failure.detail}
            self._publish_agent("lifecycle", phase="error", error=run.error, **ended)
            self._publish_chat("error", errorMessage=run.error, stopReason=reason, errorKind=failure.kind, **detail)
        self.cancel_timer()

    def cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _schedule_flush(self) -> None:
        """The first delta at once, the others at intervals."""
        if self._timer is not None:
            return
        loop = asyncio.get_running_loop()
        if loop.time() >= self._next_delta_at:
            self._flush()
        else:
            self._timer = loop.call_at(self._next_delta_at, self._flush)

    def _flush(self) -> None:
        self.cancel_timer()
        if self._text == self._published_text:
            return
        grown = self._text.startswith(self._published_text)
        added = self._text[len(self._published_text) :] if grown else self._text
        self._published_text = self._text
        self._next_delta_at = asyncio.get_running_loop().time() + DELTA_INTERVAL
        item = f"{self._run.run_id}:{self._item_number}"
        self._publish_agent("assistant", text=self._text, delta=added, itemId=item)
        replaces = {} if grown else {"replace": True}
        self._publish_chat("delta", deltaText=added, message=assistant_message(self._text), **replaces)

    def _publish_tool(self, event: ToolUse | ToolUpdate | ToolOutcome) -> None:
        name = {"name": event.name, "toolCallId": event.id}
        item = {"itemId": f"tool:{event.id}", **name, "kind": "tool"}
        if isinstance(event, ToolUse):
            started = self._tool_start_times[event.id] = now_ms()
            self._publish_agent("item", **item, phase="start", title=event.name, status="running", startedAt=started)
            self._publish_agent("tool", phase="start", **name, args=event.arguments)
            return
        content = {"content": list(event.content)}
        if isinstance(event, ToolUpdate):
            self._publish_agent("tool", phase="update", **name, partialResult=content)
            return
        self._publish_agent("tool", phase="result", **name, isError=event.failed, result=content)
        times = {"startedAt": self._tool_start_times.pop(event.id, now_ms()), "endedAt": now_ms()}
        self._publish_agent("item", **item, phase="end", status="failed" if event.failed else "completed", **times)

    def _publish_status(self, phase: str) -> None:
        """To readers of `chat` and to those of `agent`, under one number."""
        self._publish_chat("status", phase=phase)
        payload = {**self._base, "stream": "run_status", "data": {"phase": phase}, "seq": self._seq, "ts": now_ms()}
        self._publish(RpcEvent(name="agent", payload={**payload, "isHeartbeat": False}))

    def _publish_chat(self, state: str, /, **fields: Any) -> None:
        self._seq += state != "delta"  # a delta has the number of the `agent` event with the same text
        self._publish(RpcEvent(name="chat", payload={**self._base, "seq": self._seq, "state": state, **fields}))

    def _publish_agent(self, stream: str, /, **data: Any) -> None:
        self._seq += 1
        payload = {
            **self._base, "sessionId": self._run.session_id, "stream": stream, "data": data, "seq": self._seq,
            "ts": now_ms(), "isHeartbeat": False,
        }  # fmt: skip
        topic = TOOL_EVENTS_TOPIC if stream in ("item", "tool") else None
        self._publish(RpcEvent(name="agent", payload=payload, topic=topic))


def assistant_message(text: str) -> Json:
    return {"role": "assistant", "content": [{"type": "text", "text": text}], "timestamp": now_ms()}
