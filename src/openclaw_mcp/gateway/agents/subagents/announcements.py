"""How a result comes back: to the session that asked for it, and from there to the person it speaks with."""

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

FIRST_RETRY, LAST_RETRY = 1.0, 8.0  # seconds between tries to tell the requester
GIVE_UP: Final = 300.0  # seconds after its end, when a result nobody takes is let go


class ResultAnnouncer:
    def __init__(
        self,
        subagents: SubagentRepository,
        sessions: SessionRepository,
        runner: RunExecutor,
        *,
        roster: Callable[[], AgentRoster],
        channels: Callable[[], MessageDelivery | None],
    ) -> None:
        self._subagents = subagents
        self._sessions = sessions
        self._runner = runner
        self._roster = roster
        self._channels = channels
        self._delivered_ids: set[str] = set()
        """Announcements that have gone to the person behind the requester."""

    async def announce(self, child: Subagent) -> str:
        """Tell the requester, once: the announcement's run id is made of the child's. What came of it."""
        text, grant = await self._result_and_grant(child)
        if prompts.is_silent(text):
            return "silent"
        wait = FIRST_RETRY
        while True:
            try:
                await self._deliver(child, text, grant)
            except OpenClawError as exc:
                logger.warning("the result of %s can't be told to %s: %s", child.child_key, child.requester_key, exc)
                assert child.ended_at is not None
                if now_ms() - child.ended_at > GIVE_UP * 1000:
                    return "failed"
                child = await self._subagents.change(child.child_key, tries=child.tries + 1) or child
                if child.delivery != "pending":  # stopped or redirected meanwhile
                    return child.delivery
                await asyncio.sleep(wait)
                wait = min(wait * 2, LAST_RETRY)
            else:
                return "delivered"

    async def _result_and_grant(self, child: Subagent) -> tuple[str, Grant]:
        """What is to be told, and under which grant: that of whoever sent the child off, but no better than that of
        anybody who had it speak lately. Whoever may write to its session may put words into its mouth."""
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
        """The requester's session; when that is itself a sub-agent that is gone, whoever sent that one off."""
        while ":subagent:" in key and await self._sessions.get(key) is None:
            parent = await self._subagents.get(key)
            if parent is None:
                raise RpcError(f"session {key} is gone")
            key = parent.requester_key
        return key

    async def deliver_reply(self, run: Run) -> None:
        """What the requester said to the result, to the person it speaks with. Nobody else asked for it, so nobody
        else delivers it; the outbox knows its key, so that it goes out once."""
        mailroom = self._channels()
        text = (run.result.text or "").strip()
        if (
            mailroom is None
            or run.status != "ok"
            or not text
            or prompts.is_silent(text)
            or run.run_id in self._delivered_ids
        ):
            return
        address = await mailroom.find_address(run.session_key)
        if address is not None and not await mailroom.has_run_message(run, address):
            await mailroom.post(address, OutboundMessage(text=text), key=run.run_id, session=None)
        self._delivered_ids.add(run.run_id)

    async def redeliver_replies(self) -> None:
        """What a crash kept from the outbox."""
        recent = await self._subagents.list_announced_since(now_ms() - int(GIVE_UP * 1000))
        self._delivered_ids &= {prompts.announcement_id(child) for child in recent}
        for child in recent:
            run = await self._runner.wait(prompts.announcement_id(child), seconds=0)
            if run is not None:
                await self.deliver_reply(run)
