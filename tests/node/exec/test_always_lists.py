"""Programs that look for files by themselves: what is known of that is watched while a person is asked, and *always* is
not on offer, except for git that only looks."""

import json
import subprocess
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from openclaw_mcp.core.errors import ToolDenied
from openclaw_mcp.node.exec.approvals import UNWATCHED_NOTICE

from .evaluating import script
from .test_always import PLAIN_PATH, Machine


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    monkeypatch.setenv("PATH", PLAIN_PATH)
    machine = Machine(tmp_path)
    for path in sorted(machine.here.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    return machine


NUMBERS = count()


def files(folder: Path, *names: str) -> None:
    """Each name is a file, with a text that is in no other; one that ends in a slash is a folder."""
    for name in names:
        path = folder / name
        if name.endswith("/"):
            path.mkdir(parents=True)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(str(next(NUMBERS)))


def git(folder: Path, *words: str) -> None:
    who = ("-c", "user.name=a", "-c", "user.email=b")
    subprocess.run(["git", *who, *words], cwd=folder, check=True, capture_output=True)


def repository(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    git(folder, "init", "-q")
    (folder / "a.txt").write_text("a")
    git(folder, "add", "a.txt")
    git(folder, "commit", "-q", "-m", "x")


# ---- what is in the list, and what makes it short ----

APPEARS: dict[str, tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]] = {
    # the command, what is there, what appears or changes
    "git: a hook": (("git", "commit"), (".git/config",), (".git/hooks/pre-commit",)),
    "git: settings": (("git", "-C", "sub", "pull"), ("sub/.git/config",), ("sub/.git/config",)),
    "make: made again": (("make", "test"), ("Makefile",), ("Makefile.sh",)),
    "make: compiled": (("make", "test"), ("Makefile",), ("Makefile.c",)),
    "make: another first": (("make", "test"), ("Makefile",), ("GNUmakefile",)),
    "make: kept by RCS": (("make", "test"), ("Makefile",), ("RCS/Makefile,v",)),
    "make: beside it": (("make", "test"), ("Makefile",), ("Makefile,v",)),
    "make: kept by SCCS": (("make", "test"), ("Makefile",), ("SCCS/s.Makefile",)),
    "make: another file": (("make", "-f", "build.mk"), ("build.mk",), ("build.mk.sh",)),
    "make: in a folder": (("make", "-C", "sub"), ("sub/Makefile",), ("sub/Makefile.sh",)),
    "make by another name": (("./mk",), ("Makefile",), ("Makefile",)),
    "npm: the lock": (("npm", "ci"), ("package.json", "package-lock.json"), ("package-lock.json",)),
    "npm: another lock": (("npm", "ci"), ("package.json",), ("npm-shrinkwrap.json",)),
    "npm: what gyp builds": (("npm", "install"), ("package.json",), ("binding.gyp",)),
    "npm: a program": (("npm", "exec", "tool"), ("package.json",), ("node_modules/.bin/tool",)),
    "yarn: the lock": (("yarn", "install"), ("yarn.lock",), ("yarn.lock",)),
    "yarn: itself": (("yarn", "install"), ("yarn.lock",), (".yarn/releases/yarn-4.cjs",)),
    "yarn: a plugin": (("yarn", "install"), ("yarn.lock",), (".yarn/plugins/@yarnpkg/plugin-x.cjs",)),
    "pnpm: the lock": (("pnpm", "i"), ("package.json",), ("pnpm-lock.yaml",)),
    "pip: the build": (("pip", "install", "."), ("pyproject.toml",), ("setup.py",)),
    "uv: the lock": (("uv", "sync"), ("pyproject.toml",), ("uv.lock",)),
    "uv: a program": (("uv", "run", "tool"), ("pyproject.toml",), (".venv/bin/tool",)),
    "poetry: the lock": (("poetry", "install"), ("pyproject.toml",), ("poetry.lock",)),
    "cargo: the lock": (("cargo", "build"), ("Cargo.toml",), ("Cargo.lock",)),
    "cargo: the code": (("cargo", "run"), ("Cargo.toml", "src/main.rs"), ("src/main.rs",)),
    "cargo: a test": (("cargo", "test"), ("Cargo.toml",), ("tests/new/main.rs",)),
    "bundle: the lock": (("bundle", "install"), ("Gemfile",), ("Gemfile.lock",)),
    "gem: the lock": (("gem", "install", "-g"), ("Gemfile",), ("Gemfile.lock",)),
    "rake: more tasks": (("rake",), ("Rakefile",), ("rakelib/x.rake",)),
    "composer: the lock": (("composer", "install"), ("composer.json",), ("composer.lock",)),
    "python: a module": (("python3", "-m", "json.tool", "d"), ("d",), ("json.py",)),
    "python: a package": (("python3", "-m", "json.tool", "d"), ("d",), ("json/__init__.py",)),
    "python: compiled": (("python3", "-m", "http.server"), (), ("http.so",)),
    "python: the middle": (("python3", "-m", "xml.dom.minidom"), ("xml/x",), ("xml/dom.py",)),
    "python: glued": (("python3", "-mjson.tool"), (), ("json.py",)),
    "node: an address": (("node", "--import", "file://{here}/%61.mjs", "x.js"), ("a.mjs", "x.js"), ("a.mjs",)),
    "node: with a fragment": (("node", "--import", "./a.mjs#%31", "x.js"), ("a.mjs", "x.js"), ("a.mjs",)),
    "node: a blank": (("node", "--import=file://{here}/a%20b.mjs", "x.js"), ("a b.mjs", "x.js"), ("a b.mjs",)),
}


@pytest.mark.parametrize("kind", APPEARS)
def test_what_a_program_finds_by_itself_is_watched_while_a_person_is_asked(machine: Machine, kind: str) -> None:
    command, before, appearing = APPEARS[kind]
    argv = tuple(word.replace("{here}", str(machine.here)) for word in command)
    (machine.here / "mk").symlink_to("/usr/bin/make")
    files(machine.here, *before)
    machine.meanwhile = lambda: files(machine.here, *appearing)

    with pytest.raises(ToolDenied, match="changed while a person was asked"):
        machine.run(*argv)
    assert not machine.asked[0].always


# ---- git that only looks ----

SETTINGS = "[core]\n\trepositoryformatversion = 0\n\tbare = false\n"
GIT: dict[str, tuple[tuple[str, ...], str]] = {
    "a repository without .git": (("git", "status"), "HEAD"),
    "one above": (("git", "status"), "../HEAD"),
    "settings": (("git", "status"), ".git/config"),
    "settings elsewhere": (("git", "log"), ".git/commondir"),
    "a hook": (("git", "status"), ".git/hooks/post-index-change"),
    "attributes": (("git", "diff"), ".gitattributes"),
    "parts of it": (("git", "status"), ".gitmodules"),
}


@pytest.mark.parametrize("kind", GIT)
def test_git_that_looks_is_asked_about_again_when_what_it_finds_has_changed(machine: Machine, kind: str) -> None:
    argv, appearing = GIT[kind]
    files(machine.here, ".git/config")
    (machine.here / ".git/config").write_text(SETTINGS)
    assert machine.run(*argv) == 1
    assert machine.asked[-1].always
    assert machine.run(*argv) == 0

    files(machine.here, appearing)

    assert machine.run(*argv) == 1


HARMLESS = """
    [remote "origin"] / url = git@host:a/b.git / fetch = +refs/heads/*:refs/remotes/origin/*
    [branch "main"] / remote = origin / merge = refs/heads/main / rebase = true
    [user] / name = A "B" C / email = a@b
    # a comment / ; another / [core] / autocrlf
"""
MAY_START = """
    [core] / fsmonitor = ./watch
    [core] fsmonitor = ./watch
    [core]fsmonitor=./watch
    [CORE] / FSMonitor = ./watch
    [core] / hooksPath = hooks
    [core] / worktree = ../other
    [core] / pager = ./pager
    [core] / bare = false\\ / fsmonitor = x
    [include] / path = more
    [includeIf "gitdir:x"] / path = more
    [diff] / external = ./tool
    [diff "x"] / textconv = ./tool
    [filter "x"] / clean = ./tool
    [gpg] / program = ./tool
    [alias] / status = !./tool
    [remote "origin"] / promisor = true
    [extensions] / worktreeConfig = true
    [extensions] / partialClone = origin
    [core "x"] fsmonitor = y
    [user] / name = a / [core] fsmonitor = ./watch
"""


def settings(text: str) -> list[str]:
    return [line.strip() for line in text.strip().splitlines()]


@pytest.mark.parametrize("setting", [*settings(HARMLESS), *settings(MAY_START)])
def test_git_that_looks_is_remembered_where_its_settings_surely_start_nothing(machine: Machine, setting: str) -> None:
    files(machine.here, ".git/config")
    (machine.here / ".git/config").write_text(SETTINGS + setting.replace(" / ", "\n\t") + "\n")

    assert machine.run("git", "status") == 1
    assert machine.asked[-1].always is (setting in settings(HARMLESS))


IN_A_REPOSITORY: dict[str, Callable[[Path], Any]] = {
    "settings of a part": lambda here: git(here / "sub", "config", "core.fsmonitor", "touch PWNED; false"),
    "a new part": lambda here: git(here, "add", "new"),
    "settings that name others": lambda here: git(here, "config", "include.path", "../more"),
    "hooks elsewhere": lambda here: git(here, "config", "core.hooksPath", "hooks-of-mine"),
    "a place elsewhere": lambda here: (here / ".git/commondir").write_text("../other\n"),
    "a worktree of another": lambda here: ((here / ".git").rename(here / "g"), (here / ".git").write_text("gitdir: g")),
}


@pytest.mark.parametrize("change", IN_A_REPOSITORY)
def test_git_is_asked_about_again_where_it_would_look_elsewhere(machine: Machine, change: str) -> None:
    for folder in ("", "sub", "new"):
        repository(machine.here / folder)
    if change == "settings of a part":
        git(machine.here, "add", "sub")
    machine.run("git", "status")
    assert machine.asked[-1].always is (change != "settings of a part")

    IN_A_REPOSITORY[change](machine.here)

    assert machine.run("git", "status") == 1
    assert not machine.asked[-1].always or change == "settings of a part"


def test_git_is_not_asked_about_again_because_of_work(machine: Machine) -> None:
    repository(machine.here)
    machine.run("git", "status")
    (machine.here / "b.txt").write_text("b")
    git(machine.here, "add", "b.txt")
    git(machine.here, "commit", "-q", "-m", "y")

    assert machine.run("git", "status") == 0


# ---- programs of which not all is known ----

NOT_KNOWN = """
    pytest
    python3 -m pytest
    python3 -mpytest
    python3 -umpytest
    python3 -m unittest
    uv run pytest
    watch jest
    watch 'jest x'
    jest
    eslint .
    flake8
    gulp
    grunt build
    lein test
    waf
    swift build
    dune build
    terraform apply
    gradle build
    ./gradlew build
    mvn test
    tox
    go test ./...
    npx tool
    cmake --build x
    ninja-build-run
    bazel test
    vim x
    deno run x.ts
    ./link-to-a-starter
    mongosh x
"""


@pytest.mark.parametrize("command", [line.strip() for line in NOT_KNOWN.strip().splitlines()])
def test_always_is_not_offered_where_not_all_a_program_looks_for_is_known(machine: Machine, command: str) -> None:
    script(machine.here / "gradlew")
    script(machine.here / "jest")
    (machine.here / "link-to-a-starter").symlink_to("jest")
    files(machine.here, "x", "x.ts")
    argv = ["watch", "jest x"] if "'" in command else command.split()

    for _ in range(2):
        assert machine.run(*argv) == 1
        assert not machine.asked[-1].always
        assert UNWATCHED_NOTICE in machine.asked[-1].detail


@pytest.mark.parametrize("command", ["./run.sh x", "python3 ./x", "git status", "sort x", "cp x y", "sh run.sh"])
def test_where_it_is_known_the_question_does_not_say_otherwise(machine: Machine, command: str) -> None:
    script(machine.here / "run.sh")
    files(machine.here, "x")

    assert machine.run(*command.split()) == 1
    assert machine.asked[-1].always
    assert UNWATCHED_NOTICE not in machine.asked[-1].detail


PARTLY = {
    "pytest": "conftest.py",
    "pytest sub/x.py": "sub/conftest.py",
    "python3 -m pytest": "conftest.py",
    "terraform apply": "main.tf",
    "jest": "jest.config.mjs",
    "just build": "justfile",
}


@pytest.mark.parametrize("command", PARTLY)
def test_a_yes_is_for_what_is_known_of_it(machine: Machine, command: str) -> None:
    files(machine.here, PARTLY[command], "sub/x.py")
    machine.answer = "once"
    machine.meanwhile = lambda: files(machine.here, PARTLY[command])

    with pytest.raises(ToolDenied, match="changed while a person was asked"):
        machine.run(*command.split())


def test_an_answer_remembered_before_does_not_hold_for_such_a_program(machine: Machine) -> None:
    rule = {
        "pattern": "pytest",
        "action": "allow",
        "description": "always allowed by a person",
        "cwd": str(machine.here.resolve()),
        "files": {},
    }
    (machine.state / "exec-policy.json").write_text(json.dumps({"defaultAction": "prompt", "rules": [rule]}))
    assert machine.run("pytest") == 1

    by_hand = {key: rule[key] for key in ("pattern", "action", "cwd")}
    (machine.state / "exec-policy.json").write_text(json.dumps({"defaultAction": "prompt", "rules": [by_hand]}))
    assert machine.run("pytest") == 0


# ---- programs that are fed, and are no shells ----


@pytest.mark.parametrize(
    "command",
    ["ssh web", "mosh web", "mongosh web.js", "sqsh web.sql", "crash web.x", "ghci web.hs", "deno run", "node inspect"],
)
def test_a_name_that_ends_as_shells_do_is_no_shell_with_a_script(machine: Machine, command: str) -> None:
    files(machine.here, "web", "web.js", "web.sql", "web.x", "web.hs", "run", "inspect")
    machine.run("sh", "-c", command)
    machine.run("sh", "-c", "echo evil")

    assert machine.run("sh", "-c", f"echo evil | {command}") == 1
    assert not machine.asked[-1].always
