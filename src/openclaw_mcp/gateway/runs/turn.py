"""One turn of an agent: its events so far, and the messages they add to the transcript."""

import base64
import hashlib
from typing import Any

import msgspec
from msgspec import UNSET

from ...core.agent import (
    AgentEvent,
    Attachment,
    EffectsReported,
    MediaAttached,
    ModelSelected,
    Notice,
    PartialAnswer,
    ThinkingText,
    ToolOutcome,
    ToolUse,
    TurnCompleted,
    TurnFailed,
    Usage,
)
from ...core.effects import RunEffects
from ...core.model import Json
from ...core.sessions import MessageDraft, RunFailure, RunOutcome, RunResult, RunUsage, now_ms
from ...core.transcript import RunStarter, mark_visibility

NO_ANSWER = "There is no answer: the agent ended without one."


class Transcript:
    """Collects an agent's events and makes the messages and the outcome to be stored."""

    def __init__(self, run_id: str, started_by: RunStarter = "owner", *, replies_in_conversation: bool = False) -> None:
        self._run_id = run_id
        self.started_by: RunStarter = started_by
        """Who started the run; each of its messages is marked with it."""
        self._replies_in_conversation = replies_in_conversation
        """Whether its answer is sent to the session's conversation; each message is marked with that, too."""
        self.text = ""
        self._thinking = ""
        self._media: list[Attachment] = []
        self._open_tools: dict[str, ToolUse] = {}
        self._used_tools: list[str] = []
        self._usage = Usage()
        self._effects = RunEffects()
        self._model: ModelSelected | None = None
        self._end: TurnCompleted | TurnFailed | None = None

    @property
    def is_between_tools(self) -> bool:
        """Whether no tool is at work: a good moment to stop."""
        return not self._open_tools

    def add_event(self, event: AgentEvent) -> list[MessageDraft]:
        """Add an event; the messages to be stored with it."""
        match event:
            case PartialAnswer(text=text, replace=replace):
                self.text = text if replace else self.text + text
            case ThinkingText(text=text):
                self._thinking += text
            case MediaAttached(attachment=attachment):
                self._media.append(attachment)
            case ModelSelected():
                self._model = event
            case Usage():
                self._usage = event
            case EffectsReported(effects=effects):
                self._effects = effects
            case ToolUse():
                self._open_tools[event.id] = event
            case ToolOutcome() | Notice():
                return self._tool_drafts(event) if isinstance(event, ToolOutcome) else [self._notice_draft(event)]
            case TurnCompleted() | TurnFailed():
                self._end = event
            case _:
                pass
        return []

    def _tool_drafts(self, outcome: ToolOutcome) -> list[MessageDraft]:
        use = self._open_tools.pop(outcome.id, None) or ToolUse(outcome.id, outcome.name, {})
        if not outcome.failed:
            self._used_tools.append(outcome.name)
        call = {"type": "toolCall", "id": use.id, "name": use.name, "arguments": use.arguments}
        called: Json = {"role": "assistant", "content": [call], "stopReason": "toolUse", **self._model_fields()}
        result: Json = {
            "role": "toolResult", "toolCallId": outcome.id, "toolName": outcome.name,
            "content": list(outcome.content), "isError": outcome.failed,
        }  # fmt: skip
        text = " ".join(str(block.get("text", "")) for block in outcome.content)
        return [self._draft(called), self._draft(result, text)]

    def _draft(self, body: Json, text: str = "", *, key: str | None = None) -> MessageDraft:
        body = mark_visibility(body, self.started_by, in_conversation=self._replies_in_conversation)
        return MessageDraft(role=body["role"], body=body, text=text, run_id=self._run_id, idempotency_key=key)

    def _notice_draft(self, notice: Notice) -> MessageDraft:
        content = [{"type": "text", "text": notice.text}]
        body: Json = {"role": "assistant", "content": content, "stopReason": "stop", "notice": notice.detail}
        return self._draft(body | {"provider": "openclaw", "model": "notice"}, notice.text)

    def _model_fields(self) -> Json:
        return {} if self._model is None else {"provider": self._model.provider, "model": self._model.model}

    def outcome(self, stop: str | None) -> RunOutcome:
        """How it ended: by itself, or because of `stop`."""
        end = self._end
        if stop == "steered":
            return self._build_outcome("ok", stop, drop_answer=True)
        if stop is not None:
            error = "the run took longer than it may" if stop == "timeout" else "aborted"
            return self._build_outcome("error" if stop in ("timeout", "restart") else "aborted", stop, error=error)
        if isinstance(end, TurnCompleted):
            if end.text is not None:
                self.text = end.text
            self._usage = end.usage or self._usage
            return self._build_outcome("ok", end.stop_reason, resume=end.resume)
        if isinstance(end, TurnFailed):
            return self._build_outcome(
                "error", "error", error=end.message, resume="" if end.drop_resume else None, failed=end
            )
        return self._build_outcome("error", "error", error=NO_ANSWER)

    def _build_outcome(
        self, status: Any, stop_reason: str, *, error: str | None = None, resume: str | None = None,
        drop_answer: bool = False, failed: TurnFailed | None = None,
    ) -> RunOutcome:  # fmt: skip
        answers = not drop_answer and (self.text or self._media or status == "ok")
        provider, model = (None, None) if self._model is None else (self._model.provider, self._model.model)
        return RunOutcome(
            status=status,
            stop_reason=stop_reason,
            error=error,
            result=RunResult(
                text=self.text if answers else None,
                media=[_attachment_block(attachment, inline=False) for attachment in self._media] if answers else [],
                usage=self._run_usage(),
                tools=self._used_tools,
                provider=provider,
                model=model,
                effects=self._effects,
                failure=None if failed is None else RunFailure(kind=failed.kind, detail=failed.detail or None),
            ),
            drafts=(self._answer_draft(stop_reason, error),) if answers else (),
            resume=resume,
        )

    def _answer_draft(self, stop_reason: str, error: str | None) -> MessageDraft:
        content: list[Json] = [{"type": "thinking", "thinking": self._thinking}] if self._thinking else []
        content.append({"type": "text", "text": self.text})
        content += [_attachment_block(attachment, inline=True) for attachment in self._media]
        body: Json = {
            "role": "assistant",
            "content": content,
            **self._model_fields(),
            "usage": msgspec.to_builtins(self._run_usage()),
        }
        body |= {"stopReason": stop_reason, "timestamp": now_ms()}
        if error is not None:
            body["errorMessage"] = error
        return self._draft(body, self.text, key=f"{self._run_id}:answer")

    def _run_usage(self) -> RunUsage:
        usage = self._usage
        return RunUsage(
            input=usage.input, output=usage.output, total_tokens=usage.total, cache_read=usage.cache_read,
            cache_write=usage.cache_write, cost=UNSET if usage.cost_usd is None else {"total": usage.cost_usd},
        )  # fmt: skip


def _attachment_block(attachment: Attachment, *, inline: bool) -> Json:
    data = attachment.data or b""
    block: Json = {"type": attachment.kind, "mimeType": attachment.mime_type, "sizeBytes": len(data)}
    if attachment.name:
        block["fileName"] = attachment.name
    if attachment.url:
        block["url"] = attachment.url
    if inline and data:
        block["data"] = base64.b64encode(data).decode()
    elif data:
        block["sha256"] = hashlib.sha256(data).hexdigest()
    return block
