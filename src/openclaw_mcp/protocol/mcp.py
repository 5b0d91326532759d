"""MCP's words: revisions, `_meta` keys, error codes, and the shapes that differ between the two eras.

The *handshake* era (2024-11-05 … 2025-11-25) opens with `initialize`. The *stateless* era (2026-07-28) carries
version and capabilities in every request's `_meta`. Which era a request belongs to is decided by that request alone.
"""

from typing import Any, Final

from msgspec import UNSET, Struct

from .jsonrpc import INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND, PARSE_ERROR, JsonRpcError

Json = dict[str, Any]

HANDSHAKE_VERSIONS: Final = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
STATELESS_VERSIONS: Final = ("2026-07-28",)
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

_NO_CAPABILITIES: Json = {}


class RequestEnvelope(Struct, frozen=True):
    """What one request says about its sender and its wire."""

    stateless: bool
    version: str
    capabilities: Json
    meta: Json


def is_stateless(method: str, params: Json) -> bool:
    """Whether this request speaks the stateless era; `initialize` never does."""
    meta = params.get("_meta")
    return method != "initialize" and type(meta) is dict and PROTOCOL_VERSION in meta


def stateless_envelope(params: Json) -> RequestEnvelope:
    """The era's required `_meta`, checked. Raises RpcError naming the key that is missing or wrong."""
    meta = params.get("_meta")
    if type(meta) is not dict:
        raise JsonRpcError(INVALID_PARAMS, "Invalid params: `_meta` is required")
    version = meta.get(PROTOCOL_VERSION)
    if type(version) is not str:
        raise JsonRpcError(INVALID_PARAMS, f"Invalid params: `_meta` needs {PROTOCOL_VERSION}, a string")
    capabilities = meta.get(CLIENT_CAPABILITIES)
    if type(capabilities) is not dict:
        raise JsonRpcError(INVALID_PARAMS, f"Invalid params: `_meta` needs {CLIENT_CAPABILITIES}, an object")
    if version not in STATELESS_VERSIONS:
        data = {"supported": list(STATELESS_VERSIONS), "requested": version}
        raise JsonRpcError(UNSUPPORTED_VERSION, "Unsupported protocol version", data)
    if LOG_LEVEL in meta and meta[LOG_LEVEL] not in LOG_LEVELS:
        raise JsonRpcError(INVALID_PARAMS, f"Invalid params: {LOG_LEVEL} must be one of {', '.join(LOG_LEVELS)}")
    return RequestEnvelope(True, version, capabilities, meta)


def handshake_envelope(params: Json, *, version: str, capabilities: Json) -> RequestEnvelope:
    meta = params.get("_meta")
    return RequestEnvelope(False, version, capabilities, meta if type(meta) is dict else _NO_CAPABILITIES)


def negotiate_version(params: Json) -> str:
    """The handshake version to answer `initialize` with: the one asked for if we know it, else our newest."""
    asked = params.get("protocolVersion")
    if type(asked) is not str:
        raise JsonRpcError(INVALID_PARAMS, "Invalid params: `protocolVersion` must be a string")
    return asked if asked in HANDSHAKE_VERSIONS else NEWEST_HANDSHAKE


def encode_tool(spec: Any) -> Json:
    """A ToolSpec as both eras list it."""
    shape: Json = {"name": spec.name, "inputSchema": spec.input_schema}
    optional = (
        ("title", spec.title),
        ("description", spec.description or None),
        ("outputSchema", spec.output_schema),
        ("annotations", spec.annotations),
        ("icons", spec.icons),
        ("_meta", spec.meta),
    )
    shape.update((key, value) for key, value in optional if value is not None)
    return shape


def encode_tool_result(result: Any) -> Json:
    """A ToolResult as both eras answer it."""
    shape: Json = {"content": result.content, "isError": result.failed}
    if result.structured is not UNSET:
        shape["structuredContent"] = result.structured
    if result.meta is not None:
        shape["_meta"] = dict(result.meta)
    return shape
