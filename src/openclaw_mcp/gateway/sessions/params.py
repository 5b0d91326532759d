"""What clients may say to `sessions.*`, `chat.*` and `agent`. Unknown fields are ignored, known ones checked."""

import base64
import binascii
from typing import Annotated, Any, Final, Literal

from msgspec import Meta, Struct

from ...core.agent import Attachment
from ...core.model import Json
from ...core.rpc import SAFE_INTEGER, Fault
from ...core.sessions import QueueMode

MOST_ATTACHMENTS: Final = 20
LARGEST_ATTACHMENT: Final = 18 * 1024 * 1024  # as base64 it just fits the largest frame

Name = Annotated[str, Meta(min_length=1)]
Key = Annotated[str, Meta(min_length=1, max_length=512)]
RunId = Annotated[str, Meta(min_length=1, max_length=250)]
Label = Annotated[str, Meta(min_length=1, max_length=512)]
Count = Annotated[int, Meta(ge=0, le=SAFE_INTEGER)]
Some = Annotated[int, Meta(ge=1, le=SAFE_INTEGER)]


class Params(Struct, frozen=True, kw_only=True, rename="camel"):
    agent_id: Name | None = None


class ListParams(Params, frozen=True, kw_only=True):
    limit: Some | None = None
    offset: Count = 0
    cursor: str | None = None
    active_minutes: Some | None = None
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
    spawned_by: Name | None = None
    search: str | None = None
    archived: bool | Literal["all"] = False


class KeyParams(Params, frozen=True, kw_only=True):
    key: Key
    include_derived_titles: bool = False
    include_last_message: bool = False
    limit: Some | None = None


class PreviewParams(Params, frozen=True, kw_only=True):
    keys: Annotated[list[Key], Meta(min_length=1, max_length=200)]
    limit: Some = 12
    max_chars: Annotated[int, Meta(ge=20)] = 240


class ResolveParams(Params, frozen=True, kw_only=True):
    key: Key | None = None
    session_id: Name | None = None
    label: Label | None = None
    allow_missing: bool = False


class ResetParams(Params, frozen=True, kw_only=True):
    key: Key
    reason: Literal["new", "reset"] = "reset"
    expected_session_id: Name | None = None


class DeleteParams(Params, frozen=True, kw_only=True):
    key: Key
    delete_transcript: bool = True
    expected_session_id: Name | None = None
    expected_lifecycle_revision: Name | None = None
    archived_only: bool = False


class CreateParams(Params, frozen=True, kw_only=True):
    key: Key | None = None
    idempotency_key: Name | None = None
    label: Label | None = None
    display_name: Annotated[str, Meta(min_length=1, max_length=500)] | None = None
    parent_session_key: Key | None = None
    spawn_depth: Some | None = None
    model: Name | None = None
    thinking_level: Name | None = None
    task: str | None = None
    message: str | None = None
    attachments: list[Json] | None = None
    timeout_ms: Count | None = None


class AbortParams(Params, frozen=True, kw_only=True):
    key: Key | None = None
    run_id: RunId | None = None
    clear_queued: bool = True


class SearchParams(Params, frozen=True, kw_only=True):
    query: Annotated[str, Meta(min_length=1, max_length=4096)]
    session_keys: Annotated[list[Key], Meta(min_length=1, max_length=200)] | None = None
    limit: Annotated[int, Meta(ge=1, le=25)] = 10


class SendParams(Params, frozen=True, kw_only=True):
    """`sessions.send` and `sessions.steer`."""

    key: Key
    message: str
    idempotency_key: RunId | None = None
    attachments: list[Json] | None = None
    thinking: str | None = None
    timeout_ms: Count | None = None


class ChatSendParams(Params, frozen=True, kw_only=True):
    session_key: Key
    message: str
    idempotency_key: RunId
    attachments: list[Json] | None = None
    queue_mode: QueueMode = "steer"
    thinking: str | None = None
    timeout_ms: Count | None = None
    system_input_provenance: Json | None = None


class HistoryParams(Params, frozen=True, kw_only=True):
    session_key: Key
    limit: Annotated[int, Meta(ge=1, le=1000)] = 200
    offset: Count | None = None
    cursor: str | None = None
    message_id: Name | None = None
    max_bytes: Annotated[int, Meta(ge=1024)] | None = None
    max_chars: Annotated[int, Meta(ge=1, le=500_000)] | None = None


class ChatAbortParams(Params, frozen=True, kw_only=True):
    session_key: Key
    run_id: RunId | None = None


class InjectParams(Params, frozen=True, kw_only=True):
    session_key: Key
    message: Name
    label: Annotated[str, Meta(max_length=100)] | None = None


class MessageGetParams(Params, frozen=True, kw_only=True):
    session_key: Key
    message_id: Name
    max_chars: Annotated[int, Meta(ge=1, le=2_000_000)] | None = None


class AgentParams(Params, frozen=True, kw_only=True):
    message: Name
    idempotency_key: RunId
    session_key: Key | None = None
    session_id: Name | None = None
    attachments: list[Json] | None = None
    model: str | None = None
    provider: str | None = None
    thinking: str | None = None
    timeout: Count | None = None
    extra_system_prompt: str | None = None
    input_provenance: Json | None = None
    label: Label | None = None
    lane: str | None = None
    spawned_by: Key | None = None
    cwd: Name | None = None


class WaitParams(Params, frozen=True, kw_only=True):
    run_id: RunId
    timeout_ms: Count = 30_000


def read_attachments(given: list[Json] | None) -> tuple[Attachment, ...]:
    """Raises Fault naming the attachment that can't be used."""
    if given is None:
        return ()
    if len(given) > MOST_ATTACHMENTS:
        raise Fault(f"at most {MOST_ATTACHMENTS} attachments go with one message")
    return tuple(_attachment(one, f"attachments[{index}]") for index, one in enumerate(given))


def _attachment(given: Json, where: str) -> Attachment:
    content: Any = given.get("content")
    mime_type = given.get("mimeType") or given.get("mime_type") or "application/octet-stream"
    if not isinstance(content, str | bytes) or not content:
        raise Fault(f"{where}: content must be base64 text")
    if isinstance(content, str) and content.startswith("data:"):
        declared, _, content = content.removeprefix("data:").partition(",")
        mime_type = given.get("mimeType") or declared.partition(";")[0] or mime_type
    try:
        # Bytes come from this very process: nothing on a wire can be bytes.
        data = content if isinstance(content, bytes) else base64.b64decode(content, validate=True)
    except (binascii.Error, ValueError):
        raise Fault(f"{where}: content is not valid base64") from None
    if len(data) > LARGEST_ATTACHMENT:
        raise Fault(f"{where}: larger than {LARGEST_ATTACHMENT} bytes")
    name = given.get("fileName") or given.get("name")
    return Attachment(mime_type=str(mime_type)[:255], name=str(name)[:255] if name else None, data=data)
