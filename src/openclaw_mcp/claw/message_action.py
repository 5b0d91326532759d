"""One action in a conversation: its address, the request to the gateway, the record of it."""

import uuid
from typing import Any, Final

from msgspec import Struct

from ..core.claw_methods import MESSAGE_ACTIONS, recorded_tool
from ..core.effects import SentMessage
from ..core.errors import ToolError
from ..core.lenient import read_struct
from ..core.model import Json
from ..core.rpc import RpcError
from .files import strip_file_bytes
from .tool_context import ClawContext, OutcomeUnknown, drop_empty

SEND_TIMEOUT: Final = 90.0  # seconds; a channel may be slow, and the outbox answers before it gives up
OWN_GATEWAY_METHOD: Final = "sessions.spawn"
"""A method that only gateways of our kind have: their `message.action` has a broadcast, and every action on every
channel. A real OpenClaw's serves one conversation at a time, and most of its channels know these only as a `send`:"""
SEND_ONLY_ACTIONS: Final = frozenset({"reply", "thread-reply", "sendAttachment"})


class MessageArguments(Struct, frozen=True, kw_only=True, rename="camel"):
    """The arguments of all messaging tools; its schema names those that a tool has."""

    channel: str = ""
    account_id: str = ""
    thread_id: str = ""
    target: str = ""
    targets: tuple[str, ...] = ()
    message: str = ""
    media: str = ""
    file: str = ""
    caption: str = ""
    reply_to_id: str = ""
    effect_id: str = ""
    emoji: str = ""
    message_id: str = ""
    remove: bool | None = None
    channel_id: str = ""
    limit: int | None = None
    before: str = ""


class _Receipt(Struct, frozen=True, rename="camel"):
    """The conversation to which a gateway sent a message; some wrap it in `payload`."""

    channel: str = ""
    account_id: str = ""
    to: str = ""
    thread_id: str = ""
    payload: Any = None


class MessageAction:
    """One action of one call."""

    def __init__(self, context: ClawContext, tool: str, arguments: MessageArguments, target: str | None = "") -> None:
        """`target`: empty means the run's own conversation, None that the action names none at all."""
        self._context = context
        self._tool = tool
        run = context.settings
        self.channel = arguments.channel or run.channel
        self.account = arguments.account_id or ("" if arguments.channel else run.account)
        self.target = "" if target is None else target.strip() or run.to
        # A run that was started in a thread answers in that thread unless it names another.
        at_home = self.target == run.to and self.channel == run.channel
        self.thread = "" if target is None else arguments.thread_id or (run.thread if at_home else "")

    async def perform(self, params: Json, **extra: str) -> Any:
        """The gateway's answer. Raises ToolError when the channel did not do it."""
        action = MESSAGE_ACTIONS[self._tool]
        if action in SEND_ONLY_ACTIONS and OWN_GATEWAY_METHOD not in await self._context.gateway.methods():
            action = "send"
        where = {"target": self.target, "to": self.target, "threadId": self.thread, "accountId": self.account}
        request = {
            "channel": self.channel,
            "accountId": self.account,
            "action": action,
            "params": drop_empty({**where, **params}),
            "sessionKey": self._context.settings.session_key,
            "idempotencyKey": str(uuid.uuid4()),
            **extra,
        }
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
            answer = answer if isinstance(answer, dict) else {"ok": True, "result": answer}
        except OutcomeUnknown:
            self._context.effects.record_uncertain([self.make_record({}, text, media)])
            raise
        except RpcError as error:
            if not _is_queued(error):
                raise
            answer = {"status": "queued", "note": f"{error}; it is kept and sent later: do not send it again"}
        return self._context.record_messages([self.make_record(answer, text, media)], answer)

    def make_record(self, answer: Any, text: str, media: str | None) -> SentMessage:
        """The conversation by the name the gateway gives it, which may be plainer than the agent's."""
        sent = read_struct(answer, _Receipt)
        inner = read_struct(sent.payload, _Receipt)
        return SentMessage(
            tool=recorded_tool(self._tool),
            provider=sent.channel or inner.channel or self.channel,
            account=sent.account_id or inner.account_id or self.account or None,
            to=sent.to or inner.to or self.target or None,
            text=text,
            media_url=media,
            thread=sent.thread_id or inner.thread_id or self.thread or None,
        )


def _is_queued(error: RpcError) -> bool:
    """The gateway could not deliver at once but will: an error on the wire, yet a message that is sent."""
    return isinstance(error.details, dict) and error.details.get("code") == "OUTBOUND_DELIVERY_QUEUED"
