"""The opening answers are the real server's own, whichever process gives them."""

import asyncio
import json
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripts.first_replies import FOLDER, SURFACES, first_replies, source

from openclaw_mcp.mcp.first_replies.echo import FIRST_REPLIES
from openclaw_mcp.mcp.server import boot
from openclaw_mcp.protocol import jsonrpc, mcp
from openclaw_mcp.protocol.jsonrpc import JsonRpcRequest
from tests.conversation import Conversation
from tests.running import OPENCLAW, ROOT

META = {mcp.PROTOCOL_VERSION: "2026-07-28", mcp.CLIENT_CAPABILITIES: {}}


@pytest.mark.parametrize("surface", SURFACES)
def test_what_is_shipped_is_what_the_real_server_says(surface: str) -> None:
    assert (FOLDER / f"{surface}.py").read_text() == source(first_replies(surface, SURFACES[surface]())), (
        "run make first-replies"
    )


def real(method: str, params: Any) -> Any:
    """The real server's result, by the transport's own road."""
    stateless = mcp.is_stateless(JsonRpcRequest(1, method, params))
    client = Conversation(SURFACES["echo"](), stateless=stateless)
    return asyncio.run(client.ask(method, params))


ids = st.one_of(st.text(max_size=5), st.integers(-(2**70), 2**70), st.none(), st.booleans(), st.floats(allow_nan=False))
metas = st.one_of(
    st.none(),
    st.just(META),
    st.just({mcp.PROTOCOL_VERSION: "2025-06-18", mcp.CLIENT_CAPABILITIES: {}}),
    st.just({mcp.PROTOCOL_VERSION: "2026-07-28"}),
    st.just({**META, mcp.LOG_LEVEL: "debug"}),
    st.just({"progressToken": 1}),
)
messages = st.fixed_dictionaries(
    {
        "jsonrpc": st.sampled_from(["2.0", "2.0", "2.0", "1.0"]),
        "method": st.sampled_from(["initialize", "ping", "tools/list", "server/discover", "tools/call", "x"]),
    },
    optional={
        "id": ids,
        "params": st.one_of(
            st.none(),
            st.just([]),
            st.fixed_dictionaries(
                {},
                optional={
                    "_meta": metas,
                    "protocolVersion": st.sampled_from([*mcp.HANDSHAKE_VERSIONS, "2026-07-28", "x", 7]),
                    "cursor": st.sampled_from([None, "", "abc"]),
                },
            ),
        ),
    },
)


@given(messages)
def test_every_opening_answer_is_one_the_real_server_would_give(message: dict[str, Any]) -> None:
    line = json.dumps(message).encode()

    reply, introduced = boot.answer(FIRST_REPLIES, line)

    if not reply:
        assert introduced is None
        return
    read = jsonrpc.decode_message(line)
    assert isinstance(read, JsonRpcRequest), "the boot path answered what the real server would refuse"
    reply_json = json.loads(reply)
    assert reply_json["id"] == read.id
    assert reply_json["result"] == real(read.method, read.params)
    assert introduced == (read.params if read.method == "initialize" else None)


def test_the_usual_opening_is_answered_without_the_real_server() -> None:
    for method, params in (
        ("initialize", {"protocolVersion": "2025-11-25", "capabilities": {"roots": {}}}),
        ("server/discover", {"_meta": META}),
        ("tools/list", {}),
        ("tools/list", {"_meta": META}),
        ("ping", {}),
    ):
        line = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode()
        assert boot.answer(FIRST_REPLIES, line)[0]


def test_the_first_answer_comes_before_anything_heavy_is_imported() -> None:
    code = (
        "import sys; from openclaw_mcp.mcp.server import boot;"
        "from openclaw_mcp.mcp.first_replies.echo import FIRST_REPLIES;"
        'boot.answer(FIRST_REPLIES, b\'{"jsonrpc":"2.0","id":1,"method":"ping"}\');'
        "print(sorted({'asyncio', 'msgspec', 'typing', 'dataclasses', 'logging', 'jsonschema_rs'} & set(sys.modules)))"
    )

    process = subprocess.run(
        [sys.executable, "-S", "-c", f"import sys; sys.path[:0] = {[str(ROOT / 'src')]!r}; {code}"],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )

    assert process.stdout.strip() == "[]"


def test_a_stdio_server_never_imports_what_it_does_not_need() -> None:
    code = (
        "import sys; from openclaw_mcp.cli import echo; echo.server();"
        "print(sorted({'pydantic', 'mcp', 'starlette', 'uvicorn', 'httpx', 'sqlalchemy', 'argparse', 'hashlib'}"
        " & set(sys.modules)))"
    )

    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True)

    assert process.stdout.strip() == "[]"


def test_the_client_introduced_during_the_opening_is_known_to_the_real_server() -> None:
    fed = [
        {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": "2025-06-18"}},
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "echo", "arguments": {"text": "x"}}},
    ]

    process = subprocess.run(
        [OPENCLAW, "echo"],
        input="".join(json.dumps(message) + "\n" for message in fed),
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )

    answers = [json.loads(line) for line in process.stdout.splitlines()]
    assert [answer["id"] for answer in answers] == [1, 2]
    assert answers[0]["result"]["protocolVersion"] == "2025-06-18"
