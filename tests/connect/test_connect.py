"""Clients are connected and disconnected as a person would do it: from the command line, on their own files."""

import json
import os
import subprocess
import tomllib
from pathlib import Path

import pytest

from tests.running import OPENCLAW

FILES = {
    "claude-code": ".claude.json",
    "claude-desktop": ".config/Claude/claude_desktop_config.json",
    "cursor": ".cursor/mcp.json",
    "vscode": ".config/Code/User/mcp.json",
    "gemini": ".gemini/settings.json",
    "codex": ".codex/config.toml",
    "opencode": ".config/opencode/opencode.json",
}
HELD = {
    "claude-code": '{"numStartups": 3, "mcpServers": {"mine": {"command": "x"}}, "projects": {}}',
    "claude-desktop": '{\n    "mcpServers": {}\n}',
    "cursor": "{ }\n",
    "vscode": '{\n\t// mine\n\t"servers": {\n\t\t"mine": {"type": "stdio", "command": "x"},\n\t},\n\t"inputs": []\n}\n',
    "gemini": '{\r\n  "theme": "x"\r\n}',
    "codex": 'model = "m"\n\n[mcp_servers.mine]\ncommand = "x" # mine\n',
    "opencode": '{"$schema": "s"}',
}


def openclaw(home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    settings = {"HOME": str(home), "PATH": os.environ["PATH"]}
    return subprocess.run(
        [OPENCLAW, *words],
        env=settings,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def held(home: Path, client: str, text: str) -> Path:
    file = home / FILES[client]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(text.encode())
    return file


@pytest.mark.parametrize("client", FILES)
def test_connect_and_disconnect_leave_the_file_as_it_was(tmp_path: Path, client: str) -> None:
    file = held(tmp_path, client, HELD[client])

    connected = openclaw(tmp_path, "connect", client, "--yes")
    assert connected.returncode == 0, connected.stderr
    assert "+" in connected.stdout
    assert "mcp-server" in file.read_text()
    again = openclaw(tmp_path, "connect", client, "--yes")
    assert again.returncode == 0, again.stderr
    assert "already" in again.stdout
    gone = openclaw(tmp_path, "disconnect", client, "--yes")

    assert gone.returncode == 0, gone.stderr
    assert file.read_bytes() == HELD[client].encode()


@pytest.mark.parametrize("client", FILES)
def test_a_file_that_was_not_there_is_gone_again(tmp_path: Path, client: str) -> None:
    assert openclaw(tmp_path, "connect", client, "--yes").returncode == 0
    assert (tmp_path / FILES[client]).exists()
    assert openclaw(tmp_path, "disconnect", client, "--yes").returncode == 0

    assert list(tmp_path.rglob("*")) == []


@pytest.mark.parametrize("client", FILES)
def test_a_file_we_made_that_holds_nothing_else_is_gone_whatever_wrote_it_last(tmp_path: Path, client: str) -> None:
    file = tmp_path / FILES[client]
    assert openclaw(tmp_path, "connect", client, "--yes").returncode == 0
    file.write_text(f"{file.read_text()}\n")
    assert openclaw(tmp_path, "connect", client, "--surface", "order", "--yes").returncode == 0

    assert openclaw(tmp_path, "disconnect", client, "--yes").returncode == 0

    assert list(tmp_path.rglob("*")) == []


@pytest.mark.parametrize(
    ("client", "comment"), [("codex", "# my note"), ("cursor", "// my note"), ("vscode", "// my note")]
)
def test_comments_in_a_file_we_made_stay(tmp_path: Path, client: str, comment: str) -> None:
    file = tmp_path / FILES[client]
    assert openclaw(tmp_path, "connect", client, "--yes").returncode == 0
    text = file.read_text()
    file.write_text(f"{text}{comment}\n" if client == "codex" else f"{comment}\n{text}")

    assert openclaw(tmp_path, "disconnect", client, "--yes").returncode == 0

    left = file.read_text()
    assert comment in left
    assert "mcp-server" not in left


def test_a_comment_between_our_table_and_another_stays(tmp_path: Path) -> None:
    file = held(tmp_path, "codex", 'model = "x"\n')
    assert openclaw(tmp_path, "connect", "codex", "--yes").returncode == 0
    file.write_text(f"{file.read_text()}\n# for work\n\n[profiles.work]\nmodel = 'y'\n")

    assert openclaw(tmp_path, "disconnect", "codex", "--yes").returncode == 0

    assert file.read_text() == "model = \"x\"\n\n# for work\n\n[profiles.work]\nmodel = 'y'\n"


def test_a_folder_that_holds_something_else_stays(tmp_path: Path) -> None:
    openclaw(tmp_path, "connect", "cursor", "--yes")
    (tmp_path / ".cursor" / "rules").touch()

    openclaw(tmp_path, "disconnect", "cursor", "--yes")

    assert list((tmp_path / ".cursor").iterdir()) == [tmp_path / ".cursor" / "rules"]


def test_a_record_that_names_another_file_as_its_backup_removes_nothing(tmp_path: Path) -> None:
    held(tmp_path, "cursor", HELD["cursor"])
    (tmp_path / "mine").write_text("mine")
    openclaw(tmp_path, "connect", "cursor", "--yes")
    records = tmp_path / ".openclaw-mcp" / "connections.json"
    (record,) = json.loads(records.read_text()).values()
    records.write_text(records.read_text().replace(record["before"], "../../mine"))

    refused = openclaw(tmp_path, "disconnect", "cursor", "--yes")

    assert "is missing" in refused.stderr
    assert (tmp_path / "mine").read_text() == "mine"


def test_settings_nested_too_deeply_are_one_sentence(tmp_path: Path) -> None:
    openclaw(tmp_path, "connect", "cursor", "--yes")
    (tmp_path / FILES["cursor"]).write_text('{"mcpServers":' + "[" * 200_000)

    for command in ("connect", "disconnect"):
        refused = openclaw(tmp_path, command, "cursor", "--yes")
        assert refused.returncode == 1
        assert "edit it by hand" in refused.stderr or "correct it by hand" in refused.stderr
        assert "Traceback" not in refused.stderr


def test_a_backup_goes_with_the_edit_it_was_made_for(tmp_path: Path) -> None:
    file = held(tmp_path, "cursor", HELD["cursor"])
    openclaw(tmp_path, "connect", "cursor", "--yes")
    openclaw(tmp_path, "connect", "codex", "--yes")

    openclaw(tmp_path, "disconnect", "cursor", "--yes")
    left = {path.name for path in (tmp_path / ".openclaw-mcp").rglob("*") if path.is_file()}
    openclaw(tmp_path, "disconnect", "codex", "--yes")

    assert left == {"connections.json"}
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [file]
    assert file.read_text() == HELD["cursor"]


def test_the_node_gets_what_it_needs_of_the_desktop(tmp_path: Path) -> None:
    desktop = {"DISPLAY": ":7", "XAUTHORITY": "/run/x", "XDG_RUNTIME_DIR": "/run/u", "PULSE_SERVER": ""}
    settings = {"HOME": str(tmp_path), "PATH": os.environ["PATH"], **desktop}
    printed = subprocess.run(
        [OPENCLAW, "connect", "cursor", "--print"], env=settings, capture_output=True, text=True, timeout=60, check=True
    ).stdout

    entries = json.loads(printed)["mcpServers"]
    assert entries["openclaw-node"]["env"] == {"DISPLAY": ":7", "XAUTHORITY": "/run/x", "XDG_RUNTIME_DIR": "/run/u"}
    assert "env" not in entries["openclaw"]


def test_what_a_client_wrote_in_between_stays(tmp_path: Path) -> None:
    file = held(tmp_path, "claude-code", '{"a": 1}')
    openclaw(tmp_path, "connect", "claude", "--yes")
    now = json.loads(file.read_text())
    now["mcpServers"]["theirs"] = {"command": "y"}
    now["numStartups"] = 4
    file.write_text(json.dumps(now, indent=2))

    openclaw(tmp_path, "disconnect", "claude", "--yes")

    assert json.loads(file.read_text()) == {"a": 1, "mcpServers": {"theirs": {"command": "y"}}, "numStartups": 4}


def test_one_surface_goes_and_the_others_stay(tmp_path: Path) -> None:
    file = held(tmp_path, "codex", HELD["codex"])
    openclaw(tmp_path, "connect", "codex", "--yes")
    openclaw(tmp_path, "disconnect", "codex", "--surface", "node", "--yes")

    assert sorted(tomllib.loads(file.read_text())["mcp_servers"]) == ["mine", "openclaw", "openclaw-tools"]
    openclaw(tmp_path, "disconnect", "codex", "--yes")
    assert file.read_text() == HELD["codex"]


def test_without_a_yes_nothing_is_written(tmp_path: Path) -> None:
    file = held(tmp_path, "cursor", "{}")

    result = openclaw(tmp_path, "connect", "cursor")

    assert result.returncode == 1
    assert "Nothing was written" in result.stderr
    assert '"mcp-server"' in result.stdout
    assert "-{}\n+{\n" in result.stdout, "a last line without an end of its own stays a line"
    assert file.read_text() == "{}"


def test_an_entry_that_is_not_ours_is_not_replaced(tmp_path: Path) -> None:
    text = '{"mcpServers": {"openclaw": {"command": "/usr/bin/openclaw"}}}'
    file = held(tmp_path, "cursor", text)

    result = openclaw(tmp_path, "connect", "cursor", "--yes")

    assert result.returncode == 1
    assert "already" in result.stderr
    assert file.read_text() == text
    assert openclaw(tmp_path, "connect", "cursor", "--yes", "--force").returncode == 0
    assert openclaw(tmp_path, "disconnect", "cursor", "--yes").returncode == 0
    assert file.read_text() == text


@pytest.mark.parametrize("client", FILES)
@pytest.mark.parametrize("http", [False, True])
def test_no_token_is_written_anywhere(tmp_path: Path, client: str, http: bool) -> None:
    words = ["connect", client, "--yes", "--surface", "tools", *(["--http"] if http else [])]
    state = tmp_path / ".openclaw-mcp"
    if not http:  # a gateway has made it; by address, connect does
        state.mkdir(mode=0o700)
        (state / "gateway-token.txt").write_text("4f" * 32)
    result = openclaw(tmp_path, *words)
    if client == "claude-desktop" and http:
        assert "starts programs only" in result.stderr
        return
    assert result.returncode == 0, result.stderr
    token = (state / "gateway-token.txt").read_text().strip()

    assert len(token) == 64
    assert token not in (tmp_path / FILES[client]).read_text() + result.stdout + result.stderr


def test_an_apps_tools_need_a_session(tmp_path: Path) -> None:
    result = openclaw(tmp_path, "connect", "cursor", "--surface", "proxy", "--yes")

    assert result.returncode == 1
    assert "--session" in result.stderr
    assert openclaw(tmp_path, "connect", "cursor", "--surface", "proxy", "--session", "s1", "--yes").returncode == 0
    entry = json.loads((tmp_path / FILES["cursor"]).read_text())["mcpServers"]["openclaw-app"]
    assert entry["args"] == ["proxy", "--stdio", "--session", "s1"]


@pytest.mark.parametrize("way", [(), ("--http",)], ids=["by program", "by address"])
def test_print_writes_nothing(tmp_path: Path, way: tuple[str, ...]) -> None:
    result = openclaw(tmp_path, "connect", "codex", "--print", *way)

    assert {"openclaw-node", "openclaw-tools"} <= tomllib.loads(result.stdout)["mcp_servers"].keys()
    assert list(tmp_path.iterdir()) == []


def test_print_makes_no_secrets_beside_a_config(tmp_path: Path) -> None:
    state = tmp_path / ".openclaw-mcp"
    state.mkdir()
    (state / "openclaw.json").write_text('{"gateway": {"port": 4711}}')

    result = openclaw(tmp_path, "connect", "cursor", "--print", "--http", "--surface", "tools")

    assert "4711" in result.stdout
    assert [path.name for path in state.iterdir()] == ["openclaw.json"]


def test_a_state_directory_named_from_here_is_found_from_anywhere(tmp_path: Path) -> None:
    result = openclaw(tmp_path, "connect", "cursor", "--print", "--state-dir", "here")

    for entry in json.loads(result.stdout)["mcpServers"].values():
        folder = entry["env"].get("OPENCLAW_STATE_DIR") or entry["env"]["REMOTECLAW_STATE_DIR"]
        assert Path(folder).is_absolute(), entry


def test_surfaces_that_all_leaves_out_are_named(tmp_path: Path) -> None:
    result = openclaw(tmp_path, "connect", "cursor", "--print")

    assert "openclaw-app" not in result.stdout
    assert "openclaw-app" in result.stderr
    assert "--session or --device" in result.stderr


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    result = openclaw(tmp_path, "connect", "cursor", "--project", str(tmp_path / "nowhere"), "--yes")

    assert result.returncode == 1
    assert "nowhere is no folder" in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_folders_own_settings(tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()

    assert openclaw(tmp_path, "connect", "vscode", "--project", str(project), "--yes").returncode == 0
    assert "openclaw" in json.loads((project / ".vscode" / "mcp.json").read_text())["servers"]
    assert openclaw(tmp_path, "disconnect", "vscode", "--project", str(project), "--yes").returncode == 0
    assert not (project / ".vscode" / "mcp.json").exists()


def test_a_broken_file_is_left_alone(tmp_path: Path) -> None:
    file = held(tmp_path, "gemini", "{oops")

    result = openclaw(tmp_path, "connect", "gemini", "--yes")

    assert result.returncode == 1
    assert str(file) in result.stderr
    assert file.read_text() == "{oops"


def test_a_client_we_do_not_know_is_named(tmp_path: Path) -> None:
    result = openclaw(tmp_path, "connect", "emacs")

    assert result.returncode == 2
    assert "opencode" in result.stderr
