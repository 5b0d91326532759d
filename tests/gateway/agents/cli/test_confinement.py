"""A run for a sender who is not the owner: what its CLI is started with, whatever its user has set up."""

import json
import os
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from openclaw_mcp.core.model import Caller, Grant, Sender
from openclaw_mcp.gateway.agents.cli import codex, opencode
from openclaw_mcp.gateway.agents.cli.codex import _provider_variables
from openclaw_mcp.gateway.agents.cli.confinement import LONGEST_INSTRUCTIONS

from .gateways import CALLER, DIALECTS, STRANGER, CliHarness, remembered

SPY = """
import json, os, pathlib, sys
names = ("GEMINI_CLI_HOME", "CODEX_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME")
homes = {name: pathlib.Path(os.environ[name]) for name in names if name in os.environ}
seen = {name: sorted(str(path.relative_to(home)) for path in home.rglob("*")) for name, home in homes.items()}
kept = {str(path): path.read_text() for home in homes.values() for path in home.rglob("*")
        if path.is_file() and path.suffix in (".json", ".toml")}
given = [word.partition("=")[2] for word in sys.argv if word.startswith(("--settings=", "--admin-policy="))]
kept |= {path: pathlib.Path(path).read_text() for path in given}
pathlib.Path(sys.argv[1], "seen.json").write_text(json.dumps({"entries": seen, "files": kept}))
"""
EVIL = {"command": "evil-server", "args": ["--all"]}


def spying(harness: CliHarness, cli: str, script: str = SPY) -> None:
    """The program looks around first."""
    spy = harness.folder / "spy.py"
    spy.write_text(script)
    program = harness.folder / cli
    program.write_text(program.read_text().replace("exec ", f'{sys.executable} {spy} {harness.folder} "$@"\nexec ', 1))


def write(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(value if isinstance(value, str) else json.dumps(value))


def settle(harness: CliHarness, cli: str) -> dict[str, str]:
    """Settings of the user and of the workspace that start servers, run commands or widen what the CLI may do, beside
    those that a login needs. All that is not to be loaded says `evil`."""
    home, work = harness.home, harness.work
    match cli:
        case "claude":
            settings = {"hooks": {"Stop": [{"hooks": [{"type": "command", "command": "evil"}]}]}, "model": "opus"}
            settings |= {"apiKeyHelper": "~/key.sh", "permissions": {"allow": ["evil"]}, "statusLine": "evil"}
            settings |= {
                "env": {"ANTHROPIC_BASE_URL": "http://model", "EVIL": "evil"},
                "enabledPlugins": {"evil": True},
            }
            write(home / ".claude" / "settings.json", settings)
            write(home / ".claude.json", {"mcpServers": {"evil": EVIL}})
            write(work / ".mcp.json", {"mcpServers": {"evil": EVIL}})
            return {"CLAUDE_CODE_EVIL": "evil", "MCP_EVIL": "evil", "CLAUDE_CODE_OAUTH_TOKEN": "login"}
        case "gemini":
            settings = {"mcpServers": {"evil": EVIL}, "hooks": {"SessionStart": ["evil"]}, "model": {"name": "pro"}}
            settings |= {"tools": {"core": ["evil"], "discoveryCommand": "evil", "allowed": ["evil"]}}
            settings |= {"security": {"auth": {"selectedType": "oauth-personal"}, "evil": True}}
            settings |= {"context": {"includeDirectories": ["/evil"]}, "advanced": {"dnsResolutionOrder": "ipv4first"}}
            write(home / ".gemini" / "settings.json", settings)
            write(home / ".gemini" / "oauth_creds.json", "login")
            for name in (
                "extensions/evil/gemini-extension.json",
                "policies/evil.toml",
                "commands/evil.toml",
                "GEMINI.md",
            ):
                write(home / ".gemini" / name, "evil")
            write(home / ".gemini" / ".env", "GEMINI_SYSTEM_MD=evil\nexport GOOGLE_CLOUD_PROJECT='mine'  # a comment\n")
            return {"GEMINI_SYSTEM_MD": "evil", "GEMINI_CLI_SYSTEM_SETTINGS_PATH": "evil", "GEMINI_API_KEY": "login"}
        case "codex":
            text = 'notify = ["evil"]\nsandbox_mode = "danger-full-access"\nmodel = "gpt"\nmodel_provider = "mine"\n'
            text += '[mcp_servers.evil]\ncommand = "evil"\n[features]\nshell_tool = true\n[projects.evil]\n'
            text += '[model_providers.mine]\nbase_url = "http://model"\nenv_key = "MY_KEY"\n'
            text += 'http_headers = {a = "\\u007f🔑"}\n'
            write(home / ".codex" / "config.toml", text)
            write(home / ".codex" / "auth.json", "login")
            for name in ("AGENTS.md", "hooks.json", "rules/evil.rules", "skills/evil/SKILL.md", "prompts/evil.md"):
                write(home / ".codex" / name, "evil")
            write(home / ".codex" / ".env", "MY_KEY=login\nEVIL=evil\n")
            write(work / ".codex" / "config.toml", '[mcp_servers.evil]\ncommand = "evil"\n')
            return {"CODEX_EXEC_SERVER_URL": "evil", "CODEX_API_KEY": "login"}
        case _:
            settings = {"mcp": {"evil": {"type": "local", "command": ["evil"]}}, "plugin": ["evil"], "model": "m/one"}
            settings |= {
                "permission": {"*": "allow"},
                "tools": {"evil": True},
                "agent": {"evil": {}},
                "lsp": {"evil": {}},
            }
            settings |= {"instructions": ["/evil"], "provider": {"m": {"options": {"baseURL": "http://model"}}}}
            write(home / ".config" / "opencode" / "opencode.json", settings)
            write(home / ".config" / "opencode" / "plugin" / "evil.ts", "evil")
            write(home / ".opencode" / "opencode.json", {"mcp": {"evil": {}}, "small_model": "m/two"})
            write(home / ".local" / "share" / "opencode" / "auth.json", {"m": {"type": "api", "key": "login"}})
            write(home / ".local" / "share" / "opencode" / "mcp-auth.json", {"evil": "evil"})
            write(work / "opencode.json", settings)
            return {
                "OPENCODE_CONFIG": "evil.json", "OPENCODE_CONFIG_DIR": "evil", "OPENCODE_PERMISSION": "evil",
                "OPENCODE_CONFIG_CONTENT": json.dumps({"mcp": {"evil": {}}, "disabled_providers": ["n"]}),
                "OPENCODE_API_KEY": "login",
            }  # fmt: skip


def started(tmp_path: Path, cli: str, **settings: Any) -> tuple[CliHarness, Any, Any]:
    """A run for a stranger, with all that in place: the harness, how the CLI was called, what lay in its homes."""
    harness = CliHarness(tmp_path, cli, **settings)
    harness.card.settings.runtime_env.update(settle(harness, cli))
    spying(harness, cli)
    harness.final(caller=STRANGER)
    return harness, harness.called(), json.loads((tmp_path / "seen.json").read_text())


@pytest.mark.parametrize("cli", DIALECTS)
def test_nothing_of_the_users_settings_is_loaded_but_the_login(tmp_path: Path, cli: str) -> None:
    harness, called, home_files = started(tmp_path, cli, runtimeArgs=["--evil"])
    assert "evil" not in json.dumps([called["args"], called["stdin"], home_files])
    assert [name for name, value in called["env"].items() if "evil" in value.lower()] == []
    assert "login" in json.dumps([called["env"], home_files])
    assert called["cwd"] == called["env"]["PWD"] == str(harness.folder / "confined" / "main" / "work")
    assert [path.name for path in Path(called["cwd"]).rglob("*") if path.is_file() and path.read_text()] == []


def test_claude_is_given_no_tools_no_settings_and_no_questions(tmp_path: Path) -> None:
    _, called, home_files = started(tmp_path, "claude")
    wanted = {"--strict-mcp-config", "--setting-sources=", "--tools=", "--disable-slash-commands"}
    assert wanted <= set(called["args"])
    [settings] = [json.loads(text) for text in home_files["files"].values()]
    assert settings == {
        "model": "opus",
        "apiKeyHelper": "~/key.sh",
        "env": {"ANTHROPIC_BASE_URL": "http://model"},
        "disableAllHooks": True,
    }


def test_gemini_is_given_no_tools_and_a_home_with_the_login(tmp_path: Path) -> None:
    _, called, home_files = started(tmp_path, "gemini")
    [settings] = [json.loads(text) for path, text in home_files["files"].items() if path.endswith("settings.json")]
    assert settings["tools"] == {"core": []}
    assert settings["model"] == {"name": "pro"}
    assert settings["security"] == {"auth": {"selectedType": "oauth-personal"}}
    assert list(settings["mcpServers"]) == ["remoteclaw"]
    [rules] = [tomllib.loads(text)["rule"] for path, text in home_files["files"].items() if path.endswith("rules.toml")]
    assert [(rule["toolName"], rule["decision"]) for rule in rules] == [("*", "deny"), ("mcp_remoteclaw_*", "allow")]
    assert rules[0]["priority"] < rules[1]["priority"]
    assert {"--extensions=none", "--allowed-mcp-server-names=remoteclaw"} <= set(called["args"])
    assert called["env"]["GOOGLE_CLOUD_PROJECT"] == "mine"


def test_codex_is_given_no_tools_no_machine_and_a_home_with_the_login(tmp_path: Path) -> None:
    harness, called, home_files = started(tmp_path, "codex")
    files = {Path(path).name: text for path, text in home_files["files"].items()}
    settings = tomllib.loads(files["config.toml"])
    assert (settings["model"], settings["model_provider"]) == ("gpt", "mine")
    assert settings["model_providers"]["mine"]["http_headers"] == {"a": "\x7f🔑"}
    assert not any(on for on in settings["features"].values() if not isinstance(on, dict))
    assert settings["permissions"][settings["default_permissions"]]["filesystem"] == {":root": "deny"}
    assert tomllib.loads(files["environments.toml"]) == {"default": "none", "include_local": True}
    assert called["env"]["MY_KEY"] == "login"
    assert called["env"]["HOME"] != str(harness.home)
    [servers] = [tomllib.loads(word)["mcp_servers"] for word in called["args"] if word.startswith("mcp_servers=")]
    assert list(servers) == ["remoteclaw"]
    assert "--strict-config" in called["args"]  # a Codex that does not know one of these settings must not start


def test_opencode_is_given_no_tools_and_a_home_with_nothing(tmp_path: Path) -> None:
    harness, called, home_files = started(tmp_path, "opencode")
    config = json.loads(called["env"]["OPENCODE_CONFIG_CONTENT"])
    only_ours = {"*": "deny", "remoteclaw_*": "allow"}
    assert (config["permission"], config["agent"]["build"]["permission"]) == (only_ours, only_ours)
    assert config["tools"] == {"*": False, "remoteclaw_*": True}
    assert list(config["mcp"]) == ["remoteclaw"]
    assert (config["model"], config["small_model"], config["disabled_providers"]) == ("m/one", "m/two", ["n"])
    assert config["provider"] == {"m": {"options": {"baseURL": "http://model"}}}
    assert called["env"]["OPENCODE_DISABLE_PROJECT_CONFIG"] == "1"
    assert called["env"]["HOME"] != str(harness.home)
    assert home_files["entries"]["XDG_CONFIG_HOME"] == []
    assert home_files["entries"]["XDG_DATA_HOME"] == ["opencode", "opencode/auth.json"]


def test_opencode_is_not_run_with_a_login_that_brings_settings(tmp_path: Path) -> None:
    harness = CliHarness(tmp_path, "opencode")
    login = {"https://company": {"type": "wellknown", "key": "KEY", "token": "secret-token"}}
    write(harness.home / ".local" / "share" / "opencode" / "auth.json", login)
    message = harness.failed(caller=STRANGER).message
    assert "sign in with a provider's key instead" in message
    assert "secret-token" not in message
    assert harness.times_called == 0


# ---- what is set for all users of the machine ------------------------------------------------------------------------


def test_codex_has_the_machines_servers_switched_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    system = tmp_path / "etc" / "config.toml"
    write(system, '[mcp_servers.owners]\ncommand = "owners"\n[mcp_servers.far]\nurl = "http://far"\n')
    monkeypatch.setattr(codex, "SYSTEM_CONFIG", system)
    _, called, _ = started(tmp_path, "codex")
    [servers] = [tomllib.loads(word)["mcp_servers"] for word in called["args"] if word.startswith("mcp_servers=")]
    assert {name: entry.get("enabled", True) for name, entry in servers.items()} == {
        "owners": False, "far": False, "remoteclaw": True,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("cli", "name", "settings", "refused"),
    [
        ("codex", "managed_config.toml", '[mcp_servers.owners]\ncommand = "owners"\n', "mcp_servers"),
        ("codex", "managed_config.toml", "[features]\nshell_tool = true\n", "features"),
        ("codex", "managed_config.toml", 'sandbox_mode = "danger-full-access"\n', "sandbox_mode"),
        ("codex", "managed_config.toml", 'model = "gpt"\napproval_policy = "on-request"\n', None),
        ("codex", "managed_config.toml", "", None),
        ("opencode", "opencode.json", {"mcp": {"owners": {"type": "local", "command": ["owners"]}}}, "mcp"),
        ("opencode", "opencode.jsonc", '{/* all */ "permission": {"bash": "allow"}}', "permission"),
        ("opencode", "opencode.json", {"permission": "allow"}, "permission"),
        ("opencode", "opencode.json", {"plugin": ["owners"]}, "plugin"),
        ("opencode", "opencode.json", {"tools": {"bash": True}}, "tools"),
        ("opencode", "opencode.json", {"agent": {"build": {"tools": {"bash": True}}}}, "agent"),
        ("opencode", "opencode.json", {"share": "disabled", "model": "m/one", "mcp": {}}, None),
    ],
)
def test_what_would_undo_the_confinement_for_all_users_keeps_a_stranger_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: str, name: str, settings: Any, refused: str | None
) -> None:
    file = tmp_path / "etc" / name
    write(file, settings)
    monkeypatch.setattr(codex, "MANAGED_CONFIG", file)
    monkeypatch.setattr(opencode, "SYSTEM_FOLDER", file.parent)
    harness = CliHarness(tmp_path, cli)
    harness.final(caller=CALLER)
    if refused is None:
        harness.final(caller=STRANGER)
        return
    assert f"{file} sets {refused} for all users of this machine" in harness.failed(caller=STRANGER).message
    assert harness.times_called == 1


# ---- who is confined -------------------------------------------------------------------------------------------------

CALLERS: list[tuple[str, Caller, bool]] = [
    ("the owner", CALLER, False),
    ("a stranger", STRANGER, True),
    ("an agent without a grant, as of a job", Caller(kind="agent", name="x"), True),
    ("an agent with an empty grant", Caller(kind="agent", name="x", grant=Grant()), True),
    ("a sub-agent of a stranger", Caller(kind="agent", name="x", grant=Grant(depth=1, spawned_by="s")), True),
    ("a sub-agent of the owner", Caller(kind="agent", name="x", grant=Grant(owner=True, depth=1)), False),
    ("whoever may write", Caller(kind="operator", name="x", scopes=frozenset({"operator.write"})), True),
    ("whoever may administer", Caller(kind="operator", name="x", scopes=frozenset({"operator.admin"})), False),
    ("an admin for a stranger", Caller(kind="operator", name="x", scopes=frozenset({"*"}), grant=Grant()), True),
    ("somebody with an owner's name", Caller(kind="agent", name="owner", grant=Grant(sender=Sender(id="owner"))), True),
]


@pytest.mark.parametrize(("caller", "confined"), [row[1:] for row in CALLERS], ids=[row[0] for row in CALLERS])
def test_a_sender_who_is_not_the_owner_by_the_grant_is_confined(tmp_path: Path, caller: Caller, confined: bool) -> None:
    harness = CliHarness(tmp_path, "claude")
    harness.final(caller=caller)
    assert ("--tools=" in harness.called()["args"]) is confined
    assert (harness.called()["cwd"] != str(harness.work)) is confined


def test_a_folder_is_the_owners_to_choose(tmp_path: Path) -> None:
    harness = CliHarness(tmp_path, "claude")
    elsewhere = tmp_path / "elsewhere"
    write(elsewhere / "CLAUDE.md", "Words of another folder.")
    harness.final(caller=STRANGER, cwd=str(elsewhere))
    harness.final(cwd=str(elsewhere))
    assert [harness.called(number)["cwd"] == str(elsewhere) for number in (0, 1)] == [False, True]


# ---- what a confined run is sent, and what it leaves -----------------------------------------------------------------


def note_of(tmp_path: Path, make: Any) -> str:
    harness = CliHarness(tmp_path, "codex")
    make(harness.work / "AGENTS.md")
    harness.final("hi", caller=Caller(kind="agent", name="x"))
    return str(harness.called()["stdin"])


def test_the_workspaces_own_instructions_are_reported(tmp_path: Path) -> None:
    assert "Speak of plants." in note_of(tmp_path, lambda path: path.write_text("Speak of plants."))


def linked_inside(path: Path) -> None:
    path.with_name("CLAUDE.md").write_text("Speak of plants.")
    path.symlink_to("CLAUDE.md")


def test_the_same_by_a_link_that_stays_in_the_workspace(tmp_path: Path) -> None:
    assert "Speak of plants." in note_of(tmp_path, linked_inside)


def linked_outside(path: Path) -> None:
    (path.parent.parent / "secret").write_text("secret")
    path.symlink_to(path.parent.parent / "secret")


@pytest.mark.parametrize(
    "make", [linked_outside, lambda path: path.symlink_to("/dev/zero"), os.mkfifo, Path.mkdir, lambda path: None],
    ids=["a link out", "a device", "a pipe", "a folder", "nothing"],
)  # fmt: skip
def test_instructions_that_are_no_file_of_the_workspace_are_not_read(tmp_path: Path, make: Any) -> None:
    assert note_of(tmp_path, make) == "hi"


def test_long_instructions_are_cut(tmp_path: Path) -> None:
    received = note_of(tmp_path, lambda path: path.write_text("x" * 100_000))
    assert LONGEST_INSTRUCTIONS == 32_768
    assert received.count("x") == 32_768


def test_the_owners_instructions_are_the_clis_own_affair(tmp_path: Path) -> None:
    harness = CliHarness(tmp_path, "codex")
    (harness.work / "AGENTS.md").write_text("Speak of plants.")
    harness.final("hi")
    assert "Speak of plants." not in harness.called()["stdin"]


@pytest.mark.parametrize("cli", DIALECTS)
def test_a_session_goes_on_for_those_alone_for_whom_it_began(tmp_path: Path, cli: str) -> None:
    harness = CliHarness(tmp_path, cli)
    theirs = harness.final(caller=STRANGER).resume
    mine = harness.final().resume
    rows = [(CALLER, theirs), (CALLER, mine), (STRANGER, mine), (STRANGER, theirs), (STRANGER, remembered(cli, "s-1"))]
    for caller, resume in rows:
        harness.final(caller=caller, resume=resume)
    gone_on = [harness.resumed("s-1", number + 2) for number in range(len(rows))]
    assert gone_on == [False, True, False, True, False]


LOGINS = {
    "gemini": (
        ".gemini/oauth_creds.json",
        'pathlib.Path(os.environ["GEMINI_CLI_HOME"], ".gemini", "oauth_creds.json")',
    ),
    "codex": (".codex/auth.json", 'pathlib.Path(os.environ["CODEX_HOME"], "auth.json")'),
    "opencode": (
        ".local/share/opencode/auth.json",
        'pathlib.Path(os.environ["XDG_DATA_HOME"], "opencode", "auth.json")',
    ),
}
WAYS = {
    "in place": "path.write_text('{\"refreshed\": {}}')",
    "by another file": "draft = path.with_suffix('.new'); draft.write_text('{\"refreshed\": {}}'); draft.replace(path)",
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("cli", LOGINS)
def test_a_login_that_was_refreshed_is_the_users_afterwards(tmp_path: Path, cli: str, way: str) -> None:
    harness = CliHarness(tmp_path, cli)
    file, expression = LOGINS[cli]
    write(harness.home / file, '{"old": {}}')
    spying(harness, cli, f"import os, pathlib\npath = {expression}\nassert path.exists()\n{WAYS[way]}\n")
    harness.final(caller=STRANGER)
    harness.final(caller=STRANGER)
    assert (harness.home / file).read_text() == '{"refreshed": {}}'
    assert harness.left == []


@pytest.mark.parametrize("cli", DIALECTS)
def test_what_a_confined_run_makes_besides_does_not_come_home(tmp_path: Path, cli: str) -> None:
    harness = CliHarness(tmp_path, cli)
    before = sorted(path.relative_to(harness.home) for path in harness.home.rglob("*"))
    script = """
import os, pathlib
for name in ("GEMINI_CLI_HOME", "CODEX_HOME", "XDG_CONFIG_HOME"):
    for inside in (".", ".gemini", "opencode"):
        if name in os.environ:
            folder = pathlib.Path(os.environ[name], inside)
            folder.mkdir(parents=True, exist_ok=True)
            for each in ("GEMINI.md", "AGENTS.md", "hooks.json", "opencode.json", "policies.toml"):
                (folder / each).write_text("evil")
"""
    spying(harness, cli, script)
    harness.final(caller=STRANGER)
    new = {path.name for path in harness.home.rglob("*") if path.relative_to(harness.home) not in before}
    assert new == set()


CHAT = """
import os, pathlib
folder = pathlib.Path(os.environ["GEMINI_CLI_HOME"], ".gemini", "tmp", "work", "chats")
folder.mkdir(parents=True, exist_ok=True)
seen = pathlib.Path(__file__).with_name("chats")
with seen.open("a") as file:
    file.write(f"{sorted(each.name for each in folder.iterdir())}\\n")
(folder / f"{len(seen.read_text().splitlines())}.jsonl").write_text("said")
"""


def test_gemini_finds_the_chats_of_its_own_conversation_and_no_others(tmp_path: Path) -> None:
    """It lets every run read the folder they lie in."""
    harness = CliHarness(tmp_path, "gemini")
    spying(harness, "gemini", CHAT)
    sessions_harness = {"session_key": "agent:main:local:group:#a"}, {"session_key": "agent:main:local:group:#b"}
    for more in (*sessions_harness, *sessions_harness, {**sessions_harness[0], "session_id": "begun-anew"}):
        harness.final(caller=STRANGER, **more)
    assert (tmp_path / "chats").read_text().splitlines() == ["[]", "[]", "['1.jsonl']", "['2.jsonl']", "[]"]
    assert [path.name for path in harness.home.rglob("*.jsonl")] == []


def test_no_file_that_cant_be_read_is_passed_over(tmp_path: Path) -> None:
    """What is not understood may name a server."""
    for cli, file in (("codex", ".codex/config.toml"), ("opencode", ".config/opencode/opencode.jsonc")):
        (tmp_path / cli).mkdir()
        for number, caller in enumerate((CALLER, STRANGER)):
            (tmp_path / cli / str(number)).mkdir()
            harness = CliHarness(tmp_path / cli / str(number), cli)
            write(harness.home / file, "{ [")
            assert Path(file).name in harness.failed(caller=caller).message
            assert harness.times_called == 0


def test_codex_reads_no_more_of_an_env_file_for_odd_settings(tmp_path: Path) -> None:
    path = tmp_path / ".env"
    path.write_text("MY_KEY=1\nOTHER=2\n")
    providers = {"a": {"env_key": ["OTHER"]}, "b": {"env_key": {"OTHER": 1}}, "c": 5, "d": {"env_key": "MY_KEY"}}
    assert _provider_variables({"model_providers": providers}, path, {}) == {"MY_KEY": "1"}
    assert _provider_variables({"model_providers": ["OTHER"]}, path, {}) == {}
