"""What a rule that allows lets through beyond its words, said before it is made and when somebody looks. Pure."""

import re
import shlex
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from msgspec import Struct

from .matching import is_wild
from .powers import (
    AS_ANOTHER,
    ELSEWHERE,
    INTERPRETERS,
    LOOKING,
    READERS,
    Locate,
    listed,
    name_of,
    plain_name,
    starts_others,
    writes,
)
from .rules import ExecPolicy
from .shell import words
from .wrappers import POSIX_SHELLS, WRAPPERS

EVERYTHING: Final = "default allow"
"""Stands for a pattern where no rule but the default lets everything through."""
ASK: Final = "leave it to be asked about each time"

_SAFER: Final = {
    "git": "git rev-parse HEAD",
    "ssh": "ssh HOST uptime",
    "sudo": "sudo systemctl restart NAME",
    "doas": "doas service NAME restart",
    "docker": "docker ps",
    "podman": "podman ps",
    "kubectl": "kubectl get pods",
    "systemctl": "systemctl is-active NAME",
    "make": "make test",
    "npm": "npm test",
    "cargo": "cargo check",
    "pip": "pip list",
    "find": "ls *",
    "env": "printenv LANG",
    "curl": "curl -sS https://HOST/PATH",
    "wget": "wget -qO- https://HOST/PATH",
    "cat": "cat /PATH/FILE",
    "tail": "tail -n 100 /PATH/FILE",
    "rm": "rm /PATH/FILE",
}
_RUNS_WHAT_IT_FINDS: Final = words("""
    make gmake ninja cmake ctest meson npm npx pnpm yarn pip pipx uv cargo go gradle mvn ant rake just task tox nox
    pytest poetry bundle docker git
""")
"""Programs that run what a folder says they should, even when every word of them is written out."""


_RUNS_WHAT_IT_IS_FED: Final = words("""
    ssh slogin autossh rsh rexec su runuser newgrp sg login sqlite3 sqlite psql mysql mariadb duckdb at batch parallel
    crontab bc dc ed ex gdb lldb nc ncat socat docker podman kubectl xargs
""")
"""Programs that run what they are fed even when a word names what they work on; a second word is their order."""
_RUNS_ITS_WORDS: Final = re.compile(
    r"-[a-zA-Z]*[cemE]\S*|--(?:eval|execute|command|exec|print|version|help)\S*|-[vVh]|--\S*version"
)
_SHELL_RUNS_ITS_WORDS: Final = re.compile(r"-[a-zA-Z]*c|--version|--help")
"""Options with which a program looks at its own words."""
_LETTER: Final = re.compile(r"-[a-zA-Z]")
_PRINTS: Final = words("date which")
_INPUT: Final = words("- -s -i /dev/stdin /dev/fd/0 /proc/self/fd/0 -f- --file=- -xc")


class Risk(Struct, frozen=True):
    pattern: str
    lets: tuple[str, ...]
    """What it lets through, each as the end of a sentence that begins with the pattern."""
    safer: str
    """What to do instead, as a request."""
    grave: bool = False
    """It lets other programs start, or acts as somebody else: everything, in short."""

    def __str__(self) -> str:
        return f"{self.pattern!r} lets through {'; '.join(self.lets)}"


def risk_of(pattern: str, locate: Locate = lambda _: None) -> Risk | None:
    """What allowing `pattern` lets through that its words don't say; None when that is nothing known."""
    program, _, arguments = pattern.strip().partition(" ")
    if is_wild(program):
        return _any_program(pattern, program, arguments.strip())
    name = plain_name(program)
    if not is_wild(arguments):
        return _fed(pattern, name, arguments) or _written_out(pattern, name)
    found = locate(program)
    # A name of one's own may be a link to a program we know.
    by_names = [(each, _powers(each)) for each in dict.fromkeys((name, plain_name(found) if found else name))]
    known = next(((each, lets) for each, lets in by_names if lets), None)
    if known is None:
        return None
    grave = any(starts_others(each) or listed(each, AS_ANOTHER) for each, _ in by_names)
    return Risk(pattern, tuple(known[1]), _instead(known[0]), grave)


def risks_of(policy: ExecPolicy, locate: Locate = lambda _: None) -> list[Risk]:
    """Those of all rules with a wildcard that allow and are switched on, and of a default that allows."""
    allowed = (rule for rule in policy.rules if rule.action == "allow" and rule.enabled and not rule.is_bound)
    found = [risk_of(rule.pattern, locate) for rule in allowed]
    everything = [everything_allowed()] if policy.default_action == "allow" else []
    return [*everything, *(risk for risk in found if risk is not None and (is_wild(risk.pattern) or risk.grave))]


def unknown_to_us(pattern: str) -> str:
    """What to say of a rule with a wildcard for a program nothing is known of; empty where there is nothing to say."""
    program, _, arguments = pattern.strip().partition(" ")
    name = plain_name(program)
    if is_wild(program) or not is_wild(arguments) or name in LOOKING or name in _PRINTS or _powers(name):
        return ""
    return f"{pattern!r} lets through whatever {name} can do: we don't know it, and it may start other programs"


def everything_allowed() -> Risk:
    lets = ("every command no rule forbids: any program, as you, with all your files",)
    return Risk(EVERYTHING, lets, "openclaw approvals default prompt", grave=True)


def _powers(name: str) -> list[str]:
    found: list[str] = []
    if listed(name, AS_ANOTHER):
        found.append(f"acting as another user: {name} starts any program with that user's rights")
    elif starts_others(name):
        found.append(f"starting any other program: {name} can do so by a script, an option or its settings")
    if listed(name, ELSEWHERE):
        found.append("talking to other machines, and sending them what it reads")
    if writes(name):
        found.append("writing, changing or removing files or settings")
    if listed(name, READERS):
        found.append("printing any file you can read, tokens and keys among them")
    return found


def _any_program(pattern: str, program: str, arguments: str) -> Risk:
    name, folder = name_of(program), program.rpartition("/")[0]
    which = f"every program{f' in {folder}' if folder else ''}{f' named like {name}' if name.strip('*') else ''}"
    lets = [
        f"{which}: of the system's own those known to read and print only, of others all not known to start programs"
    ]
    if is_wild(arguments) or not arguments:
        lets.append("printing any file you can read, tokens and keys among them")
    return Risk(pattern, tuple(lets), f"name each program in a rule of its own, such as 'seq *', or {ASK}", grave=True)


def _fed(pattern: str, name: str, arguments: str) -> Risk | None:
    """Of a rule without a wildcard: a program that runs what another command feeds it."""
    try:
        given = shlex.split(arguments)
    except ValueError:
        given = arguments.split()
    if not _runs_its_input(name, given):
        return None
    lets = (f"any program: {name} runs what it is fed, and any command that is allowed may feed it",)
    return Risk(pattern, lets, f"name the script it is to run, or {ASK}", grave=True)


def _runs_its_input(name: str, given: Sequence[str]) -> bool:
    if not starts_others(name) or name in WRAPPERS - POSIX_SHELLS - {"xargs"}:
        return False
    if any(word in _INPUT for word in given):
        return True
    its_words = _SHELL_RUNS_ITS_WORDS if name.endswith("sh") and name != "ssh" else _RUNS_ITS_WORDS
    if any(its_words.fullmatch(word) for word in given):
        return False
    operands = [word for word in given if not word.startswith("-")]
    if name in _RUNS_WHAT_IT_IS_FED:
        # The word after an option may be its value.
        values = [after for option, after in pairwise(given) if _LETTER.fullmatch(option) and after in operands]
        return len(operands) - len(values) < 2
    return not operands and (listed(name, INTERPRETERS) or name.endswith("sh"))


def _written_out(pattern: str, name: str) -> Risk | None:
    if not listed(name, _RUNS_WHAT_IT_FINDS) or (name == "git" and "rev-parse" in pattern):
        return None
    lets = (f"whatever the folder it runs in tells {name} to run: its scripts, hooks and settings",)
    return Risk(pattern, lets, f"allow it only where you trust every folder it may run in, or {ASK}")


def _instead(name: str) -> str:
    example = _SAFER.get(name)
    if example is None:
        return f"write the whole command out, without a wildcard, or {ASK}"
    return f"write the whole command out, such as {example!r}, or {ASK}"
