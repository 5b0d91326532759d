"""`openclaw policy` as a person meets it."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.running import OPENCLAW

CONFIG: dict[str, Any] = {
    "tools": {"profile": "messaging", "deny": ["message_delete"], "byProvider": {"ollama": {"deny": ["message"]}}},
    "agents": {"list": [{"id": "main"}, {"id": "ops", "tools": {"profile": "full"}}]},
    "commands": {"ownerAllowFrom": ["telegram:7"]},
    "channels": {"telegram": {"groups": {"-100": {"tools": {"deny": ["message_pin"]}}}}},
    "gateway": {"tools": {"deny": ["message_read"]}},
}


@pytest.fixture
def state(tmp_path: Path) -> Path:
    (tmp_path / "openclaw.json").write_text(json.dumps(CONFIG))
    return tmp_path


def policy(state: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OPENCLAW_STATE_DIR": str(state)}
    command = [OPENCLAW, "policy", *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)


def explained(state: Path, *words: str) -> dict[str, Any]:
    result = policy(state, "explain", "--json", *words)
    assert (result.returncode, result.stderr) == (0, "")
    printed: dict[str, Any] = json.loads(result.stdout)
    return printed


def test_explain_prints_every_step_and_marks_the_one_that_decides(state: Path) -> None:
    result = policy(state, "explain", "--tool", "message_delete", "--session", "agent:main:telegram:group:-100")

    lines = result.stdout.splitlines()
    assert result.returncode == 0
    assert lines[0] == "message_delete: refused"
    assert lines[1] == "  because message_delete is refused by tools.deny, which names message_delete"
    assert [line for line in lines if line.startswith("* global ")] == [
        "* global            deny   message_delete is refused by tools.deny, which names message_delete"
    ]
    assert sum(" allow  " in line or " deny   " in line or " skip   " in line for line in lines) == 15


@pytest.mark.parametrize(
    ("words", "allowed", "step"),
    [
        (["message_send"], True, "profile"),
        (["exec"], False, "profile"),
        (["cron_add", "--agent", "ops"], True, "default"),
        (["cron_add", "--agent", "ops", "--no-owner"], False, "owner"),
        (["cron_add", "--session", "agent:ops:main", "--door", "mcp"], False, "owner"),
        (["cron_add", "--session", "agent:ops:main", "--door", "mcp", "--owner"], True, "default"),
        (["cron_add", "--agent", "ops", "--channel", "telegram", "--sender", "7", "--door", "agent"], True, "default"),
        (["cron_add", "--agent", "ops", "--channel", "telegram", "--sender", "8"], False, "owner"),
        (["message_pin", "--channel", "telegram", "--group", "-100"], False, "group"),
        (["message_pin", "--session", "agent:main:telegram:group:-100"], False, "group"),
        (["message_send", "--provider", "ollama/llama"], False, "provider"),
        (["message_send", "--provider", "ollama"], False, "provider"),
        (["message_send", "--model", "ollama/llama"], False, "provider"),
        (["message_send", "--model", "llama", "--provider", "ollama"], False, "provider"),
        (["message_send", "--model", "llama"], True, "profile"),
        (["message_read", "--door", "http"], False, "http"),
        (["sessions_send", "--session", "agent:main:subagent:u"], False, "subagent"),
        (["git__log", "--source", "mcp/git"], True, "profile"),
        (["git__log", "--source", "mcp/git", "--no-owner"], False, "owner"),
        (["pinch", "--source", "plugin/lobster", "--no-owner"], False, "owner"),
    ],
)
def test_the_options_say_who_asks(state: Path, words: list[str], allowed: bool, step: str) -> None:
    printed = explained(state, "--tool", *words)

    assert (printed["allowed"], printed["step"]) == (allowed, step), printed["reason"]
    assert len(printed["steps"]) == 15


def test_a_tool_of_a_server_or_a_node_is_judged_as_the_gateway_judges_it(state: Path) -> None:
    servers = {"git": {"command": "git-mcp", "agents": ["ops"]}, "git__old": {"command": "old"}}
    (state / "openclaw.json").write_text(json.dumps({**CONFIG, "mcp": {"servers": servers}}))

    server, other = explained(state, "--tool", "git__log"), explained(state, "--tool", "git__old__log")
    node = explained(state, "--tool", "desk__run")

    assert (server["source"], server["allowed"], server["step"]) == ("mcp/git", False, "server")
    assert (other["source"], other["allowed"]) == ("mcp/git__old", True)
    assert (node["source"], node["allowed"]) == ("node/desk", False)


@pytest.mark.parametrize(
    ("words", "doubt"),
    [
        (["message_send", "--session", "agent:ghost:main"], "no agent 'ghost' is configured"),
        (["mesage_send", "--agent", "ops"], "this package has no tool 'mesage_send'"),
        (["git__log", "--agent", "ops", "--source", "mcp/git"], "mcp.servers names no server 'git'"),
        (["desk__run", "--agent", "ops"], "only while a node 'desk' is connected"),
    ],
)
def test_caveats_beyond_the_rules_are_printed(state: Path, words: list[str], doubt: str) -> None:
    lines = policy(state, "explain", "--tool", *words).stdout.splitlines()

    assert lines[0].endswith(": allowed")
    assert lines[2].startswith("  but ")
    assert doubt in lines[2]
    assert explained(state, "--tool", "message_send")["doubts"] == []


def test_rules_in_a_json5_file_are_read(state: Path) -> None:
    (state / "openclaw.json").write_text("{ /* mine */ tools: {deny: ['message_send'],}, }")

    assert explained(state, "--tool", "message_send")["step"] == "global"


def test_list_prints_the_menu(state: Path) -> None:
    plain = policy(state, "list").stdout.splitlines()
    full = json.loads(policy(state, "list", "--json").stdout)

    assert plain[:-1] == full["tools"]
    assert "message_send" in full["tools"]
    assert full["refused"]["message_delete"]["step"] == "global"
    assert len(full["tools"]) + len(full["refused"]) == 29
    assert plain[-1].startswith("13 of 29 tools")


def test_a_machine_without_a_configuration_has_no_rules_yet(tmp_path: Path) -> None:
    assert policy(tmp_path, "list").stdout.splitlines()[-1].startswith("29 of 29 tools")


def test_a_configuration_that_cant_be_read_refuses_everything(state: Path) -> None:
    (state / "openclaw.json").write_text('{"tools": ')

    assert policy(state, "list").stdout.splitlines()[-1].startswith("0 of 29 tools")
    assert explained(state, "--tool", "message_send")["step"] == "rule book"


def test_a_folder_in_its_place_refuses_everything(tmp_path: Path) -> None:
    (tmp_path / "openclaw.json").mkdir()

    assert "Is a directory" in explained(tmp_path, "--tool", "message_send")["reason"]


def test_a_file_named_but_missing_is_one_clear_line_and_status_1(state: Path) -> None:
    result = policy(state, "list", "--config", str(state / "none.json"))

    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.startswith("openclaw policy: there is no file")
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize("words", [[], ["explain"], ["list", "--door", "window"], ["forbid"]])
def test_wrong_usage_is_one_line_and_status_2(state: Path, words: list[str]) -> None:
    result = policy(state, *words)

    assert (result.returncode, result.stdout) == (2, "")
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("agent", "words", "models", "denied"),
    [
        ({"runtime": "claude", "model": "opus"}, [], ["anthropic/opus"], True),
        ({"runtime": "claude"}, ["--model", "haiku"], ["anthropic/haiku"], True),
        ({"runtime": "codex"}, [], ["openai/"], False),
        ({"runtime": "opencode"}, [], ["*", "anthropic"], True),
        ({"runtime": "anthropic", "model": "opus"}, [], ["anthropic/opus"], True),
        ({"model": {"primary": "openai/x", "fallbacks": ["anthropic/y"]}}, [], ["openai/x", "anthropic/y"], True),
        (
            {"model": {"primary": "a/x", "fallbacks": ["anthropic/y"]}},
            ["--model", "z/z"],
            ["z/z", "anthropic/y"],
            True,
        ),
        ({"model": "openai/x"}, [], ["openai/x"], False),
    ],
)
def test_explain_says_which_models_may_answer_and_marks_the_one_row_that_decides(
    tmp_path: Path, agent: dict[str, Any], words: list[str], models: list[str], denied: bool
) -> None:
    config = {"agents": {"list": [{"id": "main", **agent}]}, "tools": {"byProvider": {"anthropic": {"deny": ["cron"]}}}}
    (tmp_path / "openclaw.json").write_text(json.dumps(config))

    printed = explained(tmp_path, "--tool", "cron", *words)
    assert (printed["caller"]["models"], printed["allowed"]) == (models, not denied)
    lines = policy(tmp_path, "explain", "--tool", "cron", *words).stdout.splitlines()
    marked = [line for line in lines if line.startswith("* ") and "the step that decided" not in line]
    assert len(marked) == denied
    assert all("tools.byProvider.anthropic.deny" in line for line in marked)
