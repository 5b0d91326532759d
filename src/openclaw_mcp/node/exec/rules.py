"""The rules of exec approval: allow, deny or prompt, first match first. Pure."""

import hashlib
import shlex
from collections.abc import Callable, Sequence
from typing import Final, Literal, NamedTuple

import msgspec
from msgspec import Struct

from ...core.errors import ToolDenied
from .pattern_matching import IsInstalled, arguments_match, may_match, pattern_program, program_matches, program_names
from .program_powers import LocateProgram, base_name, can_start_programs
from .shell_reader import ParsedCommand
from .started_commands import find_start_candidates
from .wrappers import WRAPPERS, UnwrapResult

Action = Literal["allow", "prompt", "deny"]
STRICTNESS: Final = {"allow": 0, "prompt": 1, "deny": 2}
MAX_PATTERN_LENGTH: Final = 4096  # characters; "always allow" writes the whole command as one
MAX_RULES: Final = 2000


class Rule(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """`pattern` is a program and its arguments: `seq *`. `*` and `?` match anything and any one character."""

    pattern: str
    action: Action
    shells: tuple[str, ...] | None = None
    """Only commands started by one of these shells; None = all, directly started ones included."""
    description: str | None = None
    enabled: bool = True
    cwd: str | None = None
    """An allow rule: only in this folder, links resolved."""
    files: dict[str, str] | None = None
    """An allow rule: only while the command names these files and no others, by path and digest."""

    @property
    def is_bound(self) -> bool:
        """Remembered or written for one folder or some files: then it does not hold for piped input."""
        return self.cwd is not None or self.files is not None or self.description == REMEMBERED_DESCRIPTION

    @property
    def binding(self) -> tuple[str | None, dict[str, str] | None, bool]:
        """What it is bound to besides its pattern. The last: remembered when nothing but the pattern was."""
        unbound = self.cwd is None and self.files is None
        return self.cwd, self.files, unbound and self.description == REMEMBERED_DESCRIPTION


REMEMBERED_DESCRIPTION: Final = "always allowed by a person"
"""The description of rules made by an answer."""


class CommandBinding(Struct, frozen=True):
    """What a command is bound to: its folder, resolved, and each file it names, by path and digest."""

    cwd: str
    files: dict[str, str] | None
    """None when not all are known, or they may be others by the time it starts."""
    program: str | None = None
    """The file of a program that its bare name does not mean; a rule names this file, since a path may be relative or a
    link, and the PATH another."""


BindCommand = Callable[[ParsedCommand], CommandBinding | None]
"""What a command is bound to where it would run; None when that is not known."""


class ExecPolicy(Struct, frozen=True, kw_only=True, rename="camel"):
    default_action: Action
    rules: tuple[Rule, ...] = ()

    @property
    def hash(self) -> str:
        return "sha256:" + hashlib.sha256(msgspec.json.encode(self)).hexdigest()


class ExecVerdict(Struct, frozen=True):
    action: Action
    reason: str
    commands: tuple[ParsedCommand, ...] = ()
    """The commands that were not allowed by a rule."""
    certain: bool = True
    """False when the text could not be read for certain: then nothing may be remembered from it."""


def _allow(*patterns: str) -> list[Rule]:
    return [Rule(pattern=pattern, action="allow") for pattern in patterns]


def _deny(*patterns: str) -> list[Rule]:
    return [Rule(pattern=pattern, action="deny") for pattern in patterns]


_UNBOUND: Final = (None, None, False)
"""The `binding` of a rule that is bound to nothing."""

DEFAULT_POLICY: Final = ExecPolicy(
    default_action="prompt",
    rules=(
        *_allow("echo *", "uname *", "hostname", "whoami", "id", "date", "date +*", "uptime", "df *", "ls *", "pwd"),
        *_allow("which *", "true", "false", "nproc", "arch"),
        *_deny("rm *", "shred *", "dd *", "mkfs* *", "fdisk *", "parted *", "shutdown *", "reboot *", "poweroff *"),
        *_deny("halt *", "init *", "sudo *", "su *", "doas *", "pkexec *", "chown *", "mount *", "umount *"),
    ),
)
"""Reading is allowed, destruction is denied, and a person decides about everything else."""


class Decision(NamedTuple):
    action: Action
    reason: str


class _MatchContext(Struct, frozen=True):
    """The functions that look at files and folders for a verdict."""

    locate: LocateProgram
    launch_path: LocateProgram
    is_installed: IsInstalled
    bind: BindCommand


def evaluate_policy(
    policy: ExecPolicy,
    unwrapped: UnwrapResult,
    *,
    locate: LocateProgram,
    bind: BindCommand = lambda _: None,
    launch_path: LocateProgram | None = None,
    is_installed: IsInstalled = lambda program: "/" not in program,
) -> ExecVerdict:
    """The strictest verdict over all commands; text that can't be read for certain needs a person at least.
    `launch_path`: the file as which a program is started, where that is a link."""
    context = _MatchContext(locate, launch_path or locate, is_installed, bind)
    action: Action = "allow"
    reason = "every command is allowed by a rule"
    not_allowed: list[ParsedCommand] = []
    for command in unwrapped.commands:
        decided, why = _evaluate_command(policy, command, context)
        if decided != "allow":
            not_allowed.append(command)
        if STRICTNESS[decided] > STRICTNESS[action]:
            action, reason = decided, why
    for command in unwrapped.deny_candidates:
        decided, why = _evaluate_restrictions(policy.rules, command, context)
        if STRICTNESS[decided] > STRICTNESS[action]:
            action, reason = decided, why
    if unwrapped.uncertainties or not unwrapped.commands:
        cause = unwrapped.uncertainties[0] if unwrapped.uncertainties else "there is no command in it"
        floor: Action = "deny" if policy.default_action == "deny" else "prompt"
        if STRICTNESS[floor] > STRICTNESS[action]:
            action, reason = floor, f"no rule can vouch for it: {cause}"
    return ExecVerdict(action, reason, tuple(not_allowed), certain=not unwrapped.uncertainties)


def _evaluate_command(policy: ExecPolicy, command: ParsedCommand, context: _MatchContext) -> Decision:
    """By the first rule that matches; one that only may match makes the verdict stricter and the search continues."""
    floor = Decision("allow", "")
    for at, rule in enumerate(policy.rules):
        matches = _match_rule(rule, command, context) if rule.enabled else "no"
        if matches == "yes":
            decision = _stricter(floor, _decision_of(rule, command))
            return _check_started_commands(decision, policy.rules[:at], command, context)
        if matches == "maybe":
            floor = _stricter(floor, _decision_of(rule, command))
    by_default = Decision(policy.default_action, f"no rule covers {_command_name(command)}")
    return _check_started_commands(_stricter(floor, by_default), policy.rules, command, context)


def _check_started_commands(
    decision: Decision, rules: Sequence[Rule], command: ParsedCommand, context: _MatchContext
) -> Decision:
    """The decision on a command, or a stricter one by an earlier rule against a command that its arguments may make it
    start. Where an argument only names what a rule is against, a person is asked."""
    first = command.words[0].text
    names = [first, context.locate(first) or first]
    if decision.action == "deny" or base_name(first) in WRAPPERS or not any(map(can_start_programs, names)):
        return decision
    against = [rule for rule in rules if rule.action != "allow" and rule.enabled]
    if not against:
        return decision
    started = find_start_candidates(command, names)
    for each in started.commands:
        decision = _stricter(_evaluate_restrictions(rules, each, context), decision)
    if decision.action != "allow":
        return decision
    if not started.certain:
        return Decision("prompt", f"what {_command_name(command)} starts is decided only when it runs")
    rule = next((rule for rule in against if pattern_program(rule.pattern)[0] in started.names), None)
    if rule is None:
        return decision
    return Decision(
        "prompt",
        f"{_command_name(command)} may start others, and the rule {rule.action} {rule.pattern[:80]!r} "
        "names one of its words",
    )


def _evaluate_restrictions(rules: Sequence[Rule], command: ParsedCommand, context: _MatchContext) -> Decision:
    """The decision of rules against a command that needs no rule to allow it. Rules for any program do not count."""
    first = command.words[0].text
    names = program_names(first, context.locate(first))
    floor = Decision("allow", "")
    for at, rule in enumerate(rules):
        if rule.action == "allow" or not rule.enabled:
            continue
        program, other_names = pattern_program(rule.pattern)
        if not program.strip("*?") or (program not in names and not other_names and "/" not in first):
            continue
        matches = _match_rule(rule, command, context)
        if matches == "no":
            continue
        before = (each for each in rules[:at] if each.action == "allow" and each.enabled)
        if any(_match_rule(each, command, context) == "yes" for each in before):
            break
        floor = _stricter(floor, _decision_of(rule, command))
        if matches == "yes":
            break
    return floor


def _stricter(one: Decision, other: Decision) -> Decision:
    return one if STRICTNESS[one.action] > STRICTNESS[other.action] else other


def _decision_of(rule: Rule, command: ParsedCommand) -> Decision:
    return Decision(rule.action, f"the rule {rule.action} {rule.pattern[:80]!r} covers {_command_name(command)}")


def _command_name(command: ParsedCommand) -> str:
    return repr(command.words[0].text[:80])


def _match_rule(rule: Rule, command: ParsedCommand, context: _MatchContext) -> Literal["yes", "maybe", "no"]:
    program, _, arguments = rule.pattern.strip().partition(" ")
    if not program or (rule.shells and command.shell not in rule.shells):
        return "no"
    if (
        rule.action != "deny"
        and program_matches(program, command, context.locate, context.launch_path, context.is_installed)
        and arguments_match(arguments.strip(), command, program)
        and (rule.binding == _UNBOUND or rule.action != "allow" or _matches_binding(rule, command, context.bind))
    ):
        return "yes"
    if rule.action != "allow" and may_match(rule.pattern.strip(), program, arguments.strip(), command, context.locate):
        return "yes" if rule.action == "deny" else "maybe"
    return "no"


def _matches_binding(rule: Rule, command: ParsedCommand, bind: BindCommand) -> bool:
    """Whether everything the rule is bound to is as it was. Asked only where the pattern matches: it reads files."""
    found = bind(command)
    if found is None:
        return False
    cwd, files, pattern_only = rule.binding
    if pattern_only:  # an older answer, without its folder: good for what names no file
        return found.files == {}
    return cwd in (None, found.cwd) and files in (None, found.files)


# ---- changing rules --------------------------------------------------------------------------------------------------


def add_remembered_rules(
    policy: ExecPolicy, commands: Sequence[ParsedCommand], bindings: Sequence[CommandBinding | None]
) -> ExecPolicy | None:
    """The policy with each command allowed exactly as it is, in its folder, with the files it names as they are; None
    when one of them can't be written as a rule."""
    fresh: list[Rule] = []
    for command, bound in zip(commands, bindings, strict=True):
        if bound is None or bound.files is None or any(word.is_dynamic for word in command.words):
            return None
        program = bound.program or command.words[0].text
        pattern = shlex.join([program, *(word.text for word in command.words[1:])])
        if any(char in pattern for char in "*?\n") or pattern.split(" ")[0] != program:
            return None
        if len(pattern) > MAX_PATTERN_LENGTH:
            return None
        rule = Rule(
            pattern=pattern,
            action="allow",
            shells=(command.shell,) if command.shell else None,
            description=REMEMBERED_DESCRIPTION,
            cwd=bound.cwd,
            files=bound.files,
        )
        fresh.append(rule)
    replaced = {_rule_key(rule) for rule in fresh}
    kept = (
        rule for rule in policy.rules if rule.description != REMEMBERED_DESCRIPTION or _rule_key(rule) not in replaced
    )
    return msgspec.structs.replace(policy, rules=(*fresh, *kept))


def _rule_key(rule: Rule) -> tuple[str, tuple[str, ...] | None, str | None]:
    """Of two remembered answers with the same key the later counts."""
    return rule.pattern, rule.shells, rule.cwd


def check_only_stricter(old: ExecPolicy, new: ExecPolicy) -> None:
    """Raise ToolDenied unless everything `new` allows, `old` allowed, and everything it prompts for was not denied.

    Read in order: a rule may be made stricter, an allow rule may go, a deny rule may come anywhere. Nothing else. One
    that allows in some folder or with some files stays as it is, is removed, or denies.
    """
    if STRICTNESS[new.default_action] < STRICTNESS[old.default_action]:
        raise ToolDenied("the default action may only become stricter from here; use openclaw approvals to loosen it")
    before = [rule for rule in old.rules if rule.enabled]
    at = 0
    for rule in (rule for rule in new.rules if rule.enabled):
        follows = _position(before, at, rule)
        if follows is not None:
            at = follows + 1
        elif rule.action != "deny":
            raise ToolDenied(
                f"the rule {rule.action} {rule.pattern[:80]!r} is new, looser or moved; "
                "from here rules may only become stricter; use openclaw approvals to loosen them"
            )
    lost = next((rule for rule in before[at:] if rule.action != "allow"), None)
    if lost is not None:
        raise ToolDenied(
            f"the rule {lost.action} {lost.pattern[:80]!r} is missing or moved; "
            "from here rules may only become stricter"
        )


def _position(before: Sequence[Rule], at: int, rule: Rule) -> int | None:
    """The index of `rule` among the old rules from `at` on, if only allow rules are dropped before it."""
    for index in range(at, len(before)):
        old = before[index]
        if _is_as_strict(rule, old):
            return index
        if old.action != "allow":
            return None
    return None


def _is_as_strict(rule: Rule, old: Rule) -> bool:
    """Whether `rule` may replace `old`: it covers nothing `old` did not, except what it denies."""
    if (old.pattern, old.shells or None) != (rule.pattern, rule.shells or None):
        return False
    if STRICTNESS[rule.action] < STRICTNESS[old.action]:
        return False
    if rule.action == "deny" or old.action != "allow":
        return True
    # Only an allow rule asks what it is bound to: as a prompt it would hold everywhere, and before the denies after it.
    return rule.binding == old.binding and (rule.action == "allow" or old.binding == _UNBOUND)
