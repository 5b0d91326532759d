"""A message from one session to another: its reply, then a bounded exchange between the two agents."""

import asyncio
import logging
import uuid
from collections.abc import Callable
from typing import Final, Self

from msgspec import Struct

from ....core import session_keys
from ....core.agents import AgentRoster
from ....core.channel import MessageDelivery, OutboundMessage
from ....core.errors import OpenClawError
from ....core.model import Json
from ....core.ports import RunExecutor
from ....core.repositories import SessionRepository
from ....core.rpc import RpcError
from ....core.sessions import Run, RunRequest
from . import prompts
from .settings import DelegationSettings

logger = logging.getLogger(__name__)

MAX_MESSAGE_LENGTH: Final = 200_000  # characters
STEP_WAIT: Final = 60.0  # seconds each turn of an exchange may take; then it is left
LATE_WAIT: Final = 600.0  # seconds an exchange waits for a first reply that came too late for the sender
MAX_EXCHANGES: Final = 64  # that go at once; further messages get their reply and no exchange
ANNOUNCE_MESSAGE: Final = "Agent-to-agent announce step."


class ConverseRequest(Struct, frozen=True, kw_only=True):
    source: str | None
    """The session that writes; None = an operator, with whom no agent converses."""
    target: str
    message: str
    grant: Json
    wait_seconds: float
    """How long the sender waits for a reply; 0 = not at all."""


class AgentMessenger:
    """`async with` it around the runs."""

    def __init__(
        self,
        sessions: SessionRepository,
        runner: RunExecutor,
        *,
        settings: Callable[[], DelegationSettings],
        roster: Callable[[], AgentRoster],
        channels: MessageDelivery | None = None,
    ) -> None:
        """`channels`: where the outcome of an exchange is announced."""
        self._sessions = sessions
        self._runner = runner
        self._settings = settings
        self._roster = roster
        self.channels = channels
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
                raise RpcError(f"No session found with label: {label}")
            if len(found) > 1:
                names = ", ".join(session.key for session in found)
                raise RpcError(
                    f"several sessions are labelled {label!r}: {names}; name one by sessionKey or add agentId"
                )
            return found[0].key
        assert key is not None
        by_id = await self._sessions.find(session_id=key)
        return by_id[0].key if by_id else session_keys.normalize_key(key, self._roster(), agent_id=agent_id)

    async def send(self, request: ConverseRequest) -> Json:
        if request.source == request.target:
            raise RpcError("a session can't write to itself: it would wait for its own answer")
        run_id = str(uuid.uuid4())
        step = "Reply to the message." if request.source else "Reply to the message it got."
        await self._submit(request.target, request.message, run_id, request, step)
        told: Json = {
            "runId": run_id,
            "sessionKey": request.target,
            "delivery": {"status": "pending", "mode": "announce"},
        }
        if request.wait_seconds <= 0:
            self._start_exchange(request, run_id)
            return {**told, "status": "accepted"}
        run = await self._runner.wait(run_id, seconds=request.wait_seconds)
        self._start_exchange(request, run_id)
        if run is None:
            return {**told, "status": "timeout", "error": "no reply yet; the message is there and will be answered"}
        if run.status != "ok":
            return {**told, "status": "error", "error": run.error or "the other agent did not answer"}
        return {**told, "status": "ok", "reply": _reply_text(run)}

    def _start_exchange(self, request: ConverseRequest, run_id: str) -> None:
        if request.source is None or len(self._tasks) >= MAX_EXCHANGES:
            return
        task = asyncio.get_running_loop().create_task(self._exchange(request, request.source, run_id))
        self._tasks.add(task)
        task.add_done_callback(self._handle_task_end)

    async def _exchange(self, request: ConverseRequest, source: str, run_id: str) -> None:
        """Turn about, until one has nothing to add; then what is to be told at the target's end is told."""
        run = await self._runner.wait(run_id, seconds=LATE_WAIT)
        said = _reply_text(run) if run is not None and run.status == "ok" else ""
        for turn in range(self._settings().max_turns):
            if not said or _ends_exchange(said):
                break
            key = source if turn % 2 == 0 else request.target
            answered = await self._run_turn(
                key, said, request, "This is the other's reply; answer it if there is need."
            )
            if answered is None:
                break
            said = _reply_text(answered)
        await self._announce(request, said)

    async def _run_turn(self, key: str, message: str, request: ConverseRequest, step: str) -> Run | None:
        """A run that went well."""
        run_id = str(uuid.uuid4())
        await self._submit(key, message, run_id, request, step)
        run = await self._runner.wait(run_id, seconds=STEP_WAIT)
        return run if run is not None and run.status == "ok" else None

    async def _announce(self, request: ConverseRequest, last_reply: str) -> None:
        address = None if self.channels is None else await self.channels.find_address(request.target)
        if self.channels is None or address is None or not last_reply:
            return  # nobody is there to hear it
        step = f"Say what is to be told in your channel, or {prompts.ANNOUNCE_SKIP} for nothing."
        run = await self._run_turn(request.target, ANNOUNCE_MESSAGE, request, step)
        text = "" if run is None or await self.channels.has_run_message(run, address) else _reply_text(run)
        if text and not prompts.is_silent(text) and not _ends_exchange(text):
            await self.channels.post(
                address, OutboundMessage(text=text), key=f"a2a:{uuid.uuid4()}", session=request.target
            )

    async def _submit(self, key: str, message: str, run_id: str, request: ConverseRequest, step: str) -> None:
        who = request.source or "an operator"
        other = request.target if key != request.target else request.source
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
                    "grant": request.grant,
                    "extraSystemPrompt": prompts.exchange_prompt(who, request.target, step=step),
                    "inputProvenance": provenance,
                },
            )
        )

    def _handle_task_end(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if task.cancelled():
            return
        exc = task.exception()
        if isinstance(exc, OpenClawError):
            logger.info("an exchange between agents ended early: %s", exc)
        elif exc is not None:
            logger.error("an exchange between agents failed", exc_info=exc)


def _reply_text(run: Run) -> str:
    return str((run.result or {}).get("text") or "").strip()


def _ends_exchange(text: str) -> bool:
    return text.strip() == prompts.REPLY_SKIP
