"""Events and replies of a gateway elsewhere, ours or a real OpenClaw, as clients read them (`core.lenient`). Pure."""

import base64
from typing import Any

from msgspec import Struct, field

from .agent import Attachment


class MediaSource(Struct, frozen=True, kw_only=True, rename="camel"):
    """The bytes of a block, in every spelling there is: of MCP, of a provider's API, of a transcript."""

    data: str | None = None
    blob: str | None = None
    content: str | None = None
    mime_type: str | None = None
    provider_mime_type: str | None = field(default=None, name="media_type")
    snake_mime_type: str | None = field(default=None, name="mime_type")
    omitted: bool = False
    """Whether the gateway left the bytes out."""
    size: int | None = field(default=None, name="bytes")
    uri: str = ""


class MessageBlock(MediaSource, frozen=True, kw_only=True, rename="camel"):
    type: str = ""
    text: str | None = None
    source: MediaSource | None = None
    resource: MediaSource | None = None
    file_name: str | None = None
    name: str | None = None

    def to_attachment(self) -> Attachment | None:
        """The picture, sound or file in it; without its bytes when the gateway left them out."""
        source = self.source or self.resource or self
        encoded = source.data or source.blob or source.content
        mime_type = source.mime_type or source.provider_mime_type or source.snake_mime_type
        if self.type == "text" or mime_type is None or not (encoded or source.omitted or self.omitted):
            return None
        try:
            data = base64.b64decode(encoded, validate=True) if encoded else None
        except ValueError:
            return None
        name = self.file_name or self.name or source.uri.rpartition("/")[2] or None
        if data is None and source.size is not None:
            name = f"{name or mime_type} of {source.size / (1 << 20):.1f} MB"
        return Attachment(mime_type=mime_type, name=name, data=data)


class ReceivedMessage(Struct, frozen=True, kw_only=True, rename="camel"):
    role: str = ""
    content: str | tuple[MessageBlock, ...] | None = None
    idempotency_key: str | None = None

    @property
    def blocks(self) -> tuple[MessageBlock, ...]:
        return self.content if isinstance(self.content, tuple) else ()

    @property
    def text(self) -> str:
        if isinstance(self.content, str):
            return self.content
        return "\n\n".join(block.text for block in self.blocks if block.text is not None)

    @property
    def attachments(self) -> list[Attachment]:
        return [found for block in self.blocks if (found := block.to_attachment()) is not None]


class AgentEventData(Struct, frozen=True, kw_only=True, rename="camel"):
    """The `data` of an `agent` event; which fields there are depends on its stream."""

    phase: str = ""
    provider: str | None = None
    model: str | None = None
    delta: str | None = None
    output_tokens: int | None = None
    tool_call_id: str = ""
    name: str = ""
    args: Any = None
    partial_result: Any = None
    result: Any = None
    is_error: bool = False
    media_urls: tuple[str, ...] = ()


class RemoteRunEvent(Struct, frozen=True, kw_only=True, rename="camel"):
    """A `chat` event (`state`) or an `agent` event (`stream`) of one run. `gone`: the gateway did not come back."""

    state: str | None = None
    message: ReceivedMessage | None = None
    delta_text: str | None = None
    replace: bool = False
    stop_reason: str | None = None
    error_message: str | None = None
    stream: str | None = None
    data: AgentEventData | None = None

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

    def to_event(self, message: ReceivedMessage | None = None) -> RemoteRunEvent:
        """The end it reports, as a `chat` event; of a success, with this message or the reply's own text."""
        if self.status == "ok":
            return RemoteRunEvent(state="final", message=message or ReceivedMessage(content=self.text or ""))
        return RemoteRunEvent(state="error", error_message=self.error or f"the run ended as {self.status!r}")


class ChatHistoryReply(Struct, frozen=True):
    messages: tuple[ReceivedMessage, ...] = ()
