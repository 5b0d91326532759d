"""Events and replies of a gateway elsewhere, ours or a real OpenClaw, as clients read them (`core.lenient`)."""

from typing import Any

from msgspec import Struct

from .chat_messages import ChatMessage


class AgentEventData(Struct, frozen=True, kw_only=True, rename="camel"):
    """The `data` of an `agent` event; which fields there are depends on its stream."""

    phase: str = ""
    provider: str | None = None
    model: str | None = None
    delta: str | None = None
    output_tokens: float | None = None
    tool_call_id: str = ""
    name: str = ""
    args: Any = None
    partial_result: Any = None
    result: Any = None
    is_error: bool = False
    media_urls: tuple[str, ...] = ()


class RemoteApprovalRequest(Struct, frozen=True, kw_only=True, rename="camel"):
    """The command of a question, as `exec.approval.requested` has it."""

    command: str = ""
    host: str | None = None
    node_id: str | None = None
    node_name: str | None = None
    warning_text: str | None = None
    run_id: str | None = None


class RemoteApproval(Struct, frozen=True, kw_only=True):
    """The events `exec.approval.requested` and, with a decision, `exec.approval.resolved`."""

    id: str = ""
    request: RemoteApprovalRequest = RemoteApprovalRequest()
    decision: str | None = None
    reason: str | None = None
    """Why it ended, if not by an answer there: `timeout`, `run-aborted`."""


class RemoteRunEvent(Struct, frozen=True, kw_only=True, rename="camel"):
    """A `chat` event (`state`) or an `agent` event (`stream`) of one run. `gone`: the gateway did not come back."""

    state: str | None = None
    message: ChatMessage | None = None
    delta_text: str | None = None
    replace: bool = False
    stop_reason: str | None = None
    error_message: str | None = None
    stream: str | None = None
    data: AgentEventData | None = None
    approval: RemoteApproval | None = None
    """Of a question about a command of the run: an event of its own, without `state` and `stream`."""

    @property
    def is_end(self) -> bool:
        return self.state in ("final", "aborted", "error", "gone")

    @property
    def is_partial_text(self) -> bool:
        """Whether a later event contains its text as well."""
        has_media = self.data is not None and bool(self.data.media_urls)
        return self.state == "delta" or (self.stream in ("assistant", "thinking") and not has_media)

    @property
    def is_queued(self) -> bool:
        """A real OpenClaw ends a run that has to wait for another with an empty `final`; it runs under another id."""
        return self.state == "final" and self.message is None and self.stop_reason is None


class TerminalReply(Struct, frozen=True):
    text: str | None = None


class RunWaitReply(Struct, frozen=True, kw_only=True, rename="camel"):
    """What `agent.wait` returns."""

    status: str | None = None
    error: str | None = None
    terminal_reply: TerminalReply | None = None

    @property
    def text(self) -> str | None:
        return self.terminal_reply.text if self.terminal_reply is not None else None

    def to_event(self, message: ChatMessage | None = None) -> RemoteRunEvent:
        """The end it reports, as a `chat` event; of a success, with this message or the reply's own text."""
        if self.status == "ok":
            return RemoteRunEvent(state="final", message=message or ChatMessage(content=self.text or ""))
        return RemoteRunEvent(state="error", error_message=self.error or f"the run ended as {self.status!r}")
