"""What a rule allows is what starts: wrappers run for real, option by option, and everything that gives a word another
meaning to the program that starts it than to the rules."""

import itertools
import shutil
from pathlib import Path

import pytest

from openclaw_mcp.core.errors import OpenClawError
from openclaw_mcp.node.exec.rules import DEFAULT_POLICY
from openclaw_mcp.node.exec.wrappers import _TRANSPARENT as TRANSPARENT

from .evaluating import real, rules, run, script, verdict

LOOKING = rules("prompt", allow=("ls *", "echo *", "true"))
VALUES = ("", "1", "x", "LANG", "KILL", "L", "=1", "0")


def _mark(folder: Path) -> tuple[Path, str]:
    """A program that leaves a mark, and where."""
    mark = folder / "started"
    return mark, str(script(folder / "bin" / "marker", f": > {mark}"))


def _tried(folder: Path, argv: list[str], **arguments: object) -> None:
    try:
        run(folder / "state", DEFAULT_POLICY, argv, cwd=str(folder), timeoutMs=3000, **arguments)
    except OpenClawError:
        return


# ---- wrappers, option by option ----

INSTALLED = sorted(name for name in TRANSPARENT if shutil.which(name))
"""Those of this machine; `command`, `exec` and `builtin` are a shell's own."""


def _pairs() -> list[tuple[str, str]]:
    boxed = [f"busybox {name}" for name in ("env", "nice", "nohup", "timeout", "xargs", "ionice", "time")]
    return [
        (wrapper, option)
        for wrapper in (*INSTALLED, *boxed)
        for options in [TRANSPARENT[wrapper.split()[-1]]]
        for option in sorted(
            options.flags | options.with_value | options.with_attached_value | {"-i", "-l", "-e", "--max-lines"}
        )
    ]


@pytest.mark.parametrize(("wrapper", "option"), _pairs())
def test_the_word_after_an_option_starts_only_where_it_was_judged(tmp_path: Path, wrapper: str, option: str) -> None:
    mark, marker = _mark(tmp_path)

    for argv in (
        [option, marker, "echo", "x"],
        [option, "1", marker, "echo", "x"],
        [option, marker, "1", "echo", "x"],
        [f"{option}=1", marker, "echo"],
        [f"{option}1", marker, "echo"],
        [option, option, marker, "echo"],
    ):
        _tried(tmp_path, [*wrapper.split(), *argv])
        assert not mark.exists(), argv


LINES = (
    ("--max-lines", "prompt"),
    ("--max-lines 1", "prompt"),
    ("--max-lines ls", "prompt"),
    ("--max-line", "prompt"),
    ("--max-l=1", "prompt"),
    ("--replace", "prompt"),
    ("--eof", "prompt"),
    ("--process-slot-var=LD_PRELOAD", "prompt"),
    ("--max-lines=1", "allow"),
    ("--max-args 1", "allow"),
    ("-L 1", "allow"),
)


@pytest.mark.parametrize(("options", "expected"), LINES)
def test_what_takes_its_value_only_glued_takes_no_other(tmp_path: Path, options: str, expected: str) -> None:
    assert verdict(tmp_path, LOOKING, ["xargs", *options.split(), "ls"]) == expected


# ---- shells that read files of their own ----

SHELLS = ("sh", "bash", "dash", "ksh", "rbash", "busybox ash", "busybox sh")
STARTS_WITH_FILES = (
    "-lc",
    "-cl",
    "-l -c",
    "--login -c",
    "-ic",
    "-i -c",
    "-li -c",
    "-sc",
    "-c -s",
    "-elc",
    "--rcfile x -c",
)


@pytest.mark.parametrize("options", STARTS_WITH_FILES)
@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("around", ["", "env", "nice -n 5", "timeout 3", "nohup"])
def test_a_login_or_interactive_shell_is_not_for_a_rule_to_allow(
    tmp_path: Path, around: str, shell: str, options: str
) -> None:
    argv = [*around.split(), *shell.split(), *options.split(), "echo x"]

    assert verdict(tmp_path, LOOKING, argv) == "prompt"


@pytest.mark.parametrize("shell", ["sh", "bash", "ksh"])
@pytest.mark.parametrize(
    "text",
    [
        "exec -l bash -c 'echo x'",
        "exec -l sh -c 'echo x'",
        "exec -cl bash -c 'echo x'",
        "exec -c bash -c 'echo x'",
        "exec -a -bash bash -c 'echo x'",
        "command exec -l bash -c 'echo x'",
        "bash -lc 'echo x'",
        "echo x | bash -l",
        "command -p ls",
        "echo x | env -i bash -c 'echo y'",
        "echo x | env -u SHLVL bash -c 'echo y'",
    ],
)
def test_no_text_makes_one(tmp_path: Path, shell: str, text: str) -> None:
    assert verdict(tmp_path, LOOKING, [shell, "-c", text]) == "prompt"


def test_a_shell_whose_name_begins_with_a_dash_is_a_login_shell(tmp_path: Path) -> None:
    (tmp_path / "-x").mkdir()
    (tmp_path / "-x" / "sh").symlink_to(real("sh"))
    (tmp_path / "-x" / "bash").symlink_to(real("bash"))

    for path in ("-x/sh", "-x/bash"):
        assert verdict(tmp_path / "state", LOOKING, [path, "-c", "echo x"], cwd=tmp_path) == "prompt"


def test_no_secret_of_a_profile_is_passed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    home.mkdir()
    for name in (".profile", ".bash_profile", ".bash_login", ".bashrc", ".kshrc", ".shinit"):
        (home / name).write_text(f"export PLAIN=tok-77; : > {home}/read\n")
    monkeypatch.setenv("HOME", str(home))
    texts = (
        "echo $PLAIN",
        "bash -lc 'echo $PLAIN'",
        "exec -l bash -c 'echo $PLAIN'",
        "echo | env -i bash -c 'echo $PLAIN'",
    )

    for shell, text in itertools.product(("sh", "bash", "ksh", "dash"), texts):
        for argv in (
            [shell, "-c", text],
            [shell, "-lc", text],
            [shell, "-l", "-c", text],
            [shell, "--login", "-c", text],
        ):
            _tried(tmp_path, argv)
            assert not (home / "read").exists(), argv


# ---- a PATH of their own ----


@pytest.mark.parametrize(
    "argv",
    [
        ["env", "-i", "ls"],
        ["env", "-", "ls"],
        ["env", "--ignore-environment", "ls"],
        ["env", "-u", "PATH", "ls"],
        ["env", "-uPATH", "ls"],
        ["env", "--unset=PATH", "ls"],
        ["env", "--unset", "PATH", "ls"],
        ["env", "-u", "PATH", "-u", "LANG", "ls"],
        ["env", "-u", "LANG", "-uPATH", "ls"],
        ["env", "-u", "HOME", "ls"],
        ["env", "-u", "SHLVL", "ls"],
        ["env", "-iu", "LANG", "ls"],
        ["env", "-v", "-i", "bash", "-c", "ls"],
        ["nice", "env", "-u", "PATH", "bash", "-c", "ls"],
        ["busybox", "env", "-i", "ls"],
        ["bash", "-c", "exec -c bash -c ls"],
        ["bash", "-c", "exec -c ls"],
        ["bash", "-c", "command -p ls"],
        ["sh", "-c", "command -p ls"],
        ["sudo", "PATH=.", "ls"],
    ],
)
def test_no_program_is_looked_for_on_another_path(tmp_path: Path, argv: list[str]) -> None:
    policy = rules("prompt", allow=("ls *", "sudo *", "echo *"))

    assert verdict(tmp_path, policy, argv) == "prompt"


def test_what_is_about_looks_may_be_unset(tmp_path: Path) -> None:
    for words in ("-u LANG", "-uTERM", "--unset=LC_ALL", "--unset TZ", "-u LANG -u LC_ALL -v"):
        assert verdict(tmp_path, LOOKING, ["env", *words.split(), "ls"]) == "allow"


# ---- what variables may say ----

HARMFUL_VALUES = (
    *(
        f"{name}={value}"
        for name in ("LANG", "LANGUAGE", "LC_ALL", "LC_MESSAGES", "LC_TIME", "TERM", "COLORTERM", "NO_COLOR")
        for value in ("../../tmp/x", "/tmp/x", "x/y", "..", "a..b", "C:../../x", "./x", "en:/tmp", "x/", "de/../..")
    ),
    *(
        f"TZ={value}"
        for value in ("/etc/shadow", ":/etc/shadow", "../x", "a/../../x", "./x", ".x", ":UTC", "x..", "=x")
    ),
    "COLUMNS=1x",
    "LINES=/",
)
HARMLESS_VALUES = (
    "LANG=C.UTF-8",
    "LANG=de_DE.UTF-8@euro",
    "LANGUAGE=de:en_GB:en",
    "LC_ALL=C",
    "LC_ALL=",
    "TERM=xterm-256color",
    "TERM=screen.xterm-new",
    "COLORTERM=truecolor",
    "NO_COLOR=1",
    "TZ=",
    "TZ=UTC",
    "TZ=Europe/Berlin",
    "TZ=America/Argentina/Buenos_Aires",
    "TZ=<+03>-3",
    "TZ=CET-1CEST,M3.5.0,M10.5.0/3",
    "COLUMNS=80",
)


def _by_every_way(tmp_path: Path, setting: str) -> set[str]:
    name, _, value = setting.partition("=")
    text = verdict(tmp_path, LOOKING, ["sh", "-c", f"{name}='{value}' ls"])
    alone = verdict(tmp_path, LOOKING, ["sh", "-c", f"{name}='{value}'; ls"])
    by_env = verdict(tmp_path, LOOKING, ["env", setting, "ls"])
    try:
        run(tmp_path, LOOKING, ["true"], env={name: value})
        remembered = "allow"
    except OpenClawError:
        remembered = "prompt"
    return {text, alone, by_env, remembered}


@pytest.mark.parametrize("setting", HARMFUL_VALUES)
def test_no_variable_names_a_file(tmp_path: Path, setting: str) -> None:
    assert _by_every_way(tmp_path, setting) == {"prompt"}


@pytest.mark.parametrize("setting", HARMLESS_VALUES)
def test_languages_terminals_and_time_zones_may_be_named(tmp_path: Path, setting: str) -> None:
    assert _by_every_way(tmp_path, setting) == {"allow"}
