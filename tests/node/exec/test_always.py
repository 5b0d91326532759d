"""*Always* means this command, in this folder, with the files it names as they were. Anything else is asked again."""

import asyncio
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from openclaw_mcp.core.errors import ToolDenied
from openclaw_mcp.node.exec import digests
from openclaw_mcp.node.exec.approvals import INDIRECT_FILES_NOTICE, ExecAuthorizer
from openclaw_mcp.node.exec.rules import ExecPolicy
from openclaw_mcp.node.questions import PromptAnswer, PromptRouter, UserQuestion

from ..media.making import call

PLAIN_PATH = "/usr/local/bin:/usr/bin:/bin"
"""Without the folders of version managers: whose `python3` runs is decided by a file in the folder then."""
NOTHING = b'{"defaultAction": "prompt", "rules": []}'


class Machine:
    """Two folders with a script in each, rules that allow nothing, and a person who says always."""

    def __init__(self, tmp_path: Path) -> None:
        self.here, self.there = tmp_path / "here", tmp_path / "there"
        for folder in (self.here, self.there):
            (folder / "sub").mkdir(parents=True)
            for name in (
                "script.py",
                "run.sh",
                "Makefile",
                "package.json",
                "mod.py",
                "conftest.py",
                "a.txt",
                ".gitattributes",
                "sub/x.py",
            ):
                (folder / name).write_text("#!/bin/sh\nprint(1)\n")
            (folder / "run.sh").chmod(0o755)
        self.state = tmp_path / "state"
        self.state.mkdir()
        (self.state / "exec-policy.json").write_bytes(NOTHING)
        self.asked: list[UserQuestion] = []
        self.answer: PromptAnswer = "always"
        self.meanwhile: Callable[[], Any] = lambda: None
        self.approvals = ExecAuthorizer(
            state_dir=self.state, prompt_router=PromptRouter([self], seconds=lambda: 5, ask_in_client=lambda: False)
        )

    keeps_questions = False

    def is_available(self) -> bool:
        return True

    async def ask(self, question: UserQuestion) -> PromptAnswer:
        self.asked.append(question)
        self.meanwhile()
        return self.answer

    def run(self, *argv: str, cwd: Path | None = None) -> int:
        """Whether it may start, and how often a person was asked about it."""
        before = len(self.asked)
        asyncio.run(self.approvals.authorise(call("system.run"), argv, cwd=cwd or self.here, asker="me"))
        return len(self.asked) - before

    def write(self, name: str, text: str = "#!/bin/sh\nprint('other')\n") -> None:
        (self.here / name).write_text(text)

    def link(self, name: str, to: str) -> None:
        (self.here / name).unlink(missing_ok=True)
        (self.here / name).symlink_to(to)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    monkeypatch.setenv("PATH", PLAIN_PATH)
    return Machine(tmp_path)


COMMANDS: dict[str, tuple[tuple[str, ...], str]] = {
    "a script": (("python3", "script.py"), "script.py"),
    "a script with words": (("python3", "-u", "script.py", "x"), "script.py"),
    "a script of a shell": (("bash", "run.sh"), "run.sh"),
    "a script by its path": (("python3", "./script.py"), "script.py"),
    "a script in a folder": (("python3", "sub/x.py"), "sub/x.py"),
    "the program itself": (("./run.sh",), "run.sh"),
    "an interpreter by its path": (("/usr/bin/env", "/bin/sh", "run.sh"), "run.sh"),
    "a script the program itself names": (("./run.sh", "-x", "y"), "run.sh"),
    "a file behind an option": (("python3", "script.py", "-f", "a.txt"), "a.txt"),
    "a file glued to an option": (("python3", "script.py", "-fa.txt"), "a.txt"),
    "a file behind an equals sign": (("python3", "script.py", "--file=a.txt"), "a.txt"),
    "a file behind an at": (("python3", "script.py", "@a.txt"), "a.txt"),
    "a file in a list": (("python3", "script.py", "-v", "a.txt:/x", "i"), "a.txt"),
    "a file that is copied": (("cp", "a.txt", "b.txt"), "a.txt"),
    "what git looks for": (("git", "status"), ".gitattributes"),
    "a wrapped script": (("env", "timeout", "5", "python3", "script.py"), "script.py"),
    "a script in a shell's text": (("sh", "-c", "python3 script.py"), "script.py"),
    "one of two in a shell's text": (("sh", "-c", "python3 script.py && ls"), "script.py"),
}


@pytest.mark.parametrize("kind", COMMANDS)
def test_always_holds_here_and_now(machine: Machine, kind: str) -> None:
    argv, _ = COMMANDS[kind]

    assert machine.run(*argv) == 1
    assert machine.asked[0].always
    assert machine.run(*argv) == 0


@pytest.mark.parametrize("kind", COMMANDS)
def test_always_does_not_hold_in_another_folder(machine: Machine, kind: str) -> None:
    argv, _ = COMMANDS[kind]
    machine.run(*argv)

    assert machine.run(*argv, cwd=machine.there) == 1
    assert machine.run(*argv) == 0  # the first answer is not forgotten


CHANGES: dict[str, Callable[[Machine, str], Any]] = {
    "another text": lambda machine, name: machine.write(name),
    "another byte, same size and time": lambda machine, name: _same_stamp(machine.here / name),
    "gone": lambda machine, name: (machine.here / name).unlink(),
    "a link to another": lambda machine, name: machine.link(name, str(machine.there / "a.txt")),
    "too large": lambda machine, name: os.truncate(machine.here / name, digests.MAX_BYTES + 1),
    "unreadable": lambda machine, name: machine.link(name, "/proc/1/mem"),
    "a pipe": lambda machine, name: _as_pipe(machine.here / name),
}


def _same_stamp(path: Path) -> None:
    status = path.stat()
    path.write_text(path.read_text().replace("1", "2"))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def _as_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize(
    "kind", ["a script", "a file behind an equals sign", "the program itself", "what git looks for"]
)
def test_always_does_not_hold_once_a_file_has_changed(machine: Machine, kind: str, change: str) -> None:
    argv, name = COMMANDS[kind]
    machine.run(*argv)
    CHANGES[change](machine, name)

    assert machine.run(*argv) == 1


@pytest.mark.parametrize("kind", COMMANDS)
def test_every_way_to_name_a_file_is_noticed(machine: Machine, kind: str) -> None:
    argv, name = COMMANDS[kind]
    machine.run(*argv)
    machine.write(name)

    assert machine.run(*argv) == 1
    assert machine.run(*argv) == 0
    rules = json.loads((machine.state / "exec-policy.json").read_text())["rules"]
    assert len({(rule["pattern"], rule["cwd"]) for rule in rules}) == len(rules)  # the older answer has made room


def test_a_file_that_was_not_there_is_one_that_has_changed(machine: Machine) -> None:
    assert machine.run("python3", "script.py", "later") == 1
    assert machine.run("python3", "script.py", "later") == 0
    machine.write("later")

    assert machine.run("python3", "script.py", "later") == 1


def test_a_folder_is_the_same_by_any_path_that_leads_to_it(machine: Machine, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(machine.here)
    machine.run("python3", "script.py")

    assert machine.run("python3", "script.py", cwd=tmp_path / "link") == 0
    (tmp_path / "link").unlink()
    (tmp_path / "link").symlink_to(machine.there)
    assert machine.run("python3", "script.py", cwd=tmp_path / "link") == 1


@pytest.mark.parametrize("argv", [("cat", "a.txt"), ("tail", "-n5", "a.txt"), ("expr", "1", "+", "1"), ("ls", "-l")])
def test_what_only_reads_a_file_is_bound_to_the_folder_alone(machine: Machine, argv: tuple[str, ...]) -> None:
    machine.run(*argv)
    machine.write("a.txt")

    assert machine.run(*argv) == 0
    assert machine.run(*argv, cwd=machine.there) == 1


@pytest.mark.parametrize(
    "text",
    ["cd sub && python3 script.py", "cd ../there; make", "pushd sub; bash run.sh", "find . -execdir python3 x.py ';'"],
)
def test_always_is_not_offered_where_the_folder_is_not_certain(machine: Machine, text: str) -> None:
    machine.run("sh", "-c", "python3 script.py; make; bash run.sh; python3 x.py")
    machine.run("sh", "-c", "cd sub && ls")

    assert machine.run("sh", "-c", text) == 1
    assert not machine.asked[-1].always


@pytest.mark.parametrize(
    ("remembered", "later"),
    [
        ("python3", "echo evil | python3"),
        ("python3 -", "echo evil | python3 -"),
        ("bash -s x", "echo evil | bash -s x"),
        ("perl", "echo evil | timeout 5 perl"),
        ("sqlite3 a.txt", "echo evil | sqlite3 a.txt"),
        ("ssh host", "echo evil | ssh host"),
    ],
)
def test_what_runs_its_input_is_not_fed_by_another_command(machine: Machine, remembered: str, later: str) -> None:
    assert machine.run("sh", "-c", remembered) == 1
    machine.run("sh", "-c", "echo evil")

    assert machine.run("sh", "-c", later) == 1
    assert not machine.asked[-1].always


def test_a_script_may_be_fed(machine: Machine) -> None:
    assert machine.run("sh", "-c", "cat a.txt | python3 script.py") == 1
    assert machine.run("sh", "-c", "cat a.txt | python3 script.py") == 0


def test_a_script_changed_while_a_person_thinks_does_not_run(machine: Machine) -> None:
    for machine.answer in ("once", "always"):
        machine.meanwhile = lambda: machine.write("script.py", str(len(machine.asked)))
        with pytest.raises(ToolDenied, match="changed while a person was asked"):
            machine.run("python3", "script.py")
    assert (machine.state / "exec-policy.json").read_bytes() == NOTHING


def test_the_question_says_what_always_would_mean(machine: Machine) -> None:
    machine.run("python3", "script.py")
    machine.run("expr", "1")

    assert machine.asked[0].lasting == f"in {machine.here}, while script.py stays as now; {INDIRECT_FILES_NOTICE}"
    assert machine.asked[1].lasting == f"in {machine.here}"


# ---- rules as they are kept and sent ----

OLD = {"pattern": "python3 script.py", "action": "allow", "description": "always allowed by a person"}


def rules(machine: Machine, *entries: Any) -> None:
    (machine.state / "exec-policy.json").write_text(json.dumps({"defaultAction": "prompt", "rules": entries}))


def test_an_older_answer_that_forgot_where_is_asked_for_again_where_a_file_is_named(machine: Machine) -> None:
    rules(machine, OLD, OLD | {"pattern": "expr 1"})

    assert machine.run("expr", "1", cwd=machine.there) == 0
    assert machine.run("python3", "script.py") == 1


def test_a_rule_written_by_hand_holds_as_it_is_written(machine: Machine) -> None:
    by_hand = {"pattern": "python3 script.py", "action": "allow"}
    rules(machine, by_hand)
    assert machine.run("python3", "script.py", cwd=machine.there) == 0

    rules(machine, by_hand | {"cwd": str(machine.here)})
    machine.write("script.py")
    assert machine.run("python3", "script.py") == 0
    assert machine.run("python3", "script.py", cwd=machine.there) == 1


@pytest.mark.parametrize("action", ["deny", "prompt"])
def test_a_folder_does_not_narrow_a_rule_that_is_not_an_allow(machine: Machine, action: str) -> None:
    rules(machine, {"pattern": "expr *", "action": action, "cwd": str(machine.there), "files": {}})

    assert machine.approvals.evaluate(["expr", "1"], cwd=machine.here).action == action


def test_the_rules_go_over_the_wire_and_back_and_stay_bound(machine: Machine) -> None:
    machine.run("python3", "script.py")
    policy = machine.approvals.load_policy()
    sent = machine.approvals.describe_policy()
    (rule,) = sent["rules"]
    assert rule.keys() == {"pattern", "action", "description"}
    assert str(machine.here) in rule["description"]

    machine.approvals.tighten_policy({"baseHash": sent["hash"], "rules": sent["rules"]})

    assert machine.approvals.load_policy() == policy


@pytest.mark.parametrize(
    "looser",
    [
        {"description": None},
        {"description": "always allowed by a person"},
        {"description": "always allowed by a person in /"},
        {"cwd": "/"},
        {"files": {}},
        {"cwd": None, "files": None, "description": "mine"},
    ],
)
def test_from_far_away_a_rule_is_not_unbound(machine: Machine, looser: Any) -> None:
    machine.run("python3", "script.py")
    sent = machine.approvals.describe_policy()

    with pytest.raises(ToolDenied, match="looser"):
        machine.approvals.tighten_policy({"baseHash": sent["hash"], "rules": [{**sent["rules"][0], **looser}]})


def test_an_older_answer_is_not_made_a_rule_by_hand_from_far_away(machine: Machine) -> None:
    rules(machine, OLD)
    sent = machine.approvals.describe_policy()
    machine.approvals.tighten_policy({"baseHash": sent["hash"], "rules": sent["rules"]})
    assert machine.approvals.load_policy() == msgspec.convert({"defaultAction": "prompt", "rules": [OLD]}, ExecPolicy)

    with pytest.raises(ToolDenied, match="looser"):
        plain = {"pattern": OLD["pattern"], "action": "allow"}
        machine.approvals.tighten_policy({"baseHash": machine.approvals.describe_policy()["hash"], "rules": [plain]})
