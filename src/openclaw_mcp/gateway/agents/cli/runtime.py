"""A CLI as an agent: one process per turn, its output as events, nothing of it left afterwards."""

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
from typing import Final, Literal

import msgspec
from msgspec import Struct

from ....core import agent
from ....core.agents import AgentProfile
from ....core.effects import RunEffects
from ....core.errors import OpenClawError
from ....core.mime import suffix_of
from ....core.model_name import check_model_name
from ....core.ports import ProcessGuard
from ....core.providers import cli_model
from ....net.processes import RUN_MARK_VARIABLE
from ....net.tasks import finish
from . import errors
from .confinement import filter_environment, prepare_confined_folder, read_workspace_instructions
from .dialect import CliAdapter, CliTurn, classify_error
from .environment import base_environment, find_secrets
from .grant_bridge import GatewayAccess, RunGatewayAccess, open_gateway_access
from .process import CliCommand, CliProcess, CliSilentError
from .prompt import build_system_prompt, format_history
from .run_folder import RunFolders
from .stderr_text import find_cause

logger = logging.getLogger(__name__)

MAX_TRIES: Final = 4  # starts for one turn, as long as it has produced nothing
RETRY_REASONS: Final = {"resume": "its session is not found", "store": "another start of it was migrating its store"}
MOST_CONCURRENT_CLIS: Final = 8  # in one gateway: each takes some hundred megabytes; further turns wait
EFFORTS: Final[dict[str, Literal["low", "medium", "high"]]] = {
    "minimal": "low", "low": "low", "medium": "medium", "high": "high", "xhigh": "high", "max": "high",
}  # fmt: skip


class CliRuntimeContext(Struct, frozen=True, kw_only=True):
    """What the CLI agents of one gateway share."""

    state_folder: Path
    """Where workspaces of agents without one are created."""
    run_folders: RunFolders
    get_agent: Callable[[str], AgentProfile]
    gateway_access: GatewayAccess | None = None
    guard: ProcessGuard | None = None
    slots: asyncio.Semaphore


class ResumeState(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The content of `agent.Turn.resume`: the CLI's session, and its usage so far if the CLI counts per session."""

    runtime: str
    id: str
    used: agent.Usage | None = None
    confined: bool = False
    """Whether a confined run made it: what the owner's tools have read into a session must not reach other people."""


class CliAgent:
    """An `AgentRuntime`."""

    def __init__(self, adapter: CliAdapter, context: CliRuntimeContext) -> None:
        self.id, self.media_types = adapter.id, adapter.media_types
        self._adapter, self._context = adapter, context

    async def run(self, turn: agent.Turn) -> AsyncGenerator[agent.AgentEvent]:
        async with AsyncExitStack() as stack:
            try:
                await stack.enter_async_context(self._context.slots)
                prepared = await self._prepare(turn, stack)
            except (OpenClawError, OSError) as exc:
                yield errors.start_failure(self._adapter, exc)
                return
            if isinstance(prepared, agent.TurnFailed):
                yield prepared
                return
            if prepared.attachment_warning:
                yield agent.PartialAnswer(prepared.attachment_warning)
            resume_state = prepared.resume_state
            for number in range(1, MAX_TRIES + 1):
                attempt = CliAttempt(prepared, await prepared.build_cli_turn(resume_state), resume_state)
                async with aclosing(attempt.events()) as events:
                    async for event in events:
                        yield event
                if attempt.retry_reason is None or number == MAX_TRIES:
                    break
                reason = RETRY_REASONS[attempt.retry_reason]
                logger.info("run %s: %s is started again (%s)", turn.run_id, self.id, reason)
                resume_state = None if attempt.retry_reason == "resume" else resume_state
            for event in await prepared.final_events(attempt):
                yield event

    async def _prepare(self, turn: agent.Turn, stack: AsyncExitStack) -> "PreparedTurn | agent.TurnFailed":
        profile = self._context.get_agent(turn.agent_id)
        check_model_name(_model_name(turn, profile))  # wherever it comes from: it becomes an argument
        env = base_environment() | profile.settings.runtime_env
        command = profile.settings.runtime_command or self._adapter.program
        program = await asyncio.to_thread(_find_program, command, env["PATH"])
        if program is None:
            return errors.installation_failure(self._adapter, command)
        workspace = await asyncio.to_thread(self._ensure_workspace, turn, profile)
        confined = None
        if not turn.caller.is_owner:  # the only place that decides who gets the CLI's own tools and its user's settings
            confined = await asyncio.to_thread(prepare_confined_folder, self._context.state_folder, profile.id)
        folder = stack.enter_context(self._context.run_folders.create())
        env[RUN_MARK_VARIABLE] = secrets.token_hex(8)
        # Python finds packages installed for the user by the user's home, which a confined CLI does not have.
        fixed = {name: value for name, value in env.items() if name in (RUN_MARK_VARIABLE, "HOME")}
        access = await stack.enter_async_context(
            open_gateway_access(self._context.gateway_access, folder, turn, fixed_env=fixed)
        )
        return PreparedTurn(
            adapter=self._adapter,
            turn=turn,
            profile=profile,
            program=program,
            env=env,
            workspace=workspace,
            confined_folder=confined,
            folder=folder,
            gateway_access=access,
            guard=self._context.guard,
        )

    def _ensure_workspace(self, turn: agent.Turn, profile: AgentProfile) -> Path:
        chosen = (turn.cwd if turn.caller.is_owner else None) or profile.workspace
        path = Path(chosen).expanduser() if chosen else self._context.state_folder / "workspaces" / profile.id
        path.mkdir(parents=True, exist_ok=True)
        return path.resolve()


class PreparedTurn(Struct, frozen=True, kw_only=True):
    """Everything a turn needs, except the session it continues."""

    adapter: CliAdapter
    turn: agent.Turn
    profile: AgentProfile
    program: str
    env: dict[str, str]
    workspace: Path
    confined_folder: Path | None
    """As in `CliTurn`."""
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
        """Values that no error text may contain."""
        return [*([self.gateway_access.token] if self.gateway_access is not None else []), *find_secrets(self.env)]

    @property
    def attachment_warning(self) -> str:
        """One warning for all attachments it can't read."""
        left_out = [each for each in self.turn.attachments if not _is_visible(each, self.adapter.media_types)]
        if not left_out:
            return ""
        kinds = "/".join(sorted({each.kind for each in left_out}))
        which = "an attachment was" if len(left_out) == 1 else f"{len(left_out)} attachments were"
        return f"⚠️ {self.adapter.title} can't see {kinds} attachments here; {which} left out.\n\n"

    async def build_cli_turn(self, resume_state: ResumeState | None) -> CliTurn:
        turn = self.turn
        history = "" if resume_state is not None else await format_history(turn)
        prompt = f"<earlier>\n{history}\n</earlier>\n\n{turn.prompt}" if history else _escape_command(turn)
        note = None
        if self.confined_folder:
            note = await asyncio.to_thread(read_workspace_instructions, self.workspace, self.adapter.instructions_file)
        instructions = (self.profile.settings.system_prompt, note, turn.system_prompt)
        seen = [each for each in turn.attachments if _is_visible(each, self.adapter.media_types)]
        folder = Path(await asyncio.to_thread(tempfile.mkdtemp, prefix="try-", dir=self.folder))
        return CliTurn(
            prompt=prompt,
            system_prompt=build_system_prompt(turn, instructions),
            session=resume_state.id if resume_state is not None else None,
            model=_model_name(turn, self.profile),
            effort=EFFORTS.get(turn.thinking or ""),
            files=await asyncio.to_thread(_write_attachments, seen, folder),
            server=self.gateway_access.mcp_server if self.gateway_access is not None else None,
            strict=self.profile.settings.runtime_strict or self.confined_folder is not None,
            folder=folder,
            confined_folder=self.confined_folder,
            conversation_id=hashlib.sha256(f"{turn.session_key}\0{turn.session_id}".encode()).hexdigest(),
            env=self.env,
            cwd=self.cwd,
        )

    async def build_command(self, cli_turn: CliTurn) -> CliCommand:
        invocation = await asyncio.to_thread(self.adapter.build_invocation, cli_turn)
        # Arguments that a person added are for the owner's runs: one of them could enable the CLI's tools again.
        added = () if self.confined_folder else self.profile.settings.runtime_args
        env = filter_environment(self.env, self.adapter) if self.confined_folder else self.env
        return CliCommand(
            argv=[self.program, *invocation.args, *added, *invocation.trailing_args],
            env={**env, **invocation.env, "PWD": str(self.cwd)},
            cwd=str(self.cwd),
            stdin=invocation.stdin,
        )

    async def final_events(self, attempt: "CliAttempt") -> Sequence[agent.AgentEvent]:
        """The last events: the run's effects, then how it ended."""
        access = self.gateway_access
        effects = RunEffects() if access is None else await access.collect_effects()
        return [*([agent.EffectsReported(effects)] if effects != RunEffects() else []), *attempt.end_events()]


class CliAttempt:
    """One process."""

    def __init__(self, prepared: PreparedTurn, cli_turn: CliTurn, resume_state: ResumeState | None) -> None:
        self._prepared, self._cli_turn, self._resume_state = prepared, cli_turn, resume_state
        self._reader = prepared.adapter.create_reader(cli_turn)
        self._failure: agent.TurnFailed | None = None
        self._has_output = False
        self.retry_reason: Literal["resume", "store"] | None = None
        """Why another start may succeed. Nothing has happened in this one."""

    async def events(self) -> AsyncGenerator[agent.AgentEvent]:
        prepared, adapter = self._prepared, self._prepared.adapter
        try:
            command = await prepared.build_command(self._cli_turn)
            async with await CliProcess.start(command, prepared.profile.settings, prepared.guard) as process:
                async with aclosing(self._read_events(process)) as events:
                    async for event in events:
                        yield event
                await process.wait_exit()
            self._check_result(process)
        except CliSilentError as exc:
            self._failure = errors.timeout_failure(adapter, exc)
        except (OpenClawError, OSError) as exc:
            self._failure = errors.start_failure(adapter, exc)
        finally:
            await finish(asyncio.to_thread(adapter.after_run, self._cli_turn))

    async def _read_events(self, process: CliProcess) -> AsyncGenerator[agent.AgentEvent]:
        async with aclosing(process.lines()) as lines:
            async for line in lines:
                for event in self._reader.read_line(line) if line is not None else ():
                    self._has_output = self._has_output or isinstance(event, agent.ToolUse | agent.PartialAnswer)
                    yield event

    def _check_result(self, process: CliProcess) -> None:
        if self._reader.done:
            return
        error, stderr = self._reader.error, process.stderr
        kind = classify_error(f"{error or ''}\n{stderr}")
        if not self._has_output and (kind == "store" or (kind == "resume" and self._resume_state is not None)):
            self.retry_reason = kind
        prepared = self._prepared
        cause = error or find_cause(stderr) or self._reader.notice or ""
        said = errors.CliOutput(cause=cause, whole=error or stderr or cause)
        self._failure = errors.run_failure(prepared.adapter, said, process.status, secrets=prepared.secrets)

    def end_events(self) -> Sequence[agent.AgentEvent]:
        reader = self._reader
        usage, total = self._turn_usage(reader.usage)
        if self._failure is not None:
            return [*([usage] if usage is not None else []), self._failure]
        resume = self._encode_resume(reader.session, total) if reader.session else None
        text = [agent.PartialAnswer(reader.text)] if reader.text else []
        return [*text, agent.TurnCompleted(stop_reason=reader.stop_reason, usage=usage, resume=resume)]

    def _encode_resume(self, session: str, total: agent.Usage | None) -> str:
        prepared = self._prepared
        confined = prepared.confined_folder is not None
        state = ResumeState(runtime=prepared.adapter.id, id=session, used=total, confined=confined)
        return msgspec.json.encode(state).decode()

    def _turn_usage(self, reported: agent.Usage | None) -> tuple[agent.Usage | None, agent.Usage | None]:
        """This turn's usage, and the total to be stored if the CLI counts per session."""
        names = self._prepared.adapter.cumulative_usage
        if reported is None or not names:
            return reported, None
        before = (self._resume_state.used if self._resume_state is not None else None) or agent.Usage()
        share = {name: (getattr(reported, name) or 0) - (getattr(before, name) or 0) for name in names}
        if min(share.values()) < 0:
            return reported, reported  # it started counting from zero
        return msgspec.structs.replace(reported, **share), reported


def _escape_command(turn: agent.Turn) -> str:
    """The message; one that is not the owner's never looks like a command of the CLI."""
    command = turn.prompt.lstrip().startswith("/") and not turn.caller.is_owner
    return f"Message: {turn.prompt}" if command else turn.prompt


def _model_name(turn: agent.Turn, profile: AgentProfile) -> str | None:
    """The model the CLI is to use; None: it chooses itself."""
    return cli_model(turn.candidate_models[0]) if turn.candidate_models else turn.model or profile.model


def _find_program(command: str, path: str) -> str | None:
    return shutil.which(str(Path(command).expanduser()), path=path)


def _decode_resume(resume: str | None, runtime: str, *, confined: bool) -> ResumeState | None:
    """None for a session of another CLI, because the agent's runtime was changed, and for a session of the other kind
    of run, confined or not."""
    with contextlib.suppress(msgspec.DecodeError):
        found = msgspec.json.decode(resume or "", type=ResumeState)
        return found if found.runtime == runtime and found.confined is confined else None
    return None


def _is_visible(attachment: agent.Attachment, media_types: Sequence[str]) -> bool:
    return attachment.data is not None and attachment.mime_type.startswith(tuple(media_types))


def _write_attachments(attachments: Sequence[agent.Attachment], folder: Path) -> tuple[tuple[Path, str], ...]:
    """Attachments as files, under names of ours: no name comes from outside."""
    media = folder / "media"
    written: list[tuple[Path, str]] = []
    for number, attachment in enumerate(attachments):
        media.mkdir(mode=0o700, exist_ok=True)
        path = media / f"media-{number}{suffix_of(attachment.mime_type)}"
        path.write_bytes(attachment.data or b"")
        written.append((path, attachment.mime_type))
    return tuple(written)
