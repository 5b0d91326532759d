"""What may be set from far away is only ever stricter: for every command, in every folder, whatever was sent."""

import random
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import pytest

from openclaw_mcp.core.errors import ToolDenied
from openclaw_mcp.node.exec.program_locator import ProgramLocator
from openclaw_mcp.node.exec.rules import (
    REMEMBERED_DESCRIPTION,
    STRICTNESS,
    Action,
    BindCommand,
    CommandBinding,
    ExecPolicy,
    Rule,
    check_only_stricter,
    evaluate_policy,
)
from openclaw_mcp.node.exec.shell_reader import ParsedCommand, ShellWord
from openclaw_mcp.node.exec.wrappers import UnwrapResult, unwrap
from tests.effort import often

from .evaluating import approvals_of, script

ACTIONS: list[Action] = ["allow", "prompt", "deny"]
COMMANDS = [
    *(
        ["rm", "-rf", "build"],
        ["/bin/rm", "x"],
        ["nice", "rm", "x"],
        ["setsid", "rm", "x"],
        ["{own}/tool"],
        ["link", "1"],
    ),
    *(["sh", "-c", text] for text in ("rm -rf build", "rm $x", "expr 1; rm x", "expr $(rm x)", "for x in *")),
]
PATTERNS = ["rm *", "rm -rf build", "rm x", "expr *", "* *", "{own}/* *", "{own}/link *", "link 1", "setsid *"]


def _bound_to(cwd: Path) -> BindCommand:
    return lambda _: CommandBinding(str(cwd), {})


class Machine:
    """Two folders, and a program of the user's own with a link to it on the PATH. Each command is read once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        self.here, self.there, self.own = (self.folder / name for name in ("here", "there", "bin"))
        for each in (self.here, self.there):
            each.mkdir()
        script(self.own / "tool")
        (self.own / "link").symlink_to("tool")

    def written(self, text: str) -> str:
        return text.format(own=self.own)

    def verdicts(self, policy: ExecPolicy) -> dict[str, Action]:
        return {
            f"{' '.join(argv)} in {cwd.name}": evaluate_policy(
                policy, reading, locate=look.real_path, bind=_bound_to(cwd), launch_path=look.launch_path
            ).action
            for argv, cwd, look, reading in self._readings
        }

    @cached_property
    def _readings(self) -> list[tuple[list[str], Path, ProgramLocator, UnwrapResult]]:
        found = []
        for argv in COMMANDS:
            piece = ParsedCommand(tuple(ShellWord(self.written(word)) for word in argv))
            for cwd in (self.here, self.there):
                look = ProgramLocator(cwd)
                opened = unwrap(
                    [piece],
                    certain_names=look.certain_names,
                    possible_names=look.possible_names,
                    is_process_independent=look.is_process_independent,
                )
                found.append((argv, cwd, look, opened))
        return found


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Any:
    found = Machine(tmp_path_factory.mktemp("stricter"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(found.folder))
        patch.setenv("PATH", f"{found.own}:/usr/bin:/bin")
        yield found


def _rule(chance: random.Random, machine: Machine) -> Rule:
    bound = chance.choice(
        ({}, {"cwd": str(machine.here), "files": {}}, {"cwd": str(machine.here)}, {"files": {"x": "y"}})
    )
    return Rule(
        pattern=machine.written(chance.choice(PATTERNS)),
        action=chance.choice(("allow", "allow", *ACTIONS)),
        enabled=chance.random() < 0.9,
        shells=chance.choice((None, None, None, ("sh",))),
        description=chance.choice((None, REMEMBERED_DESCRIPTION)),
        **bound,
    )


def _changed(chance: random.Random, machine: Machine, rules: tuple[Rule, ...]) -> tuple[Rule, ...]:
    """With one thing done to one of them."""
    changed = list(rules)
    at = chance.randrange(len(rules))
    match chance.choice(("action", "action", "unbound", "elsewhere", "drop", "insert", "swap", "enabled")):
        case "action":
            changed[at] = msgspec.structs.replace(rules[at], action=chance.choice(ACTIONS))
        case "unbound":
            changed[at] = Rule(pattern=rules[at].pattern, action=chance.choice(ACTIONS))
        case "elsewhere":
            changed[at] = msgspec.structs.replace(rules[at], cwd=str(machine.there))
        case "enabled":
            changed[at] = msgspec.structs.replace(rules[at], enabled=not rules[at].enabled)
        case "drop":
            del changed[at]
        case "insert":
            changed.insert(at, _rule(chance, machine))
        case "swap":
            changed[0], changed[at] = changed[at], changed[0]
    return tuple(changed)


def _accepted(old: ExecPolicy, new: ExecPolicy) -> bool:
    try:
        check_only_stricter(old, new)
    except ToolDenied:
        return False
    return True


@pytest.mark.parametrize("seed", range(often(4, 100)))
def test_what_is_accepted_never_loosens_a_verdict(machine: Machine, seed: int) -> None:
    chance = random.Random(seed)
    accepted = 0
    for _ in range(1000):
        default = chance.choice(ACTIONS)
        later = max(default, chance.choice(ACTIONS), key=STRICTNESS.__getitem__)
        rules = tuple(_rule(chance, machine) for _ in range(chance.randint(1, 4)))
        old = ExecPolicy(default_action=default, rules=rules)
        new = ExecPolicy(default_action=later, rules=_changed(chance, machine, rules))
        if not _accepted(old, new):
            continue
        accepted += 1
        before, after = machine.verdicts(old), machine.verdicts(new)
        looser = {which: reply for which, reply in after.items() if STRICTNESS[reply] < STRICTNESS[before[which]]}
        assert looser == {}, (old, new)
    assert accepted > 100


BINDINGS = [
    Rule(pattern="rm -rf build", action="allow", cwd="/srv", files={}),
    Rule(pattern="rm -rf build", action="allow", cwd="/srv"),
    Rule(pattern="rm -rf build", action="allow", files={"/srv/x": "digest"}),
    Rule(pattern="rm -rf build", action="allow", description=REMEMBERED_DESCRIPTION),
]


@pytest.mark.parametrize("default", ACTIONS)
@pytest.mark.parametrize("bound", BINDINGS)
@pytest.mark.parametrize(("action", "taken"), [("allow", True), ("prompt", False), ("deny", True), (None, True)])
def test_a_rule_bound_to_something_stays_is_removed_or_denies(
    tmp_path: Path, bound: Rule, default: Action, action: str | None, taken: bool
) -> None:
    """As a prompt it would hold in every folder, before the deny that follows."""
    (tmp_path / "build").write_text("a file that it names")
    policy = ExecPolicy(default_action=default, rules=(bound, Rule(pattern="rm *", action="deny")))
    approvals = approvals_of(tmp_path, policy)
    sent = approvals.describe_policy()
    first, *others = sent["rules"]
    rules = others if action is None else [{**first, "action": action}, *others]

    def change() -> None:
        approvals.tighten_policy({"baseHash": sent["hash"], "rules": rules})

    if taken:
        change()
    else:
        with pytest.raises(ToolDenied, match="looser"):
            change()
    assert approvals.evaluate(["rm", "-rf", "build"], cwd=tmp_path).action == "deny"
