"""One thing done in a conversation: where it goes, how it is asked of the gateway, what is written down of it."""

import uuid
from typing import Any, Final

from ..core.claw_methods import ACTIONS
from ..core.effects import Sent
from ..core.errors import ToolError
from ..core.model import Json
from ..core.rpc import Fault
from .files import without_bytes
from .tool_context import Seat, Unsure, given

SEND_WITHIN: Final = 90.0  # seconds; a channel may be slow, and the outbox answers before it gives up
OUR_KIND: Final = "sessions.spawn"
"""A method by which to know gateways of our kind: their `message.action` has a broadcast, and every action on every
channel. A real OpenClaw's is for one conversation at a time, and most of its channels know these only as a `send`:"""
SENT_THERE: Final = frozenset({"reply", "thread-reply", "sendAttachment"})


class Act:
    """One action in the making: where it goes, and what is written down once it is done."""

    def __init__(self, seat: Seat, tool: str, asked: Json, *, target: str | None) -> None:
        self._seat = seat
        self._tool = tool
        run = seat.run
        self.channel = str(asked.get("channel") or run.channel)
        self.account = str(asked.get("accountId") or ("" if asked.get("channel") else run.account))
        self.target = (target or "").strip() or run.to
        # A run that was started in a thread answers in that thread, unless it says another.
        at_home = self.target == run.to and self.channel == run.channel
        self.thread = str(asked.get("threadId") or (run.thread if at_home else ""))

    def request(self, params: Json, action: str) -> Json:
        where = {"target": self.target, "to": self.target, "threadId": self.thread}
        return given(
            {
                "channel": self.channel,
                "accountId": self.account,
                "action": action,
                "params": given({**where, "accountId": self.account, **params}),
                "sessionKey": self._seat.run.session_key,
                "idempotencyKey": str(uuid.uuid4()),
            }
        )

    async def make(self, params: Json, **more: str) -> Any:
        """The gateway's answer. Raises ToolError when the channel did not do it."""
        action = ACTIONS[self._tool]
        if action in SENT_THERE and OUR_KIND not in await self._seat.gateway.methods():
            action = "send"
        request = {**self.request(params, action), **more}
        answer = without_bytes(await self._seat.ask("message.action", request, within=SEND_WITHIN))
        if isinstance(answer, dict) and answer.get("ok") is False:
            reason = next((answer[name] for name in ("error", "hint", "reason") if answer.get(name)), "no reason given")
            raise ToolError(f"the channel did not do it: {reason}")
        return answer

    async def send(self, params: Json, *, said: str, media: str | None = None) -> Any:
        """Make it and write it down."""
        self._seat.effects.ready()
        try:
            answer = await self.make(params)
        except Unsure:
            self._seat.effects.unsure([self.sent({}, said, media)])
            raise
        except Fault as fault:
            if not _is_queued(fault):
                raise
            answer = {"status": "queued", "note": f"{fault}; it is kept and sent later: do not send it again"}
        return self._seat.note([self.sent(answer, said, media)], whole_of(answer))

    def sent(self, answer: Any, said: str, media: str | None) -> Sent:
        """The record: the conversation as the gateway names it, which may be plainer than the agent's own words."""
        whole = answer if isinstance(answer, dict) else {}
        inner = whole.get("payload")
        told = {**(inner if isinstance(inner, dict) else {}), **whole}
        return Sent(
            tool=self._tool,
            provider=_word(told, "channel") or self.channel,
            account=_word(told, "accountId") or self.account or None,
            to=_word(told, "to") or self.target or None,
            text=said,
            media_url=media,
            thread=_word(told, "threadId") or self.thread or None,
        )


def _is_queued(fault: Fault) -> bool:
    """A gateway that could not deliver at once but will: an error on the wire, a message all the same."""
    return isinstance(fault.details, dict) and fault.details.get("code") == "OUTBOUND_DELIVERY_QUEUED"


def _word(told: Json, name: str) -> str | None:
    value = told.get(name)
    return value if isinstance(value, str) and value else None


def whole_of(answer: Any) -> Json:
    return answer if isinstance(answer, dict) else {"ok": True, "result": answer}
