"""What a CLI is given: prompt, files, our server and its grant; and that none of it is left or seen by others."""

import asyncio
import json
import os
import stat
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from openclaw_mcp.core.agent import Attachment, EffectsReported, PartialAnswer, TurnCompleted, TurnFailed
from openclaw_mcp.core.chat_messages import ChatMessage
from openclaw_mcp.core.lenient import read_struct
from openclaw_mcp.core.model import Caller
from openclaw_mcp.gateway.agents.cli.run_folder import RunFolders, remove_stale_folders

from .gateways import ANSWERS, CALLER, DIALECTS, STRANGER, CliHarness, lines

PNG = b"\x89PNG picture"
KEEP = """
import json, os, re, shutil, subprocess, sys, pathlib
words = sys.argv[2:] + [os.environ.get("OPENCODE_CONFIG_CONTENT", "")]
home = os.environ.get("GEMINI_CLI_HOME")
words += [pathlib.Path(home, ".gemini", "settings.json").read_text()] if home else []
path = re.search(r"[^\\s\\"']+/server.env", " ".join(words)).group()
script = '. "$0" && exec env'
told = subprocess.run(["/bin/sh", "-c", script, path], capture_output=True, text=True, env={}).stdout
keep = {"mode": oct(os.stat(path).st_mode & 0o777), "env": dict(l.split("=", 1) for l in told.splitlines() if "=" in l)}
pathlib.Path(sys.argv[1], "server.json").write_text(json.dumps(keep))
effects = keep["env"]["REMOTECLAW_SIDE_EFFECTS_FILE"]
pathlib.Path(effects).write_text('{"to": "room", "text": "hello"}\\n{"jobId": "j1"}\\n')
"""


def spying(harness: CliHarness, cli: str, *after: Any) -> None:
    """The program reads what the server would be started with, and does what the server would do."""
    spy = harness.folder / "spy.py"
    spy.write_text(KEEP)
    program = harness.folder / cli
    program.write_text(program.read_text().replace("exec ", f'{sys.executable} {spy} {harness.folder} "$@"\nexec '))
    if after:
        (harness.calls / "steps.json").write_text(json.dumps([list(after)]))


@pytest.mark.parametrize("cli", DIALECTS)
def test_the_server_is_reported_for_whom_it_works_and_no_one_else_is(tmp_path: Path, cli: str) -> None:
    harness = CliHarness(tmp_path, cli)
    spying(harness, cli)
    events = harness.run("the prompt")
    entry = json.loads((tmp_path / "server.json").read_text())
    variables = {
        name.removeprefix("REMOTECLAW_"): value for name, value in entry["env"].items() if "REMOTECLAW" in name
    }
    effects = variables.pop("SIDE_EFFECTS_FILE")
    assert entry["mode"] == "0o600"
    assert variables == {
        "GATEWAY_URL": "ws://127.0.0.1:1",
        "GATEWAY_TOKEN": "grant-secret-0",
        "SESSION_KEY": "agent:main:main",
        "CHANNEL": "local",
        "ACCOUNT_ID": "main",
        "TO": "room",
        "THREAD_ID": "t1",
        "SENDER_IS_OWNER": "true",
        "TOOL_PROFILE": "full",
    }
    called = harness.called()
    assert "grant-secret" not in json.dumps(called)
    assert "the prompt" not in json.dumps([called["args"], called["env"]])
    assert "the prompt" in called["stdin"]
    assert called["cwd"] == str(harness.work)
    assert harness.grants.issued == {"grant-secret-0": CALLER}
    assert harness.grants.revoked == ["grant-secret-0"]
    assert harness.left == []
    assert not Path(effects).exists()
    reports = [event for event in events if isinstance(event, EffectsReported)]
    assert [sent.text for sent in reports[0].effects.sent] == ["hello"]
    assert [job.job_id for job in reports[0].effects.cron_added] == ["j1"]
    assert isinstance(events[-1], TurnCompleted)


def test_what_was_sent_is_reported_after_a_failure_too(tmp_path: Path) -> None:
    harness = CliHarness(tmp_path, "codex")
    spying(harness, "codex", {"stderr": "broken"}, {"exit": 1})
    *_, did, end = harness.run()
    assert isinstance(did, EffectsReported)
    assert isinstance(end, TurnFailed)


def test_without_a_gateway_to_call_back_there_is_no_server(tmp_path: Path) -> None:
    harness = CliHarness(tmp_path, "claude", bridge=False)
    assert PartialAnswer("hello") in harness.run()
    assert "--mcp-config" not in harness.called()["args"]
    assert harness.grants.issued == {}


def test_our_own_environment_does_not_leak(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENCLAW_GATEWAY_TOKEN", "REMOTECLAW_GATEWAY_TOKEN", "CLAUDECODE", "PYTHONPATH", "BASH_ENV"):
        monkeypatch.setenv(name, "leaked")
    monkeypatch.setenv("PATH", f".:{os.environ['PATH']}")
    harness = CliHarness(tmp_path, "claude", runtimeEnv={"MINE": "yes"})
    harness.final()
    env = harness.called()["env"]
    assert "leaked" not in env.values()
    assert env["MINE"] == "yes"
    assert not env["PATH"].startswith(".:")


def test_further_arguments_come_where_flags_belong(tmp_path: Path) -> None:
    for cli in DIALECTS:
        (tmp_path / cli).mkdir()
        harness = CliHarness(tmp_path / cli, cli, runtimeArgs=["--mine", "x"])
        harness.final(resume=None)
        args = harness.called()["args"]
        last = args.index("--") if "--" in args else len(args)
        assert args[last - 2 : last] == ["--mine", "x"]


def test_the_agent_knows_where_it_is_and_how_to_answer(tmp_path: Path) -> None:
    harness = CliHarness(tmp_path, "codex", systemPrompt="You are Otto.")
    harness.final("hi", system_prompt="Speak Latin.", settings={"messageToolHints": ["*bold*"], "timezone": "UTC"})
    prompt = harness.called()["stdin"]
    for words in ("You are Otto.", "Speak Latin.", "NO_REPLY", "[[reply_to_current]]", "*bold*"):
        assert words in prompt
    assert "channel=local | account=main | conversation=room | thread=t1 | user=Ann | timezone=UTC" in prompt
    assert len(prompt) < 4000


def test_outside_of_a_conversation_it_is_reported_no_more_than_it_was_given(tmp_path: Path) -> None:
    harness = CliHarness(tmp_path, "codex")
    harness.final("just this", caller=Caller(kind="agent", name="x"))
    assert harness.called()["stdin"] == "just this"


def test_one_that_begins_in_an_old_conversation_is_reported_what_was_said(tmp_path: Path) -> None:
    async def recall(most: int) -> tuple[Any, ...]:
        messages: list[Any] = [
            {"role": "user", "content": "x" * 20_000},
            {"role": "user", "content": "my dog is Rex"},
            {"role": "assistant", "content": [{"type": "toolCall", "name": "message_send"}]},
            {"role": "assistant", "content": [{"type": "text", "text": "noted"}]},
            {"role": "toolResult", "content": []},
        ]
        return tuple(read_struct(message, ChatMessage) for message in messages)

    harness = CliHarness(tmp_path, "codex")
    harness.final("what is its name?", load_history=recall)
    prompt = harness.called()["stdin"]
    assert "Person: my dog is Rex\nYou: (called message_send)\nYou: noted\n</earlier>" in prompt
    assert "xxxx" not in prompt


def test_only_the_owner_may_give_the_cli_a_command_of_its_own(tmp_path: Path) -> None:
    harness = CliHarness(tmp_path, "claude")
    harness.final("/deploy now", caller=STRANGER)
    harness.final("/deploy now")
    prompts = [json.loads(harness.called(number)["stdin"])["message"]["content"][-1]["text"] for number in (0, 1)]
    assert prompts == ["Message: /deploy now", "/deploy now"]


def test_gemini_is_not_shown_files_that_a_message_names(tmp_path: Path) -> None:
    harness = CliHarness(tmp_path, "gemini")
    (tmp_path / "work" / "in here.txt").touch()
    text = r"@in\ here.txt, bob@in\ here.txt. and bob@example.com, @/etc/hostname @ @@ @\@"
    harness.final(text, cwd=str(tmp_path / "work"))
    prompt = harness.called()["stdin"]
    assert r"\@in\ here.txt, bob\@in\ here.txt. and bob@example.com, \@/etc/hostname @ @@" in prompt


# ---- files -----------------------------------------------------------------------------------------------------------


def picture() -> Attachment:
    return Attachment(mime_type="image/png", name="../../evil.png", data=PNG)


def test_claude_gets_pictures_in_the_message(tmp_path: Path) -> None:
    harness = CliHarness(tmp_path, "claude")
    harness.final("look", attachments=(picture(),))
    content = json.loads(harness.called()["stdin"])["message"]["content"]
    assert content[0]["source"]["media_type"] == "image/png"
    assert content[1] == {"type": "text", "text": "look"}


@pytest.mark.parametrize(("cli", "before"), [("gemini", "@"), ("codex", "--image="), ("opencode", "--file=")])
def test_others_get_pictures_as_files(tmp_path: Path, cli: str, before: str) -> None:
    harness = CliHarness(tmp_path, cli)
    harness.final("look", attachments=(picture(),))
    called = harness.called()
    words = [*called["args"], *called["stdin"].split()]
    assert [word for word in words if word.startswith(before) and word.endswith("/media/media-0.png")]
    assert "evil" not in json.dumps(called)
    assert harness.left == []


@pytest.mark.parametrize("cli", ["claude", "codex", "opencode"])
def test_what_it_can_not_see_is_said_once(tmp_path: Path, cli: str) -> None:
    sound = Attachment(mime_type="audio/ogg", data=b"OggS")
    events = CliHarness(tmp_path, cli).run("listen", attachments=(sound, sound))
    warnings = [event.text for event in events if isinstance(event, PartialAnswer) and "⚠️" in event.text]
    assert "".join(event.text for event in events if isinstance(event, PartialAnswer)).endswith("\n\nhello")
    assert warnings == [f"⚠️ {DIALECTS[cli]().title} can't see audio attachments here; 2 attachments were left out.\n\n"]


# ---- the CLIs' own configuration -------------------------------------------------------------------------------------


def test_claudes_own_servers_stay_out_unless_the_owner_wants_them(tmp_path: Path) -> None:
    CliHarness(tmp_path, "claude").final()
    own = CliHarness(tmp_path, "claude", runtimeStrict=False)
    own.final()
    own.final(caller=STRANGER)
    strict = ["--strict-mcp-config" in own.called(number)["args"] for number in range(3)]
    assert strict == [True, False, True]


def test_codex_leaves_out_the_users_servers_and_a_projects(tmp_path: Path) -> None:
    harness = CliHarness(tmp_path, "codex")
    (harness.home / ".codex").mkdir()
    (harness.work / ".codex").mkdir()
    file = harness.home / ".codex" / "config.toml"
    file.write_text('[mcp_servers.mine]\ncommand = "x"\n[mcp_servers."an odd.name"]\nurl = "https://secret@x/"\n')
    (harness.home / ".codex" / "work.config.toml").write_text('[mcp_servers.profiled]\ncommand = "x"\n')
    (harness.work / ".codex" / "config.toml").write_text('[mcp_servers.theirs]\ncommand = "x"\n')
    (harness.folder / ".codex").mkdir()
    (harness.folder / ".codex" / "config.toml").write_text('[mcp_servers.above]\ncommand = "x"\n')
    before = file.read_bytes()
    harness.final()
    args = harness.called()["args"]
    [servers] = [tomllib.loads(word)["mcp_servers"] for word in args if word.startswith("mcp_servers=")]
    off = {name for name, entry in servers.items() if entry.get("enabled") is False}
    assert off == {"mine", "an odd.name", "profiled", "theirs", "above"}
    assert set(servers) - off == {"remoteclaw"}
    assert set(servers["an odd.name"]) == {"enabled", "url"}  # of the same kind, or Codex would refuse the whole
    assert "secret" not in json.dumps(args)
    assert file.read_bytes() == before


@pytest.mark.parametrize("strict", [False, True])
def test_opencode_is_reported_beside_what_the_user_configured(tmp_path: Path, strict: bool) -> None:
    own = json.dumps({"theme": "x", "mcp": {"mine": {"type": "local", "command": ["x"]}}})
    harness = CliHarness(tmp_path, "opencode", runtimeStrict=strict, runtimeEnv={"OPENCODE_CONFIG_CONTENT": own})
    (harness.work / "opencode.jsonc").write_text('{"mcp": {"theirs": {}}, /* a comment */}')
    harness.final()
    config = json.loads(harness.called()["env"]["OPENCODE_CONFIG_CONTENT"])
    assert config["theme"] == "x"
    assert config["mcp"]["remoteclaw"]["enabled"] is True
    off = {"enabled": False}
    assert config["mcp"].get("theirs") == (off if strict else None)
    assert config["mcp"]["mine"] == (off if strict else {"type": "local", "command": ["x"]})


def test_an_unreadable_configuration_is_named(tmp_path: Path) -> None:
    failed = CliHarness(tmp_path, "opencode", runtimeEnv={"OPENCODE_CONFIG_CONTENT": "{"}).failed()
    assert "OPENCODE_CONFIG_CONTENT" in failed.message
    harness = CliHarness(tmp_path, "gemini")
    (harness.home / ".gemini").mkdir()
    (harness.home / ".gemini" / "settings.json").write_text("{")
    assert "settings.json" in harness.failed().message


GEMINI_AT_WORK = """
import json, os, pathlib, sys
inside = pathlib.Path(os.environ["GEMINI_CLI_HOME"], ".gemini")
pathlib.Path(sys.argv[1], "seen.json").write_text((inside / "settings.json").read_text())
(inside / "oauth_creds.json").unlink()
(inside / "oauth_creds.json").write_text("refreshed")
(inside / "projects.json.tmp").write_text(json.dumps({"projects": {"/here": "here"}}))
(inside / "projects.json.tmp").replace(inside / "projects.json")
(inside / "tmp" / "chat.json").write_text("said")
"""


def test_geminis_settings_are_its_own_for_the_run_and_the_users_stay_as_they_were(tmp_path: Path) -> None:
    harness = CliHarness(tmp_path, "gemini")
    real = harness.home / ".gemini"
    real.mkdir()
    own = '{"mcpServers": {"mine": {"command": "x"}}, /* mine */ "ui": {"theme": "x"}}'
    (real / "settings.json").write_text(own)
    (real / "oauth_creds.json").write_text("old")
    (real / "projects.json").write_text('{"projects": {"/there": "there"}}')
    script = tmp_path / "at_work.py"
    script.write_text(GEMINI_AT_WORK)
    program = tmp_path / "gemini"
    program.write_text(program.read_text().replace("exec ", f"{sys.executable} {script} {tmp_path}\nexec ", 1))
    harness.final()
    settings = json.loads((tmp_path / "seen.json").read_text())
    assert set(settings["mcpServers"]) == {"remoteclaw"}
    assert settings["ui"] == {"theme": "x"}
    assert (real / "settings.json").read_text() == own
    assert (real / "oauth_creds.json").read_text() == "refreshed"
    assert json.loads((real / "projects.json").read_text())["projects"] == {"/there": "there", "/here": "here"}
    assert (real / "tmp" / "chat.json").read_text() == "said"
    assert harness.left == []


# ---- folders ---------------------------------------------------------------------------------------------------------

DIES = """
import os, sys, pathlib
from openclaw_mcp.gateway.agents.cli.run_folder import RunFolders
with RunFolders(pathlib.Path(sys.argv[1])).create() as folder:
    (folder / "server.env").write_text("grant-secret")
    os.kill(os.getpid(), 9)
"""


def test_what_a_killed_gateway_left_is_swept_and_the_living_keep_theirs(tmp_path: Path) -> None:
    living = RunFolders(tmp_path)
    with living.create() as mine:
        assert stat.S_IMODE(mine.stat().st_mode) == 0o700
        (mine / "here").touch()
        subprocess.run([sys.executable, "-c", DIES, str(tmp_path)], check=False)
        assert list(tmp_path.rglob("server.env"))
        assert remove_stale_folders(tmp_path) == 1
        assert not list(tmp_path.rglob("server.env"))
        assert (mine / "here").exists()
    living.close()
    assert list(tmp_path.glob("owner-*")) == []
    assert remove_stale_folders(tmp_path / "never") == 0


def test_two_runs_in_one_folder_do_not_meet(tmp_path: Path) -> None:
    harness = CliHarness(tmp_path, "gemini", [{"sleep": 0.3}, *lines(*ANSWERS["gemini"])])

    async def scenario() -> Any:
        return await asyncio.gather(harness.run_turn("one"), harness.run_turn("two"))

    assert all(isinstance(events[-1], TurnCompleted) for events in asyncio.run(scenario()))
    homes = {harness.called(number)["env"]["GEMINI_CLI_HOME"] for number in range(harness.times_called)}
    assert len(homes) == 2
    assert sorted(harness.grants.revoked) == sorted(harness.grants.issued)
    assert harness.leftovers() == []
    harness.folders.close()
