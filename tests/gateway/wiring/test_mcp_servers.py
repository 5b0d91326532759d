"""Other people's MCP servers, used by an agent through a real gateway; killed, changed, and gone when it is gone."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.gateway.wiring.gateways import World, children, comes, gone, joined, serving, world
from tests.mcp.client.servers import ECHO, alive, odd
from tests.mcp.client.test_real_servers import npm
from tests.programs import need, need_pypi

LONG = {"duration": 120, "steps": 1200}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    workspace = tmp_path_factory.mktemp("work")
    subprocess.run([need("git", package="git"), "init", "-q", str(workspace)], check=True)
    (workspace / "note.txt").write_text("remember the milk")
    return workspace


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, folder: Path) -> Iterator[World]:
    servers = {
        "all": npm("server-everything"),
        "files": {**npm("server-filesystem", str(folder)), "agents": ["main", "clerk"]},
        "time": {"command": need_pypi("mcp-server-time")},
        "git": {"command": need_pypi("mcp-server-git"), "toolFilter": {"include": ["git_status", "git_log"]}},
        "broken": {"command": "no-such-program-anywhere"},
        "off": {**ECHO, "enabled": False},
    }
    agents = [{"id": "main", "default": True}, {"id": "clerk", "tools": {"deny": ["files__write_*"]}}, {"id": "other"}]
    config = {"agents": {"list": agents}, "mcp": {"servers": servers}}
    with world(tmp_path_factory.mktemp("state"), config) as gateway:
        yield gateway


def running(server: World, word: str) -> set[int]:
    """The processes below the gateway whose command line has that word."""
    return {pid for pid in children(server.pid) if word.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()}


def test_no_server_runs_before_one_is_needed_and_then_only_that_one(tmp_path: Path) -> None:
    config = {"mcp": {"servers": {"one": ECHO, "two": ECHO}}}
    with world(tmp_path, config) as server:
        server.say("main", "!say hello", "!tool sessions_list {}")
        assert children(server.pid) == set()
        assert server.say("main", '!tool one__echo {"text": "hi"}') == "hi"
        assert len(running(server, "echo")) == 1


def test_real_servers_do_their_work_for_an_agent(server: World, folder: Path) -> None:
    assert server.say("main", '!tool all__get-sum {"a": 19, "b": 23}') == "The sum of 19 and 23 is 42."
    note = json.dumps({"path": str(folder / "note.txt")})
    assert server.say("main", f"!tool files__read_text_file {note}") == "remember the milk"
    written = json.dumps({"path": str(folder / "new.txt"), "content": "by the agent"})
    server.say("main", f"!tool files__write_file {written}")
    assert (folder / "new.txt").read_text() == "by the agent"
    now = json.loads(server.say("main", '!tool time__get_current_time {"timezone": "Asia/Tokyo"}'))
    assert now["datetime"].endswith("+09:00")
    status = json.dumps({"repo_path": str(folder)})
    assert "note.txt" in server.say("main", f"!tool git__git_status {status}")


def test_several_sessions_share_one_server(server: World) -> None:
    server.say("main", '!tool all__echo {"message": "x"}')
    before = children(server.pid)
    for number in range(3):
        assert server.say(f"agent:main:s{number}", '!tool all__echo {"message": "hi"}') == "Echo: hi"
    assert children(server.pid) == before


def test_a_server_is_for_the_agents_it_names_and_offers_what_its_filter_lets_through(server: World) -> None:
    listing = "!tool files__list_allowed_directories {}"
    assert "Allowed directories" in server.say("agent:clerk:x", listing)
    assert "mcp.servers.files.agents does not name the agent other" in server.say("agent:other:x", listing)
    assert "files__write_file is refused by agents.clerk.tools.deny" in server.say(
        "agent:clerk:x", '!tool files__write_file {"path": "x", "content": "y"}'
    )
    tools = server.ask("tools.effective", sessionKey="agent:other:x")["groups"][0]["tools"]
    names = {tool["id"] for tool in tools}
    assert {"git__git_status", "git__git_log", "all__echo", "time__convert_time"} <= names
    assert not names & {"git__git_commit", "off__echo"}
    assert not any(name.startswith("files__") for name in names)


def test_one_that_does_not_start_says_why_and_spoils_no_other(server: World) -> None:
    assert "no-such-program-anywhere" in server.say("main", "!tool broken__anything {}")
    assert server.say("main", '!tool all__echo {"message": "still here"}') == "Echo: still here"
    assert "Unknown tool: off__echo" in server.say("main", '!tool off__echo {"text": "x"}')


def test_a_server_killed_in_mid_call_fails_that_call_at_once_and_comes_back(server: World) -> None:
    server.say("main", '!tool all__echo {"message": "x"}')
    run = server.begin("agent:main:long", f"!tool all__trigger-long-running-operation {json.dumps(LONG)}")
    (victim,) = running(server, "server-everything")
    server.until("agent", lambda p: p.get("runId") == run and p.get("stream") == "tool")
    os.kill(victim, signal.SIGKILL)

    assert "all is gone" in server.answer(run)
    assert server.say("main", '!tool all__echo {"message": "again"}') == "Echo: again"
    assert not alive(victim)


def test_an_abort_of_the_run_leaves_the_server_to_the_others(server: World) -> None:
    server.say("main", '!tool all__echo {"message": "x"}')
    before = children(server.pid)
    server.begin("agent:main:abort", f"!tool all__trigger-long-running-operation {json.dumps(LONG)}")
    assert server.ask("chat.abort", sessionKey="agent:main:abort")["aborted"]
    assert comes(lambda: not server.ask("sessions.describe", key="agent:main:abort")["session"]["hasActiveRun"])

    assert server.say("main", '!tool all__echo {"message": "alive"}') == "Echo: alive"
    assert children(server.pid) == before


def test_servers_come_and_go_with_the_config(tmp_path: Path) -> None:
    with world(tmp_path, {"mcp": {"servers": {"one": ECHO}}}) as server:
        assert server.say("main", '!tool one__echo {"text": "hi"}') == "hi"
        first = running(server, "echo")
        server.configure(mcp={"servers": {"one": ECHO, "two": ECHO}})
        assert comes(lambda: server.say("main", '!tool two__echo {"text": "new"}') == "new")
        assert all(map(alive, first))  # one that is named as before lives on
        server.configure(mcp={"servers": {"two": {**ECHO, "toolFilter": {"exclude": ["echo"]}}}})
        assert gone(first)
        assert comes(lambda: "Unknown tool" in server.say("main", '!tool one__echo {"text": "x"}'))
        assert comes(lambda: "Unknown tool" in server.say("main", '!tool two__echo {"text": "x"}'))


def test_a_list_that_changes_changes_the_menu(tmp_path: Path) -> None:
    def now(server: World) -> set[str]:
        groups = server.ask("tools.effective")["groups"]
        return {tool["id"] for group in groups for tool in group["tools"] if tool["id"].startswith("odd__")}

    with world(tmp_path, {"mcp": {"servers": {"odd": odd()}}}) as server:
        first = now(server)
        server.say("main", '!tool odd__more {"name": "fresh"}')
        assert comes(lambda: now(server) == first | {"odd__fresh"})


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left_however_the_gateway_ends(tmp_path: Path, how: signal.Signals) -> None:
    """A server through a launcher with a child of its own, one that ignores requests to end, and a real one."""
    script = f"trap '' TERM; sleep 600 & {ECHO['command']} echo; wait"
    servers = {"real": npm("server-everything"), "stubborn": {"command": "sh", "args": ["-c", script]}}
    with world(tmp_path, {"mcp": {"servers": servers}}) as server:
        orders = ('!tool real__echo {"message": "x"}', '!tool stubborn__echo {"text": "y"}')
        assert server.say("main", *orders) == "Echo: xy"
        server.begin("main", f"!tool real__trigger-long-running-operation {json.dumps(LONG)}")
        below = children(server.pid)
        assert len(below) >= 4
        os.kill(server.pid, how)
        server.served.child.wait(30)
        assert gone(below)


def test_after_a_kill_the_next_gateway_starts_them_again(tmp_path: Path) -> None:
    with world(tmp_path, {"mcp": {"servers": {"one": ECHO}}}) as server:
        server.say("main", '!tool one__echo {"text": "hi"}')
        server.served.child.kill()
        server.served.child.wait(10)
    with serving(tmp_path) as served, joined(served) as server:
        assert server.say("main", '!tool one__echo {"text": "again"}') == "again"


def test_a_turn_goes_on_when_the_server_it_waits_for_is_removed(tmp_path: Path) -> None:
    """It ended without an answer, and without a line in the log."""
    with world(tmp_path, {"mcp": {"servers": {"one": odd(), "two": ECHO}}}) as server:
        run = server.begin("main", "!tool one__hang {}", '!tool two__echo {"text": "and then this"}')
        server.until("agent", lambda event: event.get("stream") == "tool" and event["data"]["phase"] == "start")
        server.configure(mcp={"servers": {"two": ECHO}})
        assert server.answer(run) == "one was removed from mcp.serversand then this"  # the demo joins what tools say
        (failed, _) = [
            m for m in server.ask("chat.history", sessionKey="main")["messages"] if m["role"] == "toolResult"
        ]
        assert failed["isError"]
        assert failed["content"][0]["text"] == "one was removed from mcp.servers"


def test_a_server_that_is_added_has_its_tools_in_the_next_turn(tmp_path: Path) -> None:
    with world(tmp_path, {}) as server:
        for number in range(6):
            server.configure(mcp={"servers": {f"s{number}": ECHO}})
            assert server.say("main", f'!tool s{number}__echo {{"text": "{number}"}}') == str(number)
