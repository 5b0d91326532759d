"""Running commands, finding programs, telling the person something, and the rules about running."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from ..core.errors import ToolArguments, ToolDenied, ToolError
from ..core.model import Json, ToolCall, ToolResult
from ..core.ports import ProcessGuard
from .arguments import command_spec, flag, text, trim
from .capability import Capability, NodeCommand, UnavailableReason, json_result
from .desktop import DesktopNotifier, Urgency
from .exec import process
from .exec.approvals import ExecAuthorizer
from .exec.environment import child_environment, find_blocked_names
from .exec.program_locator import ProgramLocator
from .exec.wrappers import POSIX_SHELLS
from .path_following import follow_links

DEFAULT_MS: Final = 30_000
MAX_MS: Final = 600_000
DEADLINE: Final = 3600.0 + MAX_MS / 1000 + 30  # the longest a person may think, the longest run, and some air
MAX_WORDS: Final = 4096  # of a command
MAX_BINS: Final = 256  # asked for at once

_RUN_PROPERTIES: Final[dict[str, Json]] = {
    "command": {
        "description": "The program and its arguments as a list; or text for a shell, each command of which is judged.",
        "anyOf": [{"type": "array", "items": {"type": "string"}, "minItems": 1}, {"type": "string", "minLength": 1}],
    },
    "args": {"type": "array", "items": {"type": "string"}, "description": "Arguments, when `command` is one program."},
    "shell": {"type": "string", "description": "The shell for text: sh (default), bash, dash or ksh."},
    "cwd": {"type": "string", "description": "Folder to run in; the node's own by default."},
    "env": {
        "type": "object",
        "additionalProperties": {"type": "string"},
        "description": "More environment variables; those that could change which code runs are refused.",
    },
    "timeoutMs": {
        "type": "integer",
        "description": "Milliseconds before it is killed: 30000 by default, at most 600000.",
    },
    "rawCommand": {"type": "string", "description": "The command as shown to people; must say the same as `command`."},
    "agentId": {"type": "string"},
    "sessionKey": {"type": "string"},
}

_RUN = command_spec(
    "system.run",
    "Run a command",
    (
        "Runs a command on this machine if its rules or its person allow it, and answers with its output, exit code "
        "and duration. Its whole process group ends with it."
    ),
    _RUN_PROPERTIES,
    required=("command",),
    annotations={"readOnlyHint": False, "destructiveHint": True, "openWorldHint": True},
    effect="run",
    deadline=DEADLINE,
)
_PREPARE = command_spec(
    "system.run.prepare",
    "Look at a command before running it",
    "Says what system.run would run, without running it.",
    _RUN_PROPERTIES,
    required=("command",),
)
_WHICH = command_spec(
    "system.which",
    "Find programs",
    "Where the named programs are on this machine; those not found are left out.",
    {"bins": {"type": "array", "items": {"type": "string"}, "description": "Program names, without folders."}},
    required=("bins",),
)
_NOTIFY = command_spec(
    "system.notify",
    "Notify the person",
    "Shows a notification on this machine's desktop.",
    {
        "title": {"type": "string"},
        "body": {"type": "string"},
        "subtitle": {"type": "string"},
        "sound": {"type": "boolean"},
        "priority": {"type": "string", "description": "passive, active or timeSensitive."},
    },
    annotations={"readOnlyHint": False, "destructiveHint": False, "openWorldHint": False},
    effect="send",
)
_GET = command_spec(
    "system.execApprovals.get",
    "Read the rules about running commands",
    "The rules by which commands are allowed, denied or put to a person, and their hash.",
)
_SET = command_spec(
    "system.execApprovals.set",
    "Tighten the rules about running commands",
    "Replaces the rules by stricter ones; needs the hash of the present ones as `baseHash`.",
    {
        "baseHash": {"type": "string"},
        "defaultAction": {"type": "string", "enum": ["allow", "prompt", "deny"]},
        "rules": {"type": "array", "items": {"type": "object"}},
    },
    required=("rules",),
    annotations={"readOnlyHint": False, "destructiveHint": False, "openWorldHint": False},
    effect="write",
)
_URGENCIES: Final[dict[str | None, Urgency]] = {"passive": "low", "active": "normal", "timeSensitive": "critical"}


class SystemRunRequest(Struct, frozen=True, kw_only=True):
    argv: tuple[str, ...]
    env: dict[str, str]
    cwd: Path | None
    seconds: float


class SystemCapability(Capability):
    """The `system.*` commands."""

    name = "system"

    def __init__(
        self, *, approvals: ExecAuthorizer, desktop: DesktopNotifier, guard: ProcessGuard | None = None
    ) -> None:
        """`guard` ends commands should this process be killed."""
        self._guard, self._approvals, self._desktop = guard, approvals, desktop

    def commands(self) -> Sequence[NodeCommand]:
        return (
            NodeCommand(spec=_RUN, run=self._run, danger="dangerous"),
            NodeCommand(spec=_PREPARE, run=self._prepare),
            NodeCommand(spec=_WHICH, run=self._which),
            NodeCommand(spec=_NOTIFY, run=self._notify),
            NodeCommand(spec=_GET, run=self._get_approvals),
            NodeCommand(spec=_SET, run=self._set_approvals, danger="dangerous"),
        )

    def unavailable_reason(self, command: str) -> UnavailableReason | None:
        return self._desktop.unavailable_reason() if command == "system.notify" else None

    async def _run(self, call: ToolCall) -> ToolResult:
        request = parse_run_request(call.arguments)
        executable = ProgramLocator(request.cwd).executable(request.argv[0])
        if executable is None:
            raise ToolError(f"The program {request.argv[0][:80]!r} is not on this machine; see system.which")
        asker = f"{call.caller.kind} {call.caller.name}"
        await self._approvals.authorise(call, request.argv, cwd=request.cwd, asker=asker, env=request.env)

        async def report(seconds: float, last: str) -> None:
            await call.context.progress(seconds, total=request.seconds, message=last or None)

        ended = await process.run_process(
            request.argv,
            executable=executable,
            cwd=request.cwd,
            env={**child_environment(), **request.env},
            seconds=request.seconds,
            report=report,
            guard=self._guard,
        )
        return json_result(
            {
                "stdout": ended.stdout,
                "stderr": ended.stderr,
                "exitCode": ended.exit_code,
                "timedOut": ended.timed_out,
                "success": ended.exit_code == 0,
                "durationMs": round(ended.seconds * 1000),
                "truncated": ended.truncated,
            }
        )

    async def _prepare(self, call: ToolCall) -> ToolResult:
        request = parse_run_request(call.arguments)
        shown = text(call, "rawCommand") or shlex.join(request.argv)
        plan = {
            "argv": list(request.argv),
            "cwd": str(request.cwd) if request.cwd else None,
            "rawCommand": shown,
            "commandText": shown,
            "agentId": text(call, "agentId"),
            "sessionKey": text(call, "sessionKey"),
        }
        return json_result({"cmdText": shown, "plan": plan})

    async def _which(self, call: ToolCall) -> ToolResult:
        bins = [name.strip() for name in call.arguments["bins"] if name.strip()]
        if not bins or len(bins) > MAX_BINS:
            raise ToolArguments(f"Missing bins parameter: name 1 to {MAX_BINS} programs")
        if any("\0" in name for name in bins):
            raise ToolArguments("bins holds a NUL character")
        locator = ProgramLocator(None)
        # A name with a folder in it would tell whether any file exists.
        found = {name: locator.executable(name) for name in bins if "/" not in name and "\\" not in name}
        return json_result({"bins": {name: path for name, path in found.items() if path}})

    async def _notify(self, call: ToolCall) -> ToolResult:
        title = text(call, "title") or "OpenClaw"
        body = "\n".join(part for part in (text(call, "subtitle"), text(call, "body")) if part)
        urgency = _URGENCIES.get(text(call, "priority"), "normal")
        await self._desktop.notify(title, body, urgency=urgency, sound=flag(call, "sound", default=True))
        return json_result({"sent": True})

    async def _get_approvals(self, call: ToolCall) -> ToolResult:
        return json_result(self._approvals.describe_policy())

    async def _set_approvals(self, call: ToolCall) -> ToolResult:
        return json_result(self._approvals.tighten_policy(call.arguments))


def parse_run_request(arguments: Json) -> SystemRunRequest:
    """What a call of system.run asks for. Raises ToolArguments; ToolDenied for variables that may not be set."""
    argv = _parse_argv(arguments)
    if len(argv) > MAX_WORDS or any("\0" in word for word in argv):
        raise ToolArguments(f"command holds a NUL character, or more than {MAX_WORDS} words")
    raw = trim(arguments.get("rawCommand"))
    if raw is not None and raw not in (shlex.join(argv), _shell_script_text(argv)):
        raise ToolArguments("rawCommand says something else than command; leave it out")
    env = arguments.get("env") or {}
    refused = find_blocked_names(env)
    if refused:
        raise ToolDenied(f"Unsafe environment variable override blocked: {', '.join(refused)[:400]}")
    if any("\0" in value for value in env.values()):
        raise ToolArguments("env holds a NUL character")
    limits = (arguments.get("timeoutMs"), arguments.get("timeout"))
    limit = next((value for value in limits if type(value) is int and value > 0), DEFAULT_MS)
    return SystemRunRequest(argv=argv, env=env, cwd=_parse_cwd(arguments.get("cwd")), seconds=min(limit, MAX_MS) / 1000)


def _parse_argv(arguments: Json) -> tuple[str, ...]:
    command, args = arguments["command"], arguments.get("args")
    if type(command) is list:
        if not command[0].strip():
            raise ToolArguments("Missing command parameter: the program's name is blank")
        return tuple(command)
    if not command.strip():
        raise ToolArguments("Missing command parameter")
    if args is not None:
        return (command, *args)
    shell = arguments.get("shell") or "sh"
    if shell not in POSIX_SHELLS:
        raise ToolArguments(f"shell must be one of {', '.join(sorted(POSIX_SHELLS))}, or give command as a list")
    return (shell, "-c", command)


def _shell_script_text(argv: Sequence[str]) -> str | None:
    """What a shell is given to read. Only a shell by its bare name: another program does with it what it likes."""
    return argv[2] if len(argv) == 3 and argv[1] == "-c" and argv[0] in POSIX_SHELLS else None


def _parse_cwd(folder_text: Any) -> Path | None:
    if folder_text is None:
        return None
    if type(folder_text) is not str or not folder_text.strip():
        raise ToolArguments("cwd must be the path of a folder, or left out")
    folder = Path(folder_text).expanduser()
    if not folder.is_absolute() or not folder.is_dir():
        raise ToolArguments("cwd must be the absolute path of a folder that exists")
    real, steady = follow_links(str(folder))
    if not steady:
        raise ToolArguments("cwd must not pass through /proc: it means another folder to each process")
    return Path(real)  # where a link leads by now is where the command is judged, and where it starts
