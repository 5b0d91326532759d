"""Public MCP servers from npm and PyPI, as people use them."""

import asyncio
import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from openclaw_mcp.core.errors import ToolUnavailable
from openclaw_mcp.core.model import Image, Json
from openclaw_mcp.mcp.client.server_pool import McpServerPool
from tests.mcp.client.servers import Person, alive, call, comes, run, text
from tests.mcp.client.test_addresses import free_port
from tests.programs import need, need_node, need_npm, need_pypi
from tests.running import process, read_line


def npm(package: str, *args: str) -> Json:
    program = need_npm(f"@modelcontextprotocol/{package}") / "dist" / "index.js"
    return {"command": need_node(), "args": [str(program), *args]}


def test_server_everything_over_stdio() -> None:
    async def scene() -> None:
        async with McpServerPool({"all": npm("server-everything")}) as roster:
            server = roster.find("all")
            client = await server.start()
            person = Person()

            assert not client.stateless
            assert text(await call(server, "get-sum", {"a": 19, "b": 23})) == "The sum of 19 and 23 is 42."
            picture = await call(server, "get-tiny-image")
            assert any(isinstance(block, Image) and block.data.startswith(b"\x89PNG") for block in picture.content)
            structured = await call(server, "get-structured-content", {"location": "Chicago"})
            assert structured.structured.keys() == {"temperature", "conditions", "humidity"}  # type: ignore[union-attr]
            await call(server, "trigger-long-running-operation", {"duration": 0.4, "steps": 4}, line=person)
            assert person.steps == [1, 2, 3, 4]
            await call(server, "trigger-elicitation-request", line=person)
            assert person.asked[0].method == "elicitation/create"

    run(scene())


def test_server_everything_over_http_and_restarted() -> None:
    port = free_port()
    program = str(need_npm("@modelcontextprotocol/server-everything") / "dist" / "index.js")

    def serving() -> "object":
        words = [need_node(), program, "streamableHttp"]
        return process(*words, env={**os.environ, "PORT": str(port)}, stderr=subprocess.STDOUT, stdout=subprocess.PIPE)

    async def scene() -> None:
        async with McpServerPool({"all": {"url": f"http://127.0.0.1:{port}/mcp"}}) as roster:
            server = roster.find("all")
            for _ in range(2):
                with serving() as child:  # type: ignore[attr-defined]
                    while b"listening" not in read_line(child):
                        pass
                    if not server.is_connected:
                        await server.start()
                    person = Person()
                    assert text(await call(server, "echo", {"message": "hi"})) == "Echo: hi"
                    await call(server, "trigger-elicitation-request", line=person)
                    assert len(person.asked) == 1

    run(scene())


def test_server_filesystem(tmp_path: Path) -> None:
    async def scene() -> None:
        async with McpServerPool({"files": npm("server-filesystem", str(tmp_path))}) as roster:
            server = roster.find("files")
            await server.start()
            note = tmp_path / "note.txt"

            await call(server, "write_file", {"path": str(note), "content": "remember"})
            outside = await call(server, "read_text_file", {"path": "/etc/hostname"})

            assert note.read_text() == "remember"
            assert text(await call(server, "read_text_file", {"path": str(note)})) == "remember"
            assert outside.failed

    run(scene())


def test_mcp_server_time() -> None:
    async def scene() -> None:
        async with McpServerPool({"time": {"command": need_pypi("mcp-server-time")}}) as roster:
            server = roster.find("time")
            client = await server.start()

            now = json.loads(text(await call(server, "get_current_time", {"timezone": "Asia/Tokyo"})))

            assert client.stateless
            assert now["datetime"].endswith("+09:00")

    run(scene())


def test_mcp_server_git(tmp_path: Path) -> None:
    git = need("git", package="git")
    subprocess.run([git, "init", "-q", str(tmp_path)], check=True)
    (tmp_path / "new.txt").write_text("x")

    async def scene() -> None:
        async with McpServerPool({"git": {"command": need_pypi("mcp-server-git")}}) as roster:
            server = roster.find("git")
            await server.start()

            assert "new.txt" in text(await call(server, "git_status", {"repo_path": str(tmp_path)}))

    run(scene())


def test_a_real_server_killed_in_mid_call_comes_back() -> None:
    pids: list[int] = []

    async def scene() -> None:
        async with McpServerPool({"all": npm("server-everything")}) as roster:
            server = roster.find("all")
            await server.start()
            (group,) = roster._reaper._groups
            pids.append(group)
            person = Person()
            long = {"duration": 60, "steps": 600}
            waiting = asyncio.ensure_future(call(server, "trigger-long-running-operation", long, line=person))
            assert await comes(lambda: bool(person.steps))

            os.kill(group, signal.SIGKILL)

            with pytest.raises(ToolUnavailable, match="SIGKILL"):
                await waiting
            assert text(await call(server, "echo", {"message": "again"})) == "Echo: again"
            pids.extend(roster._reaper._groups)

    run(scene())

    assert not any(map(alive, pids))
