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

from ..core.errors import OpenClawError
from ..core.model import Json
from ..core.rpc import APPROVALS
from ..core.visible_text import visible, visible_command, visible_line
from ..net.gateway_client.client import Client
from ..node.consent import THINGS, Consents
from ..node.exec.approvals import Approvals, described
from ..node.exec.program_locator import Locator
from ..node.exec.rule_risks import everything_allowed, risk_of, unknown_to_us
from ..node.exec.rules import Action, ExecPolicy, Rule
from ..node.questions import Answer, Asking
from ..node.settings import state_dir
from ..node.terminal_questions import SOCKETS, NoSocket, watching
from .commands import repeated
from .operator_client import arguments as gateway_arguments
from .operator_client import operator

LOOK_AGAIN: Final = 1.0  # seconds between looks for nodes that have started
CAPS: Final = ("approvals", "exec-approvals")
"""By these words OpenClaw's own gateway knows that a question shown here may be answered."""
YES_HELP: Final = "make it also if it lets other programs start, without being asked once more"
LAST_WORDS: Final = 2.0  # seconds an answer gets to reach the gateway when we leave

_ANSWERS: Final[dict[str, Answer]] = {"y": "once", "yes": "once", "a": "always", "always": "always"}


def arguments(parser: argparse.ArgumentParser) -> None:
    _common(parser)
    parser.add_argument("--gateway", action="store_true", help="answer the questions a gateway has, of all its nodes")
    gateway_arguments(parser)
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
        consent.add_argument("thing", choices=THINGS)
    test = actions.add_parser("test", help="what the rules say of a command; nothing runs")
    test.add_argument("command", nargs="+")
    repeated(_common, *actions.choices.values())


def _common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--state-dir", help="the node's state directory (default ~/.openclaw-mcp)")
    parser.add_argument("--json", action="store_true", help="with list and test: answer as JSON")


def run(options: argparse.Namespace) -> int:
    folder = state_dir(options.state_dir)
    asking = Asking(seconds=lambda: 0, in_client=lambda: False)
    approvals = Approvals(state_dir=folder, asking=asking)
    consents = Consents(state_dir=folder, asking=asking)
    if options.action is None and (options.gateway or options.url):
        return asyncio.run(_answer_for_gateway(folder, url=options.url, token=options.token))
    if options.action is None:
        return asyncio.run(_answer_here(folder))
    if options.action in ("grant", "refuse"):
        consents.record(options.thing, "allow" if options.action == "grant" else "deny")
    elif options.action == "revoke":
        consents.revoke(options.thing)
    elif options.action == "list":
        _list(approvals, consents, as_json=options.json)
    elif options.action == "test":
        return _test(approvals, options.command, as_json=options.json)
    else:
        changed = _changed(approvals.policy(), options)
        _confirm(options)
        approvals.save(changed)
    return 0


def _confirm(options: argparse.Namespace) -> None:
    """Say what a rule lets through; for a grave one, go on only after a second yes. Raises OpenClawError."""
    if options.action == "allow":
        risk = risk_of(options.pattern, Locator(None).path)
    else:
        risk = everything_allowed() if options.action == "default" and options.default == "allow" else None
    if risk is None:
        unknown = unknown_to_us(options.pattern) if options.action == "allow" else ""
        if unknown:
            print(f"{visible_command(unknown)}.", flush=True)
        return
    print(f"{visible_command(str(risk))}.\nSafer: {visible_command(risk.safer)}.", flush=True)
    if not risk.grave or options.yes:
        return
    if not sys.stdin.isatty():
        raise OpenClawError("nothing was changed: there is no terminal to ask once more in; add --yes if you mean it")
    print("Allow it all the same? [y/N] ", end="", flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise OpenClawError("nothing was changed")


def _changed(policy: ExecPolicy, options: argparse.Namespace) -> ExecPolicy:
    if options.action == "default":
        return msgspec.structs.replace(policy, default_action=options.default)
    others = tuple(rule for rule in policy.rules if rule.pattern != options.pattern)
    if options.action == "forget":
        if len(others) == len(policy.rules):
            raise OpenClawError(f"there is no rule with the pattern {options.pattern!r}; see openclaw approvals list")
        return msgspec.structs.replace(policy, rules=others)
    action: Action = options.action
    # At the front: whoever adds a rule by hand means it to count.
    return msgspec.structs.replace(policy, rules=(Rule(pattern=options.pattern, action=action), *others))


def _list(approvals: Approvals, consents: Consents, *, as_json: bool) -> None:
    policy, given = approvals.policy(), consents.all()
    if as_json:
        print(json.dumps({"policy": msgspec.to_builtins(policy), "consents": msgspec.to_builtins(given)}, indent=2))
        return
    for rule in policy.rules:
        bound = described(rule) if rule.action == "allow" else ""
        notes = f"{f'  ({bound})' if bound else ''}{'' if rule.enabled else '  (disabled)'}"
        print(visible_line(visible_command(f"{rule.action:7} {rule.pattern}{notes}")))
    print(f"{policy.default_action:7} everything else")
    for thing in THINGS:
        print(f"{given[thing].decision if thing in given else 'ask':7} {thing}")


def _test(approvals: Approvals, command: list[str], *, as_json: bool) -> int:
    argv = ["sh", "-c", command[0]] if len(command) == 1 else command
    verdict = approvals.verdict(argv)
    if as_json:
        print(json.dumps({"action": verdict.action, "reason": verdict.reason, "certain": verdict.certain}))
    else:
        print(visible_command(f"{verdict.action}: {shlex.join(argv)}: {verdict.reason}"))
    return 0 if verdict.action == "allow" else 1


# ---- answering ----


async def _answer_here(folder: Path) -> int:
    """Until interrupted: every node of this state directory asks here."""
    kind = os.fstat(sys.stdin.fileno()).st_mode
    if not (sys.stdin.isatty() or stat.S_ISFIFO(kind) or stat.S_ISSOCK(kind)):
        raise OpenClawError("questions are answered in a terminal; start it in one, or set rules with its other verbs")
    print(f"Waiting for questions of the nodes in {folder}; leave with Ctrl-C.", flush=True)
    desk = _Desk()
    async with asyncio.TaskGroup() as tasks:
        known: set[Path] = set()
        attending: list[asyncio.Task[None]] = []

        async def attend(path: Path) -> None:
            with suppress(NoSocket, ConnectionError):
                async with watching(path) as watcher:
                    async for message in watcher.messages():
                        desk.hear(message, watcher)
            known.discard(path)

        reading = tasks.create_task(desk.read())
        while not reading.done():
            for path in set(folder.glob(SOCKETS)) - known:  # noqa: ASYNC240  a handful of names
                known.add(path)
                attending.append(tasks.create_task(attend(path)))
            await asyncio.wait((reading,), timeout=LOOK_AGAIN)
        for task in attending:  # nobody is left to answer
            task.cancel()
    return 0


async def _answer_for_gateway(folder: Path, *, url: str | None, token: str | None) -> int:
    """Until interrupted: questions of every node of a gateway, and of its agents, are answered here."""
    desk = _Desk()
    async with operator(folder, url=url, token=token, scopes=(APPROVALS,), caps=CAPS, redial=True) as client:
        booth = _Booth(client, desk)
        client.greeted.listen(lambda _: booth.catch_up())
        client.events.listen(lambda news: booth.hear(news.event, news.payload))
        print(f"Waiting for questions of {client.url}; leave with Ctrl-C.", flush=True)
        booth.catch_up()
        try:
            await desk.read()
        finally:
            await booth.aclose()
    return 0


class _Booth:
    """A gateway's questions in the words of the desk, and its answers in the gateway's."""

    def __init__(self, client: Client, desk: "_Desk") -> None:
        self._client = client
        self._desk = desk
        self._tasks: set[asyncio.Task[None]] = set()

    def hear(self, event: str, payload: Any) -> None:
        if event == "exec.approval.requested":
            self._desk.hear({"question": _in_our_words(payload)}, self)
        elif event == "exec.approval.resolved":
            self._desk.hear({"settled": payload["id"]}, self)

    def catch_up(self) -> None:
        """Ask for what was asked before we came."""
        self._soon(self._catch_up())

    def answer(self, id: str, answer: Answer) -> None:
        decision = {"once": "allow-once", "always": "allow-always", "deny": "deny"}[answer]
        self._soon(self._answer(id, decision))

    async def aclose(self) -> None:
        """Let the last answers out."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=LAST_WORDS)

    async def _catch_up(self) -> None:
        for asked in await self._client.call("exec.approval.list"):
            self.hear("exec.approval.requested", asked)

    async def _answer(self, id: str, decision: str) -> None:
        await self._client.call("exec.approval.resolve", {"id": id, "decision": decision})

    def _soon(self, work: Coroutine[Any, Any, None]) -> None:
        async def told() -> None:
            try:
                await work
            except OpenClawError as exc:
                print(f"({exc})", flush=True)

        task = asyncio.ensure_future(told())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _in_our_words(asked: Json) -> Json:
    request = asked["request"]
    where = f"node {request['nodeId'][:12]}" if request.get("nodeId") else str(request.get("host") or "the gateway")
    return {
        "id": asked["id"],
        "title": "May this command run?",
        "detail": _folder(request) + visible_command(str(request["command"])),
        "why": visible_line(str(request.get("warningText") or "no rule covers it")),
        "asker": visible_line(f"{where}{f', agent {agent}' if (agent := request.get('agentId')) else ''}"),
        "always": "allow-always" in request.get("allowedDecisions", ()),
    }


def _folder(request: Json) -> str:
    return f"in {visible_line(visible_command(str(request['cwd'])))}\n" if request.get("cwd") else ""


class _Answering(Protocol):
    """Where an answer goes."""

    def answer(self, id: str, answer: Answer) -> None: ...


class _Desk:
    """The questions not yet answered, the oldest first, and the person typing."""

    def __init__(self, show: Callable[[str], None] = lambda text: print(text, flush=True)) -> None:
        self._show = show
        self._open: dict[str, tuple[Json, _Answering]] = {}
        self._answered = ""
        """The question that was answered here last."""
        self._taken_away = False
        """The question on the screen was settled elsewhere: what is typed next may have been meant for it."""

    def hear(self, message: Json, watcher: _Answering) -> None:
        if "question" in message:
            question = message["question"]
            if question["id"] in self._open:
                return
            self._open[question["id"]] = (question, watcher)
            if len(self._open) == 1:
                self._present()
        elif (settled := message.get("settled", "")) in self._open:
            self._taken_away |= settled == next(iter(self._open)) and settled != self._answered
            del self._open[settled]
            self._show("(settled)")
            self._present()

    def _present(self) -> None:
        if self._open:
            question, _ = next(iter(self._open.values()))
            detail = visible(question["detail"]).replace("\n", "\n  | ")  # no line of it can pass for one of ours
            lasting = question.get("lasting") if question["always"] else None
            choices = "[y]es once, [a]lways, [n]o" if question["always"] else "[y]es once, [n]o"
            title, why, asker = (visible_line(question[part]) for part in ("title", "why", "asker"))
            self._show(f"\n{title}\n  {detail}\n  {why}; asked by {asker}")
            if lasting:
                self._show(f"  always would hold {visible_line(lasting)}")
            self._show(f"{choices}:")

    async def read(self) -> None:
        """Each line answers the oldest question. Whatever is not a clear yes is a no."""
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        while line := await reader.readline():
            self.typed(line.decode(errors="replace"))

    def typed(self, line: str) -> None:
        """A line answers the question it was typed for: none, when that may have been one that is gone."""
        if self._taken_away:
            self._taken_away = False
            if self._open:
                self._show("(that may have been for the question before; look at this one, and answer again)")
                self._present()
        elif self._open:
            question, watcher = next(iter(self._open.values()))
            answer = _ANSWERS.get(line.strip().lower(), "deny")
            offered = answer != "always" or question["always"]
            self._answered = question["id"]
            watcher.answer(question["id"], answer if offered else "deny")
