"""What a rule that allows lets through beyond its words, said before it is made and when somebody looks. Pure."""

import re
import shlex
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import PurePath
from typing import Final

from msgspec import Struct

from .implicit_files import runs_what_it_finds
from .pattern_matching import is_wild
from .program_powers import (
    AS_ANOTHER,
    DATABASES,
    ELSEWHERE,
    INTERPRETERS,
    LANGUAGES,
    LOOKING,
    PROCESS_VIEWERS,
    READERS,
    SHELLS,
    Locate,
    listed,
    name_of,
    plain_name,
    starts_others,
    told_from,
    unversioned,
    writes,
)
from .rules import ExecPolicy
from .shell_reader import words
from .wrappers import POSIX_SHELLS, WRAPPERS

EVERYTHING: Final = "default allow"
"""Stands for a pattern where no rule but the default lets everything through."""
ASK: Final = "leave it to be asked about each time"
ANY_FILE: Final = (
    "printing any file you can read, tokens and keys among them, and through /proc what your programs were started with"
)
OTHER_PROGRAMS: Final = (
    "printing what your other programs were started with, the secrets in their words and variables too"
)

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
    "ps": "ps -eo pid,comm",
    "pgrep": "pgrep -x NAME",
}
_RUNS_WHAT_IT_IS_FED: Final = DATABASES | words("""
    ssh slogin autossh rsh rexec telnet lftp sftp su runuser newgrp sg login chroot at batch parallel crontab bc dc ed
    ex gdb lldb nc ncat socat xargs
""")
"""Programs that run what they are fed even when a word names what they work on; a second word is their order."""
_OPENS_A_SHELL_ALONE: Final = words("""
    fakeroot fakechroot screen tmux proot unshare nsenter script schroot firejail toolbox distrobox nix-shell sbt
""")
"""Programs that run what they are fed when they are given nothing to start."""
_OPENS_A_SHELL: Final = words("shell console repl dbshell dbconsole shell_plus develop")
"""Words with which programs do: `flask shell`."""
_FED_BY_THEIR_LAST_WORD: Final = frozenset({"rails c", "git apply", "git am", "git fast-import"})
_CONTAINERS: Final = words("docker podman nerdctl kubectl oc crictl")
_INTERACTIVE: Final = re.compile(r"-[a-z]*i[a-z]*|--interactive(?:=true)?|--stdin(?:=true)?")
_LETTERS_FOR_TEXT: Final = (
    dict.fromkeys((*SHELLS, "su", "runuser", "sg", "duckdb"), "c")
    | dict.fromkeys(("ruby", "lua", "mysql", "mariadb"), "e")
    | dict.fromkeys(("python", "pypy"), "cm")
    | dict.fromkeys(("node", "nodejs"), "ep")
    | {"perl": "eE", "php": "r", "psql": "cfl", "crontab": "lr", "at": "clrf", "script": "c"}
)
"""Options, by their letters, with which a program looks at its own words or files and runs nothing it is fed."""
_ABOUT_ITSELF: Final = re.compile(r"-V|-?-version|-?-help|--\S*version")
_TEXT_OPTION: Final = re.compile(r"--(?:eval|execute|command|exec|print)\b.*")
_LETTER: Final = re.compile(r"-[a-zA-Z]")
_PRINTS: Final = words("date which")
_INPUT: Final = words("- /dev/stdin /dev/fd/0 /proc/self/fd/0 -f- --file=-")
_INPUT_OF_INTERPRETERS: Final = words("-s -i")
_WRITES_FILES_IT_IS_FED: Final = words("patch cpio pax")
_WRITES_WHAT_IT_IS_FED: Final = words("tee sponge")
_FILE_OPTIONS: Final = words("""
    -f --file -jar -S -l --load -r --require --import -i --include -init --init -x --script -cp -classpath
""")
"""Options whose value is a file that is run."""
_NAMES_ALONE: Final = re.compile(
    r"ps (?:-[eA] )?-[eA]?o (?:(?:pid|ppid|pgid|sid|uid|user|tty|stat|time|etime|pcpu|pmem|rss|vsz|comm)(?:,|$))+|"
    r"pgrep(?: -[xnouUgGP]+)* [\w.-]+"
)
"""Ways to look at other programs that print no word and no variable of theirs."""
_VERBS: Final = words("run exec test repl shell")


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
        return _written_out(pattern, name, _split(arguments))
    found = locate(program)
    # A name of one's own may be a link to a program we know.
    by_names = [(each, _powers(each)) for each in dict.fromkeys((name, plain_name(found) if found else name))]
    known = next(((each, lets) for each, lets in by_names if lets), None)
    if known is None:
        return None
    grave = any(starts_others(each) or listed(each, AS_ANOTHER) for each, _ in by_names)
    return Risk(pattern, tuple(known[1]), _instead(known[0]), grave)


def risks_of(policy: ExecPolicy, locate: Locate = lambda _: None) -> list[Risk]:
    """Those of all rules that allow and are switched on, and of a default that allows."""
    allowed = (rule for rule in policy.rules if rule.action == "allow" and rule.enabled and not rule.is_bound)
    found = [risk_of(rule.pattern, locate) for rule in allowed]
    everything = [everything_allowed()] if policy.default_action == "allow" else []
    return [*everything, *(risk for risk in found if risk is not None)]


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
        found.append(ANY_FILE)
    if listed(name, PROCESS_VIEWERS):
        found.append(OTHER_PROGRAMS)
    return found


def _any_program(pattern: str, program: str, arguments: str) -> Risk:
    name, folder = name_of(program), program.rpartition("/")[0]
    which = f"every program{f' in {folder}' if folder else ''}{f' named like {name}' if name.strip('*') else ''}"
    lets = [
        f"{which}: of the system's own those known to read and print only, of others all not known to start programs"
    ]
    if is_wild(arguments) or not arguments:
        lets.append(ANY_FILE)
    return Risk(pattern, tuple(lets), f"name each program in a rule of its own, such as 'seq *', or {ASK}", grave=True)


# ---- rules without a wildcard ----------------------------------------------------------------------------------------


def _split(arguments: str) -> list[str]:
    try:
        return shlex.split(arguments)
    except ValueError:
        return arguments.split()


def _written_out(pattern: str, name: str, given: Sequence[str]) -> Risk | None:
    """Of a rule whose every word is written out: what its program, or one it is told to start, takes from elsewhere."""
    found = list(_of_command(pattern, name, given))
    # What is started on another machine does not stand in the caller's folder; what it is fed is the same.
    in_folder = not listed(name, ELSEWHERE)
    for started, its_words in _started(name, given):
        found += [risk for risk in _of_command(pattern, started, its_words) if risk.grave or in_folder]
    if not found:
        return None
    worst = next((risk for risk in found if risk.grave), found[0])
    lets = dict.fromkeys(each for risk in (worst, *found) for each in risk.lets)
    return Risk(pattern, tuple(lets), worst.safer, worst.grave)


def _started(name: str, given: Sequence[str]) -> Iterator[tuple[str, Sequence[str]]]:
    """The commands its words may tell it to start."""
    if name in WRAPPERS:
        return  # opened when it is judged: what it starts needs a rule of its own
    told = [each for word in given[told_from(name, given) :] for each in _as_text(word)]
    for at, word in enumerate(told):
        yield plain_name(word), told[at + 1 :]


def _as_text(word: str) -> Sequence[str]:
    return _split(re.sub(r"[;&|]", " ", word)) if " " in word else (word,)


def _of_command(pattern: str, name: str, given: Sequence[str]) -> Iterator[Risk]:
    if _runs_its_input(name, given):
        lets = f"any program: {name} runs what it is fed, and any command that is allowed may feed it"
        yield Risk(pattern, (lets,), f"name the script it is to run, or {ASK}", grave=True)
    if name in _WRITES_FILES_IT_IS_FED:
        lets = f"writing any file: {name} is fed their names and content, and any command that is allowed may feed it"
        yield Risk(pattern, (lets,), ASK, grave=True)
    elif name in _WRITES_WHAT_IT_IS_FED:
        yield Risk(pattern, (f"writing what any command that is allowed feeds {name}",), ASK)
    relative = _relative(name, given)
    if relative:
        named = " or ".join(relative)
        lets = f"the {named} of any folder: whoever asks chooses the folder it runs in"
        absolute = re.sub(rf"(?<![^ =']){re.escape(relative[0])}", f"/PATH/{relative[0].removeprefix('./')}", pattern)
        yield Risk(pattern, (lets,), f"write the absolute path, such as {absolute!r}, or {ASK}")
    module = _module(name, given)
    if module:
        lets = f"the {module} of any folder: Python looks there first, and whoever asks chooses the folder"
        yield Risk(
            pattern, (lets,), f"give Python the option -I, such as {pattern.replace(' ', ' -I ', 1)!r}, or {ASK}"
        )
    if runs_what_it_finds(name) and not (name == "git" and "rev-parse" in given):
        lets = f"whatever the folder it runs in tells {name} to run: its scripts, hooks and settings"
        yield Risk(pattern, (lets,), f"allow it only where you trust every folder it may run in, or {ASK}")
    if listed(name, PROCESS_VIEWERS) and not _NAMES_ALONE.fullmatch(" ".join((name, *given))):
        yield Risk(pattern, (OTHER_PROGRAMS,), _instead(name))


def _runs_its_input(name: str, given: Sequence[str]) -> bool:
    if not starts_others(name) or name in WRAPPERS - POSIX_SHELLS - {"xargs"}:
        return False
    interprets = listed(name, LANGUAGES | SHELLS)
    if any(word in _INPUT or (interprets and word in _INPUT_OF_INTERPRETERS) for word in given):
        return True
    if any(_ABOUT_ITSELF.fullmatch(word) for word in given) or _looks_at_its_words(name, given):
        return False
    operands = [word for word in given if not word.startswith("-")]
    if operands and (operands[-1] in _OPENS_A_SHELL or f"{name} {operands[-1]}" in _FED_BY_THEIR_LAST_WORD):
        return True
    if name in _CONTAINERS:
        at = told_from(name, given)
        told = [word for word in given[at:] if not word.startswith("-")]
        return len(told) == 1 and any(_INTERACTIVE.fullmatch(word) for word in given)
    # The word after an option may be its value.
    values = [after for option, after in pairwise(given) if _LETTER.fullmatch(option) and after in operands]
    if name in _RUNS_WHAT_IT_IS_FED:
        return len(operands) - len(values) < 2
    if name in _OPENS_A_SHELL_ALONE:
        return len(operands) == len(values) or name == "script"
    return not operands and (interprets or listed(name, INTERPRETERS) or (name.endswith("sh") and "." not in name))


def _looks_at_its_words(name: str, given: Sequence[str]) -> bool:
    """Whether an option has it run or print what its own words say."""
    known = unversioned(name)
    letters = _LETTERS_FOR_TEXT.get(name) or _LETTERS_FOR_TEXT.get(known)
    if letters is None:
        letters = "" if name in _RUNS_WHAT_IT_IS_FED | _OPENS_A_SHELL_ALONE else "ceEmp"
    if list(given) in (["-v"], ["-h"]) and known not in ("python", "pypy") and known not in SHELLS:
        return True  # asks for its version, or for help
    option = re.compile(rf"-[a-zA-Z]*[{letters}]|-[{letters}]\S.*", re.DOTALL) if letters else None
    return any((option and option.fullmatch(word)) or _TEXT_OPTION.fullmatch(word) for word in given)


def _relative(name: str, given: Sequence[str]) -> list[str]:
    """The words with which an interpreter is given a file to run that depends on the folder."""
    if not (listed(name, INTERPRETERS | SHELLS) or name.startswith("ansible-")):
        return []
    files = [after for option, after in pairwise(given) if option in _FILE_OPTIONS and _looks_like_a_file(after)]
    files += [word.partition("=")[2] for word in given if word.partition("=")[0] in _FILE_OPTIONS and "=" in word]
    runs_its_operand = listed(name, LANGUAGES | SHELLS) or name.startswith("ansible-")
    if runs_its_operand and not _looks_at_its_words(name, given):
        files += _scripts(given)
    return [
        each for each in dict.fromkeys(files) if not PurePath(each).is_absolute() and "://" not in each and each != "-"
    ]


def _scripts(given: Sequence[str]) -> Iterator[str]:
    """The words of which one is the script: up to the first that can't be an option's value."""
    before = ""
    for word in given:
        if not word.startswith("-") and word not in _VERBS:
            yield word
            if _looks_like_a_file(word) or not before.startswith("-"):
                return
        before = word


def _looks_like_a_file(word: str) -> bool:
    return "." in word or "/" in word


def _module(name: str, given: Sequence[str]) -> str:
    """The module that Python is told to run, if it looks for it in the folder it stands in."""
    if unversioned(name) not in ("python", "pypy") or any(word in ("-I", "-P") for word in given):
        return ""
    return next((after for option, after in pairwise(given) if option == "-m"), "")


def _instead(name: str) -> str:
    example = _SAFER.get(name)
    if example is None:
        return f"write the whole command out, without a wildcard, or {ASK}"
    return f"write the whole command out, such as {example!r}, or {ASK}"
