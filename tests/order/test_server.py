"""`openclaw mcp-server` as a client starts it: orders, sessions, transcripts, endings."""

import asyncio
import base64
import contextlib
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client

from openclaw_mcp import __version__
from tests.running import OPENCLAW, StdioServer, http_server, process, read_line
from tests.web_client import META, rpc, send

NOBODY = "1"
"""A port nothing listens on: the agent stays in the process."""
PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n" + b"\0" * 64).decode()


def settings(folder: Path, **more: str) -> dict[str, str]:
    return {**os.environ, "OPENCLAW_STATE_DIR": str(folder), "OPENCLAW_GATEWAY_PORT": NOBODY, **more}


@contextlib.contextmanager
def server(folder: Path, **more: str) -> Iterator[StdioServer]:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "bufsize": 0}
    with process(OPENCLAW, "mcp-server", env=settings(folder, **more), **pipes) as child:
        yield StdioServer(child)


def order(server: StdioServer, message: str, id: int = 1, **more: Any) -> Any:
    params = {"name": "order_openclaw", "arguments": {"message": message, **more}}
    return server.ask("tools/call", params, id=id)["result"]


def text_of(result: Any) -> str:
    assert result["isError"] is False, result
    return str(result["content"][0]["text"])


def transcript(server: StdioServer, key: str) -> list[Any]:
    uri = f"openclaw://sessions/{key}"
    read = server.ask("resources/read", {"uri": uri}, id=99)
    return list(json.loads(read["result"]["contents"][0]["text"]))


def words(message: Any) -> str:
    content = message["content"]
    return content if isinstance(content, str) else "".join(block.get("text", "") for block in content)


def test_an_order_is_answered_with_nothing_configured(tmp_path: Path) -> None:
    with server(tmp_path) as one:
        assert "hello there" in text_of(order(one, "hello there"))


def test_a_conversation_goes_on_in_another_process(tmp_path: Path) -> None:
    for message in ("remember blue", "which colour?"):
        with server(tmp_path) as one:
            order(one, message, sessionKey="colours")
            assert one.hang_up() == 0
    with server(tmp_path) as one:
        orders = [words(message) for message in transcript(one, "colours") if message["role"] == "user"]

    assert orders == ["remember blue", "which colour?"]


def test_orders_without_a_key_leave_sessions_of_their_own(tmp_path: Path) -> None:
    with server(tmp_path) as one:
        for id, message in enumerate(("first", "second"), 1):
            order(one, message, id=id)
        listed = one.ask("resources/list", id=9)["result"]["resources"]

    assert len({resource["name"] for resource in listed}) == 2
    assert all(":mcp-" in resource["name"] for resource in listed)


def test_two_servers_take_turns_in_one_session(tmp_path: Path) -> None:
    with server(tmp_path) as one, server(tmp_path) as two:
        for number in range(5):
            for each in (one, two):
                params = {"name": "order_openclaw", "arguments": {"message": f"n{number}", "sessionKey": "shared"}}
                each.send({"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params})
        for each in (one, two):
            answers = [each.receive(60) for _ in range(5)]
            assert sorted(answer["id"] for answer in answers) == list(range(5))
            assert [answer["result"] for answer in answers if answer["result"]["isError"]] == []
        roles = [message["role"] for message in transcript(one, "shared")]

    assert roles == ["user", "assistant"] * 10


def test_orders_go_to_a_running_gateway(tmp_path: Path) -> None:
    gateway = tmp_path / "gateway"
    with http_server(OPENCLAW, "gateway", "--port", "0", "--state-dir", str(gateway)) as address:
        url = address.replace("http://", "ws://").removesuffix("/mcp")
        token = (gateway / "gateway-token.txt").read_text()
        more = {"OPENCLAW_GATEWAY_URL": url, "OPENCLAW_GATEWAY_TOKEN": token}
        with server(tmp_path / "client", **more) as one:
            assert "through the gateway" in text_of(
                order(one, "through the gateway", images=[{"data": PNG, "mimeType": "image/png"}])
            )
            bad = order(one, "x", sessionKey="agent:nobody:x")
    assert bad["content"][0]["text"].startswith("Error: ")
    assert (gateway / "openclaw.sqlite").exists()
    assert not (tmp_path / "client" / "openclaw.sqlite").exists()


@pytest.mark.parametrize("remote", [False, True])
def test_the_config_says_where_the_gateway_is(tmp_path: Path, remote: bool) -> None:
    gateway, client = tmp_path / "gateway", tmp_path / "client"
    client.mkdir()
    with http_server(OPENCLAW, "gateway", "--port", "0", "--state-dir", str(gateway)) as address:
        url, token = (
            address.replace("http://", "ws://").removesuffix("/mcp"),
            (gateway / "gateway-token.txt").read_text(),
        )
        here = {"port": int(url.rpartition(":")[2]), "auth": {"token": token}}
        there = {"mode": "remote", "remote": {"url": url, "token": token}}
        (client / "openclaw.json").write_text(json.dumps({"gateway": there if remote else here}))
        with server(client, OPENCLAW_GATEWAY_PORT="") as one:
            assert "as configured" in text_of(order(one, "as configured"))
    assert not (client / "openclaw.sqlite").exists()


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"OPENCLAW_GATEWAY_URL": "ws://127.0.0.1:1"}, "ws://127.0.0.1:1"),
        ({"OPENCLAW_GATEWAY_URL": "nonsense"}, "nonsense"),
    ],
)
def test_a_gateway_that_was_named_and_can_not_be_reached_is_said_so(
    tmp_path: Path, more: dict[str, str], says: str
) -> None:
    with server(tmp_path, **more) as one:
        result = order(one, "hello")

    assert result["isError"] is True
    assert result["content"][0]["text"].startswith("Error: ")
    assert says in result["content"][0]["text"]


@pytest.mark.parametrize("mode", ["auto", "legacy", "2026-07-28"])
def test_the_official_client_orders(tmp_path: Path, mode: str) -> None:
    async def visit() -> str:
        parameters = StdioServerParameters(command=OPENCLAW, args=["mcp-server"], env=settings(tmp_path))
        async with asyncio.timeout(60), Client(stdio_client(parameters), mode=mode) as client:
            assert [tool.name for tool in (await client.list_tools()).tools] == ["order_openclaw"]
            result = await client.call_tool("order_openclaw", {"message": "from the official client"})
            return str(result.content[0].text)  # type: ignore[union-attr]

    assert "from the official client" in asyncio.run(visit())


def attachments(what: str, example: str, described: str) -> Any:
    properties = {
        "data": {"type": "string", "description": f"Base64-encoded {what} data"},
        "mimeType": {"type": "string", "description": f"MIME type (e.g., '{example}')"},
        "filename": {"type": "string", "description": "Optional filename"},
    }
    items = {"type": "object", "properties": properties, "required": ["data", "mimeType"]}
    return {"type": "array", "description": described, "items": items}


def test_there_is_one_tool_and_it_reads_to_the_letter(tmp_path: Path) -> None:
    with server(tmp_path) as one:
        (tool,) = one.ask("tools/list")["result"]["tools"]

    assert tool["name"] == "order_openclaw"
    assert tool["description"] == (
        "Send a message to OpenClaw and receive a response. The message will be processed as if typed by a user. "
        "Supports sending images, files (PDF, text, markdown, CSV, JSON), audio, video, and archives (ZIP, TAR.GZ) "
        "via base64 encoding."
    )
    assert tool["inputSchema"] == {
        "type": "object",
        "properties": {
            "message": {"type": "string", "description": "The message to send to OpenClaw"},
            "sessionKey": {"type": "string", "description": "Optional session key for conversation continuity"},
            "images": attachments("image", "image/png", "Optional base64-encoded images (max 10, 15MB each)"),
            "files": attachments("file", "application/pdf", "Optional base64-encoded files (max 5, 15MB each)"),
        },
        "required": ["message"],
    }


def test_the_version_and_help_are_reported() -> None:
    for word, says in (("--version", __version__), ("-h", "--verbose"), ("--help", "--verbose")):
        result = subprocess.run([OPENCLAW, "mcp-server", word], capture_output=True, text=True, timeout=60, check=True)
        assert says in result.stdout


def test_an_unknown_session_is_no_resource(tmp_path: Path) -> None:
    with server(tmp_path) as one:
        for uri in ("openclaw://sessions/none", "file:///etc/hostname"):
            error = one.ask("resources/read", {"uri": uri})["error"]
            assert (error["code"], error["data"]) == (-32002, {"uri": uri})
            error = one.ask("resources/read", {"uri": uri, "_meta": META})["error"]
            assert (error["code"], error["data"]) == (-32602, {"uri": uri})


def test_half_a_character_is_refused_and_the_order_named(tmp_path: Path) -> None:
    with server(tmp_path) as one:
        one.write(
            b'{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"order_openclaw",'
            b'"arguments":{"message":"\\ud800"}}}\n'
        )
        answer = one.receive()

    assert answer["id"] == 7
    assert "half a character" in answer["error"]["message"]


def test_a_state_directory_that_can_not_be_used_is_said_in_the_answer(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with server(tmp_path / "file") as one:
        result = order(one, "hello")

    assert result["isError"] is True
    assert result["content"][0]["text"].startswith("Error: ")
    assert str(tmp_path / "file") in result["content"][0]["text"]


def test_a_number_too_large_is_named_as_such(tmp_path: Path) -> None:
    with server(tmp_path) as one:
        one.write(b'{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"x","arguments":{"n":1e400}}}\n')
        answer = one.receive()

    assert answer["id"] == 7
    assert "Number out of range" in answer["error"]["message"]


def test_over_http_it_stands_behind_the_gateways_token(tmp_path: Path) -> None:
    with process(
        OPENCLAW, "mcp-server", "--http", "--port", "0", env=settings(tmp_path), stdout=subprocess.PIPE
    ) as child:
        address = read_line(child, 60).decode().split()[-1]
        token = (tmp_path / "gateway-token.txt").read_text().strip()
        call = rpc("tools/call", {"name": "order_openclaw", "arguments": {"message": "hello over http"}})
        answer = send(address, "POST", call, Authorization=f"Bearer {token}")

        assert "hello over http" in answer.body.decode()
        assert send(address, "POST", call).status == 401
        assert send(address, "POST", call, Authorization=f"Bearer {token}", Origin="https://example.org").status == 403
