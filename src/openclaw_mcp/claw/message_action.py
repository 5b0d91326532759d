"""One action in a conversation: where it goes, how the gateway is asked for it, what is recorded of it."""

import uuid
from typing import Any, Final

from ..core.claw_methods import MESSAGE_ACTIONS
from ..core.effects import SentMessage
from ..core.errors import ToolError
from ..core.model import Json
from ..core.rpc import RpcError
from .files import strip_file_bytes
from .tool_context import ClawContext, OutcomeUnknown, drop_empty

SEND_TIMEOUT: Final = 90.0  # seconds; a channel may be slow, and the outbox answers before it gives up
OWN_GATEWAY_METHOD: Final = "sessions.spawn"
"""A method that only gateways of our kind have: their `message.action` has a broadcast, and every action on every
channel. A real OpenClaw's serves one conversation at a time, and most of its channels know these only as a `send`:"""
SEND_ONLY_ACTIONS: Final = frozenset({"reply", "thread-reply", "sendAttachment"})


class MessageAction:
    """One action of one call."""

    def __init__(
        self,
        context: ClawContext,
        tool: str,
        arguments: Json,
        *,
        target: str | None = None,
        in_conversation: bool = True,
    ) -> None:
        """`target` None: the run's own conversation; without `in_conversation` the action names none at all."""
        self._context = context
        self._tool = tool
        run = context.settings
        self.channel = str(arguments.get("channel") or run.channel)
        self.account = str(arguments.get("accountId") or ("" if arguments.get("channel") else run.account))
        self.target = ((target or "").strip() or run.to) if in_conversation else ""
        # A run that was started in a thread answers in that thread unless it names another.
        at_home = in_conversation and self.target == run.to and self.channel == run.channel
        self.thread = str(arguments.get("threadId") or (run.thread if at_home else "")) if in_conversation else ""

    def build_request(self, params: Json, action: str) -> Json:
        where = {"target": self.target, "to": self.target, "threadId": self.thread}
        return {
            "channel": self.channel,
            "accountId": self.account,
            "action": action,
            "params": drop_empty({**where, "accountId": self.account, **params}),
            "sessionKey": self._context.settings.session_key,
            "idempotencyKey": str(uuid.uuid4()),
        }

    async def perform(self, params: Json, **extra: str) -> Any:
        """The gateway's answer. Raises ToolError when the channel did not do it."""
        action = MESSAGE_ACTIONS[self._tool]
        if action in SEND_ONLY_ACTIONS and OWN_GATEWAY_METHOD not in await self._context.gateway.methods():
            action = "send"
        request = {**self.build_request(params, action), **extra}
        answer = strip_file_bytes(await self._context.call_repeatable("message.action", request, within=SEND_TIMEOUT))
        if isinstance(answer, dict) and answer.get("ok") is False:
            reason = next((answer[name] for name in ("error", "hint", "reason") if answer.get(name)), "no reason given")
            raise ToolError(f"the channel did not do it: {reason}")
        return answer

    async def send(self, params: Json, *, text: str, media: str | None = None) -> Any:
        """Perform it and record the message."""
        self._context.effects.ensure_open()
        try:
            answer = await self.perform(params)
        except OutcomeUnknown:
            self._context.effects.record_uncertain([self.make_record({}, text, media)])
            raise
        except RpcError as error:
            if not _is_queued(error):
                raise
            answer = {"status": "queued", "note": f"{error}; it is kept and sent later: do not send it again"}
        return self._context.record_messages([self.make_record(answer, text, media)], as_object(answer))

    def make_record(self, answer: Any, text: str, media: str | None) -> SentMessage:
        """The conversation by the name the gateway gives it, which may be plainer than the agent's."""
        whole = answer if isinstance(answer, dict) else {}
        inner = whole.get("payload")
        sent = {**(inner if isinstance(inner, dict) else {}), **whole}
        return SentMessage(
            tool=self._tool,
            provider=_text_field(sent, "channel") or self.channel,
            account=_text_field(sent, "accountId") or self.account or None,
            to=_text_field(sent, "to") or self.target or None,
            text=text,
            media_url=media,
            thread=_text_field(sent, "threadId") or self.thread or None,
        )


def _is_queued(error: RpcError) -> bool:
    """The gateway could not deliver at once but will: an error on the wire, yet a message that is sent."""
    return isinstance(error.details, dict) and error.details.get("code") == "OUTBOUND_DELIVERY_QUEUED"


def _text_field(answer: Json, name: str) -> str | None:
    value = answer.get(name)
    return value if isinstance(value, str) and value else None


def as_object(answer: Any) -> Json:
    return answer if isinstance(answer, dict) else {"ok": True, "result": answer}
