"""The four real CLIs as agents, offline: their turns, their tools, their sessions, their ends."""

import asyncio
import base64
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from openclaw_mcp.core.agent import (
    AgentEvent,
    Attachment,
    EffectsReported,
    PartialAnswer,
    ToolOutcome,
    ToolUse,
    Turn,
    TurnCompleted,
    TurnFailed,
)
from openclaw_mcp.core.agents import AgentProfile
from openclaw_mcp.core.config.agents import AgentSettings
from openclaw_mcp.core.model import Caller
from openclaw_mcp.gateway.agents.cli.grant_bridge import GatewayAccess
from openclaw_mcp.gateway.agents.cli.run_folder import RunFolders
from openclaw_mcp.gateway.agents.cli.runtime import CliAgent, CliRuntimeContext

from ..gateway.agents.cli.gateways import (
    CALLER,
    DIALECTS,
    STRANGER,
    FakeGrantIssuer,
    gone,
    read_effects,
    remembered,
    until,
)
from ..gateway.agents.cli.scripted_model import ScriptedModel
from ..gateway.wiring.test_gateway import Served, serving
from .cli_clients import path
from .clis import CLIS, KEY, MODEL, environment, program

PATIENCE = 180.0  # seconds a turn may take on a busy machine
TINY = Path(__file__).parents[1] / "gateway" / "agents" / "cli" / "tiny_server.py"
PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
UNKNOWN = {"opencode": "ses_11111111fffeAAAAAAAAAAAAAA"}
"""An id of the right form, of no session."""


class World:
    """One real CLI with a home of its own, our bridge, and a tiny server at its end."""

    def __init__(self, cli: str, folder: Path, model: ScriptedModel, **settings: Any) -> None:
        self.folder = folder
        self.model = model
        self.office = FakeGrantIssuer()
        self.folders = RunFolders(folder / "state" / "runs")
        env = {**path(), **environment(cli, folder / "home", model.url), **settings.pop("runtimeEnv", {})}
        fields = {"runtimeCommand": program(cli, folder), "runtimeEnv": env, **settings}
        converted = msgspec.convert(fields, AgentSettings)
        work = str(folder / "work")
        card = AgentProfile(id="main", runtime=cli, model=MODEL.get(cli), workspace=work, settings=converted)
        server = (sys.executable, str(TINY))
        bridge = GatewayAccess(
            url="ws://127.0.0.1:1", grants=self.office, server_command=server, read_effects=read_effects
        )
        self.card = card
        around = CliRuntimeContext(
            state_folder=folder / "state",
            run_folders=self.folders,
            get_agent=lambda _: card,
            gateway_access=bridge,
            slots=asyncio.Semaphore(4),
        )
        self.agent = CliAgent(DIALECTS[cli](), around)

    def turn(self, prompt: str, **more: Any) -> Turn:
        key = {"run_id": "r1", "agent_id": "main", "session_key": "agent:main:main", "session_id": "s"}
        return Turn(**{**key, "prompt": prompt, "caller": CALLER, **more})

    async def run_turn(self, prompt: str, **more: Any) -> list[AgentEvent]:
        async with asyncio.timeout(PATIENCE), aclosing(self.agent.run(self.turn(prompt, **more))) as events:
            return [event async for event in events]

    def run(self, prompt: str, **more: Any) -> list[AgentEvent]:
        return asyncio.run(self.run_turn(prompt, **more))

    def last_request(self) -> str:
        """The last request that offered tools."""
        return json.dumps(next(body for _, _, body in reversed(self.model.log) if body.get("tools")))

    def held(self) -> int | None:
        """The process of the server that is in a call of `hold`."""
        found = [path.read_text() for path in (self.folder / "state").rglob("*.held")]
        return int(found[0]) if found and found[0] else None

    def mentions_of(self, secret: str) -> list[str]:
        words = ["grep", "-rlaF", secret, str(self.folder)]
        return subprocess.run(words, capture_output=True, text=True, check=False).stdout.split()


@pytest.fixture(params=CLIS)
def cli(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def world(cli: str, tmp_path: Path) -> Iterator[World]:
    with ScriptedModel() as model:
        world = World(cli, tmp_path, model)
        yield world
        world.folders.close()


def answer_text(events: list[AgentEvent]) -> str:
    return "".join(event.text for event in events if isinstance(event, PartialAnswer))


def final(events: list[AgentEvent]) -> TurnCompleted:
    assert isinstance(events[-1], TurnCompleted), events[-3:]
    return events[-1]


def failed(events: list[AgentEvent]) -> TurnFailed:
    assert isinstance(events[-1], TurnFailed), events[-3:]
    return events[-1]


def test_a_turn_calls_our_servers_tool_and_what_it_did_is_told(world: World) -> None:
    events = world.run('[[call echo {"text": "hello"}]] [[say Done: {result}]]')
    assert [(event.name, event.arguments) for event in events if isinstance(event, ToolUse)] == [
        ("echo", {"text": "hello"})
    ]
    outcomes = [event for event in events if isinstance(event, ToolOutcome)]
    assert [(outcome.name, outcome.failed) for outcome in outcomes] == [("echo", False)]
    assert "hello for agent:main:main" in answer_text(events)
    effects = [event.effects for event in events if isinstance(event, EffectsReported)]
    assert [sent.text for sent in effects[0].sent] == ["hello"]
    usage = final(events).usage
    assert usage is not None
    assert (usage.input, usage.output) == (200, 40)
    assert "Replying to a message" in world.last_request()
    assert world.office.revoked == list(world.office.issued) == ["grant-secret-0"]
    assert world.mentions_of("grant-secret") == []
    assert world.mentions_of("server.env") == []


def test_the_next_turn_goes_on_where_the_last_one_ended(world: World) -> None:
    first = final(world.run('[[call echo {"text": "first"}]] [[say one]]'))
    picture = Attachment(mime_type="image/png", data=PNG)
    events = world.run("[[say \"two\" & 'three']]", resume=first.resume, attachments=(picture,))
    assert answer_text(events) == "\"two\" & 'three'"
    requests = world.last_request()
    assert "first for agent:main:main" in requests
    assert base64.b64encode(PNG).decode()[:40] in requests
    second = final(events)
    assert second.usage is not None
    assert second.usage.input == 100
    assert json.loads(second.resume or "")["id"] == json.loads(first.resume or "")["id"]


def test_files_named_in_a_message_are_not_read_for_the_model(world: World) -> None:
    outside, inside = world.folder / "private.txt", world.folder / "work" / "inside.txt"
    inside.parent.mkdir(exist_ok=True)
    for secret in (outside, inside):
        secret.write_text("TOP SECRET")
    named = f"look at @{outside}, @inside.txt, @./inside.txt and bob@inside.txt, or @inside"
    assert answer_text(world.run(f"{named}; mail ann@example.com [[say done]]")) == "done"
    assert "TOP SECRET" not in json.dumps([body for _, _, body in world.model.log])
    assert "mail ann@example.com" in world.last_request()


def test_a_session_it_does_not_know_is_begun_anew(world: World, cli: str) -> None:
    unknown = UNKNOWN.get(cli, "11111111-2222-4333-8444-555555555555")
    events = world.run("[[say fresh]]", resume=remembered(cli, unknown))
    assert answer_text(events) == "fresh"
    assert json.loads(final(events).resume or "")["id"] != unknown


def test_a_refused_key_is_one_sentence_that_says_what_to_do(world: World, cli: str) -> None:
    world.model.key = "another key"
    end = failed(world.run("[[say never]]"))
    assert DIALECTS[cli]().sign_in in end.message
    assert KEY not in repr(end)


def test_an_abort_in_the_middle_of_a_call_ends_the_cli_and_its_servers(world: World) -> None:
    others = psutil.Process().children(recursive=True)  # servers that serve more than one test

    async def scenario() -> int:
        async with aclosing(world.agent.run(world.turn("[[call hold {}]] [[say never]]"))) as events:

            async def listening() -> None:
                async for _ in events:
                    pass

            task = asyncio.ensure_future(listening())
            async with asyncio.timeout(PATIENCE):
                while world.held() is None:  # noqa: ASYNC110  (another process's doing)
                    await asyncio.sleep(0.05)
            server = world.held()
            assert server is not None
            task.cancel()
            await asyncio.wait((task,))
        return server

    server = asyncio.run(scenario())
    assert gone(server)
    assert [child for child in psutil.Process().children(recursive=True) if child not in others] == []
    assert world.office.revoked == list(world.office.issued)
    assert world.mentions_of("grant-secret") == []


def test_a_killed_cli_fails_the_turn_at_once_and_leaves_nothing(world: World) -> None:
    async def scenario() -> tuple[list[AgentEvent], int]:
        task = asyncio.ensure_future(world.run_turn("[[call hold {}]] [[say never]]"))
        await until(lambda: world.held() is not None or task.done(), within=PATIENCE)
        server = world.held()
        assert server is not None
        leaders = [child for child in psutil.Process().children() if any(c.pid == server for c in child.children(True))]
        leaders[0].kill()
        return await task, server

    events, server = asyncio.run(scenario())
    assert "SIGKILL" in failed(events).message
    assert gone(server)
    assert world.mentions_of("grant-secret") == []


def test_two_turns_at_once_in_one_folder_do_not_meet(world: World) -> None:
    async def scenario() -> Any:
        prompts = [f'[[call echo {{"text": "{name}"}}]] [[say {name} {{result}}]]' for name in ("ann", "bob")]
        return await asyncio.gather(*(world.run_turn(prompt) for prompt in prompts))

    ann, bob = asyncio.run(scenario())
    assert "ann for agent" in answer_text(ann)
    assert "bob for agent" in answer_text(bob)
    for name, events in (("ann", ann), ("bob", bob)):
        effects = [event.effects for event in events if isinstance(event, EffectsReported)]
        assert [sent.text for sent in effects[0].sent] == [name]
    assert json.loads(final(ann).resume or "")["id"] != json.loads(final(bob).resume or "")["id"]
    assert sorted(world.office.revoked) == sorted(world.office.issued)
    assert world.mentions_of("grant-secret") == []


def own_server(cli: str, home: Path) -> None:
    """The user has a server, called `mine`, of their own."""
    command = [sys.executable, str(TINY)]
    match cli:
        case "claude":
            entry = {"type": "stdio", "command": command[0], "args": command[1:], "alwaysLoad": True}
            (home / ".claude.json").write_text(json.dumps({"mcpServers": {"mine": entry}}))
        case "gemini":
            file = home / ".gemini" / "settings.json"
            settings = json.loads(file.read_text())
            settings["mcpServers"] = {"mine": {"command": command[0], "args": command[1:], "trust": True}}
            file.write_text(json.dumps(settings))
        case "codex":
            file = home / ".codex" / "config.toml"
            entry_text = f"[mcp_servers.mine]\ncommand = {json.dumps(command[0])}\nargs = {json.dumps(command[1:])}\n"
            file.write_text(f"{file.read_text()}\n{entry_text}required = true\n")
        case _:
            file = home / ".config" / "opencode" / "opencode.json"
            mine = {"mine": {"type": "local", "command": command, "enabled": True}}
            file.write_text(json.dumps({**json.loads(file.read_text()), "mcp": mine}))


@pytest.mark.parametrize(
    ("settings", "caller", "strict"),
    [({}, CALLER, True), ({"runtimeStrict": False}, CALLER, False), ({"runtimeStrict": False}, STRANGER, True)],
    ids=["usually", "not strict", "not strict, for somebody else"],
)
def test_the_users_own_servers_stay_out_unless_the_owner_wants_them(
    cli: str, tmp_path: Path, settings: Any, caller: Caller, strict: bool
) -> None:
    with ScriptedModel() as model:
        world = World(cli, tmp_path, model, **settings)
        own_server(cli, tmp_path / "home")
        before = {path: path.read_bytes() for path in (tmp_path / "home").rglob("*") if path.is_file()}
        assert answer_text(world.run("[[say here]]", caller=caller)) == "here"
        declared = world.last_request()
        world.folders.close()
    own = {"claude": "mcp__mine__", "gemini": "mcp_mine_", "codex": "mcp__mine", "opencode": "mine_"}[cli]
    assert (f'"{own}' in declared) is not strict
    assert f'"{own.replace("mine", "remoteclaw")}' in declared
    changed = [path.name for path, data in before.items() if path.exists() and path.read_bytes() != data]
    assert set(changed) <= {".claude.json"}  # Claude counts its starts there


def test_gemini_passes_over_system_settings_where_others_may_write(tmp_path: Path) -> None:
    """Why a run of it has a home of its own: should this change, the simpler way is open."""
    env = {**path(), **environment("gemini", tmp_path / "home", "http://127.0.0.1:1")}
    own_server("gemini", tmp_path / "home")
    open_to_all, work = tmp_path / "open", tmp_path / "work"
    work.mkdir()
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    settings = open_to_all / "settings.json"
    settings.write_text(json.dumps({"mcpServers": {"theirs": {"command": "true"}}}))
    env["GEMINI_CLI_SYSTEM_SETTINGS_PATH"] = str(settings)
    listed = subprocess.run(
        [program("gemini", tmp_path), "mcp", "list"], env=env, cwd=work, capture_output=True, text=True,
        timeout=PATIENCE, check=True,
    )  # fmt: skip
    words = listed.stdout + listed.stderr
    assert "Skipping system settings" in words
    assert "mine:" in words
    assert "theirs:" not in words


# ---- in a running gateway --------------------------------------------------------------------------------------------


def ask(served: Served, method: str, params: Any) -> Any:
    result = served.call(method, json.dumps(params))
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def say(served: Served, message: str, run: str) -> Any:
    ask(served, "chat.send", {"sessionKey": "main", "message": message, "idempotencyKey": run})
    for _ in range(12):  # a call of the command line waits no longer than its own limit
        ended = ask(served, "agent.wait", {"runId": run, "timeoutMs": 15000})
        if ended["status"] != "timeout":
            return ended
    pytest.fail("no end")


def test_a_chat_with_the_gateway_is_answered_by_the_cli(cli: str, tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    with ScriptedModel() as model:
        env = {**path(), **environment(cli, tmp_path / "home", model.url)}
        agent = {"id": "main", "runtime": cli, "runtimeCommand": program(cli, tmp_path), "runtimeEnv": env}
        agent |= {"model": MODEL[cli]} if cli in MODEL else {}
        (state / "openclaw.json").write_text(json.dumps({"agents": {"list": [agent]}}))
        with serving(state) as served:
            assert say(served, "[[say my dog is Rex]]", "r1")["status"] == "ok"
            assert say(served, "[[say good dog]]", "r2")["status"] == "ok"
            history = ask(served, "chat.history", {"sessionKey": "main"})["messages"]
        texts = [message["content"][-1]["text"] for message in history if message["role"] == "assistant"]
        assert texts == ["my dog is Rex", "good dog"]
        assert all(message["usage"]["input"] == 100 for message in history if message["role"] == "assistant")
        assert "my dog is Rex" in json.dumps(next(b for _, _, b in reversed(model.log) if b.get("tools")))
        left = [path for path in (state / "runs").rglob("*") if path.is_file() and path.name != "lock"]
        assert left == []
