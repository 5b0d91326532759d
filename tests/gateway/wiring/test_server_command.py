"""How a CLI agent starts our server where its script is not installed."""

import subprocess
import sys
from pathlib import Path

import pytest

from openclaw_mcp.gateway.wiring import cli_runtimes
from tests.running import ANSWER_WAIT


def test_our_server_imports_nothing_from_the_folder_of_the_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("openclaw_mcp", "msgspec", "asyncio"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'imported')!r}, 'w')")
    monkeypatch.setenv("PATH", "")
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(sys, "executable", str(tmp_path / "python"))
        _, *words = cli_runtimes._server_command()

    subprocess.run((sys.executable, *words), cwd=tmp_path, timeout=ANSWER_WAIT, stdin=subprocess.DEVNULL, check=False)

    assert words
    assert not (tmp_path / "imported").exists()
