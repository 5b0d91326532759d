"""A message from one session to another: its reply, then a bounded exchange between the two agents."""

import asyncio
import logging
import uuid
from collections.abc import Callable
from typing import Final, Self

from msgspec import Struct

from ....core import session_keys
from ....core.agents import Roster
from ....core.channel import Letter, Mailroom
from ....core.errors import OpenClawError
from ....core.model import Json
from ....core.ports import Runner
from ....core.repositories import SessionBook
from ....core.rpc import Fault
from ....core.sessions import Run, RunRequest
from . import prompts
from .settings import Settings

logger = logging.getLogger(__name__)

LONGEST_MESSAGE: Final = 200_000  # characters
STEP_WAIT: Final = 60.0  # seconds each turn of an exchange may take; then it is left
LATE_WAIT: Final = 600.0  # seconds an exchange waits for a first reply that came too late for the sender
MOST_EXCHANGES: Final = 64  # that go at once; further messages get their reply and no exchange
ANNOUNCE: Final = "Agent-to-agent announce step."


class Note(Struct, frozen=True, kw_only=True):
    source: str | None
    """The session that writes; None = an operator, with whom no agent converses."""
    target: str
    message: str
    grant: Json
    seconds: float
    """How long the sender waits for a reply; 0 = not at all."""


class Letters:
    """`async with` it around the runs."""

    def __init__(
        self,
        sessions: SessionBook,
        runner: Runner,
        *,
        settings: Callable[[], Settings],
        roster: Callable[[], Roster],
    ) -> None:
        self._sessions = sessions
        self._runner = runner
        self._settings = settings
        self._roster = roster
        self.mailroom: Mailroom | None = None
        """Where the outcome of an exchange is announced; set by the caretaker when there is one."""
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def resolve(self, key: str | None, label: str | None, agent_id: str | None) -> str:
        """The full key of the session meant. A key may also be a session's id."""
        if label is not None:
            found = await self._sessions.find(label=label, agent_id=agent_id)
            if not found:
                raise Fault(f"No session found with label: {label}")
            if len(found) > 1:
                names = ", ".join(session.key for session in found)
                raise Fault(f"several sessions are labelled {label!r}: {names}; name one by sessionKey or add agentId")
            return found[0].key
        assert key is not None
        by_id = await self._sessions.find(session_id=key)
        return by_id[0].key if by_id else session_keys.canonical(key, self._roster(), agent_id=agent_id)

    async def send(self, note: Note) -> Json:
        if note.source == note.target:
            raise Fault("a session can't write to itself: it would wait for its own answer")
        run_id = str(uuid.uuid4())
        step = "Reply to the message." if note.source else "Reply to the message it got."
        await self._submit(note.target, note.message, run_id, note, step)
        told: Json = {"runId": run_id, "sessionKey": note.target, "delivery": {"status": "pending", "mode": "announce"}}
        if note.seconds <= 0:
            self._converse(note, run_id)
            return {**told, "status": "accepted"}
        run = await self._runner.wait(run_id, seconds=note.seconds)
        self._converse(note, run_id)
        if run is None:
            return {**told, "status": "timeout", "error": "no reply yet; the message is there and will be answered"}
        if run.status != "ok":
            return {**told, "status": "error", "error": run.error or "the other agent did not answer"}
        return {**told, "status": "ok", "reply": _reply(run)}

    def _converse(self, note: Note, run_id: str) -> None:
        if note.source is None or len(self._tasks) >= MOST_EXCHANGES:
            return
        task = asyncio.get_running_loop().create_task(self._exchange(note, note.source, run_id))
        self._tasks.add(task)
        task.add_done_callback(self._over)

    async def _exchange(self, note: Note, source: str, run_id: str) -> None:
        """Turn about, until one has nothing to add; then what is to be told at the target's end is told."""
        run = await self._runner.wait(run_id, seconds=LATE_WAIT)
        said = _reply(run) if run is not None and run.status == "ok" else ""
        for turn in range(self._settings().turns):
            if not said or _is_over(said):
                break
            key = source if turn % 2 == 0 else note.target
            answered = await self._turn(key, said, note, "This is the other's reply; answer it if there is need.")
            if answered is None:
                break
            said = _reply(answered)
        await self._announce(note, said)

    async def _turn(self, key: str, message: str, note: Note, step: str) -> Run | None:
        """A run that went well."""
        run_id = str(uuid.uuid4())
        await self._submit(key, message, run_id, note, step)
        run = await self._runner.wait(run_id, seconds=STEP_WAIT)
        return run if run is not None and run.status == "ok" else None

    async def _announce(self, note: Note, said: str) -> None:
        address = None if self.mailroom is None else await self.mailroom.route(note.target)
        if self.mailroom is None or address is None or not said:
            return  # nobody is there to hear it
        step = f"Say what is to be told in your channel, or {prompts.ANNOUNCE_SKIP} for nothing."
        run = await self._turn(note.target, ANNOUNCE, note, step)
        text = "" if run is None or await self.mailroom.spoke(run, address) else _reply(run)
        if text and not prompts.is_silent(text) and not _is_over(text):
            await self.mailroom.post(address, Letter(text=text), key=f"a2a:{uuid.uuid4()}", session=note.target)

    async def _submit(self, key: str, message: str, run_id: str, note: Note, step: str) -> None:
        who = note.source or "an operator"
        other = note.target if key != note.target else note.source
        provenance = {"kind": "inter_session", "sourceSessionKey": other, "sourceTool": "sessions_send"}
        await self._runner.submit(
            RunRequest(
                run_id=run_id,
                session=session_keys.new_session(key, self._roster()),
                message=message,
                mode="followup",
                options={
                    "lane": "nested",
                    "sender": other or who,
                    "grant": note.grant,
                    "extraSystemPrompt": prompts.between(who, note.target, step=step),
                    "inputProvenance": provenance,
                },
            )
        )

    def _over(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if task.cancelled():
            return
        exc = task.exception()
        if isinstance(exc, OpenClawError):
            logger.info("an exchange between agents ended early: %s", exc)
        elif exc is not None:
            logger.error("an exchange between agents failed", exc_info=exc)


def _reply(run: Run) -> str:
    return str((run.result or {}).get("text") or "").strip()


def _is_over(text: str) -> bool:
    return text.strip() == prompts.REPLY_SKIP
