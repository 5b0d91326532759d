"""May this command run? The rules file, the verdict, and the person who decides what no rule covers."""

import os
import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path, PurePath
from typing import Final

import msgspec

from ..core.errors import OpenClawError, ToolDenied
from ..core.model import Json, ToolCall
from .asking import Asking, Question, question_id, shown
from .environment import clean_path
from .files import read_private, write_private
from .rules import (
    DEFAULT_POLICY,
    LONGEST_PATTERN,
    MOST_RULES,
    Action,
    ExecPolicy,
    Verdict,
    check_tighter,
    judge,
    remembered,
)
from .shell import Piece, Word
from .wrappers import unwrap

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

    def verdict(self, argv: Sequence[str], *, cwd: Path | None = None) -> Verdict:
        """What the rules say of starting `argv` directly. Raises BadPolicy."""
        locate = Locator(cwd)
        reading = unwrap([Piece(tuple(Word(word) for word in argv))], names=locate.names)
        return judge(self.policy(), reading, locate=locate.path)

    async def authorise(self, call: ToolCall, argv: Sequence[str], *, cwd: Path | None, asker: str) -> None:
        """Return if `argv` may be started now, by a rule or by a person. Raises ToolDenied, BadPolicy."""
        verdict = self.verdict(argv, cwd=cwd)
        if verdict.action == "allow":
            return
        how = HOW_TO_ALLOW[verdict.action, verdict.certain and bool(verdict.pieces)]
        if verdict.action == "deny":
            raise ToolDenied(f"Command denied by exec policy: {verdict.reason}. {how}")
        answer = await self._asking.ask(call, _question(argv, verdict, cwd, asker), how_to_allow=how)
        # The rules may have become stricter while the person thought about it.
        again = self.verdict(argv, cwd=cwd)
        if answer == "deny" or again.action == "deny":
            raise ToolDenied(f"Command denied by {'a person' if answer == 'deny' else 'exec policy: ' + again.reason}.")
        if answer == "always":
            self._remember(again)

    def _remember(self, verdict: Verdict) -> None:
        policy = remembered(self.policy(), verdict.pieces) if verdict.certain else None
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
            "rules": msgspec.to_builtins(policy.rules),
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
        check_tighter(policy, fresh)
        self.save(fresh)
        return {"updated": True, "ruleCount": len(fresh.rules), "hash": fresh.hash, "baseHash": fresh.hash}


class Locator:
    """Which file a program name means, seen from one folder."""

    def __init__(self, cwd: Path | None) -> None:
        self._cwd = cwd or Path.cwd()
        self._path = clean_path()

    def path(self, program: str) -> str | None:
        """The file's own path, links followed."""
        found = self.executable(program)
        return os.path.realpath(found) if found else None

    def executable(self, program: str) -> str | None:
        """The path to start it by: links stay, since programs look at their name."""
        if "/" in program or (os.sep != "/" and os.sep in program):
            candidate = str(self._cwd / program)
            return candidate if os.access(candidate, os.X_OK) else None
        return shutil.which(program, path=self._path)

    def names(self, program: str) -> tuple[str, ...]:
        own = PurePath(program).name
        behind = self.path(program)
        # Many programs are links to busybox, which then acts on the name it was called by.
        real = PurePath(behind).name if behind else own
        return (own,) if real in (own, "busybox", "toybox") else (own, real)


def _question(argv: Sequence[str], verdict: Verdict, cwd: Path | None, asker: str) -> Question:
    where = f"\nin {cwd}" if cwd else ""
    rememberable = verdict.certain and remembered(DEFAULT_POLICY, verdict.pieces) is not None
    return Question(
        id=question_id(),
        kind="exec",
        title="May this command run?",
        detail=shown(shlex.join(argv) + where),
        why=shown(verdict.reason),
        asker=shown(asker),
        always=rememberable,
    )


def _check(policy: ExecPolicy) -> None:
    if len(policy.rules) > MOST_RULES:
        raise BadPolicy(f"there are more than {MOST_RULES} rules")
    for rule in policy.rules:
        if not rule.pattern.strip() or len(rule.pattern) > LONGEST_PATTERN:
            raise BadPolicy(f"a rule's pattern is empty or longer than {LONGEST_PATTERN} characters")
