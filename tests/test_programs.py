"""A fresh machine gets every program the tests ask for, and says what to type where it may install nothing."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import programs

from .running import ROOT

NEED = re.compile(r"\bneed\(\s*\"([^\"]+)\",\s*package=\"([^\"]+)\"")


def test_whatever_a_test_needs_is_installed_by_make_test() -> None:
    files = {path: path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("*.py")}
    needs = {(path.name, *found) for path, text in files.items() for found in NEED.findall(text)}

    assert len({program for _, program, _ in needs}) > 15
    assert [one for one in sorted(needs) if one[2] not in programs.DEBIAN.values()] == []


@pytest.mark.parametrize("apt", [True, False])
def test_who_may_not_install_is_told_what_to_type(tmp_path: Path, apt: bool) -> None:
    """A user without rights, on a machine that lacks everything: nothing is on the PATH but what is put there."""
    (tmp_path / "sudo").write_text("#!/bin/sh\necho 'sudo: a password is required' >&2; exit 1\n")
    if apt:
        (tmp_path / "apt-get").write_text("#!/bin/sh\nexit 1\n")
    for program in tmp_path.iterdir():
        program.chmod(0o755)
    ask = (
        "import os; os.geteuid = lambda: 1000; from tests import programs; programs._install_debian(['ffmpeg', 'sox'])"
    )

    output = subprocess.run(
        [sys.executable, "-c", ask], cwd=ROOT, env={**os.environ, "PATH": str(tmp_path)}, capture_output=True,
        text=True, timeout=60, check=True,
    ).stdout  # fmt: skip

    if apt:
        assert "please run as root: apt-get install --no-install-recommends ffmpeg sox" in output
    else:
        assert "this is no Debian; please install what it calls ffmpeg, sox" in output
    assert len(output.splitlines()) == 1
