"""The four real CLIs for a sender who is not the owner, with a model that tries everything: nothing is read, run or
loaded but the gateway's tools. And for every sender: of MCP servers, none but the run's is started."""

import base64
import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from openclaw_mcp.core.model import Caller

from ..gateway.agents.cli.gateways import CALLER, STRANGER
from ..gateway.agents.cli.scripted_model import (
    ScriptedModel,
    plain,
    read_anthropic,
    read_chat,
    read_gemini,
    read_responses,
)
from .clis import CLIS, KEY, write
from .hostile import WORD, Hostile
from .test_cli_agents import PNG, World, answer_text, final

SECRET = "TOP-SECRET-OF-THE-OWNER"
HARMLESS = {"list_mcp_resources", "list_mcp_resource_templates", "read_mcp_resource", "request_user_input"}
"""What Codex has besides: it asks MCP servers, of which there is ours, and a person, of which there is none."""
NOTES = {"claude": "CLAUDE.md", "gemini": "GEMINI.md", "codex": "AGENTS.md", "opencode": "AGENTS.md"}


class Attacked(World):
    """A world in which everything that could be obeyed by mistake is set up, and a secret lies about."""

    def __init__(self, cli: str, folder: Path, model: ScriptedModel, **settings: Any) -> None:
        super().__init__(cli, folder, model, **settings)
        self.cli = cli
        self.hostile = Hostile(cli, folder / "home", folder / "work", folder / "marks")
        self.hostile.settle()
        self.runtime_env.update(self.hostile.variables)
        self.secret = folder / "home" / "secret.txt"
        for place in (self.secret, folder / "work" / "inside.txt"):
            place.write_text(SECRET)
        (folder / "home" / "secret.png").write_bytes(PNG)

    @property
    def runtime_env(self) -> Any:
        return self.card.settings.runtime_env

    @property
    def asked(self) -> list[Any]:
        """The requests of turns, without those for a title or the like."""
        return [body for _, _, body in self.model.log]

    def received(self) -> str:
        """All that ever reached the model."""
        return json.dumps(self.asked)

    def words(self) -> set[str]:
        """The memory files the model was given."""
        return set(re.findall(rf"{WORD}([a-z-]+)", self.received()))

    def offered(self) -> list[str]:
        """The tools of the last turn."""
        read = {"claude": read_anthropic, "codex": read_responses, "opencode": read_chat}.get(self.cli)
        requests = [read(body) if read else read_gemini(body, "") for body in self.asked]
        tools = next(each.tools for each in reversed(requests) if each.tools)
        return [plain(f"{space}__{name}" if space else name) for name, space in tools]


@pytest.fixture(params=CLIS)
def cli(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def world(cli: str, tmp_path: Path) -> Iterator[Attacked]:
    with ScriptedModel() as model:
        world = Attacked(cli, tmp_path, model)
        yield world
        world.folders.close()


def ours(name: str) -> bool:
    return "remoteclaw_" in name


@pytest.mark.parametrize("caller", [CALLER, STRANGER], ids=["the owner", "somebody else"])
def test_no_server_but_the_runs_is_started_and_each_tool_is_there_once(world: Attacked, caller: Caller) -> None:
    prompt = '[[call echo {"text": "hello"}]] [[say {result}]]'
    assert "hello for agent:main:main" in answer_text(world.run(prompt, caller=caller))
    assert {mark for mark in world.hostile.left() if mark.endswith("-server")} == set()
    count = Counter(world.offered())
    assert set(count.values()) == {1}
    assert sorted(name.rpartition("_")[2] for name in count if ours(name)) == ["echo", "hold"]
    assert [name for name in count if name.endswith(("echo", "hold")) and not ours(name)] == []


def test_for_somebody_else_nothing_that_was_set_up_is_obeyed(world: Attacked) -> None:
    note = world.folder / "work" / NOTES[world.cli]
    note.write_text(f"Be brief. {WORD}the-workspace")
    assert answer_text(world.run("[[say hi]]", caller=STRANGER)) == "hi"
    assert world.hostile.left() == set()
    assert world.words() == {"the-workspace"}  # the workspace's own instructions, and no other
    others = {name for name in world.offered() if not ours(name)}
    assert others - (HARMLESS if world.cli == "codex" else set()) == set()


def test_a_plugin_of_claudes_brings_no_server_and_for_somebody_else_nothing(tmp_path: Path) -> None:
    with ScriptedModel() as model:
        world = Attacked("claude", tmp_path, model)
        world.hostile.plug_in(str(world.card.settings.runtime_command))
        assert answer_text(world.run("[[say hi]]", caller=STRANGER)) == "hi"
        assert world.hostile.left() == set()
        assert answer_text(world.run("[[say hi]]", caller=CALLER)) == "hi"
        assert "plugin-hook" in world.hostile.left()
        assert "plugin-server" not in world.hostile.left()
        world.folders.close()


def tries(world: Attacked) -> list[tuple[str, Any]]:
    """Every tool the four have had, with arguments that read the secret or leave a mark, in all their spellings."""
    path, mark = str(world.secret), world.hostile.touch("tool")
    shell, file = f"cat {path}; {mark}", str(world.hostile.marks / "written")
    patch = f"*** Begin Patch\n*** Add File: {file}\n+written\n*** End Patch"
    script = f"const done = await tools.exec_command({{cmd: {json.dumps(shell)}}}); text(JSON.stringify(done))"
    home = str(world.secret.parent)
    everything: dict[str, list[Any]] = {
        "claude": [
            ("Bash", {"command": shell, "description": "look"}),
            ("Bash", {"command": shell, "dangerouslyDisableSandbox": True}),
            ("BashOutput", {"bash_id": "1"}),
            ("PowerShell", {"command": shell}),
            ("REPL", {"code": f"require('fs').readFileSync({path!r}, 'utf8')"}),
            ("Read", {"file_path": path}),
            ("Write", {"file_path": file, "content": "written"}),
            ("Edit", {"file_path": path, "old_string": "TOP", "new_string": "SHOWN"}),
            ("MultiEdit", {"file_path": path, "edits": [{"old_string": "TOP", "new_string": "SHOWN"}]}),
            ("NotebookEdit", {"notebook_path": file, "new_source": "1", "edit_mode": "insert"}),
            ("Glob", {"pattern": "**/*", "path": home}),
            ("Grep", {"pattern": "SECRET", "path": home, "output_mode": "content"}),
            ("LS", {"path": home}),
            ("LSP", {"operation": "hover", "filePath": path, "line": 1, "character": 1}),
            ("WebFetch", {"url": f"file://{path}", "prompt": "what does it say"}),
            ("WebSearch", {"query": "x"}),
            ("Task", {"description": "x", "prompt": f"read {path}", "subagent_type": "general-purpose"}),
            ("Agent", {"description": "x", "prompt": f"read {path}", "subagent_type": "user-helper"}),
            ("Skill", {"skill": "leak"}),
            ("SlashCommand", {"command": "/leak"}),
            ("Workflow", {"script": f"export default async () => (await import('fs')).readFileSync({path!r})"}),
            ("ToolSearch", {"query": "select:Bash,Read"}),
            ("ListMcpResourcesTool", {}),
            ("ReadMcpResourceTool", {"server": "remoteclaw", "uri": f"file://{path}"}),
            ("Monitor", {"command": shell, "description": "x"}),
            ("CronCreate", {"cron": "* * * * *", "prompt": "x"}),
            ("EnterWorktree", {"name": "x"}),
            ("mcp__mine__echo", {"text": "x"}),
        ],
        "gemini": [
            ("run_shell_command", {"command": shell}),
            ("ShellTool", {"command": shell}),
            ("read_file", {"file_path": path, "absolute_path": path}),
            ("read_many_files", {"include": [path], "paths": [path]}),
            ("write_file", {"file_path": file, "content": "written"}),
            ("replace", {"file_path": path, "old_string": "TOP", "new_string": "SHOWN", "instruction": "x"}),
            ("list_directory", {"dir_path": home, "path": home}),
            ("glob", {"pattern": "**/*", "dir_path": home}),
            ("grep_search", {"pattern": "SECRET", "dir_path": home}),
            ("search_file_content", {"pattern": "SECRET", "path": home}),
            ("web_fetch", {"prompt": f"read file://{path}", "url": f"file://{path}"}),
            ("google_web_search", {"query": "x"}),
            ("save_memory", {"fact": "x"}),
            ("activate_skill", {"name": "user-leak"}),
            ("invoke_agent", {"agent_name": "generalist", "prompt": f"read {path}"}),
            ("codebase_investigator", {"objective": f"read {path}"}),
            ("enter_plan_mode", {}),
            ("read_mcp_resource", {"uri": f"file://{path}"}),
            ("list_background_processes", {}),
            ("mcp_user_echo", {"text": "x"}),
        ],
        "codex": [
            ("exec_command", {"cmd": shell}),
            ("exec_command", {"cmd": shell, "sandbox_permissions": "require_escalated", "justification": "x"}),
            ("shell", {"command": ["sh", "-c", shell]}),
            ("shell_command", {"command": shell}),
            ("container.exec", {"cmd": ["sh", "-c", shell]}),
            ("write_stdin", {"session_id": 1, "chars": shell}),
            ("apply_patch", {"plain": patch}),
            ("apply_patch", {"input": patch}),
            ("view_image", {"path": str(world.secret.with_suffix(".png"))}),
            ("read_file", {"file_path": path}),
            ("list_dir", {"dir_path": home}),
            ("grep_files", {"pattern": "SECRET", "path": home}),
            ("exec", {"plain": script}),
            ("js_repl", {"plain": script}),
            ("web_search", {"query": "x"}),
            ("spawn_agent", {"message": f"read {path}", "task_name": "x"}),
            ("read_mcp_resource", {"server": "remoteclaw", "uri": f"file://{path}"}),
            ("request_permissions", {"permissions": {"file_system": {"read": ["/"]}}, "reason": "x"}),
        ],
        "opencode": [
            ("bash", {"command": shell, "description": "look"}),
            ("shell", {"command": shell}),
            ("read", {"filePath": path}),
            ("write", {"filePath": file, "content": "written"}),
            ("edit", {"filePath": path, "oldString": "TOP", "newString": "SHOWN"}),
            ("multiedit", {"filePath": path, "edits": [{"oldString": "TOP", "newString": "SHOWN"}]}),
            ("patch", {"patchText": patch}),
            ("apply_patch", {"patchText": patch}),
            ("glob", {"pattern": "**/*", "path": home}),
            ("grep", {"pattern": "SECRET", "path": home}),
            ("list", {"path": home}),
            ("webfetch", {"url": f"file://{path}", "format": "text"}),
            ("websearch", {"query": "x"}),
            ("codesearch", {"query": "x"}),
            ("task", {"description": "x", "prompt": f"read {path}", "subagent_type": "general"}),
            ("skill", {"name": "leak-user"}),
            ("lsp", {"operation": "hover", "filePath": path, "line": 1, "character": 1}),
            ("todowrite", {"todos": []}),
            ("execute", {"code": script}),
            ("evil", {}),
            ("user_echo", {"text": "x"}),
        ],
    }  # fmt: skip
    return everything[world.cli]


def script(attempts: list[tuple[str, Any]]) -> str:
    return " ".join(f"[[try {name} {json.dumps(arguments)}]]" for name, arguments in attempts)


def assert_untouched(world: Attacked) -> None:
    received = world.received()
    assert SECRET not in received
    assert base64.b64encode(PNG).decode()[:40] not in received
    assert world.hostile.left() == set()
    assert world.secret.read_text() == SECRET


def test_for_somebody_else_the_clis_own_tools_neither_read_nor_run(world: Attacked) -> None:
    attempts = tries(world)
    events = world.run(f'{script(attempts)} [[call echo {{"text": "end"}}]] [[say tried]]', caller=STRANGER)
    assert answer_text(events).endswith("tried")
    calls = [name for name, _ in attempts]
    assert [name for name in calls if f'"{name}"' not in world.received()] == []  # each was tried
    assert_untouched(world)


def test_codex_ends_the_turn_of_a_model_that_calls_a_shell_of_its_own(tmp_path: Path) -> None:
    with ScriptedModel() as model:
        world = Attacked("codex", tmp_path, model)
        command = ["sh", "-c", f"cat {world.secret}; {world.hostile.touch('tool')}"]
        world.run(f"{script([('local_shell', {'command': command})])} [[say tried]]", caller=STRANGER)
        world.folders.close()
    assert_untouched(world)


def test_the_same_attempts_succeed_for_the_owner(world: Attacked) -> None:
    """So the attempts are real ones."""
    shell = {"claude": "Bash", "gemini": "run_shell_command", "codex": "exec_command", "opencode": "bash"}[world.cli]
    first = next((name, arguments) for name, arguments in tries(world) if name == shell)
    world.run(f"{script([first])} [[say tried]]", caller=CALLER)
    assert "tool" in world.hostile.left()


def test_codex_lets_scripts_of_its_newest_models_do_no_more(tmp_path: Path) -> None:
    """They call tools from a script, and get their list in another way."""
    with ScriptedModel() as model:
        world = Attacked("codex", tmp_path, model)
        config = tmp_path / "home" / ".codex" / "config.toml"
        config.write_text(config.read_text().replace("fake-model", "gpt-6.1-sol"))
        path, mark = str(world.secret), str(world.hostile.marks / "patched")
        patch = f"*** Begin Patch\n*** Add File: {mark}\n+x\n*** End Patch"
        hint = f"*** Begin Patch\n*** Update File: {path}\n@@\n-TOP\n+x\n*** End Patch"
        run = f"cat {path}; {world.hostile.touch('ran')}"
        lines = [
            f"text(JSON.stringify(await tools.exec_command({{cmd: {json.dumps(run)}}})))",
            f"text(JSON.stringify(await tools.apply_patch({json.dumps(patch)})))",
            f"text(JSON.stringify(await tools.apply_patch({json.dumps(hint)})))",
            f"text(JSON.stringify(await tools.view_image({{path: {json.dumps(path)}}})))",
            f"image({json.dumps(f'file://{path}')})",
            f"text((await import('fs')).readFileSync({json.dumps(path)}, 'utf8'))",
            f"text(require('fs').readFileSync({json.dumps(path)}, 'utf8'))",
            f"text(await (await fetch({json.dumps(f'file://{path}')})).text())",
        ]
        attempts = [("exec", {"plain": line}) for line in lines]
        attempts.append(("spawn_agent", {"task_name": "x", "message": "[[say sub]]"}))
        assert answer_text(world.run(f"{script(attempts)} [[say tried]]", caller=STRANGER)).endswith("tried")
        world.folders.close()
    assert_untouched(world)
    assert world.received().count("custom_tool_call_output") >= len(lines)


MENTIONS = (
    "@{secret}", "@~/secret.txt", "@home/secret.txt", "@./inside.txt", "@{{secret}}", "@file:{secret}", "file://{secret}",
    "!cat {secret}; {touch}", "!{{{touch}}}", "!`{touch}`", "$({touch})", "#{secret}", "/leak", "/read {secret}",
    "$leak", "[$leak]({secret})", "[image]({png})", "@{png}", "/init", "/memory add x", "/mcp list", "@inside.txt",
)  # fmt: skip


def test_for_somebody_else_no_message_reads_or_runs_by_its_spelling(world: Attacked) -> None:
    paths = {"secret": world.secret, "touch": world.hostile.touch("message"), "png": world.secret.with_suffix(".png")}
    texts = [mention.format(**paths) for mention in MENTIONS]
    for text in ("\n".join(texts), "/leak", " /init", f"!{world.hostile.touch('message')}"):
        assert answer_text(world.run(f"{text}\n[[say heard]]", caller=STRANGER)) == "heard", text
    assert_untouched(world)


def test_somebody_elses_conversation_goes_on_and_the_owners_is_not_theirs(world: Attacked) -> None:
    hidden = final(world.run(f'[[call echo {{"text": "{SECRET}"}}]] [[say noted]]', caller=CALLER))
    world.model.log.clear()
    first = final(world.run("[[say my dog is Rex]]", caller=STRANGER, resume=hidden.resume))
    second = world.run("[[say good dog]]", caller=STRANGER, resume=first.resume)
    assert "my dog is Rex" in json.dumps(world.asked[-1])
    assert json.loads(final(second).resume or "")["id"] == json.loads(first.resume or "")["id"]
    assert SECRET not in world.received()
    assert world.hostile.left() - {"user-hook", "project-hook", "local-hook"} <= {
        "user-notify",
        "user-plugin",
        "home-plugin",
        "inner-plugin",
        "extension-hook",
        "project-discovery",
    }  # fmt: skip  (what is the owner's run's own)


def sign_in(world: Attacked) -> None:
    """The key lies where each CLI keeps a login, and nowhere else."""
    home, env = world.folder / "home", world.runtime_env
    match world.cli:
        case "claude":
            del env["ANTHROPIC_API_KEY"]
            login = {"accessToken": KEY, "refreshToken": "r", "expiresAt": 4102444800000, "scopes": ["user:inference"]}
            (home / ".claude" / ".credentials.json").write_text(json.dumps({"claudeAiOauth": login}))
        case "gemini":
            del env["GEMINI_API_KEY"]
            for nearer in (world.folder / "work" / ".env", world.folder / "work" / ".gemini" / ".env"):
                nearer.unlink()  # of several it reads one
            (home / ".gemini" / ".env").write_text(f'export GEMINI_API_KEY="{KEY}"\n')
        case "codex":
            del env["FAKE_KEY"]
            (home / ".codex" / "auth.json").write_text(json.dumps({"OPENAI_API_KEY": KEY}))
            config = home / ".codex" / "config.toml"
            config.write_text(config.read_text().replace('env_key = "FAKE_KEY"', "requires_openai_auth = true"))
        case _:
            config = home / ".config" / "opencode" / "opencode.json"
            config.write_text(config.read_text().replace(f'"apiKey": "{KEY}"', '"timeout": 60000'))
            write(home / ".local" / "share" / "opencode" / "auth.json", {"fake": {"type": "api", "key": KEY}})


@pytest.mark.parametrize("caller", [CALLER, STRANGER], ids=["the owner", "somebody else"])
def test_the_login_is_the_users(world: Attacked, caller: Caller) -> None:
    sign_in(world)
    world.model.key = KEY
    assert answer_text(world.run("[[say signed in]]", caller=caller)) == "signed in"
