"""One turn of an agent: what it said so far, and what that leaves in the transcript."""

import base64
import hashlib
from typing import Any

import msgspec

from ...core.agent import (
    AgentEvent,
    Attachment,
    Did,
    Failed,
    Final,
    Media,
    Model,
    Notice,
    Partial,
    Thinking,
    ToolOutcome,
    ToolUse,
    Usage,
)
from ...core.model import Json
from ...core.sessions import Draft, Outcome, now_ms
from ...core.transcript import Standing, marked

STOPPED = {"timeout": "the run took longer than it may", "restart": "the gateway stopped while this run was going"}
CUT = "There is no answer: the agent ended without one."


class Transcript:
    """Gathers an agent's events; tells what to write down, and when."""

    def __init__(self, run_id: str, by: Standing = "owner", *, said: bool = False) -> None:
        self._run_id = run_id
        self.by: Standing = by
        """Who started the run; its messages say so."""
        self._said = said
        """Whether its answer goes to the session's conversation; its messages say that, too."""
        self.text = ""
        self._thinking = ""
        self._media: list[Attachment] = []
        self._open: dict[str, ToolUse] = {}
        self._tools: list[str] = []
        self._usage = Usage()
        self._did: Json | None = None
        self._model: Model | None = None
        self._end: Final | Failed | None = None

    @property
    def between(self) -> bool:
        """No tool is at work: a good moment to stop."""
        return not self._open

    def hear(self, event: AgentEvent) -> list[Draft]:
        """Take in an event; the drafts that are due with it."""
        match event:
            case Partial(text=text, replace=replace):
                self.text = text if replace else self.text + text
            case Thinking(text=text):
                self._thinking += text
            case Media(attachment=attachment):
                self._media.append(attachment)
            case Model():
                self._model = event
            case Usage():
                self._usage = event
            case Did(effects=effects):
                self._did = msgspec.to_builtins(effects)
            case ToolUse():
                self._open[event.id] = event
            case ToolOutcome() | Notice():
                return self._tool_drafts(event) if isinstance(event, ToolOutcome) else [self._notice(event)]
            case Final() | Failed():
                self._end = event
            case _:
                pass
        return []

    def _tool_drafts(self, done: ToolOutcome) -> list[Draft]:
        use = self._open.pop(done.id, None) or ToolUse(done.id, done.name, {})
        if not done.failed:
            self._tools.append(done.name)
        call = {"type": "toolCall", "id": use.id, "name": use.name, "arguments": use.arguments}
        asked: Json = {"role": "assistant", "content": [call], "stopReason": "toolUse", **self._who()}
        result: Json = {
            "role": "toolResult", "toolCallId": done.id, "toolName": done.name,
            "content": list(done.content), "isError": done.failed,
        }  # fmt: skip
        words = " ".join(str(block.get("text", "")) for block in done.content)
        return [self._draft(asked), self._draft(result, words)]

    def _draft(self, body: Json, text: str = "", *, key: str | None = None) -> Draft:
        body = marked(body, self.by, said=self._said)
        return Draft(role=body["role"], body=body, text=text, run_id=self._run_id, idempotency_key=key)

    def _notice(self, notice: Notice) -> Draft:
        content = [{"type": "text", "text": notice.text}]
        body: Json = {"role": "assistant", "content": content, "stopReason": "stop", "notice": notice.detail}
        return self._draft(body | {"provider": "openclaw", "model": "notice"}, notice.text)

    def _who(self) -> Json:
        return {} if self._model is None else {"provider": self._model.provider, "model": self._model.model}

    def outcome(self, stop: str | None) -> Outcome:
        """How it ended: by itself, or because of `stop`."""
        end = self._end
        if stop == "steered":
            return self._outcome("ok", stop, drop_answer=True)
        if stop is not None:
            error = "the run took longer than it may" if stop == "timeout" else "aborted"
            return self._outcome("error" if stop in ("timeout", "restart") else "aborted", stop, error=error)
        if isinstance(end, Final):
            if end.text is not None:
                self.text = end.text
            self._usage = end.usage or self._usage
            return self._outcome("ok", end.stop_reason, resume=end.resume)
        if isinstance(end, Failed):
            return self._outcome(
                "error", "error", error=end.message, resume="" if end.drop_resume else None, failed=end
            )
        return self._outcome("error", "error", error=CUT)

    def _outcome(
        self, status: Any, stop_reason: str, *, error: str | None = None, resume: str | None = None,
        drop_answer: bool = False, failed: Failed | None = None,
    ) -> Outcome:  # fmt: skip
        answers = not drop_answer and (self.text or self._media or status == "ok")
        result: Json = {"usage": self._counted(), "tools": self._tools, **self._who()}
        if answers:
            result["text"] = self.text
            result["media"] = [_block(attachment, inline=False) for attachment in self._media]
        if self._did is not None:
            result["effects"] = self._did
        if failed is not None:
            result["failure"] = {"kind": failed.kind, **({"detail": failed.detail} if failed.detail else {})}
        return Outcome(
            status=status,
            stop_reason=stop_reason,
            error=error,
            result=result,
            drafts=(self._answer(stop_reason, error),) if answers else (),
            input_tokens=self._usage.input,
            output_tokens=self._usage.output,
            provider=self._model.provider if self._model else None,
            model=self._model.model if self._model else None,
            resume=resume,
        )

    def _answer(self, stop_reason: str, error: str | None) -> Draft:
        content: list[Json] = [{"type": "thinking", "thinking": self._thinking}] if self._thinking else []
        content.append({"type": "text", "text": self.text})
        content += [_block(attachment, inline=True) for attachment in self._media]
        body: Json = {"role": "assistant", "content": content, **self._who(), "usage": self._counted()}
        body |= {"stopReason": stop_reason, "timestamp": now_ms()}
        if error is not None:
            body["errorMessage"] = error
        return self._draft(body, self.text, key=f"{self._run_id}:answer")

    def _counted(self) -> Json:
        usage = self._usage
        counted: Json = {"input": usage.input, "output": usage.output, "totalTokens": usage.total}
        counted |= {"cacheRead": usage.cache_read, "cacheWrite": usage.cache_write}
        if usage.cost_usd is not None:
            counted["cost"] = {"total": usage.cost_usd}
        return counted


def _block(attachment: Attachment, *, inline: bool) -> Json:
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
