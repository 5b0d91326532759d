"""The command line as a person meets it."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from openclaw_mcp import __version__
from openclaw_mcp.cli import commands, main
from openclaw_mcp.cli.commands import COMMANDS
from tests.running import OPENCLAW


def openclaw(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([OPENCLAW, *words], capture_output=True, text=True, timeout=60, check=False)


def test_ctrl_c_while_a_command_is_imported_ends_it_without_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_names: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(sys, "argv", ["openclaw", "up"])
    monkeypatch.setattr(commands, "import_module", interrupted)

    assert main() == 130


@pytest.mark.parametrize("word", ["--version", "-V"])
def test_the_version_is_printed(word: str) -> None:
    result = openclaw(word)

    assert (result.returncode, result.stdout) == (0, f"openclaw-mcp {__version__}\n")


@pytest.mark.parametrize("words", [(), ("--help",), ("-h",), ("help",)])
def test_help_lists_every_command_with_its_summary(words: tuple[str, ...]) -> None:
    result = openclaw(*words)

    assert result.returncode == 0
    for name, summary in COMMANDS.items():
        assert name in result.stdout
        assert summary in result.stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself(name: str) -> None:
    result = openclaw(name, "--help")

    assert result.returncode == 0
    assert f"openclaw {name}" in result.stdout


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("ecko",), "did you mean echo?"),
        (("zzz",), "there is no command 'zzz'"),
        (("--loud",), "unknown option --loud"),
        (("echo", "--loud"), "--loud"),
        (("echo", "--port", "many"), "--port"),
        (("echo", "--http", "--port", "99999"), "--port"),
    ],
)
def test_wrong_usage_is_one_clear_line_and_status_2(words: tuple[str, ...], says: str) -> None:
    result = openclaw(*words)

    assert result.returncode == 2
    assert result.stdout == ""
    assert len(result.stderr.splitlines()) == 1
    assert says in result.stderr


def test_a_taken_port_is_one_clear_line_and_status_1() -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        result = openclaw("echo", "--http", "--port", str(port))

    assert result.returncode == 1
    assert len(result.stderr.splitlines()) == 1
    assert f"port {port}" in result.stderr


def test_the_tool_server_names_the_setting_it_misses() -> None:
    server = str(Path(OPENCLAW).with_name("remoteclaw-mcp-server"))
    result = subprocess.run([server], capture_output=True, text=True, timeout=60, check=False, env={})

    assert (result.returncode, result.stdout) == (1, "")
    assert "REMOTECLAW_GATEWAY_URL" in result.stderr
