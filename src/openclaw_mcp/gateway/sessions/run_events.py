"""News of runs as the events clients hear: `chat`, `agent`, `session.message`, `sessions.changed`."""

import asyncio
from collections.abc import Callable
from typing import Any, Final

from ...core.agent import Failed, Media, Model, Partial, Thinking, ToolOutcome, ToolUpdate, ToolUse, Usage
from ...core.agents import Roster
from ...core.model import Json
from ...core.rpc import Event, Publish
from ...core.sessions import Message, MessagesAdded, Run, RunBegun, RunNews, RunOver, RunSaid, Session, now_ms
from . import views

PACE: Final = 0.075  # seconds between two deltas: faster than eyes, slower than tokens
SESSIONS: Final = "sessions"
ROUTE: Final = ("lastChannel", "lastTo", "lastAccountId", "lastThreadId")
"""Where a session's conversation takes place; a message says it itself, for those who pass it on."""
"""Topic of those who follow every session."""
TOOL_EVENTS: Final = "cap:tool-events"
"""Topic of connections that declared they understand tool streams."""


def topic(key: str) -> str:
    return f"session:{key}"


class Feed:
    """Listens to a runner's bell; publishes."""

    def __init__(self, publish: Publish, roster: Callable[[], Roster]) -> None:
        self._publish = publish
        self._roster = roster
        self._voices: dict[str, _Voice] = {}

    def hear(self, news: RunNews) -> None:
        match news:
            case RunBegun(claim=claim):
                voice = self._voices[claim.run.run_id] = _Voice(self._publish, claim.run, claim.session.spawned_by)
                self.changed(claim.session, reason="send", run_id=claim.run.run_id, active=(claim.run.run_id,))
                for message in claim.messages:
                    self.message(message, claim.session)
                voice.begin()
            case RunSaid(run=run, event=event):
                self._voice(run).say(event)
            case MessagesAdded(messages=messages):
                for message in messages:
                    self.message(message, None)
            case RunOver(run=run, session=session, messages=messages):
                ending = self._voices.pop(run.run_id, None) or _Voice(self._publish, run, None)
                ending.end(run, next((m for m in reversed(messages) if m.role == "assistant"), None))
                for message in messages:
                    self.message(message, session)
                if session is not None:
                    self.changed(session, phase="end", run_id=run.run_id)

    def _voice(self, run: Run) -> "_Voice":
        if run.run_id not in self._voices:
            self._voices[run.run_id] = _Voice(self._publish, run, None)
        return self._voices[run.run_id]

    def changed(
        self, session: Session, *, reason: str | None = None, phase: str | None = None, run_id: str | None = None,
        active: tuple[str, ...] = (),
    ) -> None:  # fmt: skip
        """Tell those who follow the list of sessions."""
        row = views.session_row(session, self._roster(), active=active)
        payload: Json = {**row, "sessionKey": session.key, "agentId": session.agent_id, "ts": now_ms(), "session": row}
        for name, value in (("reason", reason), ("phase", phase), ("runId", run_id)):
            if value is not None:
                payload[name] = value
        self._publish(Event(name="sessions.changed", payload=payload, topic=SESSIONS))

    def gone(self, key: str, agent_id: str) -> None:
        payload = {"sessionKey": key, "agentId": agent_id, "reason": "delete", "ts": now_ms()}
        self._publish(Event(name="sessions.changed", payload=payload, topic=SESSIONS))

    def message(self, message: Message, session: Session | None) -> None:
        """Tell those who follow every session, and those who follow this one."""
        payload: Json = {
            "sessionKey": message.session_key,
            "agentId": message.session_key.split(":")[1],
            "message": views.message(message),
            "messageId": message.uid,
            "messageSeq": message.seq,
        }
        if message.run_id is not None:
            payload["runId"] = message.run_id
        if session is not None:
            row = views.session_row(session, self._roster())
            payload["session"] = row
            payload |= {name: row[name] for name in ROUTE if name in row}
        self._publish(Event(name="session.message", payload=payload, topic=topic(message.session_key), also=SESSIONS))

    def close(self) -> None:
        for voice in self._voices.values():
            voice.hush()


class _Voice:
    """One run's events, numbered, its deltas paced."""

    def __init__(self, publish: Publish, run: Run, spawned_by: str | None) -> None:
        self._publish = publish
        self._run = run
        self._base: Json = {"runId": run.run_id, "sessionKey": run.session_key, "agentId": run.agent_id}
        if spawned_by is not None:
            self._base["spawnedBy"] = spawned_by
        self._seq = 0
        self._text = ""
        self._told = ""
        self._item = 1
        self._timer: asyncio.TimerHandle | None = None
        self._quiet_until = 0.0
        self._tools: dict[str, int] = {}

    def begin(self) -> None:
        self._chat({"state": "status", "phase": "preparing_context"})
        self._agent("lifecycle", {"phase": "start", "startedAt": self._run.started_at})
        self._chat({"state": "status", "phase": "starting_model"})

    def say(self, event: Any) -> None:
        match event:
            case Partial(text=text, replace=replace):
                self._text = text if replace else self._text + text
                self._soon()
            case Model(provider=provider, model=model):
                self._agent("lifecycle", {"phase": "model", "provider": provider, "model": model})
            case Usage(output=output):
                self._agent("usage", {"outputTokens": output})
            case Thinking(text=text):
                self._agent("thinking", {"text": text, "delta": text})
            case ToolUse() | ToolUpdate() | ToolOutcome():
                self._flush()
                self._item += 1
                self._tool(event)
            case Media() | Failed() | _:
                pass

    def end(self, run: Run, answer: Message | None) -> None:
        self._flush()
        ended = {"stopReason": run.stop_reason, "aborted": run.status == "aborted", "endedAt": run.ended_at}
        if run.status == "ok":
            terminal = {"terminalReply": views.reply(run), "terminalReceipt": views.receipt(run)}
            more = {"startedAt": run.started_at, "replayInvalid": False, "executionSettled": True}
            self._agent("lifecycle", {"phase": "end", **ended, **more, **terminal})
            final: Json = {"state": "final", "stopReason": run.stop_reason}
            if answer is not None:
                final["message"] = views.message(answer, inline=True)
            self._chat(final)
        elif run.status == "aborted":
            self._agent("lifecycle", {"phase": "end", **ended})
            self._chat({"state": "aborted", "stopReason": run.stop_reason, **self._so_far()})
        else:
            self._agent("lifecycle", {"phase": "error", "error": run.error, **ended})
            self._chat({"state": "error", "errorMessage": run.error, "stopReason": run.stop_reason, **_failure(run)})
        self.hush()

    def hush(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _so_far(self) -> Json:
        return {"message": _assistant(self._text)} if self._text else {}

    def _soon(self) -> None:
        """The first delta at once, the others at a pace."""
        if self._timer is not None:
            return
        loop = asyncio.get_running_loop()
        if loop.time() >= self._quiet_until:
            self._flush()
        else:
            self._timer = loop.call_at(self._quiet_until, self._flush)

    def _flush(self) -> None:
        self.hush()
        if self._text == self._told:
            return
        grown = self._text.startswith(self._told)
        added = self._text[len(self._told) :] if grown else self._text
        self._told = self._text
        self._quiet_until = asyncio.get_running_loop().time() + PACE
        item = f"{self._run.run_id}:{self._item}"
        self._agent("assistant", {"text": self._text, "delta": added, "itemId": item})
        delta: Json = {"state": "delta", "deltaText": added, "message": _assistant(self._text)}
        self._chat(delta if grown else {**delta, "replace": True}, step=False)

    def _tool(self, event: ToolUse | ToolUpdate | ToolOutcome) -> None:
        name = {"name": event.name, "toolCallId": event.id}
        item = {"itemId": f"tool:{event.id}", **name, "kind": "tool"}
        if isinstance(event, ToolUse):
            self._tools[event.id] = now_ms()
            started = {"title": event.name, "status": "running", "startedAt": self._tools[event.id]}
            self._agent("item", {**item, "phase": "start", **started}, to=TOOL_EVENTS)
            self._agent("tool", {"phase": "start", **name, "args": event.arguments}, to=TOOL_EVENTS)
            return
        content = {"content": list(event.content)}
        if isinstance(event, ToolUpdate):
            self._agent("tool", {"phase": "update", **name, "partialResult": content}, to=TOOL_EVENTS)
            return
        result = {"phase": "result", **name, "isError": event.failed, "result": content}
        self._agent("tool", result, to=TOOL_EVENTS)
        times = {"startedAt": self._tools.pop(event.id, now_ms()), "endedAt": now_ms()}
        status = "failed" if event.failed else "completed"
        self._agent("item", {**item, "phase": "end", "status": status, **times}, to=TOOL_EVENTS)

    def _chat(self, payload: Json, *, step: bool = True) -> None:
        self._seq += step
        self._publish(Event(name="chat", payload={**self._base, "seq": self._seq, **payload}))

    def _agent(self, stream: str, data: Json, *, to: str | None = None) -> None:
        self._seq += 1
        payload = {**self._base, "sessionId": self._run.session_id, "stream": stream, "data": data}
        payload |= {"seq": self._seq, "ts": now_ms(), "isHeartbeat": False}
        self._publish(Event(name="agent", payload=payload, topic=to))


def _assistant(text: str) -> Json:
    return {"role": "assistant", "content": [{"type": "text", "text": text}], "timestamp": now_ms()}


def _failure(run: Run) -> Json:
    if run.stop_reason == "timeout":
        return {"errorKind": "timeout"}
    failure = (run.result or {}).get("failure", {})
    told: Json = {"errorKind": failure.get("kind", "unknown")}
    if "detail" in failure:
        told["errorDetail"] = failure["detail"]
    return told
