"""The audit: every call on record once, without its arguments; readable while the gateway runs and when it does not."""

import json
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from openclaw_mcp.cli.audit import parse_time
from openclaw_mcp.core.errors import BadRequest
from tests.gateway.wiring.gateways import Refused, World, comes, world
from tests.gateway.wiring.test_gateway import environment
from tests.running import OPENCLAW

CONFIG = {"agents": {"list": [{"id": "main", "tools": {"deny": ["agents_list"]}}]}}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with world(tmp_path_factory.mktemp("state"), CONFIG) as gateway:
        yield gateway


def records(server: World, count: int, **filters: Any) -> list[dict[str, Any]]:
    """So many records, once they are written."""
    assert comes(lambda: len(server.ask("audit.list", **filters)["records"]) >= count)
    found: list[dict[str, Any]] = server.ask("audit.list", **filters)["records"]
    assert len(found) == count
    return found


def command(folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [OPENCLAW, "audit", *words],
        env=environment(folder),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_call_is_on_record_with_who_where_which_rule_and_what_became_of_it(server: World) -> None:
    server.say("agent:main:a", '!tool session_status {"sessionKey": "agent:main:secret-name"}', "!tool agents_list {}")
    server.invoke("sessions_list", "agent:main:a", limit=3)
    server.invoke("sessions_list", "agent:main:a", limit="no number")
    found = records(server, 4, sessionKey="agent:main:a")

    rows = [(r["tool"], r["caller"], r["door"], r["step"], r["outcome"]) for r in reversed(found)]
    operator = "operator gateway-client"
    assert rows == [
        ("session_status", "agent main", "agent", "default", "failed"),
        ("agents_list", "agent main", "agent", "agent", "tool_denied"),
        ("sessions_list", operator, "rpc", "default", "ok"),
        ("sessions_list", operator, "rpc", "default", "tool_arguments"),
    ]
    assert all(re.fullmatch("[0-9a-f]{32}", r["digest"]) and r["ms"] >= 0 and r["source"] == "gateway" for r in found)
    assert abs(found[0]["at"] - time.time() * 1000) < 120_000
    assert "agents.main.tools.deny, which names agents_list" in found[2]["rule"]
    assert "secret-name" not in json.dumps(found)
    assert b"secret-name" not in (server.served.folder / "audit-key.bin").read_bytes()


def test_the_same_arguments_have_the_same_digest(server: World) -> None:
    for limit in (1, 1, 2):
        server.invoke("sessions_list", "agent:main:same", limit=limit)
    last, second, first = (r["digest"] for r in records(server, 3, sessionKey="agent:main:same"))

    assert first == second != last


def test_an_unknown_tool_is_on_record_too(server: World) -> None:
    server.invoke("no_such_tool", "agent:main:unknown")
    (found,) = records(server, 1, tool="no_such_tool")

    assert (found["outcome"], found["source"], found["step"]) == ("tool_not_found", None, "menu")


def test_a_story_is_told_in_pages(server: World) -> None:
    for _ in range(5):
        server.invoke("sessions_list", "agent:main:pages")
    records(server, 5, sessionKey="agent:main:pages")
    first = server.ask("audit.list", sessionKey="agent:main:pages", limit=3)
    rest = server.ask("audit.list", sessionKey="agent:main:pages", limit=3, before=first["nextBefore"])

    assert (first["count"], rest["count"], "nextBefore" in rest) == (3, 2, False)
    assert len({r["id"] for r in first["records"] + rest["records"]}) == 5


def test_wrong_questions_are_refused(server: World) -> None:
    for params in ({"limit": 0}, {"limit": 1001}, {"since": -1}, {"tool": 3}):
        with pytest.raises(Refused, match=r"invalid audit\.list params"):
            server.ask("audit.list", **params)


def test_the_command_reads_beside_a_running_gateway(server: World) -> None:
    server.say("agent:main:cli", "!tool sessions_list {}", "!tool agents_list {}")
    records(server, 2, sessionKey="agent:main:cli")
    folder = server.served.folder

    table = command(folder, "--session", "agent:main:cli")
    rows = json.loads(command(folder, "--session", "agent:main:cli", "--json").stdout)
    denied = json.loads(command(folder, "--outcome", "tool_denied", "--since", "1h", "--limit", "1", "--json").stdout)
    nothing = command(folder, "--tool", "sessions_list", "--since", "2999-01-01")

    assert table.returncode == 0, table.stderr
    assert [line.split()[2] for line in table.stdout.splitlines()[1:]] == ["sessions_list", "agents_list"]
    assert [r["tool"] for r in rows] == ["agents_list", "sessions_list"]
    assert [(r["tool"], r["outcome"]) for r in denied] == [("agents_list", "tool_denied")]
    assert nothing.stdout == "no recorded tool call matches\n"
    assert command(folder, "--limit", "0").returncode == 1
    assert "is no time" in command(folder, "--since", "yesterday").stderr


def test_a_stop_loses_no_record_and_digests_last(tmp_path: Path) -> None:
    digests = []
    for _ in range(2):
        with world(tmp_path) as server:
            for _ in range(20):
                server.invoke("sessions_list", "main")
            server.served.child.terminate()
            assert server.served.child.wait(20) == 0
        found = json.loads(command(tmp_path, "--limit", "1000", "--json").stdout)
        digests.append({r["digest"] for r in found})

    assert len(found) == 40
    assert digests[0] == digests[1]
    assert len(digests[0]) == 1


def test_what_was_called_a_moment_ago_survives_a_kill(tmp_path: Path) -> None:
    with world(tmp_path) as server:
        server.invoke("sessions_list", "main")
        records(server, 1)
        server.served.child.kill()
        server.served.child.wait(10)

    assert len(json.loads(command(tmp_path, "--json").stdout)) == 1


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("15m", 900), ("2h", 7200), (" 7d ", 604_800)])
def test_times_are_written_as_people_do(text: str, seconds: int) -> None:
    assert abs(time.time() * 1000 - parse_time(text) - seconds * 1000) < 5000


@pytest.mark.parametrize("text", ["", "x", "5 minutes", "-3h", "2026-13-01"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(BadRequest, match="is no time"):
        parse_time(text)
