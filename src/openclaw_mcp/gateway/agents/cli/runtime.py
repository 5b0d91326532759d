"""A CLI as an agent: one process for each turn, its events told as it speaks, nothing of it left afterwards."""

import asyncio
import contextlib
import hashlib
import logging
import secrets
import shutil
import tempfile
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack, aclosing
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
from msgspec import Struct

from ....core.agent import AgentEvent, Attachment, EffectsReported, PartialAnswer, ToolUse, Turn, TurnFailed, Usage
from ....core.agent import TurnCompleted as Answered
from ....core.agents import AgentProfile
from ....core.effects import RunEffects
from ....core.errors import OpenClawError
from ....core.mime import suffix_of
from ....core.model_name import check_model_name
from ....core.ports import ProcessGuard
from ....core.providers import cli_model
from ....net.processes import RUN_MARK_VARIABLE
from . import errors
from .confinement import filter_environment, prepare_confined_folder, read_workspace_instructions
from .dialect import CliAdapter, CliEventReader, CliTurn, classify_error
from .grant_bridge import GatewayAccess, RunGatewayAccess, open_gateway_access
from .process import CliCommand, CliProcess, CliSilentError
from .prompt import build_system_prompt, format_history
from .run_folder import RunFolders
from .settings import CliSettings, base_environment, find_secrets, parse_cli_settings

logger = logging.getLogger(__name__)

MAX_TRIES: Final = 4  # starts for one turn, as long as nothing has happened in it
RETRY_REASONS: Final = {
    "resume": "it no longer knows its session",
    "store": "another start of it was bringing its store up to date",
}
MOST_CONCURRENT_CLIS: Final = (
    8  # CLIs at work in one gateway: each is some hundred megabytes; the others wait their turn
)
EFFORTS: Final[dict[str, Literal["low", "medium", "high"]]] = {
    "minimal": "low", "low": "low", "medium": "medium", "high": "high", "xhigh": "high", "max": "high",
}  # fmt: skip


class CliRuntimeContext(Struct, frozen=True, kw_only=True):
    """What the caretaker lends."""

    state_folder: Path
    """Where agents without a workspace get one."""
    run_folders: RunFolders
    get_agent: Callable[[str], AgentProfile]
    gateway_access: GatewayAccess | None = None
    guard: ProcessGuard | None = None
    slots: asyncio.Semaphore


class ResumeState(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What `Turn.resume` holds: whose session it is, and what it has used so far where the CLI counts on and on."""

    runtime: str
    id: str
    used: Usage | None = None
    confined: bool = False
    """Whose run it was: what the owner's tools have read into a session is not for others to ask about."""


class CliAgent:
    """An `AgentRuntime`."""

    def __init__(self, adapter: CliAdapter, context: CliRuntimeContext) -> None:
        self.id = adapter.id
        self.media_types = adapter.media_types
        self._adapter = adapter
        self._context = context

    async def run(self, turn: Turn) -> AsyncGenerator[AgentEvent]:
        async with AsyncExitStack() as stack:
            try:
                await stack.enter_async_context(self._context.slots)
                job = await self._prepare(turn, stack)
            except (OpenClawError, OSError) as exc:
                yield errors.start_failure(self._adapter, exc)
                return
            if isinstance(job, TurnFailed):
                yield job
                return
            if job.attachment_warning:
                yield PartialAnswer(job.attachment_warning)
            attempt, tries = CliAttempt(job, job.resume_state), 1
            while True:
                async with aclosing(attempt.events()) as events:
                    async for event in events:
                        yield event
                if attempt.retry_reason is None or tries == MAX_TRIES:
                    break
                logger.info(
                    "run %s: %s is started again: %s", turn.run_id, self.id, RETRY_REASONS[attempt.retry_reason]
                )
                attempt, tries = (
                    CliAttempt(job, None if attempt.retry_reason == "resume" else attempt.resume_state),
                    tries + 1,
                )
            for event in await job.final_events(attempt):
                yield event

    async def _prepare(self, turn: Turn, stack: AsyncExitStack) -> "PreparedTurn | TurnFailed":
        card = self._context.get_agent(turn.agent_id)
        check_model_name(_model_name(turn, card))  # whoever named it: it becomes a word of the command line
        settings = parse_cli_settings(card.settings)
        env = base_environment() | dict(settings.env)
        command = settings.command or self._adapter.program
        program = await asyncio.to_thread(_find_program, command, env["PATH"])
        if program is None:
            return errors.installation_failure(self._adapter, command)
        workspace = await asyncio.to_thread(self._ensure_workspace, turn, card)
        # Here alone it is decided whether the CLI's own tools and its user's settings are for this run.
        confined = (
            None
            if turn.caller.is_owner
            else await asyncio.to_thread(prepare_confined_folder, self._context.state_folder, card.id)
        )
        folder = stack.enter_context(self._context.run_folders.create())
        env[RUN_MARK_VARIABLE] = secrets.token_hex(8)
        # Python finds what a user installed by the user's home, which a confined CLI has not.
        always = {name: value for name, value in env.items() if name in (RUN_MARK_VARIABLE, "HOME")}
        crossed = stack.enter_context(open_gateway_access(self._context.gateway_access, folder, turn, fixed_env=always))
        return PreparedTurn(
            adapter=self._adapter,
            turn=turn,
            profile=card,
            settings=settings,
            program=program,
            env=env,
            workspace=workspace,
            confined_folder=confined,
            folder=folder,
            gateway_access=crossed,
            guard=self._context.guard,
        )

    def _ensure_workspace(self, turn: Turn, profile: AgentProfile) -> Path:
        chosen = (turn.cwd if turn.caller.is_owner else None) or profile.workspace
        path = Path(chosen).expanduser() if chosen else self._context.state_folder / "workspaces" / profile.id
        path.mkdir(parents=True, exist_ok=True)
        return path.resolve()


class PreparedTurn(Struct, frozen=True, kw_only=True):
    """A turn made ready: everything but which session it goes on with."""

    adapter: CliAdapter
    turn: Turn
    profile: AgentProfile
    settings: CliSettings
    program: str
    env: dict[str, str]
    workspace: Path
    confined_folder: Path | None
    """As in an `Order`."""
    folder: Path
    gateway_access: RunGatewayAccess | None
    guard: ProcessGuard | None

    @property
    def cwd(self) -> Path:
        return self.workspace if self.confined_folder is None else self.confined_folder / "work"

    @property
    def resume_state(self) -> ResumeState | None:
        return _decode_resume(self.turn.resume, self.adapter.id, confined=self.confined_folder is not None)

    @property
    def secrets(self) -> list[str]:
        """What no error may repeat."""
        return [*([self.gateway_access.token] if self.gateway_access is not None else []), *find_secrets(self.env)]

    @property
    def attachment_warning(self) -> str:
        """One warning for all it can't see."""
        left_out = [each for each in self.turn.attachments if not _is_visible(each, self.adapter.media_types)]
        if not left_out:
            return ""
        kinds = "/".join(sorted({each.kind for each in left_out}))
        which = "an attachment was" if len(left_out) == 1 else f"{len(left_out)} attachments were"
        return f"⚠️ {self.adapter.title} can't see {kinds} attachments here; {which} left out.\n\n"

    async def build_cli_turn(self, resume_state: ResumeState | None) -> CliTurn:
        turn = self.turn
        told = "" if resume_state is not None else await format_history(turn)
        prompt = f"<earlier>\n{told}\n</earlier>\n\n{turn.prompt}" if told else _escape_command(turn)
        note = (
            await asyncio.to_thread(read_workspace_instructions, self.workspace, self.adapter.instructions_file)
            if self.confined_folder
            else None
        )
        seen = [each for each in turn.attachments if _is_visible(each, self.adapter.media_types)]
        folder = Path(await asyncio.to_thread(tempfile.mkdtemp, prefix="try-", dir=self.folder))
        return CliTurn(
            prompt=prompt,
            system_prompt=build_system_prompt(
                turn, (self.profile.settings.get("systemPrompt"), note, turn.system_prompt)
            ),
            session=resume_state.id if resume_state is not None else None,
            model=_model_name(turn, self.profile),
            effort=EFFORTS.get(turn.thinking or ""),
            files=await asyncio.to_thread(_write_attachments, seen, folder),
            server=self.gateway_access.mcp_server if self.gateway_access is not None else None,
            strict=self.settings.strict or self.confined_folder is not None,
            folder=folder,
            confined_folder=self.confined_folder,
            conversation_id=hashlib.sha256(f"{turn.session_key}\0{turn.session_id}".encode()).hexdigest(),
            env=self.env,
            cwd=self.cwd,
        )

    async def build_command(self, cli_turn: CliTurn) -> CliCommand:
        spoken = await asyncio.to_thread(self.adapter.build_invocation, cli_turn)
        # What a person adds is meant for their own runs: one flag would give the CLI's tools back.
        added = () if self.confined_folder else self.settings.args
        env = filter_environment(self.env, self.adapter) if self.confined_folder else self.env
        return CliCommand(
            argv=[self.program, *spoken.args, *added, *spoken.trailing_args],
            env={**env, **spoken.env, "PWD": str(self.cwd)},
            cwd=str(self.cwd),
            stdin=spoken.stdin,
        )

    async def final_events(self, attempt: "CliAttempt") -> Sequence[AgentEvent]:
        """What is to be said last: what was done to others, then how it ended."""
        crossed = self.gateway_access
        effects = RunEffects() if crossed is None else await crossed.collect_effects()
        return [*([EffectsReported(effects)] if effects != RunEffects() else []), *attempt.end_events()]


class CliAttempt:
    """One process."""

    def __init__(self, prepared: PreparedTurn, resume_state: ResumeState | None) -> None:
        self._prepared = prepared
        self.resume_state = resume_state
        self._reader: CliEventReader | None = None
        self._failure: TurnFailed | None = None
        self._has_output = False
        self.retry_reason: Literal["resume", "store"] | None = None
        """Why another start may do better. Nothing has happened yet."""

    async def events(self) -> AsyncGenerator[AgentEvent]:
        job, order = self._prepared, await self._prepared.build_cli_turn(self.resume_state)
        self._reader = job.adapter.create_reader(order)
        try:
            async with await CliProcess.start(
                await job.build_command(order), job.settings.timeouts, job.guard
            ) as program:
                async with aclosing(self._read_events(program)) as heard:
                    async for event in heard:
                        yield event
                await program.wait_exit()
            self._check_result(program)
        except CliSilentError as exc:
            self._failure = errors.timeout_failure(job.adapter, exc)
        except (OpenClawError, OSError) as exc:
            self._failure = errors.start_failure(job.adapter, exc)
        finally:
            await asyncio.shield(asyncio.to_thread(job.adapter.after_run, order))

    async def _read_events(self, program: CliProcess) -> AsyncGenerator[AgentEvent]:
        assert self._reader is not None
        async with aclosing(program.lines()) as lines:
            async for line in lines:
                said = _decode_event(line)
                for event in self._reader.read_event(said) if said is not None else ():
                    self._has_output = self._has_output or isinstance(event, ToolUse | PartialAnswer)
                    yield event

    def _check_result(self, program: CliProcess) -> None:
        reader = self._reader
        assert reader is not None
        if reader.done:
            return
        complaint = reader.error or program.stderr
        what = classify_error(f"{complaint}\n{program.stderr}")
        if not self._has_output and (what == "store" or (what == "resume" and self.resume_state is not None)):
            self.retry_reason = what
        self._failure = errors.run_failure(
            self._prepared.adapter, complaint, program.status, secrets=self._prepared.secrets
        )

    def end_events(self) -> Sequence[AgentEvent]:
        reader = self._reader
        if reader is None:
            return [self._failure or TurnFailed(message="The agent was not started.")]
        usage, total = self._turn_usage(reader.usage)
        if self._failure is not None:
            return [*([usage] if usage is not None else []), self._failure]
        resume = self._encode_resume(reader.session, total) if reader.session else None
        told = [PartialAnswer(reader.text)] if reader.text else []
        return [*told, Answered(stop_reason=reader.stop_reason, usage=usage, resume=resume)]

    def _encode_resume(self, session: str, total: Usage | None) -> str:
        job = self._prepared
        remembered = ResumeState(
            runtime=job.adapter.id, id=session, used=total, confined=job.confined_folder is not None
        )
        return msgspec.json.encode(remembered).decode()

    def _turn_usage(self, reported: Usage | None) -> tuple[Usage | None, Usage | None]:
        """This turn's share, and the total to be remembered where the CLI counts a session's tokens together."""
        names = self._prepared.adapter.cumulative_usage
        if reported is None or not names:
            return reported, None
        before = (self.resume_state.used if self.resume_state is not None else None) or Usage()
        share = {name: (getattr(reported, name) or 0) - (getattr(before, name) or 0) for name in names}
        if min(share.values()) < 0:
            return reported, reported  # it began to count anew
        return msgspec.structs.replace(reported, **share), reported


def _escape_command(turn: Turn) -> str:
    """The message; that of somebody who is not the owner never looks like a command of the CLI's own."""
    command = turn.prompt.lstrip().startswith("/") and not turn.caller.is_owner
    return f"Message: {turn.prompt}" if command else turn.prompt


def _model_name(turn: Turn, profile: AgentProfile) -> str | None:
    """What the CLI is told to use; None: it chooses itself."""
    return cli_model(turn.candidate_models[0]) if turn.candidate_models else turn.model or profile.model


def _find_program(command: str, path: str) -> str | None:
    return shutil.which(str(Path(command).expanduser()), path=path)


def _decode_resume(resume: str | None, runtime: str, *, confined: bool) -> ResumeState | None:
    """None for a session of another CLI, the agent was given a new runtime meanwhile; and for one that is not for
    this sender's eyes."""
    with contextlib.suppress(msgspec.DecodeError):
        found = msgspec.json.decode(resume or "", type=ResumeState)
        return found if found.runtime == runtime and found.confined is confined else None
    return None


def _decode_event(line: bytes | None) -> dict[str, Any] | None:
    """An event; None for anything else a program prints."""
    if line is None:
        return None
    try:
        event = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return event if isinstance(event, dict) else None


def _is_visible(attachment: Attachment, media_types: Sequence[str]) -> bool:
    return attachment.data is not None and attachment.mime_type.startswith(tuple(media_types))


def _write_attachments(attachments: Sequence[Attachment], folder: Path) -> tuple[tuple[Path, str], ...]:
    """Attachments as files; their names are ours, nobody's from outside."""
    media = folder / "media"
    laid: list[tuple[Path, str]] = []
    for number, attachment in enumerate(attachments):
        media.mkdir(mode=0o700, exist_ok=True)
        path = media / f"media-{number}{suffix_of(attachment.mime_type)}"
        path.write_bytes(attachment.data or b"")
        laid.append((path, attachment.mime_type))
    return tuple(laid)
