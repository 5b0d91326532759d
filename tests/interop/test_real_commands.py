"""A real OpenClaw's `agent`, `sessions` and `mcp serve`, with our gateway behind them.

Its plain `sessions` reads files of its own and asks no gateway; `archive` and `delete` do.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client

from ..gateway.wiring.test_gateway import Served, serving
from . import real

THEIR_TOOLS = {
    "attachments_fetch", "conversation_get", "conversations_list", "events_poll", "events_wait", "messages_read",
    "messages_send", "permissions_list_open", "permissions_respond",
}  # fmt: skip
ROOM = "agent:main:local:direct:room"
PATIENCE = 120.0  # seconds for a story with their server, cold, on a busy machine

Call = Callable[..., Coroutine[Any, Any, Any]]


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    real.program()
    with serving(tmp_path_factory.mktemp("ours")) as served:
        yield served


def theirs(ours: Served, home: Path, *words: str) -> str:
    result = real.command_line(home, ours.ws, ours.token, *words)
    assert result.returncode == 0, result.stderr[-500:]
    return result.stdout


def ask(ours: Served, method: str, params: Any) -> Any:
    result = ours.call(method, json.dumps(params))
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def say(ours: Served, conversation: str, text: str) -> None:
    """Say it in a local conversation, and wait until the agent has answered."""
    received = ask(ours, "local.send", {"conversation": conversation, "text": text})
    assert ask(ours, "agent.wait", {"runId": received["runId"], "timeoutMs": 10000})["status"] == "ok"


def test_their_agent_command_runs_our_agent(ours: Served, tmp_path: Path) -> None:
    key = "agent:main:terminal"
    words = ("agent", "--session-key", key, "--message")
    assert theirs(ours, tmp_path, *words, "!say forty-two").strip() == "forty-two"

    result = json.loads(theirs(ours, tmp_path, *words, "!say forty-three", "--json"))

    assert result["status"] == "ok"
    assert [payload["text"] for payload in result["result"]["payloads"]] == ["forty-three"]
    history = ask(ours, "chat.history", {"sessionKey": key})["messages"]
    assert [message["content"][0]["text"] for message in history if message["role"] == "assistant"] == [
        "forty-two",
        "forty-three",
    ]


def test_their_sessions_commands_archive_and_delete_ours(ours: Served, tmp_path: Path) -> None:
    key = "agent:main:attic"
    ask(ours, "sessions.create", {"key": key})
    assert key in theirs(ours, tmp_path, "gateway", "call", "sessions.list", "--json")

    result = json.loads(theirs(ours, tmp_path, "sessions", "archive", key, "--json"))

    assert [(row["key"], row["status"]) for row in result["results"]] == [(key, "archived")]
    assert ask(ours, "sessions.describe", {"key": key})["session"]["archivedAt"] > 0
    assert key not in [row["key"] for row in ask(ours, "sessions.list", {})["sessions"]]
    result = json.loads(theirs(ours, tmp_path, "sessions", "delete", key, "--yes", "--json"))
    assert [(row["key"], row["status"]) for row in result["results"]] == [(key, "deleted")]
    assert ask(ours, "sessions.describe", {"key": key})["session"] is None


@asynccontextmanager
async def their_server(ours: Served, home: Path) -> AsyncIterator[tuple[ClientSession, Call]]:
    """`mcp serve` and a way to call its tools."""
    node, entry = real.program()
    (home / "state").mkdir(parents=True)
    token = ours.folder / "gateway-token.txt"
    words = [entry, "mcp", "serve", "--url", ours.ws, "--token-file", str(token)]
    server = StdioServerParameters(command=node, args=words, env=real.environment(home))
    async with asyncio.timeout(PATIENCE), stdio_client(server) as pipes, ClientSession(*pipes) as client:
        await client.initialize()

        # It answers before it has reached the gateway; what needs the gateway waits for that.
        assert not (await client.call_tool("conversations_list", {})).is_error

        async def call(name: str, **arguments: Any) -> Any:
            answer = await client.call_tool(name, arguments)
            assert not answer.is_error, answer.content
            return answer.structured_content

        yield client, call


def test_their_mcp_server_shows_our_conversations_and_sends_into_them(ours: Served, tmp_path: Path) -> None:
    async def scenario() -> None:
        say(ours, "room", "!say good morning")
        async with their_server(ours, tmp_path) as (client, call):
            assert {tool.name for tool in (await client.list_tools()).tools} == THEIR_TOOLS
            conversations = (await call("conversations_list"))["conversations"]
            where = ("sessionKey", "channel", "to", "accountId")
            assert [[one[name] for name in where] for one in conversations] == [[ROOM, "local", "room", "default"]]
            one = await call("conversation_get", session_key=ROOM)
            assert one["conversation"]["sessionKey"] == ROOM
            read = (await call("messages_read", session_key=ROOM))["messages"]
            assert [message["role"] for message in read] == ["user", "assistant"]
            assert "good morning" in json.dumps(read[1])
            found = await call("attachments_fetch", session_key=ROOM, message_id=read[0]["__openclaw"]["id"])
            assert found["attachments"] == []
            await call("messages_send", session_key=ROOM, text="from another program")
            assert (await call("permissions_list_open"))["approvals"] == []
        texts = [message["text"] for message in ask(ours, "local.read", {"conversation": "room"})["messages"]]
        assert texts == ["!say good morning", "good morning", "from another program"]

    asyncio.run(scenario())


def test_their_mcp_server_hears_what_happens_and_answers_our_questions(ours: Served, tmp_path: Path) -> None:
    async def scenario() -> None:
        say(ours, "hall", "!say first")
        async with their_server(ours, tmp_path) as (_, call):
            key = ROOM.replace("room", "hall")
            cursor = (await call("events_poll"))["next_cursor"]
            waiting = asyncio.create_task(call("events_wait", after_cursor=cursor, session_key=key, timeout_ms=60000))
            await asyncio.to_thread(say, ours, "hall", "!say second")
            event = (await waiting)["event"]
            assert (event["role"], event["text"], event["sessionKey"]) == ("user", "!say second", key)
            assert [event["conversation"][name] for name in ("channel", "to", "accountId")] == [
                "local",
                "hall",
                "default",
            ]
            command = {"command": "echo hi", "timeoutMs": 60000, "twoPhase": True}
            request = await asyncio.to_thread(ask, ours, "exec.approval.request", command)
            received = await call("events_wait", after_cursor=cursor + 2, timeout_ms=60000)  # after question and answer
            assert (received["event"]["type"], received["event"]["raw"]["id"]) == (
                "exec_approval_requested",
                request["id"],
            )
            assert [one["id"] for one in (await call("permissions_list_open"))["approvals"]] == [request["id"]]
            await call("permissions_respond", kind="exec", id=request["id"], decision="deny")
            decided = await asyncio.to_thread(ask, ours, "exec.approval.waitDecision", {"id": request["id"]})
            assert decided["decision"] == "deny"

    asyncio.run(scenario())
