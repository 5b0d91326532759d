"""Both eras at one server, each request in the era it speaks."""

import asyncio
from typing import Any

import pytest

from openclaw_mcp.core.model import Json, ToolCall, ToolResult, ToolSpec, text_result
from openclaw_mcp.mcp.server.server import CacheHint
from openclaw_mcp.protocol.jsonrpc import JsonRpcError
from openclaw_mcp.protocol.mcp import CLIENT_CAPABILITIES, HANDSHAKE_VERSIONS, PROTOCOL_VERSION, SERVER_INFO
from tests.conversation import Conversation, Tools, serving


async def hello(call: ToolCall) -> ToolResult:
    return text_result("hello")


def talk(method: str, params: Json | None = None, *, stateless: bool, **options: Any) -> Any:
    server = serving(Tools(hello=hello), **options)
    return asyncio.run(Conversation(server, stateless=stateless).ask(method, params))


@pytest.mark.parametrize("version", HANDSHAKE_VERSIONS)
def test_a_known_handshake_version_is_echoed(version: str) -> None:
    result = talk("initialize", {"protocolVersion": version}, stateless=False)

    assert result["protocolVersion"] == version
    assert result["serverInfo"] == {"name": "test", "version": "1"}


@pytest.mark.parametrize("version", ["2026-07-28", "1999-01-01", "latest"])
def test_any_other_version_is_answered_with_our_newest(version: str) -> None:
    assert talk("initialize", {"protocolVersion": version}, stateless=False)["protocolVersion"] == "2025-11-25"


def test_discover_tells_versions_capabilities_and_who_we_are() -> None:
    result = talk("server/discover", stateless=True, instructions="Say hello.")

    assert result["supportedVersions"] == ["2026-07-28"]
    assert result["capabilities"]["tools"] == {"listChanged": True}
    assert result["instructions"] == "Say hello."
    assert result["_meta"][SERVER_INFO]["name"] == "test"


def test_stateless_results_carry_their_type_and_cache_hints() -> None:
    result = talk("tools/list", stateless=True, cache=CacheHint(60_000, "public"))

    assert (result["resultType"], result["ttlMs"], result["cacheScope"]) == ("complete", 60_000, "public")


def test_handshake_results_carry_none_of_that() -> None:
    assert talk("tools/list", stateless=False).keys() == {"tools"}
    assert talk("ping", stateless=False) == {}


@pytest.mark.parametrize(
    ("method", "stateless"),
    [
        ("initialize", True),
        ("ping", True),
        ("logging/setLevel", True),
        ("server/discover", False),
        ("tasks/get", False),
        ("tasks/list", True),
        ("no/such", True),
        ("no/such", False),
        ("prompts/list", True),
        ("resources/read", False),
    ],
)
def test_a_method_of_the_other_era_or_an_unknown_one_is_not_found(method: str, stateless: bool) -> None:
    with pytest.raises(JsonRpcError, match="Method not found") as refused:
        talk(method, stateless=stateless)
    assert refused.value.code == -32601


@pytest.mark.parametrize(
    ("meta", "code", "named"),
    [
        ({PROTOCOL_VERSION: None}, -32602, PROTOCOL_VERSION),
        ({CLIENT_CAPABILITIES: 7}, -32602, CLIENT_CAPABILITIES),
        ({PROTOCOL_VERSION: "2031-01-01"}, -32022, "version"),
        ({"io.modelcontextprotocol/logLevel": "loud"}, -32602, "logLevel"),
    ],
)
def test_a_wrong_envelope_is_refused_by_name(meta: Json, code: int, named: str) -> None:
    with pytest.raises(JsonRpcError, match=named) as refused:
        talk("tools/list", {"_meta": meta}, stateless=True)
    assert refused.value.code == code


def test_pages_follow_one_another_to_the_end() -> None:
    tools = Tools()
    for number in range(7):
        tools.add(ToolSpec(name=f"tool-{number}"), hello)
    client = Conversation(serving(tools, page_size=3))

    async def all_pages() -> list[list[str]]:
        pages, cursor = [], None
        while True:
            result = await client.ask("tools/list", {"cursor": cursor} if cursor else {})
            pages.append([tool["name"] for tool in result["tools"]])
            cursor = result.get("nextCursor")
            if cursor is None:
                return pages

    assert asyncio.run(all_pages()) == [
        ["tool-0", "tool-1", "tool-2"],
        ["tool-3", "tool-4", "tool-5"],
        ["tool-6"],
    ]


@pytest.mark.parametrize("cursor", ["", "zz", "00", 7, {}])
def test_a_cursor_that_is_not_ours_is_refused(cursor: Any) -> None:
    with pytest.raises(JsonRpcError, match="cursor"):
        talk("tools/list", {"cursor": cursor}, stateless=True)


def test_a_tool_is_listed_as_its_owner_wrote_it() -> None:
    tools = Tools()
    spec = ToolSpec(
        name="draw",
        title="Draw",
        description="Draws.",
        input_schema={"type": "object", "x-own": [1]},
        output_schema={"type": "object"},
        annotations={"readOnlyHint": True},
        icons=[{"src": "data:image/png;base64,AA=="}],
        meta={"example.com/kind": "art"},
    )
    tools.add(spec, hello)

    listed = asyncio.run(Conversation(serving(tools)).ask("tools/list"))["tools"][0]

    assert listed == {
        "name": "draw",
        "title": "Draw",
        "description": "Draws.",
        "inputSchema": {"type": "object", "x-own": [1]},
        "outputSchema": {"type": "object"},
        "annotations": {"readOnlyHint": True},
        "icons": [{"src": "data:image/png;base64,AA=="}],
        "_meta": {"example.com/kind": "art"},
    }


@pytest.mark.parametrize("params", [{"name": 5}, {}, {"name": "hello", "arguments": []}, {"name": "nobody"}])
def test_a_call_that_names_no_tool_properly_is_an_error_not_a_result(params: Json) -> None:
    with pytest.raises(JsonRpcError) as refused:
        talk("tools/call", params, stateless=False)
    assert refused.value.code == -32602
