"""What the shell reader calls harmless is run by real shells in a fence: they start nothing that it has not named."""

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from openclaw_mcp.node.exec.shell_builtins import (
    LIMIT_BUILTINS,
    LITERAL_BUILTINS,
    NUMERIC_BUILTINS,
    STATE_CHANGING_BUILTINS,
)
from openclaw_mcp.node.exec.shell_reader import RESERVED_WORDS, ParsedCommand, ShellWord
from openclaw_mcp.node.exec.wrappers import unwrap
from tests.effort import often
from tests.programs import need

from .difference import LOCALES, fits, read, run, summary
from .fence import PACKAGES, SHELLS, Fence
from .fenced import Batch

SEED = int(os.environ.get("FUZZ_SEED", "20260728"))
TEXTS = often(800, 500_000)
FENCES = often(1, 2)


@pytest.fixture(scope="module")
def fence() -> Iterator[Fence]:
    with Fence() as fence:
        yield fence


def test_real_shells_start_nothing_that_the_reader_has_not_named() -> None:
    figures = run(TEXTS, seed=SEED, fences=FENCES)

    print(summary(figures))
    assert figures.findings == []
    assert len(figures.stopped) <= TEXTS // 10_000
    assert figures.harmless == TEXTS
    assert set(figures.runs) == set(SHELLS)
    assert min(figures.runs.values()) >= TEXTS
    assert figures.started > TEXTS // 20, "hardly a program was started: what is tried is too tame"


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("alone", [False, True], ids=["one after the other", "alone"])
def test_the_fence_sees_what_is_started_tried_and_changed(fence: Fence, shell: str, alone: bool) -> None:
    texts = [
        b"tool 'a b' \xc4\x81",
        b"echo $(pwn)",
        b"no-such-program",
        b"exit",
        b"id &",
        b"nice id",
        b'echo "',
        b"pwn 8",
    ]

    report = fence.run(Batch(shell, texts, alone=alone, locale=LOCALES[1]))

    assert sorted(report.started) == sorted(
        [
            (0, [b"tool", b"a b", b"\xc4\x81"]),
            (1, [b"pwn"]),
            (4, [b"id"]),
            (5, [b"id"]),
            (7, [b"pwn", b"8"]),
        ]
    )
    assert [number for number, _ in report.complaints] == [2]
    assert report.files == []
    assert fence.run(Batch(shell, [b"echo x >made; : >victim"], alone=alone)).files == ["made", "victim"]


def test_nothing_of_this_machine_can_be_reached_from_inside(fence: Fence) -> None:
    if not fence.closed:
        return  # then only texts are tried that name no path
    report = fence.run(Batch("dash", [b"tool /etc/* /home/* /root/* /proc/* /old/*"], alone=True))

    assert report.started == [(0, [b"tool", b"/etc/*", b"/home/*", b"/root/*", b"/proc/*", b"/old/*"])]


@pytest.mark.parametrize(
    ("words", "started", "fitting"),
    [
        ([ShellWord("ls"), ShellWord("a")], [b"ls", b"a"], True),
        ([ShellWord("ls"), ShellWord("a")], [b"ls", b"b"], False),
        ([ShellWord("ls"), ShellWord("a")], [b"ls", b"a", b"a"], False),
        ([ShellWord("ls")], [b"rm"], False),
        ([ShellWord("ls"), ShellWord("$x", is_dynamic=True)], [b"ls"], True),
        ([ShellWord("ls"), ShellWord("$x", is_dynamic=True), ShellWord("b")], [b"ls", b"1", b"2", b"b"], True),
        ([ShellWord("ls"), ShellWord("$x", is_dynamic=True), ShellWord("b")], [b"ls", b"1", b"2"], False),
    ],
)
def test_a_program_was_named_only_with_its_very_words(
    words: list[ShellWord], started: list[bytes], fitting: bool
) -> None:
    assert fits(started, ParsedCommand(tuple(words))) is fitting


LISTED = {
    "bash": ["bash", "-c", "compgen -b"],
    "ksh93": ["ksh93", "-c", "builtin"],
    "zsh": ["zsh", "-fc", "print -l ${(k)builtins} ${(k)aliases}"],
    "busybox": ["busybox", "ash", "-c", "help | tail -n +3"],
    "mksh": ["mksh", "-c", "alias"],
}
"""How a shell lists its builtins or, where it can't, its aliases."""
SILENT = ("dash", "mksh")
"""Shells that list no builtins: every word in their file is tried."""
ASK = 'for word; do case $(type "$word" 2>&1) in *" builtin"*) echo "$word";; esac; done'
CLASSES = LITERAL_BUILTINS | NUMERIC_BUILTINS | LIMIT_BUILTINS | STATE_CHANGING_BUILTINS | RESERVED_WORDS
JUDGED_ONE_BY_ONE = {"test", "[", "printf", "nohup"}


@pytest.mark.parametrize("shell", LISTED)
def test_every_builtin_a_shell_lists_has_its_class(shell: str) -> None:
    need(shell, package=PACKAGES.get(shell, shell))
    listed = subprocess.run(LISTED[shell], capture_output=True, text=True, check=True).stdout.splitlines()
    names = {name for line in listed for name in line.partition("=")[0].split() if not name.startswith("/")}

    assert len(names) > 5
    assert names - CLASSES - JUDGED_ONE_BY_ONE == set()


@pytest.mark.parametrize("shell", SILENT)
def test_every_builtin_a_shell_holds_has_its_class(shell: str) -> None:
    program = Path(need(shell, package=shell))
    words = {word.decode() for word in re.findall(rb"\0[=*@^-]*([a-z.:\[]{1,12})(?=\0)", program.read_bytes())}
    found = subprocess.run([program, "-c", ASK, "ask", *sorted(words)], capture_output=True, text=True, check=False)
    names = set(found.stdout.split())

    assert len(names) > 25
    assert names - CLASSES - JUDGED_ONE_BY_ONE == set()


@pytest.mark.parametrize("name", sorted(STATE_CHANGING_BUILTINS))
def test_a_builtin_that_runs_text_or_changes_the_shell_is_never_certain(name: str) -> None:
    assert unwrap([ParsedCommand((ShellWord("sh"), ShellWord("-c"), ShellWord(f"{name} x")))]).uncertainties


def test_a_text_that_hides_something_is_not_called_harmless() -> None:
    assert read('echo "$\\\n(pwn)"') is None
    assert read("echo hello") is not None
