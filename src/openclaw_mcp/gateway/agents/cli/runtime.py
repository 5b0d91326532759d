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

from ....core.agent import AgentEvent, Attachment, Did, Failed, Partial, ToolUse, Turn, Usage
from ....core.agent import Final as Answered
from ....core.agents import AgentCard
from ....core.effects import Effects
from ....core.errors import OpenClawError
from ....core.mime import suffix_of
from ....core.model_name import check_model_name
from ....core.ports import Guard
from ....core.providers import named_model
from . import errors
from .confinement import passed_on, standing_folder, workspace_note
from .dialect import Dialect, Order, Reader, trouble
from .grant_bridge import Bridge, Crossing, crossing
from .process import MARK, Command, Program, Silent
from .prompt import about, earlier
from .run_folder import Folders
from .settings import Settings, inherited, secrets_of, settings_of

logger = logging.getLogger(__name__)

MOST_TRIES: Final = 4  # starts for one turn, as long as nothing has happened in it
WHY_AGAIN: Final = {
    "resume": "it no longer knows its session",
    "store": "another start of it was bringing its store up to date",
}
MOST_AT_ONCE: Final = 8  # CLIs at work in one gateway: each is some hundred megabytes; the others wait their turn
EFFORTS: Final[dict[str, Literal["low", "medium", "high"]]] = {
    "minimal": "low", "low": "low", "medium": "medium", "high": "high", "xhigh": "high", "max": "high",
}  # fmt: skip


class Surroundings(Struct, frozen=True, kw_only=True):
    """What the caretaker lends."""

    state: Path
    """Where agents without a workspace get one."""
    folders: Folders
    card: Callable[[str], AgentCard]
    bridge: Bridge | None = None
    guard: Guard | None = None
    slots: asyncio.Semaphore


class Remembered(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What `Turn.resume` holds: whose session it is, and what it has used so far where the CLI counts on and on."""

    runtime: str
    id: str
    used: Usage | None = None
    confined: bool = False
    """Whose run it was: what the owner's tools have read into a session is not for others to ask about."""


class CliAgent:
    """An `AgentRuntime`."""

    def __init__(self, dialect: Dialect, around: Surroundings) -> None:
        self.id = dialect.id
        self.takes = dialect.takes
        self._dialect = dialect
        self._around = around

    async def run(self, turn: Turn) -> AsyncGenerator[AgentEvent]:
        async with AsyncExitStack() as stack:
            try:
                await stack.enter_async_context(self._around.slots)
                job = await self._job(turn, stack)
            except (OpenClawError, OSError) as exc:
                yield errors.not_started(self._dialect, exc)
                return
            if isinstance(job, Failed):
                yield job
                return
            if job.unseen:
                yield Partial(job.unseen)
            attempt, tries = Attempt(job, job.remembered), 1
            while True:
                async with aclosing(attempt.events()) as events:
                    async for event in events:
                        yield event
                if attempt.again is None or tries == MOST_TRIES:
                    break
                logger.info("run %s: %s is started again: %s", turn.run_id, self.id, WHY_AGAIN[attempt.again])
                attempt, tries = Attempt(job, None if attempt.again == "resume" else attempt.before), tries + 1
            for event in await job.close(attempt):
                yield event

    async def _job(self, turn: Turn, stack: AsyncExitStack) -> "Job | Failed":
        card = self._around.card(turn.agent_id)
        check_model_name(_model(turn, card))  # whoever named it: it becomes a word of the command line
        settings = settings_of(card.settings)
        env = inherited() | dict(settings.env)
        command = settings.command or self._dialect.program
        program = await asyncio.to_thread(_found, command, env["PATH"])
        if program is None:
            return errors.not_installed(self._dialect, command)
        workspace = await asyncio.to_thread(self._workplace, turn, card)
        # Here alone it is decided whether the CLI's own tools and its user's settings are for this run.
        confined = None if turn.caller.owner else await asyncio.to_thread(standing_folder, self._around.state, card.id)
        folder = stack.enter_context(self._around.folders.new())
        env[MARK] = secrets.token_hex(8)
        # Python finds what a user installed by the user's home, which a confined CLI has not.
        always = {name: value for name, value in env.items() if name in (MARK, "HOME")}
        crossed = stack.enter_context(crossing(self._around.bridge, folder, turn, always=always))
        return Job(
            dialect=self._dialect,
            turn=turn,
            card=card,
            settings=settings,
            program=program,
            env=env,
            workspace=workspace,
            confined=confined,
            folder=folder,
            crossed=crossed,
            guard=self._around.guard,
        )

    def _workplace(self, turn: Turn, card: AgentCard) -> Path:
        chosen = (turn.cwd if turn.caller.owner else None) or card.workspace
        path = Path(chosen).expanduser() if chosen else self._around.state / "workspaces" / card.id
        path.mkdir(parents=True, exist_ok=True)
        return path.resolve()


class Job(Struct, frozen=True, kw_only=True):
    """A turn made ready: everything but which session it goes on with."""

    dialect: Dialect
    turn: Turn
    card: AgentCard
    settings: Settings
    program: str
    env: dict[str, str]
    workspace: Path
    confined: Path | None
    """As in an `Order`."""
    folder: Path
    crossed: Crossing | None
    guard: Guard | None

    @property
    def cwd(self) -> Path:
        return self.workspace if self.confined is None else self.confined / "work"

    @property
    def remembered(self) -> Remembered | None:
        return _remembered(self.turn.resume, self.dialect.id, confined=self.confined is not None)

    @property
    def masked(self) -> list[str]:
        """What no error may repeat."""
        return [*([self.crossed.token] if self.crossed is not None else []), *secrets_of(self.env)]

    @property
    def unseen(self) -> str:
        """One warning for all it can't see."""
        left_out = [each for each in self.turn.attachments if not _visible(each, self.dialect.takes)]
        if not left_out:
            return ""
        kinds = "/".join(sorted({each.kind for each in left_out}))
        which = "an attachment was" if len(left_out) == 1 else f"{len(left_out)} attachments were"
        return f"⚠️ {self.dialect.title} can't see {kinds} attachments here; {which} left out.\n\n"

    async def order(self, remembered: Remembered | None) -> Order:
        turn = self.turn
        told = "" if remembered is not None else await earlier(turn)
        prompt = f"<earlier>\n{told}\n</earlier>\n\n{turn.prompt}" if told else _no_command(turn)
        note = await asyncio.to_thread(workspace_note, self.workspace, self.dialect.note) if self.confined else None
        seen = [each for each in turn.attachments if _visible(each, self.dialect.takes)]
        folder = Path(await asyncio.to_thread(tempfile.mkdtemp, prefix="try-", dir=self.folder))
        return Order(
            prompt=prompt,
            about=about(turn, (self.card.settings.get("systemPrompt"), note, turn.system_prompt)),
            session=remembered.id if remembered is not None else None,
            model=_model(turn, self.card),
            effort=EFFORTS.get(turn.thinking or ""),
            files=await asyncio.to_thread(_lay_out, seen, folder),
            server=self.crossed.entry if self.crossed is not None else None,
            strict=self.settings.strict or self.confined is not None,
            folder=folder,
            confined=self.confined,
            conversation=hashlib.sha256(f"{turn.session_key}\0{turn.session_id}".encode()).hexdigest(),
            env=self.env,
            cwd=self.cwd,
        )

    async def command(self, order: Order) -> Command:
        spoken = await asyncio.to_thread(self.dialect.speak, order)
        # What a person adds is meant for their own runs: one flag would give the CLI's tools back.
        added = () if self.confined else self.settings.args
        env = passed_on(self.env, self.dialect) if self.confined else self.env
        return Command(
            argv=[self.program, *spoken.args, *added, *spoken.last],
            env={**env, **spoken.env, "PWD": str(self.cwd)},
            cwd=str(self.cwd),
            stdin=spoken.stdin,
        )

    async def close(self, attempt: "Attempt") -> Sequence[AgentEvent]:
        """What is to be said last: what was done to others, then how it ended."""
        crossed = self.crossed
        effects = Effects() if crossed is None else await crossed.effects()
        return [*([Did(effects)] if effects != Effects() else []), *attempt.end()]


class Attempt:
    """One process."""

    def __init__(self, job: Job, remembered: Remembered | None) -> None:
        self._job = job
        self.before = remembered
        self._reader: Reader | None = None
        self._failed: Failed | None = None
        self._acted = False
        self.again: Literal["resume", "store"] | None = None
        """Why another start may do better. Nothing has happened yet."""

    async def events(self) -> AsyncGenerator[AgentEvent]:
        job, order = self._job, await self._job.order(self.before)
        self._reader = job.dialect.listen(order)
        try:
            async with Program(await job.command(order), job.settings.limits, job.guard) as program:
                async with aclosing(self._heard(program)) as heard:
                    async for event in heard:
                        yield event
                await program.ended()
            self._judge(program)
        except Silent as exc:
            self._failed = errors.silent(job.dialect, exc)
        except (OpenClawError, OSError) as exc:
            self._failed = errors.not_started(job.dialect, exc)
        finally:
            await asyncio.shield(asyncio.to_thread(job.dialect.after, order))

    async def _heard(self, program: Program) -> AsyncGenerator[AgentEvent]:
        assert self._reader is not None
        async with aclosing(program.lines()) as lines:
            async for line in lines:
                said = _json(line)
                for event in self._reader.hear(said) if said is not None else ():
                    self._acted = self._acted or isinstance(event, ToolUse | Partial)
                    yield event

    def _judge(self, program: Program) -> None:
        reader = self._reader
        assert reader is not None
        if reader.done:
            return
        complaint = reader.error or program.stderr
        what = trouble(f"{complaint}\n{program.stderr}")
        if not self._acted and (what == "store" or (what == "resume" and self.before is not None)):
            self.again = what
        self._failed = errors.failure(self._job.dialect, complaint, program.status, masked=self._job.masked)

    def end(self) -> Sequence[AgentEvent]:
        reader = self._reader
        if reader is None:
            return [self._failed or Failed(message="The agent was not started.")]
        usage, total = self._used(reader.usage)
        if self._failed is not None:
            return [*([usage] if usage is not None else []), self._failed]
        resume = self._remember(reader.session, total) if reader.session else None
        told = [Partial(reader.text)] if reader.text else []
        return [*told, Answered(stop_reason=reader.stop_reason, usage=usage, resume=resume)]

    def _remember(self, session: str, total: Usage | None) -> str:
        job = self._job
        remembered = Remembered(runtime=job.dialect.id, id=session, used=total, confined=job.confined is not None)
        return msgspec.json.encode(remembered).decode()

    def _used(self, counted: Usage | None) -> tuple[Usage | None, Usage | None]:
        """This turn's share, and the total to be remembered where the CLI counts a session's tokens together."""
        names = self._job.dialect.adds_up
        if counted is None or not names:
            return counted, None
        before = (self.before.used if self.before is not None else None) or Usage()
        share = {name: (getattr(counted, name) or 0) - (getattr(before, name) or 0) for name in names}
        if min(share.values()) < 0:
            return counted, counted  # it began to count anew
        return msgspec.structs.replace(counted, **share), counted


def _no_command(turn: Turn) -> str:
    """The message; that of somebody who is not the owner never looks like a command of the CLI's own."""
    command = turn.prompt.lstrip().startswith("/") and not turn.caller.owner
    return f"Message: {turn.prompt}" if command else turn.prompt


def _model(turn: Turn, card: AgentCard) -> str | None:
    """What the CLI is told to use; None: it chooses itself."""
    return named_model(turn.models[0]) if turn.models else turn.model or card.model


def _found(command: str, path: str) -> str | None:
    return shutil.which(str(Path(command).expanduser()), path=path)


def _remembered(resume: str | None, runtime: str, *, confined: bool) -> Remembered | None:
    """None for a session of another CLI, the agent was given a new runtime meanwhile; and for one that is not for
    this sender's eyes."""
    with contextlib.suppress(msgspec.DecodeError):
        found = msgspec.json.decode(resume or "", type=Remembered)
        return found if found.runtime == runtime and found.confined is confined else None
    return None


def _json(line: bytes | None) -> dict[str, Any] | None:
    """An event; None for anything else a program prints."""
    if line is None:
        return None
    try:
        event = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return event if isinstance(event, dict) else None


def _visible(attachment: Attachment, takes: Sequence[str]) -> bool:
    return attachment.data is not None and attachment.mime_type.startswith(tuple(takes))


def _lay_out(seen: Sequence[Attachment], folder: Path) -> tuple[tuple[Path, str], ...]:
    """Attachments as files; their names are ours, nobody's from outside."""
    media = folder / "media"
    laid: list[tuple[Path, str]] = []
    for number, attachment in enumerate(seen):
        media.mkdir(mode=0o700, exist_ok=True)
        path = media / f"media-{number}{suffix_of(attachment.mime_type)}"
        path.write_bytes(attachment.data or b"")
        laid.append((path, attachment.mime_type))
    return tuple(laid)
