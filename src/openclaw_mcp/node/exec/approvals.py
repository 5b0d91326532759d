"""Whether a command may run: the rules file, the verdict, and the person who decides what no rule covers."""

import asyncio
import hashlib
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Final

import msgspec

from ...core.errors import OpenClawError, ToolDenied
from ...core.model import Json, ToolCall
from ...core.visible_text import escape_line, escape_program
from ..private_files import FileStamp, file_stamp, read_private, write_private
from ..questions import PromptRouter, UserQuestion, make_question
from . import always_binding
from .program_locator import ProgramLocator
from .rules import (
    DEFAULT_POLICY,
    MAX_PATTERN_LENGTH,
    MAX_RULES,
    Action,
    BindCommand,
    CommandBinding,
    ExecPolicy,
    ExecVerdict,
    Rule,
    add_remembered_rules,
    check_only_stricter,
    evaluate_policy,
)
from .shell_reader import ParsedCommand, ShellWord, is_harmless_variable
from .wrappers import UnwrapResult, unwrap

POLICY_FILE: Final = "exec-policy.json"
MAX_FILE_BYTES: Final = 4 << 20  # bytes
ADD_RULE: Final = "openclaw approvals allow '<program> <arguments>'"
HOW_TO_ANSWER: Final = "To allow it, run `openclaw approvals` in a terminal on this machine and try again"
HOW_TO_ALLOW: Final[dict[tuple[Action, bool], str]] = {
    ("prompt", True): f"{HOW_TO_ANSWER}, or add a rule: {ADD_RULE}.",
    ("prompt", False): f"{HOW_TO_ANSWER}.",
    ("deny", True): f"No person is asked about it; a rule of its own would allow it: {ADD_RULE}.",
    ("deny", False): "No person is asked about it and no rule can allow it: give plain commands, one by one.",
}
"""The remedy, by the verdict and whether a rule could allow the command at all."""


UNWATCHED_NOTICE: Final = "changes to other files it may load or start are not noticed, so it can be allowed only once"
"""Shown where a command may run files that an answer can't be bound to."""
INDIRECT_FILES_NOTICE: Final = "what it reads or starts in turn is not watched"
"""Shown where *always* is bound to files."""


class BadPolicy(OpenClawError):
    """The rules can't be read; until they can, nothing runs."""

    code = "bad_policy"


class ExecAuthorizer:
    """The rules of one state directory, and the router to a person."""

    def __init__(self, *, state_dir: Path, prompt_router: PromptRouter) -> None:
        self.path = state_dir / POLICY_FILE
        self._prompt_router = prompt_router
        self._loaded: tuple[FileStamp, ExecPolicy] | None = None

    def load_policy(self) -> ExecPolicy:
        """The rules that the file holds right now. Raises BadPolicy; a missing file is made from the defaults."""
        stamp = file_stamp(self.path)
        if self._loaded is None or self._loaded[0] != stamp:
            policy = self._read_policy()
            if stamp is None or not stamp.is_settled:  # a change that follows at once could have the same stamp
                return policy
            self._loaded = (stamp, policy)
        return self._loaded[1]

    def _read_policy(self) -> ExecPolicy:
        try:
            text = read_private(self.path, largest=MAX_FILE_BYTES)
        except FileNotFoundError:
            self.save_policy(DEFAULT_POLICY)
            return DEFAULT_POLICY
        except OSError as exc:
            raise BadPolicy(f"{self.path} can't be read ({exc.strerror or exc}), so nothing may run; mend it") from exc
        try:
            policy = msgspec.json.decode(text, type=ExecPolicy)
        except (msgspec.DecodeError, UnicodeDecodeError) as exc:
            raise BadPolicy(f"{self.path} is no rules file ({exc}), so nothing may run; mend or delete it") from exc
        _check_policy(policy)
        return policy

    def save_policy(self, policy: ExecPolicy) -> None:
        _check_policy(policy)
        write_private(self.path, msgspec.json.format(msgspec.json.encode(policy), indent=2) + b"\n")

    # ---- deciding --------------------------------------------------------------------------------------------------

    def evaluate(
        self, argv: Sequence[str], *, cwd: Path | None = None, env: Mapping[str, str] | None = None
    ) -> ExecVerdict:
        """The verdict on starting `argv` directly, with these variables set. Reads files. Raises BadPolicy."""
        planned = _PlannedCommand(argv, cwd, env, state_dir=self.path.parent)
        return planned.evaluate(self.load_policy(), planned.operand_files.bind)

    async def authorise(
        self, call: ToolCall, argv: Sequence[str], *, cwd: Path | None, asker: str, env: Mapping[str, str] | None = None
    ) -> None:
        """Return if `argv` may be started now, by a rule or by a person. Raises ToolDenied, BadPolicy."""
        planned = _PlannedCommand(argv, cwd, env, state_dir=self.path.parent)
        verdict = await self._evaluate_command(planned)
        if verdict.action == "allow":
            return
        how = HOW_TO_ALLOW[verdict.action, verdict.certain and bool(verdict.commands)]
        if verdict.action == "deny":
            raise ToolDenied(f"Command denied by exec policy: {verdict.reason}. {how}")
        before = await asyncio.to_thread(planned.snapshot, verdict)
        answer = await self._prompt_router.ask(call, _make_question(planned, verdict, before, asker), how_to_allow=how)
        # Meanwhile the rules may have become stricter, and a script may have been replaced.
        later = _PlannedCommand(argv, cwd, env, state_dir=self.path.parent)
        again = await self._evaluate_command(later)
        if answer == "deny" or again.action == "deny":
            raise ToolDenied(f"Command denied by {'a person' if answer == 'deny' else 'exec policy: ' + again.reason}.")
        if await asyncio.to_thread(later.snapshot, verdict) != before:
            raise ToolDenied(
                "Command denied: a file it names, or its folder, changed while a person was asked about it; try again."
            )
        if answer == "always" and verdict.certain:
            self._remember_answer(verdict, before.bindings)

    async def _evaluate_command(self, planned: "_PlannedCommand") -> ExecVerdict:
        """The verdict. Files are read only where a rule that is bound to some would match, and not on the loop."""
        policy = self.load_policy()
        bound: list[ParsedCommand] = []
        verdict = planned.evaluate(policy, bound.append)
        if not bound or verdict.action == "allow":
            return verdict
        return await asyncio.to_thread(planned.evaluate, policy, planned.operand_files.bind)

    def _remember_answer(self, verdict: ExecVerdict, bindings: Sequence[CommandBinding | None]) -> None:
        policy = add_remembered_rules(self.load_policy(), verdict.commands, bindings)
        if policy is not None:
            self.save_policy(policy)

    # ---- over the wire ---------------------------------------------------------------------------------------------

    def describe_policy(self) -> Json:
        policy = self.load_policy()
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
            "rules": msgspec.to_builtins([_to_wire_rule(rule) for rule in policy.rules]),
        }

    def tighten_policy(self, arguments: Json) -> dict[str, bool | int | str]:
        """Replace the rules by stricter ones, if the caller has read the present ones. Raises ToolDenied."""
        policy = self.load_policy()
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
        known = {_wire_key(_to_wire_rule(rule)): rule for rule in policy.rules}
        fresh = msgspec.structs.replace(fresh, rules=tuple(_restore_binding(rule, known) for rule in fresh.rules))
        check_only_stricter(policy, fresh)
        self.save_policy(fresh)
        return {"updated": True, "ruleCount": len(fresh.rules), "hash": fresh.hash, "baseHash": fresh.hash}


class _CommandSnapshot(msgspec.Struct, frozen=True):
    """The folder and the files of a command at one moment."""

    folder: str
    """The folder it runs in, links followed."""
    bindings: tuple[CommandBinding | None, ...]
    """For each command that no rule allows."""
    files: always_binding.CommandFiles
    """Every file it names, remembered or not."""

    @property
    def file_summary(self) -> str:
        """For people."""
        listed = ", ".join(dict.fromkeys(_visible_name(path) for path in self.files.files))
        shown = f"with {listed if len(listed) <= 200 else listed[:200] + '...'} as now\n" if listed else ""
        return shown if self.files.complete else f"{shown}{UNWATCHED_NOTICE}\n"


class _PlannedCommand:
    """A command as it would be started in one folder, and what it is bound to there. It reads each file once."""

    def __init__(
        self, argv: Sequence[str], cwd: Path | None, env: Mapping[str, str] | None = None, *, state_dir: Path
    ) -> None:
        self.argv, self.cwd, self.env = argv, cwd, env or {}
        self.locator = ProgramLocator(
            cwd, untrusted_folders=(state_dir,)
        )  # agents' workspaces are in the state directory
        self.full_command = ParsedCommand(tuple(ShellWord(word) for word in argv))
        locator = self.locator
        unwrapped = unwrap(
            [self.full_command],
            certain_names=locator.certain_names,
            possible_names=locator.possible_names,
            is_process_independent=locator.is_process_independent,
        )
        self.unwrapped: UnwrapResult = self._add_variables(unwrapped) if env else unwrapped
        self.operand_files = always_binding.OperandFiles(cwd, locator, self.unwrapped.commands)

    def _add_variables(self, unwrapped: UnwrapResult) -> UnwrapResult:
        """The variables are evaluated by themselves; rules that forbid see them as if set by env."""
        assignments = [ShellWord(f"{name}={value}") for name, value in self.env.items()]
        uncertainties = tuple(
            f"setting {name[:40]} may change what a command does"
            for name, value in self.env.items()
            if not is_harmless_variable(name, value)
        )
        candidates = (
            *unwrapped.deny_candidates,
            ParsedCommand((ShellWord("env"), *assignments, *self.full_command.words)),
        )
        return msgspec.structs.replace(
            unwrapped, uncertainties=(*uncertainties, *unwrapped.uncertainties), deny_candidates=candidates
        )

    def evaluate(self, policy: ExecPolicy, bind: BindCommand) -> ExecVerdict:
        locator = self.locator
        return evaluate_policy(
            policy,
            self.unwrapped,
            locate=locator.real_path,
            bind=bind,
            launch_path=locator.launch_path,
            is_installed=locator.is_on_path,
        )

    def snapshot(self, verdict: ExecVerdict) -> _CommandSnapshot:
        """Reads the files the commands name; those of all words where the text is uncertain."""
        files, full = self.operand_files, None if verdict.certain else self.full_command
        bindings = tuple(map(files.bind, verdict.commands))
        return _CommandSnapshot(files.folder, bindings, files.snapshot(verdict.commands, full))


def _make_question(
    planned: _PlannedCommand, verdict: ExecVerdict, snapshot: _CommandSnapshot, asker: str
) -> UserQuestion:
    where = f"in {escape_line(snapshot.folder)}\n" if planned.cwd else ""
    variables = shlex.join(f"{name}={value}" for name, value in planned.env.items())
    set_to = f"set: {escape_line(variables)}\n" if planned.env else ""
    rememberable = (
        verdict.certain and add_remembered_rules(DEFAULT_POLICY, verdict.commands, snapshot.bindings) is not None
    )
    command = [escape_program(planned.argv[0]), *planned.argv[1:]]
    return make_question(
        "exec",
        title="May this command run?",
        detail=where
        + snapshot.file_summary
        + set_to
        + shlex.join(command),  # our own lines first: a command may have several
        why=verdict.reason,
        asker=asker,
        always=rememberable,
        lasting=describe_scope(bound for bound in snapshot.bindings if bound is not None) if rememberable else "",
        binding=hashlib.sha256(msgspec.json.encode(snapshot, order="sorted")).hexdigest(),
    )


def _visible_name(path: str) -> str:
    return escape_line(PurePath(path).name)


def describe_scope(bindings: Iterable[CommandBinding]) -> str:
    """Where and how long a remembered answer with these would hold, for people."""
    listed = list(bindings)
    files = dict.fromkeys(_visible_name(path) for bound in listed for path in bound.files or ())
    while_so = (
        f", while {', '.join(files)} stay{'s' if len(files) == 1 else ''} as now; {INDIRECT_FILES_NOTICE}"
        if files
        else ""
    )
    return f"in {', '.join(dict.fromkeys(bound.cwd for bound in listed))}{while_so}" if listed else ""


def describe_binding(rule: Rule) -> str:
    """What a rule is bound to, for people; empty when it holds anywhere."""
    cwd, files, pattern_only = rule.binding
    if pattern_only:
        return "while it names no file"
    named = [f"{path} ({digest[:12]})" for path, digest in (files or {}).items()]
    parts = [f"in {cwd}"] if cwd is not None else []
    return ", ".join([*parts, *([f"while as it was: {', '.join(named)}"] if named else [])])


def _to_wire_rule(rule: Rule) -> Rule:
    """As gateways take rules: they know only the first five fields, so the description says what it is bound to."""
    bound = describe_binding(rule) if rule.action == "allow" else ""
    text = f"{rule.description or ''} {bound}".strip() if bound else rule.description
    return msgspec.structs.replace(rule, cwd=None, files=None, description=text)


def _wire_key(rule: Rule) -> tuple[str, tuple[str, ...] | None, str | None]:
    return rule.pattern, rule.shells or None, rule.description


def _restore_binding(rule: Rule, rules_by_key: Mapping[tuple[str, tuple[str, ...] | None, str | None], Rule]) -> Rule:
    """A rule that came back from the wire, bound as the rule it was made from."""
    old = rules_by_key.get(_wire_key(rule))
    if old is None or rule.cwd is not None or rule.files is not None:
        return rule
    return msgspec.structs.replace(rule, cwd=old.cwd, files=old.files, description=old.description)


def _check_policy(policy: ExecPolicy) -> None:
    if len(policy.rules) > MAX_RULES:
        raise BadPolicy(f"there are more than {MAX_RULES} rules")
    for rule in policy.rules:
        if not rule.pattern.strip() or len(rule.pattern) > MAX_PATTERN_LENGTH:
            raise BadPolicy(f"a rule's pattern is empty or longer than {MAX_PATTERN_LENGTH} characters")
