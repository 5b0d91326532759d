"""Messages of a transcript, as they are stored, as gateways send them, and as agents load them (`core.lenient`)."""

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
    text: str | None = None
    omitted: bool = False
    """Whether the gateway left the bytes out."""
    size: int | None = field(default=None, name="bytes")
    uri: str = ""


class ChatBlock(MediaSource, frozen=True, kw_only=True, rename="camel"):
    type: str = ""
    source: MediaSource | None = None
    resource: MediaSource | None = None
    file_name: str | None = None
    name: str | None = None
    id: str = ""
    arguments: Any = None
    """Of a tool call."""

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


class ChatNotice(Struct, frozen=True, kw_only=True):
    """What `core.agent.Notice` left in a transcript."""

    kind: str = ""
    kept: int = 0


class ChatAttachment(Struct, frozen=True, kw_only=True, rename="camel"):
    """A file of a message, without its bytes."""

    mime_type: str = ""
    file_name: str | None = None
    sha256: str = ""


class ChatMessage(Struct, frozen=True, kw_only=True, rename="camel"):
    """A message of a transcript, as it is stored and as a gateway sends it."""

    role: str = ""
    content: str | tuple[ChatBlock, ...] | None = None
    idempotency_key: str | None = None
    notice: ChatNotice | None = None
    attachments: tuple[ChatAttachment, ...] | None = None
    tool_call_id: str = ""
    is_error: bool = False

    @property
    def blocks(self) -> tuple[ChatBlock, ...]:
        if isinstance(self.content, str):
            return (ChatBlock(type="text", text=self.content),)
        return self.content or ()

    @property
    def text(self) -> str:
        return "\n\n".join(block.text for block in self.blocks if block.text is not None)

    @property
    def media(self) -> list[Attachment]:
        return [found for block in self.blocks if (found := block.to_attachment()) is not None]


class ChatHistoryReply(Struct, frozen=True):
    messages: tuple[ChatMessage, ...] = ()
