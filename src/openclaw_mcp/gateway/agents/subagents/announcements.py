"""Announcing a sub-agent's result: to the session that asked for it, and from there to that session's person."""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from ....core import session_keys
from ....core.agents import AgentRoster
from ....core.channel import MessageDelivery, OutboundMessage
from ....core.errors import OpenClawError
from ....core.model import Grant
from ....core.owner import intersect_grants
from ....core.ports import RunExecutor
from ....core.repositories import SessionRepository, SubagentRepository
from ....core.rpc import RpcError
from ....core.sessions import Run, RunOptions, RunRequest, Subagent, now_ms
from . import prompts

logger = logging.getLogger(__name__)

FIRST_RETRY, LAST_RETRY = 1.0, 8.0  # seconds between attempts to notify the requester
GIVE_UP: Final = 300.0  # seconds after its end for which a result is offered


class ResultAnnouncer:
    def __init__(
        self,
        subagents: SubagentRepository,
        sessions: SessionRepository,
        runner: RunExecutor,
        *,
        roster: Callable[[], AgentRoster],
        channels: MessageDelivery | None,
    ) -> None:
        self._subagents, self._sessions, self._runner = subagents, sessions, runner
        self._roster, self._channels = roster, channels
        self._delivered_ids: set[str] = set()
        """Announcements whose replies were sent to the person behind the requester."""

    async def announce(self, child: Subagent, ended_at: int) -> str:
        """Notify the requester, once: the announcement's run id is made of the child's. The new delivery status."""
        text, grant = await self._result_and_grant(child)
        if prompts.is_silent(text):
            return "silent"
        wait = FIRST_RETRY
        while True:
            try:
                await self._deliver(child, text, grant)
            except OpenClawError as exc:
                logger.warning(
                    "subagents: result of %s could not be given to %s (%s), next attempt in %g s",
                    child.child_key, child.requester_key, exc, wait,
                )  # fmt: skip
                if now_ms() - ended_at > GIVE_UP * 1000:
                    return "failed"
                child = await self._subagents.change(child.child_key, tries=child.tries + 1) or child
                if child.delivery != "pending":  # stopped or redirected meanwhile
                    return child.delivery
                await asyncio.sleep(wait)
                wait = min(wait * 2, LAST_RETRY)
            else:
                return "delivered"

    async def _result_and_grant(self, child: Subagent) -> tuple[str, Grant]:
        """The result, and the grant it is announced under: the requester's, reduced to what every recent run of the
        child had, because each of them may have shaped the text."""
        text, run_ids = await prompts.read_last_answer(self._sessions, child)
        grant = child.grant
        for run_id in run_ids:
            run = await self._runner.wait(run_id, seconds=0)
            if run is not None:
                grant = intersect_grants(grant, run.options.grant)
        return text, grant

    async def _deliver(self, child: Subagent, text: str, grant: Grant) -> None:
        key = await self._find_recipient(child.requester_key)
        provenance = {"kind": "inter_session", "sourceSessionKey": child.child_key}
        await self._runner.submit(
            RunRequest(
                run_id=prompts.announcement_id(child),
                session=session_keys.new_session(key, self._roster()),
                message=prompts.announcement_prompt(child, text),
                mode="followup",
                options=RunOptions(
                    sender=child.child_key, grant=grant, answers_in_conversation=True, input_provenance=provenance
                ),
            )
        )

    async def _find_recipient(self, key: str) -> str:
        """The requester's session; when that is a sub-agent whose session was deleted, the requester of that one."""
        while ":subagent:" in key and await self._sessions.get(key) is None:
            parent = await self._subagents.get(key)
            if parent is None:
                raise RpcError(f"session {key} was deleted")
            key = parent.requester_key
        return key

    async def deliver_reply(self, run: Run) -> None:
        """Send the requester's answer to an announcement to its person. No person asked for this run, so no other code
        sends its answer; the outbox sends a key once."""
        text, channels = prompts.reply_text(run), self._channels
        is_wanted = run.status == "ok" and text and not prompts.is_silent(text)
        if channels is None or not is_wanted or run.run_id in self._delivered_ids:
            return
        address = await channels.find_address(run.session_key)
        if address is not None and not await channels.has_run_message(run, address):
            await channels.post(address, OutboundMessage(text=text), key=run.run_id, session=None)
        self._delivered_ids.add(run.run_id)

    async def redeliver_replies(self) -> None:
        """Send the answers that a crash kept from the outbox."""
        recent = await self._subagents.list_announced_since(now_ms() - int(GIVE_UP * 1000))
        self._delivered_ids &= {prompts.announcement_id(child) for child in recent}
        for child in recent:
            run = await self._runner.wait(prompts.announcement_id(child), seconds=0)
            if run is not None:
                await self.deliver_reply(run)
