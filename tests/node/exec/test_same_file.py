"""The file that was judged is the file that starts: by its place, its name and every program that looks it up."""

import os
from pathlib import Path

import pytest

from openclaw_mcp.core.errors import OpenClawError, ToolArguments, ToolDenied
from openclaw_mcp.node.exec.rules import DEFAULT_POLICY, ExecPolicy
from openclaw_mcp.node.system import parse_run_request

from .evaluating import real, rules, run, script, verdict

LOOKING = rules("prompt", allow=("ls *", "echo *", "true", "python3 --version"))

# ---- a program that looks like an assignment ----

ASSIGNMENTS = (
    "TZ=/evil",
    "LANG=/evil",
    "LC_ALL=/evil",
    "NO_COLOR=/evil",
    "TERM=/x/evil",
    "./LANG=/evil",
    "LANG=C/evil",
)


@pytest.mark.parametrize("program", ASSIGNMENTS)
@pytest.mark.parametrize("env", [{}, {"LANG": "C"}, {"TZ": "UTC", "LC_ALL": "C"}])
@pytest.mark.parametrize("around", [[], ["nice"], ["timeout", "3"], ["nohup"]])
def test_a_path_with_an_equals_sign_is_a_program(
    tmp_path: Path, program: str, env: dict[str, str], around: list[str]
) -> None:
    script(tmp_path / program, f": > {tmp_path}/started")

    with pytest.raises(ToolDenied):
        run(tmp_path / "state", DEFAULT_POLICY, [*around, program, "ls"], cwd=str(tmp_path), env=env)
    assert not (tmp_path / "started").exists()


@pytest.mark.parametrize(
    "name", ["-u", "--unset", "-i", "-", "-S", "--", "A-B", "a b", "1A", "", "Ä", "A.B", "PATH", "A=B", "BASH_FUNC_x%%"]
)
def test_a_variable_has_a_variables_name(tmp_path: Path, name: str) -> None:
    with pytest.raises((ToolDenied, ToolArguments)):
        run(tmp_path, rules("allow"), ["true"], env={name: "x"})


def test_rules_that_forbid_still_see_what_is_set(tmp_path: Path) -> None:
    with pytest.raises(ToolDenied):
        run(tmp_path, rules("allow", deny=("env *",)), ["true"], env={"LANG": "C"})
    with pytest.raises(ToolDenied):
        run(tmp_path, rules("allow", deny=("*evil*",)), ["true"], env={"LANG": "evil"})
    assert run(tmp_path, rules("prompt", allow=("true",)), ["true"], env={"LANG": "C"})["exitCode"] == 0


# ---- names that mean another file to another process ----


def _ways(folder: Path) -> list[str]:
    (folder / "here").symlink_to("/proc/self/cwd")
    (folder / "again").symlink_to("here")
    (folder / "direct").symlink_to("/proc/self/cwd/bin/ls")
    up = "/".join([".."] * 12)
    return [
        f"/proc/self/cwd/{up}/usr/bin/ls",
        f"/proc/thread-self/cwd/{up}/usr/bin/ls",
        f"/proc/self/root/{up}/usr/bin/ls",
        f"/proc/{os.getpid()}/cwd/{up}/usr/bin/ls",
        "/proc/self/root/usr/bin/ls",
        "/proc/../proc/self/root/usr/bin/ls",
        "//proc/self/root/usr/bin/ls",
        "/proc/./self/root/usr/bin/ls",
        "/proc/self/exe",
        f"/dev/fd/../cwd/{up}/usr/bin/ls",
        f"{folder}/here/{up}/usr/bin/ls",
        f"{folder}/again/{up}/usr/bin/ls",
        f"{folder}/direct",
        "here/bin/ls",
        "/proc/self/cwd/bin/ls",
        "/proc/self/cwd/bin/not-there",
    ]


WAYS = range(16)


@pytest.mark.parametrize("number", WAYS)
@pytest.mark.parametrize("policy", [LOOKING, rules("allow"), rules("prompt", allow=("/usr/bin/* *", "* *", "/*/* *"))])
def test_a_path_through_proc_is_never_known(tmp_path: Path, number: int, policy: ExecPolicy) -> None:
    way = _ways(tmp_path)[number]
    script(tmp_path / "bin" / "ls")

    for argv in (
        [way],
        ["env", way],
        ["nice", "-n", "5", way, "x"],
        ["sh", "-c", way],
        ["sh", "-c", f"echo x; {way} y"],
    ):
        assert verdict(tmp_path / "state", policy, argv, cwd=tmp_path) == "prompt", argv


def test_nothing_of_it_starts_and_no_command_runs_in_such_a_folder(tmp_path: Path) -> None:
    ways = _ways(tmp_path)
    for depth in range(14):
        script(tmp_path / "/".join("abcdefghijklmn"[:depth]) / "usr/bin/ls", f": > {tmp_path}/started")
    deep = tmp_path / "/".join("abcdefghijklmn")
    deep.mkdir(parents=True)

    for way in ways:
        for argv in ([way], ["env", way], ["sh", "-c", way]):
            with pytest.raises(OpenClawError):
                run(tmp_path / "state", LOOKING, argv, cwd=str(deep))
    assert not (tmp_path / "started").exists()
    for folder in ("/proc/self/cwd", "/proc/self", "/dev/fd", f"{tmp_path}/here", "/proc/self/root/tmp"):
        with pytest.raises(ToolArguments):
            parse_run_request({"command": ["true"], "cwd": folder})


# ---- links that bring along what lies beside them ----


@pytest.mark.parametrize("program", ["ls", "echo", "true", "python3", "stdbuf", "env", "bash", "sh", "nice"])
@pytest.mark.parametrize("cwd", ["", "/"])
def test_a_link_in_another_users_folder_is_not_the_program_it_leads_to(tmp_path: Path, program: str, cwd: str) -> None:
    (tmp_path / program).symlink_to(real(program))
    words = {"python3": ["--version"], "bash": ["-c", "ls"], "sh": ["-c", "ls"], "stdbuf": ["-oL", "ls"]}
    argv = [str(tmp_path / program), *words.get(program, ["ls"])]
    by_target = rules("prompt", allow=(f"{real(program)} *", f"{program} *", "ls *"))
    by_link = rules("prompt", allow=(f"{tmp_path.resolve()}/{program} *",))
    folder = Path(cwd) if cwd else tmp_path

    for each in (argv, ["env", *argv], ["sh", "-c", " ".join(argv)]):
        expected = "prompt"
        assert verdict(tmp_path / "state", by_target, each, cwd=folder) == expected, each
    assert verdict(tmp_path / "state", by_link, argv, cwd=folder) == "allow"
    assert verdict(tmp_path / "state", rules("prompt", allow=(f"{tmp_path}/* *",)), argv, cwd=folder) == "prompt"


def test_a_denied_program_is_found_behind_such_a_link(tmp_path: Path) -> None:
    (tmp_path / "x").symlink_to(real("env"))
    (tmp_path / "y").symlink_to(real("rm"))
    policy = rules("allow", deny=("rm *",))

    assert verdict(tmp_path / "state", policy, ["./x", "rm", "z"], cwd=tmp_path) == "deny"
    assert verdict(tmp_path / "state", policy, ["./y", "z"], cwd=tmp_path) == "deny"


@pytest.mark.parametrize(
    ("mode", "group", "expected"), [(0o755, 0, "allow"), (0o775, 12345, "prompt"), (0o777, 0, "prompt")]
)
def test_a_folder_that_others_may_write_is_not_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int, group: int, expected: str
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = tmp_path / "bin"
    script(folder / "env")
    folder.chmod(mode)
    if os.geteuid() == 0 and group:
        os.chown(folder, -1, group)
    elif group:
        folder.chmod(0o777)  # only root gives a folder to another group
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")

    assert verdict(tmp_path / "state", LOOKING, ["env", "ls"], cwd=tmp_path / "work") == expected


# ---- where find's options end ----


@pytest.mark.parametrize(
    "words",
    [
        "find -D -exec echo . -exec touch x {} +",
        "find -D -exec echo . -delete -name ;",
        "find -D -exec echo . -fprintf x y -name ;",
        "find -L -D -exec ls . -delete -name ;",
        "find -D tree . -exec ls {} +",
        "find -O3 . -exec ls {} +",
        "find -- . -exec ls {} +",
        "find . -name -exec ls -o -exec touch x ;",
        "find . -name -exec ls -delete ;",
        "find . -newer -exec ls -fprint x ;",
        "find . -exec ls -files0-from x ;",
        "find -f -exec ls -delete ;",
    ],
)
def test_no_word_of_finds_own_hides_in_a_command(tmp_path: Path, words: str) -> None:
    policy = rules("prompt", allow=("find *", "ls *", "echo *"))

    assert verdict(tmp_path, policy, words.split()) == "prompt"
    assert verdict(tmp_path, policy, ["find", "-L", ".", "-name", "x", "-exec", "ls", "{}", ";"]) == "allow"
