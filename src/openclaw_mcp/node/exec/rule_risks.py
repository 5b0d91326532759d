"""What a rule that allows lets through beyond its text, shown before it is made and when rules are listed. Pure."""

import re
import shlex
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import PurePath
from typing import Final

from msgspec import Struct

from .implicit_files import runs_folder_code
from .pattern_matching import has_wildcard
from .program_powers import (
    DATABASES,
    INTERPRETERS,
    LANGUAGES,
    NETWORK_PROGRAMS,
    PROCESS_VIEWERS,
    READ_ONLY_PROGRAMS,
    READERS,
    SHELLS,
    USER_SWITCHERS,
    LocateProgram,
    base_name,
    can_start_programs,
    can_write,
    is_listed,
    launch_argument_index,
    plain_name,
    strip_version,
)
from .rules import ExecPolicy
from .shell_reader import word_set
from .wrappers import POSIX_SHELLS, WRAPPERS

DEFAULT_ALLOW: Final = "default allow"
"""In place of a pattern where the default, not a rule, lets everything through."""
ASK_ADVICE: Final = "leave it to be asked about each time"
ANY_FILE_RISK: Final = (
    "printing any file you can read, tokens and keys among them, and through /proc what your programs were started with"
)
OTHER_PROCESSES_RISK: Final = (
    "printing what your other programs were started with, the secrets in their words and variables too"
)

_SAFER_EXAMPLES: Final = {
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
_STDIN_RUNNERS: Final = DATABASES | word_set("""
    ssh slogin autossh rsh rexec telnet lftp sftp su runuser newgrp sg login chroot at batch parallel crontab bc dc ed
    ex gdb lldb nc ncat socat xargs
""")
"""Programs that run their input even when one argument names what they work on; a second argument is their command."""
_BARE_SHELL_OPENERS: Final = word_set("""
    fakeroot fakechroot screen tmux proot unshare nsenter script schroot firejail toolbox distrobox nix-shell sbt
""")
"""Programs that run their input when they are given nothing to start."""
_SHELL_SUBCOMMANDS: Final = word_set("shell console repl dbshell dbconsole shell_plus develop")
"""Subcommands with which programs do: `flask shell`."""
_STDIN_SUBCOMMANDS: Final = frozenset({"rails c", "git apply", "git am", "git fast-import"})
_CONTAINERS: Final = word_set("docker podman nerdctl kubectl oc crictl")
_INTERACTIVE: Final = re.compile(r"-[a-z]*i[a-z]*|--interactive(?:=true)?|--stdin(?:=true)?")
_TEXT_OPTION_LETTERS: Final = (
    dict.fromkeys((*SHELLS, "su", "runuser", "sg", "duckdb"), "c")
    | dict.fromkeys(("ruby", "lua", "mysql", "mariadb"), "e")
    | dict.fromkeys(("python", "pypy"), "cm")
    | dict.fromkeys(("node", "nodejs"), "ep")
    | {"perl": "eE", "php": "r", "psql": "cfl", "crontab": "lr", "at": "clrf", "script": "c"}
)
"""Options, by their letters, with which a program uses its own arguments or files and does not run its input."""
_INFO_OPTION: Final = re.compile(r"-V|-?-version|-?-help|--\S*version")
_TEXT_OPTION: Final = re.compile(r"--(?:eval|execute|command|exec|print)\b.*")
_SHORT_OPTION: Final = re.compile(r"-[a-zA-Z]")
_HARMLESS_PRINTERS: Final = word_set("date which")
_STDIN_ARGUMENTS: Final = word_set("- /dev/stdin /dev/fd/0 /proc/self/fd/0 -f- --file=-")
_STDIN_INTERPRETER_OPTIONS: Final = word_set("-s -i")
_STDIN_FILE_WRITERS: Final = word_set("patch cpio pax")
_STDIN_WRITERS: Final = word_set("tee sponge")
_FILE_OPTIONS: Final = word_set("""
    -f --file -jar -S -l --load -r --require --import -i --include -init --init -x --script -cp -classpath
""")
"""Options whose value is a file that is run."""
_SAFE_PROCESS_LISTING: Final = re.compile(
    r"ps (?:-[eA] )?-[eA]?o (?:(?:pid|ppid|pgid|sid|uid|user|tty|stat|time|etime|pcpu|pmem|rss|vsz|comm)(?:,|$))+|"
    r"pgrep(?: -[xnouUgGP]+)* [\w.-]+"
)
"""Ways to list other processes that print none of their arguments and variables."""
_SUBCOMMANDS: Final = word_set("run exec test repl shell")


class RuleRisk(Struct, frozen=True):
    pattern: str
    permits: tuple[str, ...]
    """What it lets through, each as the end of a sentence that begins with the pattern."""
    safer_alternative: str
    """What to do instead, as a request."""
    severe: bool = False
    """It lets other programs start, or acts as another user: everything, in short."""

    def __str__(self) -> str:
        return f"{self.pattern!r} lets through {'; '.join(self.permits)}"


def assess_pattern(pattern: str, locate: LocateProgram = lambda _: None) -> RuleRisk | None:
    """What allowing `pattern` lets through that its text does not show; None when nothing of the kind is known."""
    program, _, arguments = pattern.strip().partition(" ")
    if has_wildcard(program):
        return _wildcard_program_risk(pattern, program, arguments.strip())
    name = plain_name(program)
    if not has_wildcard(arguments):
        return _literal_command_risk(pattern, name, _split_arguments(arguments))
    found = locate(program)
    # A user's own name may be a link to a program we know.
    by_names = [(each, _describe_powers(each)) for each in dict.fromkeys((name, plain_name(found) if found else name))]
    known = next(((each, lets) for each, lets in by_names if lets), None)
    if known is None:
        return None
    severe = any(can_start_programs(each) or is_listed(each, USER_SWITCHERS) for each, _ in by_names)
    return RuleRisk(pattern, tuple(known[1]), _suggest_alternative(known[0]), severe)


def assess_policy(policy: ExecPolicy, locate: LocateProgram = lambda _: None) -> list[RuleRisk]:
    """The risks of all rules that allow and are switched on, and of a default that allows."""
    allowed = (rule for rule in policy.rules if rule.action == "allow" and rule.enabled and not rule.is_bound)
    found = [assess_pattern(rule.pattern, locate) for rule in allowed]
    everything = [default_allow_risk()] if policy.default_action == "allow" else []
    return [*everything, *(risk for risk in found if risk is not None)]


def unknown_program_warning(pattern: str) -> str:
    """A warning about a rule with a wildcard for a program we don't know; empty where none is due."""
    program, _, arguments = pattern.strip().partition(" ")
    name = plain_name(program)
    if (
        has_wildcard(program)
        or not has_wildcard(arguments)
        or name in READ_ONLY_PROGRAMS
        or name in _HARMLESS_PRINTERS
        or _describe_powers(name)
    ):
        return ""
    return f"{pattern!r} lets through everything {name} can do: we don't know it, and it may start other programs"


def default_allow_risk() -> RuleRisk:
    lets = ("every command no rule forbids: any program, as you, with all your files",)
    return RuleRisk(DEFAULT_ALLOW, lets, "openclaw approvals default prompt", severe=True)


def _describe_powers(name: str) -> list[str]:
    found: list[str] = []
    if is_listed(name, USER_SWITCHERS):
        found.append(f"acting as another user: {name} starts any program with that user's rights")
    elif can_start_programs(name):
        found.append(f"starting any other program: {name} can do so by a script, an option or its settings")
    if is_listed(name, NETWORK_PROGRAMS):
        found.append("talking to other machines, and sending them what it reads")
    if can_write(name):
        found.append("writing, changing or removing files or settings")
    if is_listed(name, READERS):
        found.append(ANY_FILE_RISK)
    if is_listed(name, PROCESS_VIEWERS):
        found.append(OTHER_PROCESSES_RISK)
    return found


def _wildcard_program_risk(pattern: str, program: str, arguments: str) -> RuleRisk:
    name, folder = base_name(program), program.rpartition("/")[0]
    which = f"every program{f' in {folder}' if folder else ''}{f' named like {name}' if name.strip('*') else ''}"
    lets = [
        f"{which}: of the system's own those known to read and print only, of others all not known to start programs"
    ]
    if has_wildcard(arguments) or not arguments:
        lets.append(ANY_FILE_RISK)
    return RuleRisk(
        pattern, tuple(lets), f"name each program in a rule of its own, such as 'seq *', or {ASK_ADVICE}", severe=True
    )


# ---- rules without a wildcard ----------------------------------------------------------------------------------------


def _split_arguments(arguments: str) -> list[str]:
    try:
        return shlex.split(arguments)
    except ValueError:
        return arguments.split()


def _literal_command_risk(pattern: str, name: str, arguments: Sequence[str]) -> RuleRisk | None:
    """The risk of a rule without wildcards: what its program, or one it starts, takes from elsewhere."""
    found = list(_command_risks(pattern, name, arguments))
    # A program started on another machine does not run in the caller's folder; its input is the same.
    in_folder = not is_listed(name, NETWORK_PROGRAMS)
    for started, its_words in _commands_to_start(name, arguments):
        found += [risk for risk in _command_risks(pattern, started, its_words) if risk.severe or in_folder]
    if not found:
        return None
    worst = next((risk for risk in found if risk.severe), found[0])
    lets = dict.fromkeys(each for risk in (worst, *found) for each in risk.permits)
    return RuleRisk(pattern, tuple(lets), worst.safer_alternative, worst.severe)


def _commands_to_start(name: str, arguments: Sequence[str]) -> Iterator[tuple[str, Sequence[str]]]:
    """The commands its arguments may make it start."""
    if name in WRAPPERS:
        return  # unwrapped when it is evaluated: what it starts needs a rule of its own
    started_words = [each for word in arguments[launch_argument_index(name, arguments) :] for each in _split_text(word)]
    for at, word in enumerate(started_words):
        yield plain_name(word), started_words[at + 1 :]


def _split_text(word: str) -> Sequence[str]:
    return _split_arguments(re.sub(r"[;&|]", " ", word)) if " " in word else (word,)


def _command_risks(pattern: str, name: str, arguments: Sequence[str]) -> Iterator[RuleRisk]:
    if _runs_its_input(name, arguments):
        lets = f"any program: {name} runs what it is fed, and any command that is allowed may feed it"
        yield RuleRisk(pattern, (lets,), f"name the script it is to run, or {ASK_ADVICE}", severe=True)
    if name in _STDIN_FILE_WRITERS:
        lets = f"writing any file: {name} is fed their names and content, and any command that is allowed may feed it"
        yield RuleRisk(pattern, (lets,), ASK_ADVICE, severe=True)
    elif name in _STDIN_WRITERS:
        yield RuleRisk(pattern, (f"writing what any command that is allowed feeds {name}",), ASK_ADVICE)
    relative = _relative_scripts(name, arguments)
    if relative:
        named = " or ".join(relative)
        lets = f"the {named} of any folder: the caller chooses the folder it runs in"
        absolute = re.sub(rf"(?<![^ =']){re.escape(relative[0])}", f"/PATH/{relative[0].removeprefix('./')}", pattern)
        yield RuleRisk(pattern, (lets,), f"write the absolute path, such as {absolute!r}, or {ASK_ADVICE}")
    module = _python_module(name, arguments)
    if module:
        lets = f"the {module} of any folder: Python looks there first, and the caller chooses the folder"
        yield RuleRisk(
            pattern, (lets,), f"give Python the option -I, such as {pattern.replace(' ', ' -I ', 1)!r}, or {ASK_ADVICE}"
        )
    if runs_folder_code(name) and not (name == "git" and "rev-parse" in arguments):
        lets = f"anything the folder it runs in tells {name} to run: its scripts, hooks and settings"
        yield RuleRisk(pattern, (lets,), f"allow it only where you trust every folder it may run in, or {ASK_ADVICE}")
    if is_listed(name, PROCESS_VIEWERS) and not _SAFE_PROCESS_LISTING.fullmatch(" ".join((name, *arguments))):
        yield RuleRisk(pattern, (OTHER_PROCESSES_RISK,), _suggest_alternative(name))


def _runs_its_input(name: str, arguments: Sequence[str]) -> bool:
    if not can_start_programs(name) or name in WRAPPERS - POSIX_SHELLS - {"xargs"}:
        return False
    interprets = is_listed(name, LANGUAGES | SHELLS)
    if any(word in _STDIN_ARGUMENTS or (interprets and word in _STDIN_INTERPRETER_OPTIONS) for word in arguments):
        return True
    if any(_INFO_OPTION.fullmatch(word) for word in arguments) or _runs_argument_text(name, arguments):
        return False
    operands = [word for word in arguments if not word.startswith("-")]
    if operands and (operands[-1] in _SHELL_SUBCOMMANDS or f"{name} {operands[-1]}" in _STDIN_SUBCOMMANDS):
        return True
    if name in _CONTAINERS:
        at = launch_argument_index(name, arguments)
        started_words = [word for word in arguments[at:] if not word.startswith("-")]
        return len(started_words) == 1 and any(_INTERACTIVE.fullmatch(word) for word in arguments)
    # The word after an option may be its value.
    values = [after for option, after in pairwise(arguments) if _SHORT_OPTION.fullmatch(option) and after in operands]
    if name in _STDIN_RUNNERS:
        return len(operands) - len(values) < 2
    if name in _BARE_SHELL_OPENERS:
        return len(operands) == len(values) or name == "script"
    return not operands and (interprets or is_listed(name, INTERPRETERS) or (name.endswith("sh") and "." not in name))


def _runs_argument_text(name: str, arguments: Sequence[str]) -> bool:
    """Whether an option makes it run or print the text of its own arguments."""
    known = strip_version(name)
    letters = _TEXT_OPTION_LETTERS.get(name) or _TEXT_OPTION_LETTERS.get(known)
    if letters is None:
        letters = "" if name in _STDIN_RUNNERS | _BARE_SHELL_OPENERS else "ceEmp"
    if list(arguments) in (["-v"], ["-h"]) and known not in ("python", "pypy") and known not in SHELLS:
        return True  # asks for its version, or for help
    option = re.compile(rf"-[a-zA-Z]*[{letters}]|-[{letters}]\S.*", re.DOTALL) if letters else None
    return any((option and option.fullmatch(word)) or _TEXT_OPTION.fullmatch(word) for word in arguments)


def _relative_scripts(name: str, arguments: Sequence[str]) -> list[str]:
    """The arguments that give an interpreter a file to run whose path depends on the folder."""
    if not (is_listed(name, INTERPRETERS | SHELLS) or name.startswith("ansible-")):
        return []
    files = [after for option, after in pairwise(arguments) if option in _FILE_OPTIONS and _looks_like_file(after)]
    files += [word.partition("=")[2] for word in arguments if word.partition("=")[0] in _FILE_OPTIONS and "=" in word]
    runs_its_operand = is_listed(name, LANGUAGES | SHELLS) or name.startswith("ansible-")
    if runs_its_operand and not _runs_argument_text(name, arguments):
        files += _script_candidates(arguments)
    return [
        each for each in dict.fromkeys(files) if not PurePath(each).is_absolute() and "://" not in each and each != "-"
    ]


def _script_candidates(arguments: Sequence[str]) -> Iterator[str]:
    """The arguments of which one is the script: up to the first that can't be an option's value."""
    before = ""
    for word in arguments:
        if not word.startswith("-") and word not in _SUBCOMMANDS:
            yield word
            if _looks_like_file(word) or not before.startswith("-"):
                return
        before = word


def _looks_like_file(word: str) -> bool:
    return "." in word or "/" in word


def _python_module(name: str, arguments: Sequence[str]) -> str:
    """The module that Python runs, if it looks for it in the current folder."""
    if strip_version(name) not in ("python", "pypy") or any(word in ("-I", "-P") for word in arguments):
        return ""
    return next((after for option, after in pairwise(arguments) if option == "-m"), "")


def _suggest_alternative(name: str) -> str:
    example = _SAFER_EXAMPLES.get(name)
    if example is None:
        return f"write the whole command out, without a wildcard, or {ASK_ADVICE}"
    return f"write the whole command out, such as {example!r}, or {ASK_ADVICE}"
