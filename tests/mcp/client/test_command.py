"""`openclaw mcp`, as a person or a script uses it."""

import json
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from openclaw_mcp.cli.commands import run
from tests.mcp.client.servers import odd
from tests.running import OPENCLAW, ROOT, echo_over_http


class Shell:
    def __init__(self, state: Path) -> None:
        self.file = state / "openclaw.json"
        self._state = str(state)

    def __call__(self, *words: str, input: str = "", cwd: Path = ROOT) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [OPENCLAW, "mcp", *words],
            input=input,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            cwd=cwd,
            env={"PATH": "/usr/bin:/bin", "OPENCLAW_STATE_DIR": self._state, "TOKEN": "tok-en"},
        )

    def config(self) -> Any:
        return json.loads(self.file.read_text())


@pytest.fixture
def mcp(tmp_path: Path) -> Shell:
    return Shell(tmp_path / "state")


def test_a_server_is_added_called_and_removed(mcp: Shell) -> None:
    added = mcp("add", "echo", "--", OPENCLAW, "echo")
    called = mcp("call", "echo", "echo", '{"text": "hello"}')
    as_json = mcp("call", "echo", "echo__echo", "-", "--json", input='{"text": "hi"}')
    removed = mcp("remove", "echo")

    assert (added.returncode, added.stderr) == (0, "")
    assert "its tools are for the owner; to lend them to everybody" in added.stdout
    assert "put mcp/echo into tools.alsoAllow" in added.stdout
    assert (called.returncode, called.stdout, called.stderr) == (0, "hello\n", "")
    assert json.loads(as_json.stdout) == {"content": [{"type": "text", "text": "hi"}], "isError": False}
    assert removed.returncode == 0
    assert mcp.config() == {"mcp": {"servers": {}}}


def test_everything_else_in_the_config_stays(mcp: Shell) -> None:
    mcp.file.parent.mkdir()
    mcp.file.write_text(
        '{"gateway": {"port": 1}, "mcp": {"apps": {"x": 1}, "servers": {"a": {"command": "b", "odd": 2}}}}'
    )

    added = mcp(
        "add", "web", "--url", "http://127.0.0.1:9/mcp", "--header", "Authorization=Bearer ${TOKEN}", "--no-probe"
    )

    assert added.returncode == 0, added.stderr
    config = mcp.config()
    assert (config["gateway"], config["mcp"]["apps"]) == ({"port": 1}, {"x": 1})
    assert config["mcp"]["servers"] == {
        "a": {"command": "b", "odd": 2},
        "web": {"url": "http://127.0.0.1:9/mcp", "headers": {"Authorization": "Bearer ${TOKEN}"}},
    }
    assert mcp.file.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("header", ["Authorization: Bearer a=b:c", "Authorization=Bearer a=b:c"])
def test_a_header_is_given_as_http_writes_it(mcp: Shell, header: str) -> None:
    added = mcp("add", "web", "--url", "http://127.0.0.1:9/mcp", "--header", header, "--no-probe")

    assert added.returncode == 0, added.stderr
    assert mcp.config()["mcp"]["servers"]["web"]["headers"] == {"Authorization": "Bearer a=b:c"}


def test_paths_are_kept_so_that_the_server_starts_from_anywhere(mcp: Shell, tmp_path: Path) -> None:
    project = tmp_path / "project"
    for folder in ("notes", "tools", "echo"):
        (project / folder).mkdir(parents=True)
    for file in ("server.py", "tools/run.js"):
        (project / file).touch()

    words = ["./bin/serve", "server.py", "tools/run.js", ".", "../else", "@org/server", "--flag", "x.y", "echo"]
    assert mcp("add", "a", "--no-probe", "--", *words, cwd=project).returncode == 0
    assert mcp("add", "b", "--no-probe", "--cwd", "tools", "--", "node", "./run.js", cwd=project).returncode == 0
    assert mcp("add", "c", "--no-probe", "--command", "prog", "--arg", "plain", cwd=project).returncode == 0

    servers = mcp.config()["mcp"]["servers"]
    at = str(project)
    assert servers["a"]["command"] == f"{at}/bin/serve"
    kept = ["@org/server", "--flag", "x.y", "echo"]
    assert servers["a"]["args"] == [f"{at}/server.py", f"{at}/tools/run.js", at, f"{tmp_path}/else", *kept]
    assert servers["a"]["cwd"] == at, "echo may be the folder of that name, or a word of the program's own"
    assert servers["b"] == {"command": "node", "args": ["./run.js"], "cwd": f"{at}/tools"}
    assert servers["c"] == {"command": "prog", "args": ["plain"]}


@pytest.mark.parametrize("script", ["echo hello; " * 60, "a/b.c " * 2000, "./get http://a//b", "~/get http://a//b"])
def test_a_script_is_kept_as_it_is(mcp: Shell, script: str) -> None:
    added = mcp("add", "long", "--no-probe", "--", "sh", "-c", script)

    assert added.returncode == 0, added.stderr
    assert mcp.config()["mcp"]["servers"]["long"]["args"] == ["-c", script]


def test_a_server_added_from_its_own_folder_is_used_from_another(mcp: Shell, tmp_path: Path) -> None:
    (tmp_path / "serve.sh").write_text(f"exec {OPENCLAW} echo\n")

    assert mcp("add", "echo", "--", "sh", "serve.sh", cwd=tmp_path).returncode == 0

    assert mcp("call", "echo", "echo", '{"text": "hello"}', cwd=Path("/")).stdout == "hello\n"


def test_a_config_in_json5_is_read_and_changed_like_any_other(mcp: Shell) -> None:
    mcp.file.parent.mkdir()
    echo = f"{{command: '{OPENCLAW}', args: ['echo'],}}"
    mcp.file.write_text(f"{{ // mine\n  gateway: {{port: 1}}, mcp: {{servers: {{echo: {echo}}}}}}}")

    listed, tools = mcp("list"), mcp("tools")
    called = mcp("call", "echo", "echo", '{"text": "hello"}')
    added = mcp("add", "x", "--no-probe", "--", "true")
    removed = mcp("remove", "echo")

    assert listed.stdout == f"echo  {OPENCLAW} echo\n"
    assert tools.stdout == "echo__echo  Echo\n"
    assert called.stdout == "hello\n"
    assert (added.returncode, removed.returncode) == (0, 0)
    assert mcp.config() == {"gateway": {"port": 1}, "mcp": {"servers": {"x": {"command": "true"}}}}
    assert '"echo"' in mcp.file.with_name("openclaw.json.bak").read_text()


def test_changes_made_at_once_by_any_command_are_all_kept(tmp_path: Path) -> None:
    def change(number: int) -> int:
        if number % 2:
            return run(["mcp", "add", f"s{number}", "--no-probe", "--state-dir", str(tmp_path), "--", "true"])
        return run(["config", "--state-dir", str(tmp_path), "set", f"mcp.servers.s{number}", '{"command": "true"}'])

    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(change, range(60))) == {0}

    servers = json.loads((tmp_path / "openclaw.json").read_text())["mcp"]["servers"]
    assert servers.keys() == {f"s{number}" for number in range(60)}


def test_a_config_kept_elsewhere_through_a_link_stays_there(mcp: Shell, tmp_path: Path) -> None:
    mcp.file.parent.mkdir()
    mcp.file.symlink_to(tmp_path / "kept.json")

    assert mcp("add", "x", "--no-probe", "--", "true").returncode == 0

    assert mcp.file.is_symlink()
    assert json.loads((tmp_path / "kept.json").read_text())["mcp"]["servers"].keys() == {"x"}


def test_a_config_that_is_broken_is_left_alone(mcp: Shell) -> None:
    mcp.file.parent.mkdir()
    mcp.file.write_text('{"mcp": {')

    result = mcp("add", "x", "--no-probe", "--", "true")

    assert result.returncode == 1
    assert "the config is not valid JSON5" in result.stderr
    assert mcp.file.read_text() == '{"mcp": {'


def test_a_server_that_does_not_work_is_not_added(mcp: Shell) -> None:
    result = mcp("add", "dead", "--", "sh", "-c", "echo broken by design >&2; exit 4")

    assert result.returncode == 1
    assert (
        result.stderr == "openclaw mcp: dead is gone: it ended with status 4; its last output was: broken by design\n"
    )
    assert not mcp.file.exists()


def test_the_list_hides_secrets(mcp: Shell) -> None:
    mcp("add", "a", "--no-probe", "--env", "KEY=very-secret", "--env", "NAME=${TOKEN}", "--disabled", "--", "prog")

    plain, as_json = mcp("list"), mcp("list", "--json")

    assert plain.stdout == "a  prog  (disabled)\n"
    assert json.loads(as_json.stdout) == {
        "a": {"command": "prog", "env": {"KEY": "***", "NAME": "${TOKEN}"}, "enabled": False}
    }


def test_the_list_hides_secrets_in_addresses_and_arguments(mcp: Shell) -> None:
    mcp("add", "a", "--no-probe", "--url", "http://u:hush@127.0.0.1:1/mcp?access_token=hush")
    mcp("add", "b", "--no-probe", "--", "prog", "--token", "hush", "--api-key=hush", "--port", "80")
    mcp("add", "c", "--disabled", "--url", "http://127.0.0.1:1/mcp?key=${PATH}")

    plain, as_json = mcp("list"), mcp("list", "--json")

    assert plain.stdout.splitlines()[:2] == ["a  http://127.0.0.1:1/***", "b  prog --token *** *** --port 80"]
    assert "hush" not in as_json.stdout
    assert json.loads(as_json.stdout)["c"]["url"] == "http://127.0.0.1:1/mcp?key=${PATH}"


def test_tools_of_all_servers_and_the_reason_why_one_has_none(mcp: Shell) -> None:
    with echo_over_http() as address:
        mcp("add", "web", "--url", address)
        mcp("add", "dead", "--no-probe", "--", "false")

        plain, as_json = mcp("tools"), mcp("tools", "web", "--json")

    assert plain.stdout == "web__echo  Echo\n"
    assert plain.stderr.startswith("openclaw mcp: dead is gone: it ended with status 1")
    assert plain.returncode == 1
    assert json.loads(as_json.stdout)["web"][0]["name"] == "web__echo"


@pytest.mark.parametrize("tool", ["screen.snapshot", "machine__screen.snapshot"])
def test_a_tool_that_cannot_work_now_says_why(mcp: Shell, tool: str) -> None:
    mcp("add", "machine", "--env", f"OPENCLAW_STATE_DIR={mcp.file.parent}", "--", OPENCLAW, "node", "--stdio")

    result, unknown = mcp("call", "machine", tool), mcp("call", "machine", "screen.nothing")

    assert (result.returncode, unknown.returncode) == (1, 1)
    assert "screen.snapshot is not available: There is no screen here" in result.stdout
    assert unknown.stderr == "openclaw mcp: machine: Unknown tool: screen.nothing (MCP error -32602)\n"


def test_a_long_description_is_cut_between_words_and_marked(mcp: Shell) -> None:
    mcp("add", "agent", "--env", f"OPENCLAW_STATE_DIR={mcp.file.parent}", "--", OPENCLAW, "mcp-server")

    output = mcp("tools").stdout

    assert output.startswith("agent__order_openclaw  Send a message to OpenClaw")
    assert output.endswith("as if typed by a …\n")


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["call", "nobody", "x"], "no server 'nobody' is enabled"),
        (["call", "odd", "nothing"], "Unknown tool: nothing"),
        (["call", "odd", "echo", "{"], "the arguments are not JSON"),
        (["call", "odd", "echo", "[]"], "must be a JSON object"),
        (["remove", "nobody"], "there is no server 'nobody'"),
        (["add", "x y", "--no-probe", "--", "true"], "is no name for a server"),
        (["add", "x", "--no-probe"], "either `command` or `url`"),
        (["add", "x", "--no-probe", "--env", "A", "--", "true"], "give it as NAME=VALUE"),
        (["add", "x", "--no-probe", "--header", "A=b", "--", "true"], "--header is for servers at a --url"),
        (["add", "x", "--no-probe", "--url", "http://h", "--env", "A=b"], "--env is for programs"),
    ],
)
def test_a_mistake_is_reported_in_one_line(mcp: Shell, words: list[str], reason: str) -> None:
    mcp.file.parent.mkdir()
    mcp.file.write_text(json.dumps({"mcp": {"servers": {"odd": odd()}}}))

    result = mcp(*words)

    assert result.returncode == 1
    assert reason in result.stderr
    assert result.stderr.count("\n") == 1
