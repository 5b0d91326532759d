"""`openclaw approvals`: answer questions in this terminal, and change the rules and consents of the node."""

import argparse
import asyncio
import json
import os
import shlex
import stat
import sys
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec

from ..core.approvals import describe_place
from ..core.errors import OpenClawError
from ..core.model import Json
from ..core.rpc import APPROVALS
from ..core.visible_text import escape_command, escape_line, escape_unsafe
from ..net.gateway_client.client import GatewayClient
from ..net.state_dir import state_dir_path
from ..net.tasks import Tasks
from ..node.consent import CONSENT_TOPICS, ConsentStore
from ..node.exec.approvals import ExecAuthorizer, describe_binding
from ..node.exec.program_locator import ProgramLocator
from ..node.exec.rule_risks import assess_pattern, default_allow_risk, unknown_program_warning
from ..node.exec.rules import Action, ExecPolicy, Rule
from ..node.questions import PromptAnswer, PromptRouter
from ..node.terminal_questions import SOCKET_PATTERN, SocketUnavailable, watch_questions
from .commands import repeat_options
from .gateway_connection import add_gateway_options, connect_operator

SCAN_INTERVAL: Final = 1.0  # seconds between looks for nodes that have started
CLIENT_CAPS: Final = ("approvals", "exec-approvals")
"""By these OpenClaw's own gateway knows that a question shown here may be answered."""
YES_HELP: Final = "make it also if it lets other programs start, without being asked once more"
FLUSH_TIMEOUT: Final = 2.0  # seconds an answer gets to reach the gateway when we leave

_ANSWERS: Final[dict[str, PromptAnswer]] = {"y": "once", "yes": "once", "a": "always", "always": "always"}


def arguments(parser: argparse.ArgumentParser) -> None:
    _common_arguments(parser)
    parser.add_argument("--gateway", action="store_true", help="answer the questions a gateway has, of all its nodes")
    add_gateway_options(parser)
    actions = parser.add_subparsers(
        dest="action", title="without an action, questions are answered here", metavar="ACTION"
    )
    actions.add_parser("list", help="the rules and consents")
    for action in ("allow", "deny", "prompt"):
        rule = actions.add_parser(action, help=f"add a rule: openclaw approvals {action} 'seq *'")
        rule.add_argument("pattern", help="a program and its arguments; * and ? are wildcards")
        if action == "allow":
            rule.add_argument("--yes", action="store_true", help=YES_HELP)
    forget = actions.add_parser("forget", help="remove the rules with this pattern")
    forget.add_argument("pattern")
    default = actions.add_parser("default", help="what happens to commands no rule covers")
    default.add_argument("default", choices=("allow", "prompt", "deny"))
    default.add_argument("--yes", action="store_true", help=YES_HELP)
    for action, meaning in (
        ("grant", "consent to"),
        ("refuse", "never consent to"),
        ("revoke", "be asked again about"),
    ):
        consent = actions.add_parser(action, help=f"{meaning} camera or screen.record")
        consent.add_argument("thing", choices=CONSENT_TOPICS)
    test = actions.add_parser("test", help="what the rules say of a command; nothing runs")
    test.add_argument("command", nargs="+")
    repeat_options(_common_arguments, *actions.choices.values())


def _common_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--state-dir", help="the node's state directory (default $OPENCLAW_STATE_DIR, else ~/.openclaw-mcp)"
    )
    parser.add_argument("--json", action="store_true", help="with list and test: answer as JSON")


def run(options: argparse.Namespace) -> int:
    folder = state_dir_path(options.state_dir)
    asking = PromptRouter(seconds=lambda: 0, ask_in_client=lambda: False)
    approvals = ExecAuthorizer(state_dir=folder, prompt_router=asking)
    consents = ConsentStore(state_dir=folder, prompt_router=asking)
    if options.action is None:
        _require_answers()
    if options.action is None and (options.gateway or options.url):
        return asyncio.run(_answer_for_gateway(folder, url=options.url, token=options.token))
    if options.action is None:
        return asyncio.run(_answer_local(folder))
    if options.action in ("grant", "refuse"):
        consents.record(options.thing, "allow" if options.action == "grant" else "deny")
    elif options.action == "revoke":
        consents.revoke(options.thing)
    elif options.action == "list":
        _list(approvals, consents, as_json=options.json)
    elif options.action == "test":
        return _test(approvals, options.command, as_json=options.json)
    else:
        changed = _edit_policy(approvals.load_policy(), options)
        _confirm(options)
        approvals.save_policy(changed)
    return 0


def _confirm(options: argparse.Namespace) -> None:
    """Show what a rule allows; for a severe one, go on only after a second yes. Raises OpenClawError."""
    if options.action == "allow":
        risk = assess_pattern(options.pattern, ProgramLocator(None).real_path)
    else:
        risk = default_allow_risk() if options.action == "default" and options.default == "allow" else None
    if risk is None:
        unknown = unknown_program_warning(options.pattern) if options.action == "allow" else ""
        if unknown:
            print(f"{escape_command(unknown)}.", flush=True)
        return
    print(f"{escape_command(str(risk))}.\nSafer: {escape_command(risk.safer_alternative)}.", flush=True)
    if not risk.severe or options.yes:
        return
    if not sys.stdin.isatty():
        raise OpenClawError("nothing was changed: there is no terminal to ask once more in; add --yes if you mean it")
    print("Allow it all the same? [y/N] ", end="", flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise OpenClawError("nothing was changed")


def _edit_policy(policy: ExecPolicy, options: argparse.Namespace) -> ExecPolicy:
    if options.action == "default":
        return msgspec.structs.replace(policy, default_action=options.default)
    others = tuple(rule for rule in policy.rules if rule.pattern != options.pattern)
    if options.action == "forget":
        if len(others) == len(policy.rules):
            raise OpenClawError(f"there is no rule with the pattern {options.pattern!r}; see openclaw approvals list")
        return msgspec.structs.replace(policy, rules=others)
    action: Action = options.action
    # At the front: a rule added by hand is meant to apply.
    return msgspec.structs.replace(policy, rules=(Rule(pattern=options.pattern, action=action), *others))


def _list(approvals: ExecAuthorizer, consents: ConsentStore, *, as_json: bool) -> None:
    policy, given = approvals.load_policy(), consents.load()
    if as_json:
        print(json.dumps({"policy": msgspec.to_builtins(policy), "consents": msgspec.to_builtins(given)}, indent=2))
        return
    for rule in policy.rules:
        bound = describe_binding(rule) if rule.action == "allow" else ""
        notes = f"{f'  ({bound})' if bound else ''}{'' if rule.enabled else '  (disabled)'}"
        print(escape_line(escape_command(f"{rule.action:7} {rule.pattern}{notes}")))
    print(f"{policy.default_action:7} everything else")
    for thing in CONSENT_TOPICS:
        print(f"{given[thing].decision if thing in given else 'ask':7} {thing}")


def _test(approvals: ExecAuthorizer, command: list[str], *, as_json: bool) -> int:
    argv = ["sh", "-c", command[0]] if len(command) == 1 else command
    verdict = approvals.evaluate(argv)
    if as_json:
        print(json.dumps({"action": verdict.action, "reason": verdict.reason, "certain": verdict.certain}))
    else:
        print(escape_command(f"{verdict.action}: {shlex.join(argv)}: {verdict.reason}"))
    return 0 if verdict.action == "allow" else 1


# ---- answering ----


def _require_answers() -> None:
    """Raises OpenClawError where nobody can type one."""
    kind = os.fstat(sys.stdin.fileno()).st_mode
    if not (sys.stdin.isatty() or stat.S_ISFIFO(kind) or stat.S_ISSOCK(kind)):
        raise OpenClawError("questions are answered in a terminal; start it in one, or set rules with its other verbs")


async def _answer_local(folder: Path) -> int:
    """Until interrupted: every node of this state directory asks here."""
    print(f"Waiting for questions of the nodes in {folder}; leave with Ctrl-C.", flush=True)
    prompt = _QuestionPrompt()
    async with asyncio.TaskGroup() as tasks:
        known: set[Path] = set()
        attending: list[asyncio.Task[None]] = []

        async def attend(path: Path) -> None:
            with suppress(SocketUnavailable, ConnectionError):
                async with watch_questions(path) as watcher:
                    async for message in watcher.messages():
                        prompt.on_message(message, watcher)
            known.discard(path)

        reading = tasks.create_task(prompt.read_answers())
        while not reading.done():
            for path in set(folder.glob(SOCKET_PATTERN)) - known:  # noqa: ASYNC240  a handful of names
                known.add(path)
                attending.append(tasks.create_task(attend(path)))
            await asyncio.wait((reading,), timeout=SCAN_INTERVAL)
        for task in attending:  # the terminal is closed: no answers any more
            task.cancel()
    return 0


async def _answer_for_gateway(folder: Path, *, url: str | None, token: str | None) -> int:
    """Until interrupted: questions of every node of a gateway, and of its agents, are answered here."""
    prompt = _QuestionPrompt()
    async with connect_operator(
        folder, url=url, token=token, scopes=(APPROVALS,), caps=CLIENT_CAPS, redial=True
    ) as client:
        questions = _GatewayQuestions(client, prompt)
        client.connected.connect(lambda _: questions.fetch_questions())
        client.events.connect(lambda event: questions.on_event(event.event, event.payload))
        print(f"Waiting for questions of {client.url}; leave with Ctrl-C.", flush=True)
        questions.fetch_questions()
        try:
            await prompt.read_answers()
        finally:
            await questions.aclose()
    return 0


class _GatewayQuestions:
    """A gateway's questions as the prompt shows them, and the prompt's answers as the gateway takes them."""

    def __init__(self, client: GatewayClient, prompt: "_QuestionPrompt") -> None:
        self._client = client
        self._prompt = prompt
        self._tasks = Tasks("approvals")

    def on_event(self, event: str, payload: Any) -> None:
        if event == "exec.approval.requested":
            self._prompt.on_message({"question": _question_from_request(payload)}, self)
        elif event == "exec.approval.resolved":
            self._prompt.on_message({"settled": payload["id"]}, self)

    def fetch_questions(self) -> None:
        """Fetch the questions that were asked before we connected."""
        self._tasks.spawn(self._report_failure(self._fetch_questions()), name="questions")

    def answer(self, id: str, answer: PromptAnswer) -> None:
        decision = {"once": "allow-once", "always": "allow-always", "deny": "deny"}[answer]
        self._tasks.spawn(self._report_failure(self._answer(id, decision)), name="answer")

    async def aclose(self) -> None:
        """Send the last answers."""
        await self._tasks.finish(FLUSH_TIMEOUT)

    async def _fetch_questions(self) -> None:
        for asked in await self._client.call("exec.approval.list"):
            self.on_event("exec.approval.requested", asked)

    async def _answer(self, id: str, decision: str) -> None:
        await self._client.call("exec.approval.resolve", {"id": id, "decision": decision})

    async def _report_failure(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except OpenClawError as exc:
            print(f"({exc})", flush=True)


def _question_from_request(approval: Json) -> Json:
    request = approval["request"]
    where = describe_place(
        node_name=request.get("nodeName"), node_id=request.get("nodeId"), host=str(request.get("host") or "")
    )
    return {
        "id": approval["id"],
        "title": "May this command run?",
        "detail": _folder_line(request) + escape_command(str(request["command"])),
        "why": escape_line(str(request.get("warningText") or "no rule covers it")),
        "asker": escape_line(f"{where}{f', agent {agent}' if (agent := request.get('agentId')) else ''}"),
        "always": "allow-always" in request.get("allowedDecisions", ()),
    }


def _folder_line(request: Json) -> str:
    return f"in {escape_line(escape_command(str(request['cwd'])))}\n" if request.get("cwd") else ""


class _AnswerTarget(Protocol):
    """Where an answer is sent."""

    def answer(self, id: str, answer: PromptAnswer) -> None: ...


class _QuestionPrompt:
    """The questions not yet answered, the oldest first, and the person typing."""

    def __init__(self, show: Callable[[str], None] = lambda text: print(text, flush=True)) -> None:
        self._show = show
        self._pending: dict[str, tuple[Json, _AnswerTarget]] = {}
        self._last_answered_id = ""
        """The question that was answered here last."""
        self._settled_elsewhere = False
        """The question on the screen was settled elsewhere: the next line may have been meant for it."""

    def on_message(self, message: Json, target: _AnswerTarget) -> None:
        if "question" in message:
            question = message["question"]
            if question["id"] in self._pending:
                return
            self._pending[question["id"]] = (question, target)
            if len(self._pending) == 1:
                self._show_oldest()
        elif (settled := message.get("settled", "")) in self._pending:
            answered_here = settled == self._last_answered_id
            self._settled_elsewhere |= settled == next(iter(self._pending)) and not answered_here
            del self._pending[settled]
            self._show("(answered)" if answered_here else "(answered elsewhere, or no longer asked)")
            self._show_oldest()

    def _show_oldest(self) -> None:
        if self._pending:
            question, _ = next(iter(self._pending.values()))
            detail = escape_unsafe(question["detail"]).replace(
                "\n", "\n  | "
            )  # no line of it can look like one of ours
            lasting = question.get("lasting") if question["always"] else None
            choices = "[y]es once, [a]lways, [n]o" if question["always"] else "[y]es once, [n]o"
            title, why, asker = (escape_line(question[part]) for part in ("title", "why", "asker"))
            self._show(f"\n{title}\n  {detail}\n  {why}; asked by {asker}")
            if lasting:
                self._show(f"  always would hold {escape_line(lasting)}")
            self._show(f"{choices}:")

    async def read_answers(self) -> None:
        """Each line answers the oldest question. Anything but a clear yes is a no."""
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        while line := await reader.readline():
            self.on_line(line.decode(errors="replace"))

    def on_line(self, line: str) -> None:
        """A line answers the question it was typed for: none, when that may have been one that is gone."""
        if self._settled_elsewhere:
            self._settled_elsewhere = False
            if self._pending:
                self._show("(that may have been for the question before; look at this one, and answer again)")
                self._show_oldest()
        elif self._pending:
            question, watcher = next(iter(self._pending.values()))
            answer = _ANSWERS.get(line.strip().lower(), "deny")
            offered = answer != "always" or question["always"]
            self._last_answered_id = question["id"]
            watcher.answer(question["id"], answer if offered else "deny")
