"""MCP's words: revisions, `_meta` keys, error codes, and the shapes that differ between the two eras.

The *handshake* era (2024-11-05 … 2025-11-25) opens with `initialize`. The *stateless* era (2026-07-28) carries
version and capabilities in every request's `_meta`. Which era a request belongs to is decided by that request alone.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

from msgspec import UNSET, Struct, UnsetType, field

from ..core.model import ContentBlock, InputRequest, Json, ToolResult, ToolSpec
from .jsonrpc import INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND, PARSE_ERROR, JsonRpcError, JsonRpcRequest

HANDSHAKE_VERSIONS: Final = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
STATELESS_VERSIONS: Final = ("2026-07-28",)
ALL_VERSIONS: Final = (*HANDSHAKE_VERSIONS, *STATELESS_VERSIONS)
NEWEST_HANDSHAKE: Final = HANDSHAKE_VERSIONS[-1]
DEFAULT_HTTP_VERSION: Final = "2025-03-26"  # what the specification says a client without a version header speaks

_PREFIX = "io.modelcontextprotocol/"
PROTOCOL_VERSION: Final = _PREFIX + "protocolVersion"
CLIENT_INFO: Final = _PREFIX + "clientInfo"
CLIENT_CAPABILITIES: Final = _PREFIX + "clientCapabilities"
LOG_LEVEL: Final = _PREFIX + "logLevel"
SERVER_INFO: Final = _PREFIX + "serverInfo"
SUBSCRIPTION_ID: Final = _PREFIX + "subscriptionId"
TASKS: Final = _PREFIX + "tasks"
LISTEN_METHOD: Final = "subscriptions/listen"  # stays open for as long as its client wants news

HEADER_MISMATCH: Final = -32020
MISSING_CAPABILITY: Final = -32021
UNSUPPORTED_VERSION: Final = -32022
LEGACY_RESOURCE_NOT_FOUND: Final = -32002

HTTP_STATUS: Final = {
    PARSE_ERROR: 400,
    INVALID_REQUEST: 400,
    INVALID_PARAMS: 400,
    HEADER_MISMATCH: 400,
    MISSING_CAPABILITY: 400,
    UNSUPPORTED_VERSION: 400,
    METHOD_NOT_FOUND: 404,
}

LOG_LEVELS: Final = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")

CACHEABLE_METHODS: Final = frozenset(
    {
        "server/discover",
        "tools/list",
        "prompts/list",
        "resources/list",
        "resources/templates/list",
        "resources/read",
    }
)

LIST_CHANGE_NOTIFICATIONS: Final = {
    "toolsListChanged": "notifications/tools/list_changed",
    "promptsListChanged": "notifications/prompts/list_changed",
    "resourcesListChanged": "notifications/resources/list_changed",
}

# ---- what a request says of its sender ----


class ClientCapabilities(Struct, frozen=True):
    """A client's own declaration. Of what it holds we read the few things below."""

    declared: Json = {}

    def can_ask(self, capability: str, mode: str = "") -> bool:
        """Whether the client answers questions of this kind."""
        modes = self.declared.get(capability)
        # Before there were modes, `{}` meant the form; it still does.
        return type(modes) is dict and (mode != "url" or "url" in modes)

    @property
    def can_poll_tasks(self) -> bool:
        extensions = self.declared.get("extensions")
        return type(extensions) is dict and TASKS in extensions


NO_CAPABILITIES: Final = ClientCapabilities()


class RequestEnvelope(Struct, frozen=True):
    """What one request says about its sender and its wire."""

    stateless: bool
    version: str
    capabilities: ClientCapabilities = NO_CAPABILITIES
    progress_token: str | int | None = None
    """Under which the client wants to know how far the call is."""
    log_level: str | None = None
    """Only the stateless era names it with each request."""


class InitializeParams(Struct, frozen=True):
    """The parameters of `initialize`."""

    version: str
    """The one the client asked for if we know it, else our newest."""
    capabilities: ClientCapabilities
    app_session: Any
    """Of a client that names the session of the proxy it is for: that name, not yet checked."""


def is_stateless(request: JsonRpcRequest) -> bool:
    """Whether this request speaks the stateless era; `initialize` never does."""
    meta = request.params.get("_meta")
    return request.method != "initialize" and type(meta) is dict and PROTOCOL_VERSION in meta


def stateless_envelope(request: JsonRpcRequest) -> RequestEnvelope:
    """The era's required `_meta`, checked. Raises JsonRpcError naming the key that is missing or wrong."""
    meta = request.params.get("_meta")
    if type(meta) is not dict:
        raise JsonRpcError(INVALID_PARAMS, "Invalid params: `_meta` is required")
    version = meta.get(PROTOCOL_VERSION)
    if type(version) is not str:
        raise JsonRpcError(INVALID_PARAMS, f"Invalid params: `_meta` needs {PROTOCOL_VERSION}, a string")
    capabilities = meta.get(CLIENT_CAPABILITIES)
    if type(capabilities) is not dict:
        raise JsonRpcError(INVALID_PARAMS, f"Invalid params: `_meta` needs {CLIENT_CAPABILITIES}, an object")
    if version not in STATELESS_VERSIONS:
        raise unsupported_version_error(version, STATELESS_VERSIONS)
    if LOG_LEVEL in meta and meta[LOG_LEVEL] not in LOG_LEVELS:
        raise JsonRpcError(INVALID_PARAMS, f"Invalid params: {LOG_LEVEL} must be one of {', '.join(LOG_LEVELS)}")
    return RequestEnvelope(True, version, ClientCapabilities(capabilities), _progress_token(meta), meta.get(LOG_LEVEL))


def unsupported_version_error(requested: str, supported: Sequence[str]) -> JsonRpcError:
    """The error that names the versions a client may ask for instead."""
    message = f"Unsupported protocol version; this server supports {', '.join(supported)}"
    return JsonRpcError(UNSUPPORTED_VERSION, message, {"supported": list(supported), "requested": requested})


def handshake_envelope(
    request: JsonRpcRequest, *, version: str, capabilities: ClientCapabilities = NO_CAPABILITIES
) -> RequestEnvelope:
    return RequestEnvelope(False, version, capabilities, _progress_token(request.params.get("_meta")))


def _progress_token(meta: Any) -> str | int | None:
    token = meta.get("progressToken") if type(meta) is dict else None
    return token if type(token) in (str, int) else None


def read_initialize(params: Json) -> InitializeParams:
    """Raises JsonRpcError when no version is asked for; all else may be missing."""
    asked, capabilities = params.get("protocolVersion"), params.get("capabilities")
    if type(asked) is not str:
        raise JsonRpcError(INVALID_PARAMS, "Invalid params: `protocolVersion` must be a string")
    return InitializeParams(
        asked if asked in HANDSHAKE_VERSIONS else NEWEST_HANDSHAKE,
        ClientCapabilities(capabilities) if type(capabilities) is dict else NO_CAPABILITIES,
        params.get("mcpSessionId"),
    )


# ---- what is sent ----


class McpResult(Struct, kw_only=True, omit_defaults=True, rename="camel"):
    """The result of a request; by itself, the empty one. The server adds what the stateless era says with each."""

    result_type: Literal["complete", "input_required", "task"] | None = None
    ttl_ms: int | None = None
    cache_scope: Literal["public", "private"] | None = None
    meta: Json | None = field(default=None, name="_meta")


class ToolCallResult(McpResult):
    content: tuple[ContentBlock, ...]
    is_error: bool
    structured_content: Any | UnsetType = UNSET


class EncodedQuestion(Struct, frozen=True):
    """A question as the client sees it."""

    method: str
    params: Json


def encode_questions(questions: Mapping[str, InputRequest]) -> dict[str, EncodedQuestion]:
    return {key: EncodedQuestion(question.method, question.params) for key, question in questions.items()}


def encode_tool(spec: ToolSpec) -> Json:
    """A tool as both eras list it."""
    optional = {
        "title": spec.title,
        "description": spec.description or None,
        "outputSchema": spec.output_schema,
        "annotations": spec.annotations,
        "icons": spec.icons,
        "_meta": spec.meta,
    }
    given = {key: value for key, value in optional.items() if value is not None}
    return {"name": spec.name, "inputSchema": spec.input_schema, **given}


def encode_tool_result(result: ToolResult) -> ToolCallResult:
    """The result of a call as both eras answer it."""
    meta = None if result.meta is None else dict(result.meta)
    return ToolCallResult(result.content, result.failed, result.structured, meta=meta)
