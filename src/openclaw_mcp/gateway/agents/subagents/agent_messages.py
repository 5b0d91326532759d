"""A message from one session to another: its reply, then a bounded exchange between the two agents."""

import logging
import uuid
from collections.abc import Callable
from typing import Final, Self

from msgspec import Struct

from ....core import session_keys
from ....core.agents import AgentRoster
from ....core.channel import MessageDelivery, OutboundMessage
from ....core.errors import OpenClawError
from ....core.model import Grant, Json
from ....core.ports import RunExecutor
from ....core.repositories import SessionRepository
from ....core.rpc import RpcError
from ....core.sessions import Run, RunOptions, RunRequest
from ....net.tasks import Tasks
from . import prompts
from .settings import DelegationSettings

logger = logging.getLogger(__name__)

MAX_MESSAGE_LENGTH: Final = 200_000  # characters
STEP_WAIT: Final = 60.0  # seconds each turn of an exchange may take; then the exchange ends
LATE_WAIT: Final = 600.0  # seconds an exchange waits for a first reply that came too late for the sender
MAX_EXCHANGES: Final = 64  # at once; further messages get their reply and no exchange
ANNOUNCE_MESSAGE: Final = "Agent-to-agent announce step."


class ConverseRequest(Struct, frozen=True, kw_only=True):
    source: str | None
    """The session that writes; None = an operator, to whom no agent answers back."""
    target: str
    message: str
    grant: Grant
    wait_seconds: float
    """How long the sender waits for a reply; 0 = not at all."""


class AgentMessenger:
    """Open for as long as runs may be. `channels`: where the outcome of an exchange is announced."""

    def __init__(
        self,
        sessions: SessionRepository,
        runner: RunExecutor,
        *,
        settings: Callable[[], DelegationSettings],
        roster: Callable[[], AgentRoster],
        channels: MessageDelivery | None = None,
    ) -> None:
        self._sessions, self._runner, self._settings = sessions, runner, settings
        self._roster, self._channels = roster, channels
        self._tasks = Tasks("agent messages")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._tasks.aclose()

    async def find_by_label(self, label: str, agent_id: str | None) -> str:
        """The key of the session with this label. Raises RpcError."""
        found = await self._sessions.find(label=label, agent_id=agent_id)
        if not found:
            raise RpcError(f"No session found with label: {label}")
        if len(found) > 1:
            names = ", ".join(session.key for session in found)
            raise RpcError(f"several sessions are labelled {label!r}: {names}; name one by sessionKey or add agentId")
        return found[0].key

    async def resolve_key(self, key: str, agent_id: str | None) -> str:
        """The full key of a session that is named by key or id."""
        by_id = await self._sessions.find(session_id=key)
        return by_id[0].key if by_id else session_keys.normalize_key(key, self._roster(), agent_id=agent_id)

    async def send(self, request: ConverseRequest) -> Json:
        if request.source == request.target:
            raise RpcError("a session can't write to itself: it would wait for its own answer")
        run_id = str(uuid.uuid4())
        step = "Reply to the message." if request.source else "Reply to the message it got."
        await self._submit(request.target, request.message, run_id, request, step)
        delivery = {"status": "pending", "mode": "announce"}
        answer: Json = {"runId": run_id, "sessionKey": request.target, "delivery": delivery}
        if request.wait_seconds <= 0:
            self._start_exchange(request, run_id)
            return {**answer, "status": "accepted"}
        run = await self._runner.wait(run_id, seconds=request.wait_seconds)
        self._start_exchange(request, run_id)
        if run is None:
            return {
                **answer,
                "status": "timeout",
                "error": "no reply yet; the message was delivered and will be answered",
            }
        if run.status != "ok":
            return {**answer, "status": "error", "error": run.error or "the other agent did not answer"}
        return {**answer, "status": "ok", "reply": prompts.reply_text(run)}

    def _start_exchange(self, request: ConverseRequest, run_id: str) -> None:
        if request.source is None or len(self._tasks) >= MAX_EXCHANGES:
            return
        work = self._exchange(request, request.source, run_id)
        self._tasks.spawn(work, name=f"exchange of {request.source} with {request.target}")

    async def _exchange(self, request: ConverseRequest, source: str, run_id: str) -> None:
        try:
            await self._announce(request, await self._converse(request, source, run_id))
        except OpenClawError as exc:
            logger.info("agent messages: exchange of %s with %s ended early (%s)", source, request.target, exc)

    async def _converse(self, request: ConverseRequest, source: str, run_id: str) -> str:
        """Let the two agents answer each other in turn until one has nothing to add; the last answer."""
        run = await self._runner.wait(run_id, seconds=LATE_WAIT)
        text = prompts.reply_text(run) if run is not None and run.status == "ok" else ""
        for turn in range(self._settings().max_turns):
            if not text or _ends_exchange(text):
                break
            key = source if turn % 2 == 0 else request.target
            step = "This is the other's reply; answer it if there is need."
            answered = await self._run_turn(key, text, request, step)
            if answered is None:
                break
            text = prompts.reply_text(answered)
        return text

    async def _run_turn(self, key: str, message: str, request: ConverseRequest, step: str) -> Run | None:
        """The run, if it succeeded."""
        run_id = str(uuid.uuid4())
        await self._submit(key, message, run_id, request, step)
        run = await self._runner.wait(run_id, seconds=STEP_WAIT)
        return run if run is not None and run.status == "ok" else None

    async def _announce(self, request: ConverseRequest, last_reply: str) -> None:
        """Have the target's agent tell its person about the exchange, if there is such a person."""
        channels = self._channels
        if channels is None or not last_reply or (address := await channels.find_address(request.target)) is None:
            return
        step = f"Say what is to be told in your channel, or {prompts.ANNOUNCE_SKIP} for nothing."
        run = await self._run_turn(request.target, ANNOUNCE_MESSAGE, request, step)
        text = "" if run is None or await channels.has_run_message(run, address) else prompts.reply_text(run)
        if text and not prompts.is_silent(text) and not _ends_exchange(text):
            key = f"a2a:{uuid.uuid4()}"
            await channels.post(address, OutboundMessage(text=text), key=key, session=request.target)

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
                options=RunOptions(
                    lane="nested",
                    sender=other or who,
                    grant=request.grant,
                    extra_system_prompt=prompts.exchange_prompt(who, request.target, step=step),
                    input_provenance=provenance,
                ),
            )
        )


def _ends_exchange(text: str) -> bool:
    return text.strip() == prompts.REPLY_SKIP
