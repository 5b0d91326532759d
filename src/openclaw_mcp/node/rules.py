"""The rules of exec approval: allow, deny or prompt, first match first. Pure."""

import fnmatch
import hashlib
import os
import re
import shlex
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import PurePath
from typing import Final, Literal

import msgspec
from msgspec import Struct

from ..core.errors import ToolDenied
from .shell import Piece, Reading
from .wrappers import CARRIERS

Action = Literal["allow", "prompt", "deny"]
STRICTNESS: Final = {"allow": 0, "prompt": 1, "deny": 2}
LONGEST_PATTERN: Final = 4096  # characters; "always allow" writes the whole command as one
MOST_RULES: Final = 2000

Locate = Callable[[str], str | None]
"""A program as written to the absolute path of the file that would run; None when there is none."""


class Rule(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """`pattern` is a program and its arguments: `git log *`. `*` and `?` stand for anything and any one character."""

    pattern: str
    action: Action
    shells: tuple[str, ...] | None = None
    """Only commands started by one of these shells; None = all, directly started ones included."""
    description: str | None = None
    enabled: bool = True


class ExecPolicy(Struct, frozen=True, kw_only=True, rename="camel"):
    default_action: Action
    rules: tuple[Rule, ...] = ()

    @property
    def hash(self) -> str:
        return "sha256:" + hashlib.sha256(msgspec.json.encode(self)).hexdigest()


class Verdict(Struct, frozen=True):
    action: Action
    reason: str
    pieces: tuple[Piece, ...] = ()
    """The commands that were not allowed by a rule."""
    certain: bool = True
    """False when the text could not be read for certain: then nothing may be remembered from it."""


def _allow(*patterns: str) -> list[Rule]:
    return [Rule(pattern=pattern, action="allow") for pattern in patterns]


def _deny(*patterns: str) -> list[Rule]:
    return [Rule(pattern=pattern, action="deny") for pattern in patterns]


DEFAULT_POLICY: Final = ExecPolicy(
    default_action="prompt",
    rules=(
        *_allow("echo *", "uname *", "hostname", "whoami", "id", "date", "date +*", "uptime", "df *", "ls *", "pwd"),
        *_allow("which *", "true", "false", "nproc", "arch"),
        *_deny("rm *", "shred *", "dd *", "mkfs* *", "fdisk *", "parted *", "shutdown *", "reboot *", "poweroff *"),
        *_deny("halt *", "init *", "sudo *", "su *", "doas *", "pkexec *", "chown *", "mount *", "umount *"),
    ),
)
"""Looking around is fine, breaking things is not, everything else is for a person to say."""


def judge(policy: ExecPolicy, reading: Reading, *, locate: Locate) -> Verdict:
    """The strictest verdict over all pieces; text that can't be read for certain needs a person at least."""
    action: Action = "allow"
    reason = "every command is allowed by a rule"
    held: list[Piece] = []
    for piece in reading.pieces:
        decided, why = _judge_piece(policy, piece, locate)
        if decided != "allow":
            held.append(piece)
        if STRICTNESS[decided] > STRICTNESS[action]:
            action, reason = decided, why
    if reading.doubts or not reading.pieces:
        doubt = reading.doubts[0] if reading.doubts else "there is no command in it"
        floor: Action = "deny" if policy.default_action == "deny" else "prompt"
        if STRICTNESS[floor] > STRICTNESS[action]:
            action, reason = floor, f"no rule can vouch for it: {doubt}"
    return Verdict(action, reason, tuple(held), certain=not reading.doubts)


def _judge_piece(policy: ExecPolicy, piece: Piece, locate: Locate) -> tuple[Action, str]:
    """The first rule that fits; one that only might fit makes the verdict stricter and the search goes on."""
    floor: tuple[Action, str] = ("allow", "")
    for rule in policy.rules:
        fits = _fits(rule, piece, locate) if rule.enabled else "no"
        said = (rule.action, f"the rule {rule.action} {rule.pattern[:80]!r} covers {_name(piece)}")
        if fits == "yes":
            return _stricter(floor, said)
        if fits == "maybe":
            floor = _stricter(floor, said)
    return _stricter(floor, (policy.default_action, f"no rule covers {_name(piece)}"))


def _stricter(one: tuple[Action, str], other: tuple[Action, str]) -> tuple[Action, str]:
    return one if STRICTNESS[one[0]] > STRICTNESS[other[0]] else other


def _name(piece: Piece) -> str:
    return repr(piece.words[0].text[:80])


def _fits(rule: Rule, piece: Piece, locate: Locate) -> Literal["yes", "maybe", "no"]:
    program, _, arguments = rule.pattern.strip().partition(" ")
    if not program or (rule.shells and piece.shell not in rule.shells):
        return "no"
    if (
        rule.action != "deny"
        and _surely_program(program, piece, locate)
        and _surely_arguments(arguments.strip(), piece)
    ):
        return "yes"
    if rule.action != "allow" and _may_match(rule.pattern.strip(), program, arguments.strip(), piece, locate):
        return "yes" if rule.action == "deny" else "maybe"
    return "no"


# ---- allow: only what certainly fits --------------------------------------------------------------------


def _surely_program(pattern: str, piece: Piece, locate: Locate) -> bool:
    given = piece.words[0].text
    wild = "*" in pattern or "?" in pattern
    if wild and CARRIERS.fullmatch(PurePath(given).name):
        return False
    if "/" in pattern:
        found = locate(given)
        return found is not None and _path_glob(pattern).fullmatch(os.path.normpath(found)) is not None
    if "/" not in given:
        return _glob(pattern).fullmatch(given) is not None
    # A path counts for a bare name only when that name means the same file.
    return (
        not wild
        and PurePath(given).name == pattern
        and (found := locate(given)) is not None
        and found == locate(pattern)
    )


def _surely_arguments(pattern: str, piece: Piece) -> bool:
    words = piece.words[1:]
    if pattern == "*":
        return True
    if any(word.open for word in words):
        return False
    line = shlex.join(word.text for word in words)
    if _glob(pattern).fullmatch(line):
        return True
    return pattern.endswith(" *") and line == pattern[:-2]


# ---- deny, and what a prompt is for: whatever might fit ------


def _may_match(whole: str, program: str, arguments: str, piece: Piece, locate: Locate) -> bool:
    first, words = piece.words[0].text, piece.words[1:]
    line = shlex.join(word.text for word in words)
    if _glob(whole, any_case=True).fullmatch(f"{first} {line}".strip()):
        return True
    found = locate(first)
    names = {first, PurePath(first).name, *([found, PurePath(found).name] if found else [])}
    if not any(_glob(program, any_case=True).fullmatch(name) for name in names):
        return False
    if arguments in ("", "*") or any(word.open for word in words):
        return True
    return _glob(arguments, any_case=True).fullmatch(line) is not None or (
        arguments.endswith(" *") and line == arguments[:-2]
    )


@lru_cache(maxsize=4096)
def _glob(pattern: str, *, any_case: bool = False) -> re.Pattern[str]:
    # fnmatch's own translation does not backtrack, however many stars there are; we only take its [..] away.
    return re.compile(fnmatch.translate(pattern.replace("[", "[[]")), re.IGNORECASE if any_case else 0)


@lru_cache(maxsize=4096)
def _path_glob(pattern: str) -> re.Pattern[str]:
    parts = (
        "[^/]*" if part == "*" else "[^/]" if part == "?" else re.escape(part) for part in re.split(r"([*?])", pattern)
    )
    return re.compile("".join(parts))


# ---- changing rules --------------------------------------------------------------------------------------------------


def remembered(policy: ExecPolicy, pieces: Sequence[Piece]) -> ExecPolicy | None:
    """The policy with each piece allowed exactly as it is; None when some piece can't be written as a rule."""
    fresh: list[Rule] = []
    for piece in pieces:
        if any(word.open for word in piece.words):
            return None
        pattern = shlex.join(word.text for word in piece.words)
        if "*" in pattern or "?" in pattern or pattern.split(" ")[0] != piece.words[0].text:
            return None
        if len(pattern) > LONGEST_PATTERN or "\n" in pattern:
            return None
        shells = (piece.shell,) if piece.shell else None
        fresh.append(Rule(pattern=pattern, action="allow", shells=shells, description="always allowed by a person"))
    return msgspec.structs.replace(policy, rules=(*fresh, *policy.rules))


def check_tighter(old: ExecPolicy, new: ExecPolicy) -> None:
    """Raise ToolDenied unless everything `new` allows, `old` allowed, and everything it prompts for was not denied.

    Read in order: a rule may be made stricter, an allow rule may go, a deny rule may come anywhere. Nothing else.
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
        raise _lost(lost)


def _position(before: Sequence[Rule], at: int, rule: Rule) -> int | None:
    """Where `rule` stands among the old rules from `at` on, if only allow rules are dropped on the way to it."""
    for index in range(at, len(before)):
        old = before[index]
        same = (old.pattern, old.shells or None) == (rule.pattern, rule.shells or None)
        if same and STRICTNESS[rule.action] >= STRICTNESS[old.action]:
            return index
        if old.action != "allow":
            return None
    return None


def _lost(rule: Rule) -> ToolDenied:
    return ToolDenied(
        f"the rule {rule.action} {rule.pattern[:80]!r} is missing or moved; from here rules may only become stricter"
    )
