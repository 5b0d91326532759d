"""Parameters of `sessions.*`, `chat.*` and `agent`. `read_params` refuses unknown ones."""

import base64
import binascii
from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal

from msgspec import Meta, Struct, field

from ...core.agent import MAX_ATTACHMENT_BYTES, Attachment
from ...core.fields import NonEmptyStr
from ...core.model import Json
from ...core.rpc import SAFE_INTEGER, RpcError
from ...core.sessions import QueueMode
from .short_ids import ShortId

MAX_ATTACHMENTS: Final = 20

SessionKey = Annotated[str, Meta(min_length=1, max_length=512)]
RunId = Annotated[str, Meta(min_length=1, max_length=250)]
Label = Annotated[str, Meta(min_length=1, max_length=512)]
NonNegativeInt = Annotated[int, Meta(ge=0, le=SAFE_INTEGER)]
PositiveInt = Annotated[int, Meta(ge=1, le=SAFE_INTEGER)]


class SessionParams(Struct, frozen=True, kw_only=True, rename="camel"):
    agent_id: NonEmptyStr | None = None


class SessionListParams(SessionParams, frozen=True, kw_only=True):
    limit: PositiveInt | None = None
    offset: NonNegativeInt = 0
    cursor: str | None = None
    active_minutes: PositiveInt | None = None
    active_only: bool = False
    require_last_interaction: bool = False
    sort_by: Literal["updatedAt", "lastInteractionAt", "activity"] = "updatedAt"
    exclude_subagents: bool = False
    exclude_cron: bool = False
    exclude_system: bool = False
    include_derived_titles: bool = False
    include_last_message: bool = False
    label: Label | None = None
    pinned: bool | None = None
    spawned_by: NonEmptyStr | None = None
    search: str | None = None
    archived: bool | Literal["all"] = False


class KeyParams(SessionParams, frozen=True, kw_only=True):
    key: SessionKey
    include_derived_titles: bool = False
    include_last_message: bool = False
    limit: PositiveInt | None = None


class PreviewParams(SessionParams, frozen=True, kw_only=True):
    keys: Annotated[list[SessionKey], Meta(min_length=1, max_length=200)]
    limit: PositiveInt = 12
    max_chars: Annotated[int, Meta(ge=20)] = 240


class ResolveParams(SessionParams, frozen=True, kw_only=True):
    key: SessionKey | None = None
    session_id: NonEmptyStr | None = None
    label: Label | None = None
    short_id: ShortId | None = None
    slug_hint: NonEmptyStr | None = None
    allow_missing: bool = False
    include_global: bool = False  # checked only, as the next: every session has an agent and is known
    include_unknown: bool = False


class ChangeParams(SessionParams, frozen=True, kw_only=True):
    """The change is refused when the session is no longer the expected one."""

    key: SessionKey
    expected_session_id: str | None = None
    expected_lifecycle_revision: str | None = None


class ResetParams(ChangeParams, frozen=True, kw_only=True):
    reason: Literal["new", "reset"] = "reset"  # checked only: both do the same
    expected_session_id: NonEmptyStr | None = None


class CompactParams(SessionParams, frozen=True, kw_only=True):
    key: SessionKey
    max_lines: PositiveInt | None = None


class DeleteParams(ChangeParams, frozen=True, kw_only=True):
    delete_transcript: bool = True
    expected_session_id: NonEmptyStr | None = None
    expected_lifecycle_revision: NonEmptyStr | None = None
    archived_only: bool = False


class AttachmentParams(Struct, frozen=True, kw_only=True, rename="camel"):
    """A file of a message. `read_attachments` checks it, so that its errors name the file."""

    content: Any = None
    """Base64 or a `data:` URL; bytes, when this process itself is the caller."""
    mime_type: Any = None
    snake_mime_type: Any = field(default=None, name="mime_type")
    file_name: Any = None
    name: Any = None


class CreateParams(SessionParams, frozen=True, kw_only=True):
    key: SessionKey | None = None
    idempotency_key: NonEmptyStr | None = None
    label: Label | None = None
    display_name: Annotated[str, Meta(min_length=1, max_length=500)] | None = None
    parent_session_key: SessionKey | None = None
    spawn_depth: PositiveInt | None = None
    model: NonEmptyStr | None = None
    thinking_level: NonEmptyStr | None = None
    task: str | None = None
    message: str | None = None
    attachments: list[AttachmentParams] | None = None
    timeout_ms: NonNegativeInt | None = None


class AbortParams(SessionParams, frozen=True, kw_only=True):
    key: SessionKey | None = None
    run_id: RunId | None = None
    clear_queued: bool = True


class SearchScope(SessionParams, frozen=True, kw_only=True):
    """The list that a search is for. Its agent is heeded; every session that is found is in the answer."""


class SearchParams(SessionParams, frozen=True, kw_only=True):
    query: Annotated[str, Meta(min_length=1, max_length=4096)]
    session_keys: Annotated[list[SessionKey], Meta(min_length=1, max_length=200)] | None = None
    scope: SearchScope | None = None
    limit: Annotated[int, Meta(ge=1, le=25)] = 10


class SessionSendParams(SessionParams, frozen=True, kw_only=True):
    """`sessions.send` and `sessions.steer`."""

    key: SessionKey
    message: str
    idempotency_key: RunId | None = None
    attachments: list[AttachmentParams] | None = None
    thinking: str | None = None
    timeout_ms: NonNegativeInt | None = None


class ChatSendParams(SessionSendParams, frozen=True, kw_only=True):
    key: SessionKey = field(name="sessionKey")
    idempotency_key: RunId
    queue_mode: QueueMode = "steer"
    suppress_command_interpretation: bool = False
    """Whether the message is for the agent whatever it says."""
    system_input_provenance: Json | None = None  # checked only


class HistoryParams(SessionParams, frozen=True, kw_only=True):
    session_key: SessionKey
    limit: Annotated[int, Meta(ge=1, le=1000)] = 200
    offset: NonNegativeInt | None = None
    cursor: str | None = None
    message_id: NonEmptyStr | None = None
    max_bytes: Annotated[int, Meta(ge=1024)] | None = None
    max_chars: Annotated[int, Meta(ge=1, le=500_000)] | None = None


class ChatAbortParams(SessionParams, frozen=True, kw_only=True):
    session_key: SessionKey
    run_id: RunId | None = None


class InjectParams(SessionParams, frozen=True, kw_only=True):
    session_key: SessionKey
    message: NonEmptyStr
    label: Annotated[str, Meta(max_length=100)] | None = None


class MessageGetParams(SessionParams, frozen=True, kw_only=True):
    session_key: SessionKey
    message_id: NonEmptyStr
    max_chars: Annotated[int, Meta(ge=1, le=2_000_000)] | None = None


class AgentParams(SessionParams, frozen=True, kw_only=True):
    message: NonEmptyStr
    idempotency_key: RunId
    session_key: SessionKey | None = None
    session_id: NonEmptyStr | None = None
    attachments: list[AttachmentParams] | None = None
    model: str | None = None
    provider: str | None = None
    thinking: str | None = None
    timeout: NonNegativeInt | None = None
    extra_system_prompt: str | None = None
    input_provenance: Json | None = None
    label: Label | None = None
    lane: str | None = None
    spawned_by: SessionKey | None = None
    cwd: NonEmptyStr | None = None


class WaitParams(SessionParams, frozen=True, kw_only=True):
    run_id: RunId
    timeout_ms: NonNegativeInt = 30_000


def read_attachments(entries: Sequence[AttachmentParams]) -> tuple[Attachment, ...]:
    """Raises RpcError that names the attachment which can't be used."""
    if len(entries) > MAX_ATTACHMENTS:
        raise RpcError(f"at most {MAX_ATTACHMENTS} attachments go with one message")
    return tuple(_read_attachment(one, f"attachments[{index}]") for index, one in enumerate(entries))


def _read_attachment(entry: AttachmentParams, path: str) -> Attachment:
    content = entry.content
    mime_type = entry.mime_type or entry.snake_mime_type or "application/octet-stream"
    if not isinstance(content, str | bytes) or not content:
        raise RpcError(f"{path}: content must be base64 text")
    if isinstance(content, str) and content.startswith("data:"):
        declared, _, content = content.removeprefix("data:").partition(",")
        mime_type = entry.mime_type or declared.partition(";")[0] or mime_type
    try:
        data = content if isinstance(content, bytes) else base64.b64decode(content, validate=True)
    except (binascii.Error, ValueError):
        raise RpcError(f"{path}: content is not valid base64") from None
    if len(data) > MAX_ATTACHMENT_BYTES:
        raise RpcError(f"{path}: larger than {MAX_ATTACHMENT_BYTES} bytes")
    name = entry.file_name or entry.name
    return Attachment(mime_type=str(mime_type)[:255], name=str(name)[:255] if name else None, data=data)
