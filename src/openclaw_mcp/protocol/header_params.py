"""HTTP headers that mirror the body in the stateless era, and the rules for comparing them."""

import base64
import binascii
from collections.abc import Iterator, Mapping
from typing import Any, Final

from ..core.model import Json
from .jsonrpc import JsonRpcError, JsonRpcRequest
from .mcp import HEADER_MISMATCH, PROTOCOL_VERSION

HeaderParams = dict[tuple[str, ...], tuple[str, str | None]]

NAME_PARAM_BY_METHOD: Final = {
    "tools/call": "name",
    "prompts/get": "name",
    "resources/read": "uri",
    "tasks/get": "taskId",
    "tasks/update": "taskId",
    "tasks/cancel": "taskId",
}
"""Methods whose subject the header `Mcp-Name` repeats, and the parameter it is in."""

_TOKEN_CHARACTERS = frozenset("!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
_MAX_DEPTH = 32  # a schema nested deeper than this mirrors nothing further down


def check_headers(headers: Mapping[str, str], request: JsonRpcRequest) -> None:
    """Compare the standard headers with the body. Names are lower-case, values trimmed. Raises JsonRpcError."""
    header, meta = headers.get("mcp-protocol-version"), request.params.get("_meta")
    version = meta.get(PROTOCOL_VERSION) if type(meta) is dict else None
    if header is None or (type(version) is str and version != header):
        raise _mismatch_error("MCP-Protocol-Version")
    if headers.get("mcp-method") != request.method:
        raise _mismatch_error("Mcp-Method")
    key = NAME_PARAM_BY_METHOD.get(request.method)
    if key is None:
        return
    name, subject = headers.get("mcp-name"), request.params.get(key)
    if name is None or (name != subject and decode_header_value(name) != subject):
        raise _mismatch_error("Mcp-Name")


def check_param_headers(headers: Mapping[str, str], header_params: HeaderParams, arguments: Json) -> None:
    """Compare `Mcp-Param-*` headers with the arguments they mirror. Raises JsonRpcError."""
    for path, (token, type_name) in header_params.items():
        value = _find_argument(arguments, path)
        header = headers.get("mcp-param-" + token)
        if value is None and header is None:
            continue
        if value is None or header is None or not _matches_header(decode_header_value(header), value, type_name):
            raise _mismatch_error(f"Mcp-Param-{token}")


def find_header_params(schema: Json) -> HeaderParams:
    """Which arguments headers repeat: those marked `x-mcp-header`, reachable through `properties` alone."""
    return {
        path: (below["x-mcp-header"].lower(), below.get("type"))
        for path, below in _walk_properties(schema)
        if type(below.get("x-mcp-header")) is str
    }


def encode_header_value(value: str) -> str:
    """Text as a header value: unchanged when that is safe, else base64 in its wrapper."""
    plain = value.isascii() and value.isprintable() and value == value.strip()
    if plain and not value.startswith("=?base64?"):
        return value
    return f"=?base64?{base64.b64encode(value.encode()).decode()}?="


def request_headers(method: str, params: Json) -> dict[str, str]:
    """The standard headers that repeat a request's body, but for the version."""
    headers = {"mcp-method": method}
    subject = params.get(NAME_PARAM_BY_METHOD.get(method, ""))
    if type(subject) is str:
        headers["mcp-name"] = encode_header_value(subject)
    return headers


def param_headers(header_params: HeaderParams, arguments: Json) -> dict[str, str]:
    """The `Mcp-Param-*` headers that repeat `arguments`; one that is null or absent has none."""
    headers = {}
    for path, (token, _) in header_params.items():
        value = _find_argument(arguments, path)
        if type(value) in (str, int, bool):
            headers[f"mcp-param-{token}"] = encode_header_value(_format_value(value))
    return headers


def has_valid_header_params(schema: Json) -> bool:
    """Whether every `x-mcp-header` of a schema is a header name, its own, and is on a string, integer or boolean.

    A client must not use a tool of which this is not true.
    """
    tokens: set[str] = set()
    for _, below in _walk_properties(schema):
        if "x-mcp-header" not in below:
            continue
        token = below["x-mcp-header"]
        if type(token) is not str or not token or not _TOKEN_CHARACTERS.issuperset(token) or token.lower() in tokens:
            return False
        if below.get("type") not in ("string", "integer", "boolean"):
            return False
        tokens.add(token.lower())
    return True


def decode_header_value(value: str) -> str | None:
    """A header value as text; None when it claims to be base64 and is not."""
    if not (value.startswith("=?base64?") and value.endswith("?=")):
        return value
    inner = value[9:-2]
    try:
        raw = base64.b64decode(inner, validate=True)
        return raw.decode() if base64.b64encode(raw).decode() == inner else None
    except (binascii.Error, ValueError):
        return None


def _walk_properties(schema: Json, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Json]]:
    """Every property of a schema and of those below it, with the path to it."""
    properties = schema.get("properties")
    if type(properties) is not dict or len(path) >= _MAX_DEPTH:
        return
    for name, below in properties.items():
        if type(below) is dict:
            yield (*path, name), below
            yield from _walk_properties(below, (*path, name))


def _find_argument(value: Any, path: tuple[str, ...]) -> Any:
    for key in path:
        value = value.get(key) if type(value) is dict else None
    return value


def _format_value(value: Any) -> str:
    return ("true" if value else "false") if type(value) is bool else str(value)


def _matches_header(header: str | None, value: Any, type_name: str | None) -> bool:
    if header is None:
        return False
    text = _format_value(value)
    if header == text:
        return True
    if type_name != "integer":
        return False
    try:
        return float(header) == float(text)
    except ValueError:
        return False


def _mismatch_error(name: str) -> JsonRpcError:
    return JsonRpcError(HEADER_MISMATCH, f"The {name} header is missing, repeated or does not match the request body")
