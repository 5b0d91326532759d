"""A wrapper is what it is called only where it lies in its own place; anywhere else it is a program like any other."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from openclaw_mcp.core.errors import ToolDenied
from openclaw_mcp.node.exec.wrappers import WRAPPERS

from .evaluating import real, rules, run, script, verdict
from .test_always import Machine

LOOKING = rules("prompt", allow=("ls *", "echo *", "true"))
ALL_BUT_RM = rules("allow", deny=("rm *",))

ARGUMENTS = {
    "nohup": "ls",
    "nice": "-n 5 ls",
    "ionice": "-c 3 ls",
    "time": "-p ls",
    "stdbuf": "-o L ls",
    "timeout": "3 ls",
    "env": "LANG=C ls",
    "xargs": "-n 1 ls",
    "command": "ls",
    "exec": "ls",
    "builtin": "ls",
    "find": ". -exec ls {} ;",
    "busybox": "ls",
    "toybox": "ls",
    "coreutils": "--coreutils-prog=ls",
    "sudo": "-n ls",
    "doas": "-n ls",
}
"""Arguments with which each wrapper would start `ls`; shells get theirs as text."""


def started_by(name: str, path: str, inner: str = "ls") -> list[str]:
    if name in ARGUMENTS:
        return [
            path,
            *(inner if word == "ls" else word.replace("=ls", f"={inner}") for word in ARGUMENTS[name].split()),
        ]
    return [path, "-c", inner]


@pytest.mark.parametrize("name", sorted(WRAPPERS))
@pytest.mark.parametrize("spelled", ["./repo/{}", "{cwd}/repo/{}", "repo/../repo/{}", "./repo/./{}"])
def test_a_file_that_bears_a_wrappers_name_is_no_wrapper(tmp_path: Path, name: str, spelled: str) -> None:
    script(tmp_path / "repo" / name)
    argv = started_by(name, spelled.format(name, cwd=tmp_path))

    assert verdict(tmp_path / "state", LOOKING, argv, cwd=tmp_path) == "prompt"


@pytest.mark.parametrize("name", sorted(WRAPPERS))
def test_a_rule_for_the_bare_name_does_not_mean_it_and_one_for_its_path_does(tmp_path: Path, name: str) -> None:
    script(tmp_path / "repo" / name)
    argv = started_by(name, f"./repo/{name}")
    by_name = rules("prompt", allow=(f"{name} *", "ls *"))
    by_path = rules("prompt", allow=(f"{tmp_path.resolve()}/repo/{name} *",))

    assert verdict(tmp_path / "state", by_name, argv, cwd=tmp_path) == "prompt"
    assert verdict(tmp_path / "state", by_path, argv, cwd=tmp_path) == "allow"


def _copied(path: Path, program: str) -> None:
    shutil.copy(real(program), path)


def _linked(path: Path, program: str) -> None:
    path.symlink_to(real(program))


def _linked_twice(path: Path, program: str) -> None:
    (path.parent / "between").symlink_to(real(program))
    path.symlink_to("between")


@pytest.mark.parametrize("program", ["env", "xargs", "nice", "timeout", "sh", "bash", "find", "stdbuf", "nohup"])
def test_a_link_to_the_wrapper_or_a_copy_is_no_wrapper(tmp_path: Path, program: str) -> None:
    """Programs look beside the name they are started by: a link in a user's folder brings what lies there along."""
    _linked(tmp_path / "link", program)
    _linked_twice(tmp_path / program, program)
    (tmp_path / "copies").mkdir()
    _copied(tmp_path / "copies" / program, program)
    find_too = rules("prompt", allow=("ls *", "find *"))

    for path in (f"./{program}", "./link", f"./copies/{program}", f"{tmp_path}/{program}"):
        for cwd in (tmp_path, Path("/")):
            argv = started_by(program, path if cwd == tmp_path else str(tmp_path / path))
            assert verdict(tmp_path / "state", find_too, argv, cwd=cwd) == "prompt", path
    assert verdict(tmp_path / "state", find_too, started_by(program, f"/usr/../bin/{program}")) == "allow"


@pytest.mark.parametrize("program", ["env", "xargs", "nice", "timeout", "sh", "bash", "find", "stdbuf", "nohup"])
@pytest.mark.parametrize("make", [_copied, _linked, _linked_twice, lambda path, _: script(path)])
def test_what_a_wrapper_or_its_copy_would_start_is_still_denied(
    tmp_path: Path, program: str, make: Callable[[Path, str], object]
) -> None:
    make(tmp_path / program, program)

    argv = started_by(program, f"./{program}", "rm")

    assert verdict(tmp_path / "state", ALL_BUT_RM, argv, cwd=tmp_path) == "deny"


@pytest.mark.parametrize("name", ["ls", "echo", "true"])
@pytest.mark.parametrize("make", [_copied, lambda path, _: script(path), lambda path, _: _linked(path, "env")])
def test_a_rule_for_a_bare_name_means_no_other_file(
    tmp_path: Path, name: str, make: Callable[[Path, str], object]
) -> None:
    make(tmp_path / name, name)

    for argv in ([f"./{name}"], [str(tmp_path / name)], ["env", f"./{name}"], ["nice", f"{tmp_path}/{name}"]):
        assert verdict(tmp_path / "state", LOOKING, argv, cwd=tmp_path) == "prompt", argv


# ---- which folders of the PATH ----


def test_a_wrapper_on_the_path_counts_only_in_a_folder_that_is_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder others may write, the command's own folder, one below it: a program there is not the system's env."""
    usual = os.environ["PATH"]
    for name, mode in (("shared", 0o777), ("sticky", 0o1777), ("work", 0o755), ("work/bin", 0o755)):
        script(tmp_path / name / "env")
        (tmp_path / name).chmod(mode)
    argv = ["env", "ls"]

    for folder in ("shared", "sticky", "work", "work/bin"):
        monkeypatch.setenv("PATH", f"{tmp_path / folder}{os.pathsep}{usual}")
        assert verdict(tmp_path / "state", LOOKING, argv, cwd=tmp_path / "work") == "prompt", folder
    monkeypatch.setenv("PATH", f".{os.pathsep}{os.pathsep}work/bin{os.pathsep}{usual}")
    assert verdict(tmp_path / "state", LOOKING, argv, cwd=tmp_path / "work") == "allow"


def test_a_folder_of_the_users_own_is_trusted_and_a_link_to_a_workspace_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = os.environ["PATH"]
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "env").symlink_to(real("env"))
    script(tmp_path / "work" / "bin" / "env")
    (tmp_path / "innocent").symlink_to(tmp_path / "work" / "bin")

    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{usual}")
    assert verdict(tmp_path / "state", LOOKING, ["env", "ls"], cwd=tmp_path / "work") == "allow"
    monkeypatch.setenv("PATH", f"{tmp_path / 'innocent'}{os.pathsep}{usual}")
    assert verdict(tmp_path / "state", LOOKING, ["env", "ls"], cwd=tmp_path / "work") == "prompt"


@pytest.mark.parametrize("cwd", ["/", "/usr", "/usr/bin"])
def test_the_systems_folders_are_trusted_wherever_a_command_runs(tmp_path: Path, cwd: str) -> None:
    assert verdict(tmp_path / "state", LOOKING, ["env", "ls"], cwd=Path(cwd)) == "allow"


# ---- programs of many names ----


@pytest.fixture
def box(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine whose `busybox` and `coreutils` lie on the PATH, as far as rules can see."""
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = tmp_path / "bin"
    for name in ("busybox", "toybox", "coreutils"):
        script(folder / name)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return folder


@pytest.mark.parametrize("box_name", ["busybox", "toybox", "coreutils"])
@pytest.mark.parametrize(
    ("link", "words", "expected"),
    [
        ("env", "ls", "prompt"),
        ("env", "rm x", "deny"),
        ("env", "git", "prompt"),
        ("rm", "x", "deny"),
        ("sh", "-c|rm x", "deny"),
        ("sh", "-c|ls", "prompt"),
        ("timeout", "3 rm x", "deny"),
        ("ls", "", "prompt"),  # not the file `ls` means here
        ("unknown", "rm x", "prompt"),
    ],
)
def test_a_link_to_a_program_of_many_names_acts_by_its_own_name(
    tmp_path: Path, box: Path, box_name: str, link: str, words: str, expected: str
) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (work / link).symlink_to(box / box_name)
    arguments = words.split("|") if "|" in words else words.split()
    policy = rules("prompt", allow=("ls *",), deny=("rm *",))

    assert verdict(tmp_path / "state", policy, [f"./{link}", *arguments], cwd=work) == expected


@pytest.mark.parametrize("box_name", ["busybox", "toybox", "coreutils"])
def test_a_link_on_the_path_to_a_program_of_many_names_is_what_it_is_called(
    tmp_path: Path, box: Path, box_name: str
) -> None:
    (box / "env").symlink_to(box / box_name)
    policy = rules("prompt", allow=("ls *",), deny=("rm *",))

    assert verdict(tmp_path / "state", policy, ["env", "ls"], cwd=tmp_path / "state") == "allow"
    assert verdict(tmp_path / "state", policy, [str(box / "env"), "rm", "x"], cwd=tmp_path / "state") == "deny"


@pytest.mark.parametrize(
    "words",
    [
        "busybox rm x",
        "busybox env rm x",
        "busybox busybox rm x",
        "toybox rm x",
        "coreutils --coreutils-prog=rm x",
        "coreutils rm x",
        "./busybox-of-mine rm x",
        "busybox nice busybox rm x",
    ],
)
def test_a_denied_applet_is_found_in_its_box(tmp_path: Path, box: Path, words: str) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (work / "busybox-of-mine").symlink_to(box / "busybox")

    assert verdict(tmp_path / "state", ALL_BUT_RM, words.split(), cwd=work) == "deny"


def test_a_path_rule_for_a_box_does_not_mean_its_other_names(tmp_path: Path, box: Path) -> None:
    (tmp_path / "wipe").symlink_to(box / "busybox")
    policy = rules("prompt", allow=(f"{(box / 'busybox').resolve()} *",))

    assert verdict(tmp_path / "state", policy, ["./wipe", "x"], cwd=tmp_path) == "prompt"
    assert verdict(tmp_path / "state", policy, [str(box / "busybox"), "--list"], cwd=tmp_path) == "allow"


# ---- where a program is started ----


@pytest.mark.parametrize(
    "argv",
    [
        ["find", ".", "-execdir", "./ls", "{}", ";"],
        ["find", ".", "-execdir", "env", "./ls", "{}", ";"],
        ["find", ".", "-okdir", "./ls", ";"],
        ["sh", "-c", "cd sub && env ./ls"],
        ["sh", "-c", "cd sub && nice -n 5 ./ls"],
        ["sh", "-c", "cd sub; echo x | xargs ./ls"],
        ["sh", "-c", "cd sub; find . -exec ./ls {} +"],
        ["sh", "-c", "cd sub; sh -c 'env sub/ls'"],
        ["env", "sh", "-c", "cd sub; timeout 3 ./ls"],
    ],
)
def test_a_relative_program_is_not_judged_in_a_folder_it_is_not_started_in(tmp_path: Path, argv: list[str]) -> None:
    (tmp_path / "ls").symlink_to(real("ls"))
    script(tmp_path / "sub" / "ls")
    policy = rules("prompt", allow=("ls *", "cd *", "find *", "echo *"))

    assert verdict(tmp_path / "state", policy, argv, cwd=tmp_path) == "prompt"


# ---- where find's command ends ----


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("find . -exec ls {} ;", "allow"),
        ("find . -exec ls {} +", "allow"),
        ("find . -execdir ls {} +", "allow"),
        ("find . -exec ls ; -exec ls {} +", "allow"),
        ("find . -exec ls + ;", "prompt"),
        ("find . -exec ls + -exec rm {} ;", "prompt"),
        ("find . -exec ls {} x + ;", "prompt"),
        ("find . -exec ls x{} + ;", "prompt"),
        ("find . -exec ls + {} +", "prompt"),
        ("find . -ok ls {} + rm ;", "prompt"),
        ("find . -okdir ls {} +", "prompt"),
        ("find . -exec env LANG=C ls + rm x ;", "prompt"),
        ("find . -exec ls", "prompt"),
        ("find . -exec ;", "prompt"),
        ("find . -exec +", "prompt"),
        ("find -files0-from names -exec ls {} ;", "prompt"),
    ],
)
def test_a_plus_ends_finds_command_only_right_after_braces(tmp_path: Path, words: str, expected: str) -> None:
    policy = rules("prompt", allow=("find *", "ls *"))

    assert verdict(tmp_path, policy, words.split()) == expected


# ---- what is denied by any name ----


@pytest.mark.parametrize("pattern", ["rm *", "RM *", "/bin/rm *", "/usr/bin/rm *", "*/rm *", "r? *"])
@pytest.mark.parametrize("way", ["rm", "/bin/rm", "/usr/bin/rm", "./link", "./hard", "./between", "/usr/../bin/rm"])
def test_a_denied_program_is_denied_by_every_name_of_its_file(tmp_path: Path, pattern: str, way: str) -> None:
    if real("rm") != Path("/usr/bin/rm") or Path("/bin/rm").resolve() != real("rm"):
        pattern = pattern.replace("/usr/bin/rm", str(real("rm"))).replace("/bin/rm", str(real("rm")))
    _linked(tmp_path / "link", "rm")
    (tmp_path / "between").symlink_to("link")
    own = tmp_path / "rm"
    shutil.copy(real("rm"), own)
    if way == "./hard":  # of a file on the same disk; the rule then names that one
        os.link(own, tmp_path / "hard")
        pattern = f"{own} *"
    policy = rules("allow", deny=(pattern,))

    assert verdict(tmp_path / "state", policy, [way, "x"], cwd=tmp_path) == "deny"


@pytest.mark.parametrize("name", ["sh", "bash", "env", "xargs", "nohup", "find", "timeout", "nice"])
def test_a_wrapper_itself_can_be_denied_and_a_rule_for_everything_else_does_not_mean_it(
    tmp_path: Path, name: str
) -> None:
    argv = started_by(name, name)
    allowed = rules("prompt", allow=("ls *", "find *"))

    assert verdict(tmp_path, rules("allow", deny=(f"{name} *",)), argv) == "deny"
    catch_all = allowed.rules + rules("deny", deny=("* *",)).rules
    assert verdict(tmp_path, type(allowed)(default_action="deny", rules=catch_all), argv) == "allow"


def test_nothing_of_it_is_started(tmp_path: Path) -> None:
    """Through system.run: a folder full of files named like wrappers, none of which runs."""
    mark = tmp_path / "mark"
    for name in WRAPPERS:
        script(tmp_path / "repo" / name, f"echo {name} >> {mark}")

    for name in sorted(WRAPPERS):
        with pytest.raises(ToolDenied):
            run(tmp_path / "state", LOOKING, started_by(name, f"./repo/{name}"), cwd=str(tmp_path))

    assert not mark.exists()


# ---- bare names in folders of the PATH that a workspace fills ----


@pytest.mark.parametrize("pattern", ["ls *", "* *", "l? *"])
@pytest.mark.parametrize("spelled", ["ls", "./bin/ls", "{work}/bin/ls"])
@pytest.mark.parametrize("around", [[], ["env"], ["sh", "-c"], ["nice", "-n", "5"]])
def test_a_rule_for_a_bare_name_does_not_mean_a_program_of_the_workspace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pattern: str, spelled: str, around: list[str]
) -> None:
    work = tmp_path / "work"
    script(work / "bin" / "ls")
    argv = [*around, spelled.format(work=work)]
    assert verdict(tmp_path / "state", rules("prompt", allow=(pattern,)), [*around, "ls"], cwd=work) == "allow"

    monkeypatch.setenv("PATH", f"{work / 'bin'}{os.pathsep}{os.environ['PATH']}")

    assert verdict(tmp_path / "state", rules("prompt", allow=(pattern,)), argv, cwd=work) == "prompt"
    by_path = rules("prompt", allow=(f"{work.resolve()}/bin/ls *",))
    if "./" not in spelled or not around:
        assert verdict(tmp_path / "state", by_path, argv, cwd=work) == "allow"
    assert verdict(tmp_path / "state", rules("allow", deny=("ls *",)), argv, cwd=work) in ("deny", "prompt")


def test_always_for_a_bare_name_is_for_the_program_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(tmp_path)
    monkeypatch.setenv("PATH", f"{machine.here / 'bin'}{os.pathsep}{os.environ['PATH']}")
    for name in ("mytool", "cat"):
        script(machine.here / "bin" / name)
    (machine.here / "bin" / "linked").symlink_to("../run.sh")

    for argv, changed in (
        (("mytool", "x"), "bin/mytool"),
        (("cat", "a.txt"), "bin/cat"),
        (("linked",), "run.sh"),
        (("sh", "-c", "mytool y"), "bin/mytool"),
    ):
        assert machine.run(*argv) == 1
        assert machine.asked[-1].always
        assert machine.run(*argv) == 0
        script(machine.here / changed, f"echo {argv}")
        assert machine.run(*argv) == 1, argv


def test_a_remembered_bare_name_does_not_mean_another_program_of_that_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(tmp_path)
    assert (machine.run("expr", "1"), machine.run("expr", "1")) == (1, 0)
    script(machine.here / "bin" / "expr")

    monkeypatch.setenv("PATH", f"{machine.here / 'bin'}{os.pathsep}{os.environ['PATH']}")

    assert machine.run("expr", "1") == 1
