"""The HTTP API as OpenAPI 3.1. A fuzzer compares it with the server in a test."""

from typing import Final

from ... import __version__
from ...core.model import Json
from ...protocol import bridge as wire

_STRING: Final = {"type": ["string", "null"]}
_OBJECT: Final = {"type": ["object", "null"]}

SCHEMAS: Final = {
    "Error": {"type": "object", "required": ["detail"], "properties": {"detail": {"type": "string"}}},
    "Done": {
        "type": "object",
        "required": ["ok"],
        "properties": {"ok": {"const": True}, "tool_count": {"type": "integer"}},
    },
    "Tool": {
        "type": "object",
        "required": ["name"],
        "properties": {
            "name": {"type": "string", "pattern": "^[A-Za-z0-9_./-]{1,128}$"},
            "title": _STRING,
            "description": _STRING,
            "input_schema": {**_OBJECT, "description": "A JSON Schema of an object; also spelt `inputSchema`."},
            "output_schema": {**_OBJECT, "description": "A JSON Schema of an object; also spelt `outputSchema`."},
            "annotations": _OBJECT,
            "icons": {"type": ["array", "null"], "items": {"type": "object"}},
            "_meta": _OBJECT,
        },
    },
    "Tools": {"type": "array", "items": {"$ref": "#/components/schemas/Tool"}},
    "Create": {
        "type": "object",
        "properties": {
            "device_id": _STRING,
            "device_name": _STRING,
            "app_version": _STRING,
            "chat_id": _STRING,
            "validate": {"type": "boolean"},
            "tools": {"anyOf": [{"$ref": "#/components/schemas/Tools"}, {"type": "null"}]},
        },
    },
    "Created": {
        "type": "object",
        "required": ["mcpSessionId"],
        "properties": {
            "mcpSessionId": {"type": "string"},
            "bridge_url": {"type": "string"},
            "mcp_url": {"type": "string"},
        },
    },
    "Session": {
        "type": "object",
        "required": ["mcpSessionId", "bridge_url", "mcp_url", "connected", "tool_count", "created_at"],
        "properties": {
            "mcpSessionId": {"type": "string"},
            "bridge_url": {"type": "string"},
            "mcp_url": {"type": "string"},
            "connected": {"type": "boolean"},
            "tool_count": {"type": "integer"},
            "created_at": {"type": "string", "format": "date-time"},
            "tools": {"type": "array", "items": {"type": "object"}},
        },
    },
}

_REASONS: Final = {
    "400": "Not JSON, or cut off.",
    "401": "Bad or missing token.",
    "403": "Host or Origin not admitted.",
    "404": "No such session.",
    "408": "The body came too slowly.",
    "413": "The body is too large.",
    "422": "Not what the API takes; the sentence names the field.",
    "429": "Too fast, or too many sessions.",
    "503": "The shared store is out of reach.",
}
_ALWAYS: Final = ("401", "403", "413", "429", "503")
_BODY: Final = ("400", "408", "422")


def build_document() -> Json:
    shown = {"sessions": {"type": "array", "items": _ref("Session")}}
    listing = {"type": "object", "required": ["sessions"], "properties": shown}
    tools = {
        "anyOf": [_ref("Tools"), {"type": "object", "required": ["tools"], "properties": {"tools": _ref("Tools")}}]
    }
    device = {"name": "device_id", "in": "query", "required": False, "schema": {"type": "string"}}
    secret = {
        "name": wire.SECRET_HEADER,
        "in": "header",
        "required": False,
        "schema": {"type": "string", "minLength": wire.MIN_SECRET_LENGTH, "maxLength": wire.MAX_SECRET_LENGTH},
        "description": "The same secret is the same session. It alone opens the bridge and replaces the tools.",
    }
    # What can be done with the session that was made.
    made = {"id": "$response.body#/mcpSessionId"}
    links = {name: {"operationId": name, "parameters": made} for name in ("show", "end", "retool")}
    id = {"name": "id", "in": "path", "required": True, "schema": {"type": "string", "pattern": "^[0-9a-f]{32}$"}}
    plain = {"200": {"description": "Text.", "content": {"text/plain": {"schema": {"type": "string"}}}}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "OpenClaw app-tool proxy", "version": __version__},
        "security": [{"app": []}],
        "paths": {
            "/health": {"get": {"summary": "Whether the proxy answers", "security": [], "responses": plain}},
            "/metrics": {"get": {"summary": "Prometheus text", "responses": {**plain, **_refusals(*_ALWAYS)}}},
            "/openapi.json": {"get": _operation("This description", {"type": "object"})},
            "/v1/chat/sessions": {
                "post": {
                    **_operation("Register an app's tools", _ref("Created"), body=_ref("Create"), links=links),
                    "parameters": [secret],
                },
                "get": {**_operation("The sessions, newest first", listing), "parameters": [device]},
            },
            "/v1/chat/sessions/{id}": {
                "parameters": [id],
                "get": {"operationId": "show", **_operation("One session with its tools", _ref("Session"), "404")},
                "delete": {
                    "operationId": "end",
                    "parameters": [{**id, "schema": {"type": "string"}}],  # well for any: it is not there any more
                    **_operation("End a session", _ref("Done")),
                },
            },
            "/v1/chat/sessions/{id}/tools": {
                "parameters": [id],
                "put": {
                    "operationId": "retool",
                    **_operation("Replace a session's tools", _ref("Done"), "404", body=tools),
                    "parameters": [secret],
                },
            },
        },
        "components": {"schemas": SCHEMAS, "securitySchemes": {"app": {"type": "http", "scheme": "bearer"}}},
    }


def _operation(summary: str, schema: Json, *more: str, body: Json | None = None, **done: Json) -> Json:
    refusals = _refusals(*_ALWAYS, *more, *(_BODY if body else ()))
    success = {"description": "Done.", "content": {"application/json": {"schema": schema}}, **done}
    request = {} if body is None else {"required": True, "content": {"application/json": {"schema": body}}}
    operation = {"summary": summary, "responses": {"200": success, **refusals}}
    return {**operation, "requestBody": request} if request else operation


def _refusals(*statuses: str) -> Json:
    content = {"application/json": {"schema": _ref("Error")}}
    return {status: {"description": _REASONS[status], "content": content} for status in sorted(statuses)}


def _ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}
