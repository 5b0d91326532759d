"""A change of the config is in force when it is said to be: for every turn that begins after it."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from openclaw_mcp.cli.gateway_connection import resolve_host
from openclaw_mcp.config.file import ConfigFile
from openclaw_mcp.config.rpc_methods import ConfigUpdate
from openclaw_mcp.gateway.wiring.restart import RESTART_DELAY, InPlaceRestart
from tests.gateway.wiring.gateways import Json, Refused, World, world
from tests.mcp.client.servers import ECHO

START = "import sys; from openclaw_mcp.cli import main; sys.exit(main())"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with world(tmp_path_factory.mktemp("state"), {"mcp": {"servers": {"one": ECHO}}}) as gateway:
        yield gateway


def write(server: World, **sections: object) -> None:
    """As an editor, or another program, writes the file."""
    path = server.served.folder / "openclaw.json"
    new = path.with_suffix(".new")
    new.write_text(json.dumps(json.loads(path.read_text()) | sections))
    new.replace(path)


def openclaw(server: World, *words: str) -> str:
    environment = {
        **os.environ,
        "OPENCLAW_STATE_DIR": str(server.served.folder),
        "OPENCLAW_GATEWAY_PORT": server.served.http.rpartition(":")[2],
    }
    done = subprocess.run(
        [sys.executable, "-c", START, *words], env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout


def test_the_next_turn_uses_what_was_written_to_the_file_just_before(server: World) -> None:
    """Some of the next turns used what was there before: the file is looked at once a second."""
    answers = []
    for number in range(6):
        write(server, tools={"deny": ["one"] if number % 2 else []})
        answers.append(server.say("main", '!tool one__echo {"text": "said"}') == "said")
    assert answers == [True, False] * 3


def test_the_next_turn_has_the_tools_of_a_server_just_written_to_the_file(server: World) -> None:
    for number in range(3):
        write(server, tools={}, mcp={"servers": {"one": ECHO, f"s{number}": ECHO}})
        assert server.say("main", f'!tool s{number}__echo {{"text": "{number}"}}') == str(number)


def test_the_next_turn_is_of_an_agent_that_the_command_line_just_added(server: World) -> None:
    agents = '[{"id": "main", "default": true}, {"id": "fresh"}]'
    said = openclaw(server, "config", "set", "agents.list", agents)
    assert said.endswith("openclaw.json; in force in the running gateway\n")
    assert server.say("agent:fresh:main", "!say here") == "here"
    with pytest.raises(Refused, match="unknown agent"):
        server.say("agent:absent:main", "!say here")


TWICE = {"agents": {"list": [{"id": "twin"}, {"id": "twin"}]}}
CONTRADICTION = {"tools": {"allow": ["one"], "alsoAllow": ["sessions_list"]}}


@pytest.mark.parametrize("patch", [TWICE, CONTRADICTION], ids=["two agents of one id", "allow with alsoAllow"])
@pytest.mark.parametrize("method", ["config.patch", "config.set", "config.apply"])
def test_no_change_makes_the_config_one_that_refuses_everything(server: World, method: str, patch: Any) -> None:
    before = server.ask("config.get")
    raw = patch if method == "config.patch" else before["parsed"] | patch
    reasons = r"(agents\.list: (2 agents have|the id 'twin' is there twice)|tools: has both allow and)"
    with pytest.raises(Refused, match=f"invalid config: {reasons}"):
        server.ask(method, raw=json.dumps(raw), baseHash=before["hash"])
    assert server.ask("config.get")["hash"] == before["hash"]
    assert server.say("main", '!tool one__echo {"text": "said"}') == "said"


def test_the_command_line_says_that_the_gateway_must_restart(server: World) -> None:
    openclaw(server, "config", "set", "gateway.reload.mode", "hot")
    said = openclaw(server, "config", "set", "store.url", f"sqlite:///{server.served.folder}/other.db")
    assert said.endswith("openclaw.json; restart the gateway to apply it\n")


def test_a_change_of_the_address_waits_for_another_start(server: World) -> None:
    """A restart in place goes on listening where it did."""
    said = openclaw(server, "config", "set", "gateway.port", "12345")
    assert "; it counts from the next openclaw down and openclaw up" in said
    assert "openclaw restart --gateway-port" in said
    assert "openclaw restart --gateway-port" not in openclaw(server, "config", "set", "gateway.bind", "lan")


@pytest.mark.parametrize(
    ("key", "value", "restarts"), [("port", 12345, False), ("bind", "lan", False), ("auth", {"token": "t" * 32}, True)]
)
def test_the_gateway_restarts_for_what_a_restart_applies(
    tmp_path: Path, key: str, value: object, restarts: bool
) -> None:
    before, after = ConfigFile(tmp_path).change(lambda _: {"gateway": {key: value}})

    async def main() -> None:
        restart = InPlaceRestart(lambda: after, lambda: True)
        restart.on_config_change(ConfigUpdate(before=before, after=after, paths=(f"gateway.{key}",), reload="restart"))
        with nullcontext() if restarts else pytest.raises(TimeoutError):
            async with asyncio.timeout(30 if restarts else 2 * RESTART_DELAY):
                await restart.wait_until_due()

    asyncio.run(main())


def test_the_command_line_says_that_a_key_has_no_effect(server: World) -> None:
    unused = "has no effect; this version does not read it"
    for key, value in (("session.scope", "global"), ("plugins", "{}")):
        assert openclaw(server, "config", "set", key, value).strip().endswith(f"; {unused}")
        assert openclaw(server, "config", "unset", key).strip().endswith("; in force in the running gateway")


def test_mcp_add_and_remove_say_when_their_change_is_in_force(server: World, tmp_path: Path) -> None:
    command = [str(ECHO["command"]), *map(str, ECHO["args"])]
    said = openclaw(server, "mcp", "add", "late", "--no-probe", "--", *command)
    assert "in force in the running gateway" in said
    assert server.say("main", '!tool late__echo {"text": "at once"}') == "at once"
    assert "in force in the running gateway" in openclaw(server, "mcp", "remove", "late")
    assert server.say("main", '!tool late__echo {"text": "x"}') != "x"


def test_a_start_says_in_one_line_what_has_no_effect(tmp_path: Path) -> None:
    config = {
        "hooks": {"enabled": True},
        "session": {"scope": "global"},
        "tools": {"exec": {}},
        "gateway": {"bind": "auto"},
    }
    with world(tmp_path, config) as server:
        server.say("main", "!say hi")
    (line,) = [line for line in (tmp_path / "gateway.log").read_text().splitlines() if "has no effect" in line]
    assert "hooks, session.scope, tools.exec, gateway.bind: has no effect; this version does not read it" in line


@pytest.mark.parametrize(
    ("config", "chosen", "host"),
    [
        ({}, None, "127.0.0.1"),
        ({"gateway": {"bind": "loopback"}}, None, "127.0.0.1"),
        ({"gateway": {"bind": "custom"}}, None, "127.0.0.1"),
        ({"gateway": {"bind": "lan"}}, None, "0.0.0.0"),
        ({"gateway": {"bind": "lan"}}, "127.0.0.1", "127.0.0.1"),
    ],
)
def test_the_gateway_listens_where_the_config_says(tmp_path: Path, config: Json, chosen: str | None, host: str) -> None:
    (tmp_path / "openclaw.json").write_text(json.dumps(config))
    assert resolve_host(chosen, tmp_path) == host
