"""May this command run? The rules file, the verdict, and the person who decides what no rule covers."""

import asyncio
import hashlib
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Final

import msgspec

from ...core.errors import OpenClawError, ToolDenied
from ...core.model import Json, ToolCall
from ...core.visible_text import visible_line, visible_program
from ..private_files import read_private, write_private
from ..questions import Asking, Question, question
from . import always_binding
from .program_locator import Locator
from .rules import (
    DEFAULT_POLICY,
    LONGEST_PATTERN,
    MOST_RULES,
    Action,
    Bind,
    Bound,
    ExecPolicy,
    Rule,
    Verdict,
    check_tighter,
    judge,
    remembered,
)
from .shell_reader import Piece, Word, harmless
from .wrappers import Opened, unwrap

FILE: Final = "exec-policy.json"
LARGEST_FILE: Final = 4 << 20  # bytes
ADD_RULE: Final = "openclaw approvals allow '<program> <arguments>'"
ANSWER: Final = "To allow it, run `openclaw approvals` in a terminal on this machine and try again"
HOW_TO_ALLOW: Final[dict[tuple[Action, bool], str]] = {
    ("prompt", True): f"{ANSWER}, or add a rule: {ADD_RULE}.",
    ("prompt", False): f"{ANSWER}.",
    ("deny", True): f"Nobody is asked about it; a rule of its own would allow it: {ADD_RULE}.",
    ("deny", False): "Nobody is asked about it and no rule can allow it: give plain commands, one by one.",
}
"""What helps, by the verdict and whether a rule could allow the command at all."""


UNWATCHED: Final = "other files it may load or start are not watched, so it can be allowed only once"
"""Said where a command may run files that a yes can't be bound to."""
IN_TURN: Final = "what it reads or starts in turn is not watched"
"""Said where *always* is bound to files."""


class BadPolicy(OpenClawError):
    """The rules can't be read; until they can, nothing runs."""

    code = "bad_policy"


class Approvals:
    """The rules of one state directory, and the way to a person."""

    def __init__(self, *, state_dir: Path, asking: Asking) -> None:
        self.path = state_dir / FILE
        self._asking = asking

    def policy(self) -> ExecPolicy:
        """The rules as they stand in the file. Raises BadPolicy; a missing file is made from the defaults."""
        try:
            text = read_private(self.path, largest=LARGEST_FILE)
        except FileNotFoundError:
            self.save(DEFAULT_POLICY)
            return DEFAULT_POLICY
        except OSError as exc:
            raise BadPolicy(f"{self.path} can't be read ({exc.strerror or exc}), so nothing may run; mend it") from exc
        try:
            policy = msgspec.json.decode(text, type=ExecPolicy)
        except (msgspec.DecodeError, UnicodeDecodeError) as exc:
            raise BadPolicy(f"{self.path} is no rules file ({exc}), so nothing may run; mend or delete it") from exc
        _check(policy)
        return policy

    def save(self, policy: ExecPolicy) -> None:
        _check(policy)
        write_private(self.path, msgspec.json.format(msgspec.json.encode(policy), indent=2) + b"\n")

    # ---- deciding --------------------------------------------------------------------------------------------------

    def verdict(self, argv: Sequence[str], *, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> Verdict:
        """What the rules say of starting `argv` directly, with these variables set. Reads files. Raises BadPolicy."""
        place = _Place(argv, cwd, env, state=self.path.parent)
        return place.judged(self.policy(), place.files.bound)

    async def authorise(
        self, call: ToolCall, argv: Sequence[str], *, cwd: Path | None, asker: str, env: Mapping[str, str] | None = None
    ) -> None:
        """Return if `argv` may be started now, by a rule or by a person. Raises ToolDenied, BadPolicy."""
        place = _Place(argv, cwd, env, state=self.path.parent)
        verdict = await self._decided(place)
        if verdict.action == "allow":
            return
        how = HOW_TO_ALLOW[verdict.action, verdict.certain and bool(verdict.pieces)]
        if verdict.action == "deny":
            raise ToolDenied(f"Command denied by exec policy: {verdict.reason}. {how}")
        seen = await asyncio.to_thread(place.look, verdict)
        answer = await self._asking.ask(call, _question(place, verdict, seen, asker), how_to_allow=how)
        # The rules may have become stricter while the person thought about it, and a script another one.
        later = _Place(argv, cwd, env, state=self.path.parent)
        again = await self._decided(later)
        if answer == "deny" or again.action == "deny":
            raise ToolDenied(f"Command denied by {'a person' if answer == 'deny' else 'exec policy: ' + again.reason}.")
        if await asyncio.to_thread(later.look, verdict) != seen:
            raise ToolDenied(
                "Command denied: a file it names, or its folder, changed while a person was asked about it; try again."
            )
        if answer == "always" and verdict.certain:
            self._remember(verdict, seen.bounds)

    async def _decided(self, place: "_Place") -> Verdict:
        """The verdict. Files are read only where a rule that is bound to some fits otherwise, and not on the loop."""
        policy = self.policy()
        bound: list[Piece] = []
        verdict = place.judged(policy, bound.append)
        if not bound or verdict.action == "allow":
            return verdict
        return await asyncio.to_thread(place.judged, policy, place.files.bound)

    def _remember(self, verdict: Verdict, bounds: Sequence[Bound | None]) -> None:
        policy = remembered(self.policy(), verdict.pieces, bounds)
        if policy is not None:
            self.save(policy)

    # ---- over the wire ---------------------------------------------------------------------------------------------

    def get(self) -> Json:
        policy = self.policy()
        return {
            "enabled": True,
            "hash": policy.hash,
            "baseHash": policy.hash,
            "defaultAction": policy.default_action,
            "constraints": {
                "baseHashRequired": True,
                "defaultAllowAllowed": False,
                "broadAllowRulesAllowed": False,
                "dangerousAllowRulesAllowed": False,
            },
            "rules": msgspec.to_builtins([_on_the_wire(rule) for rule in policy.rules]),
        }

    def set(self, arguments: Json) -> Json:
        """Replace the rules by stricter ones, if the caller has seen the present ones. Raises ToolDenied."""
        policy = self.policy()
        base = arguments.get("baseHash") or arguments.get("base_hash")
        if type(base) is not str or not base:
            raise ToolDenied("baseHash is required for exec approvals updates; reload and retry")
        if base.lower().removeprefix("sha256:") != policy.hash.removeprefix("sha256:"):
            raise ToolDenied("Exec approval policy changed since it was loaded. Refresh policy and retry.")
        try:
            fresh = msgspec.convert(
                {
                    "defaultAction": arguments.get("defaultAction", policy.default_action),
                    "rules": arguments.get("rules"),
                },
                ExecPolicy,
            )
        except msgspec.ValidationError as exc:
            raise ToolDenied(f"The rules can't be understood: {exc}") from exc
        known = {_wire_identity(_on_the_wire(rule)): rule for rule in policy.rules}
        fresh = msgspec.structs.replace(fresh, rules=tuple(_bound_again(rule, known) for rule in fresh.rules))
        check_tighter(policy, fresh)
        self.save(fresh)
        return {"updated": True, "ruleCount": len(fresh.rules), "hash": fresh.hash, "baseHash": fresh.hash}


class _Seen(msgspec.Struct, frozen=True):
    """What was found when a command was looked at."""

    folder: str
    """Where it runs, links followed."""
    bounds: tuple[Bound | None, ...]
    """Of each command no rule allows."""
    found: always_binding.Found
    """Every file it names, remembered or not."""

    @property
    def names(self) -> str:
        """For people."""
        listed = ", ".join(dict.fromkeys(_name(path) for path in self.found.files))
        shown = f"with {listed if len(listed) <= 200 else listed[:200] + '...'} as now\n" if listed else ""
        return shown if self.found.all else f"{shown}{UNWATCHED}\n"


class _Place:
    """A command as it would be started in one folder, and what it is bound to there. One look: it reads a file once."""

    def __init__(
        self, argv: Sequence[str], cwd: Path | None, env: Mapping[str, str] | None = None, *, state: Path
    ) -> None:
        self.argv, self.cwd, self.env = argv, cwd, env or {}
        self.locate = Locator(cwd, besides=(state,))  # agents' workspaces lie in the state directory
        self.whole = Piece(tuple(Word(word) for word in argv))
        look = self.locate
        opened = unwrap([self.whole], names=look.names, suspected=look.suspected, steady=look.is_steady)
        self.reading: Opened = self._with_variables(opened) if env else opened
        self.files = always_binding.Files(cwd, look, self.reading.pieces)

    def _with_variables(self, opened: Opened) -> Opened:
        """The variables are judged by themselves; rules that forbid see them as if set by env."""
        as_set = [Word(f"{name}={value}") for name, value in self.env.items()]
        doubts = tuple(
            f"setting {name[:40]} may change what a command does"
            for name, value in self.env.items()
            if not harmless(name, value)
        )
        seen = (*opened.seen, Piece((Word("env"), *as_set, *self.whole.words)))
        return msgspec.structs.replace(opened, doubts=(*doubts, *opened.doubts), seen=seen)

    def judged(self, policy: ExecPolicy, bind: Bind) -> Verdict:
        look = self.locate
        return judge(policy, self.reading, locate=look.path, bind=bind, sure=look.started, installed=look.is_on_path)

    def look(self, verdict: Verdict) -> _Seen:
        """Reads the files the commands name; those of all the words where the text is doubtful."""
        bounds = tuple(self.files.bound(piece) for piece in verdict.pieces)
        whole = None if verdict.certain else self.whole
        return _Seen(self.files.folder, bounds, self.files.look(verdict.pieces, whole))


def _question(place: _Place, verdict: Verdict, seen: _Seen, asker: str) -> Question:
    where = f"in {visible_line(seen.folder)}\n" if place.cwd else ""
    variables = shlex.join(f"{name}={value}" for name, value in place.env.items())
    set_to = f"set: {visible_line(variables)}\n" if place.env else ""
    rememberable = verdict.certain and remembered(DEFAULT_POLICY, verdict.pieces, seen.bounds) is not None
    command = [visible_program(place.argv[0]), *place.argv[1:]]
    return question(
        "exec",
        title="May this command run?",
        detail=where + seen.names + set_to + shlex.join(command),  # our own lines first: a command may have several
        why=verdict.reason,
        asker=asker,
        always=rememberable,
        lasting=lasting(bound for bound in seen.bounds if bound is not None) if rememberable else "",
        binding=hashlib.sha256(msgspec.json.encode(seen, order="sorted")).hexdigest(),
    )


def _name(path: str) -> str:
    return visible_line(PurePath(path).name)


def lasting(bounds: Iterable[Bound]) -> str:
    """Where and how long an answer remembered with these would hold, for people."""
    listed = list(bounds)
    files = dict.fromkeys(_name(path) for bound in listed for path in bound.files or ())
    while_so = f", while {', '.join(files)} stay{'s' if len(files) == 1 else ''} as now; {IN_TURN}" if files else ""
    return f"in {', '.join(dict.fromkeys(bound.cwd for bound in listed))}{while_so}" if listed else ""


def described(rule: Rule) -> str:
    """What a rule is bound to, for people; empty when it holds anywhere."""
    cwd, files, words_alone = rule.binding
    if words_alone:
        return "while it names no file"
    named = [f"{path} ({digest[:12]})" for path, digest in (files or {}).items()]
    parts = [f"in {cwd}"] if cwd is not None else []
    return ", ".join([*parts, *([f"while as it was: {', '.join(named)}"] if named else [])])


def _on_the_wire(rule: Rule) -> Rule:
    """As a gateway takes rules: it knows no fields but the first five, so what it is bound to is told in words."""
    bound = described(rule) if rule.action == "allow" else ""
    words = f"{rule.description or ''} {bound}".strip() if bound else rule.description
    return msgspec.structs.replace(rule, cwd=None, files=None, description=words)


def _wire_identity(rule: Rule) -> tuple[str, tuple[str, ...] | None, str | None]:
    return rule.pattern, rule.shells or None, rule.description


def _bound_again(rule: Rule, known: Mapping[tuple[str, tuple[str, ...] | None, str | None], Rule]) -> Rule:
    """A rule that came back from the wire, bound as the one it was made from."""
    old = known.get(_wire_identity(rule))
    if old is None or rule.cwd is not None or rule.files is not None:
        return rule
    return msgspec.structs.replace(rule, cwd=old.cwd, files=old.files, description=old.description)


def _check(policy: ExecPolicy) -> None:
    if len(policy.rules) > MOST_RULES:
        raise BadPolicy(f"there are more than {MOST_RULES} rules")
    for rule in policy.rules:
        if not rule.pattern.strip() or len(rule.pattern) > LONGEST_PATTERN:
            raise BadPolicy(f"a rule's pattern is empty or longer than {LONGEST_PATTERN} characters")
