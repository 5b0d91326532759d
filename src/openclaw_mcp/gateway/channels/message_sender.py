"""Messages on their way into the outbox: checked against what the channel can carry, split into parts, stored."""

import logging
from typing import Final

import msgspec
from msgspec import Struct

from ...core.channel import ChannelRefused, ChatAddress, OutboundMessage, Poll, PostResult
from ...core.mail import NewOutboxMessage, OutboxOrigin
from ...core.model import Json
from .accounts import AccountChannel, ChannelAccounts
from .chunks import split_text
from .outbox import OutboxSender

logger = logging.getLogger(__name__)

MAX_TEXT_LENGTH: Final = 500_000  # characters of one message; more is a file


NO_REPLY_MARK: Final[Json] = {"notice": True}
"""The `extra` of a message that answers no other: a client of the local channel goes on waiting for the reply."""
RUN_MARK: Final = "runId"
"""In the `extra` of every part of a run's reply: a client of the local channel knows which message it answers."""
MORE_MARK: Final = "more"
"""In the `extra` of such a part that is not the last."""


class MessageSender(Struct, frozen=True):
    """Sends through the outbox. Raises ChannelRefused for an unknown account, or an ability the channel lacks."""

    outbox: OutboxSender
    accounts: ChannelAccounts

    async def send(
        self, address: ChatAddress, message: OutboundMessage, *, key: str, wait: float = 0.0,
        session: str | None = None, origin: OutboxOrigin = "post",
    ) -> PostResult:  # fmt: skip
        """See `core.channel.MessageDelivery.post`. By `origin`, the message is copied to the transcript or not."""
        account = self.accounts.require(address)
        account.require("send")
        account.require_used(
            {"reply": message.reply_to, "thread": address.thread, "effect": message.effect,
             "attachment": message.attachments}
        )  # fmt: skip
        _check_size(account, message)
        parts = _split_message(message, account.text_limit)
        new = NewOutboxMessage(key=key, address=address, parts=parts, origin=origin, session=session)
        return await self._post(new, wait=wait)

    async def send_poll(
        self, address: ChatAddress, poll: Poll, *, key: str, wait: float, session: str | None
    ) -> PostResult:
        self.accounts.require(address).require("poll")
        text = OutboundMessage(text=poll.question)
        new = NewOutboxMessage(key=key, address=address, parts=(text,), origin="rpc", session=session, poll=poll)
        return await self._post(new, wait=wait)

    async def send_notice(
        self, address: ChatAddress, text: str, *, key: str, is_reply: bool = True, run_id: str | None = None
    ) -> None:
        """A text of the gateway's own. `is_reply`: it answers a message, the one that `run_id` is for."""
        extra = ({} if run_id is None else {RUN_MARK: run_id}) if is_reply else NO_REPLY_MARK
        await self.send(address, OutboundMessage(text=text, extra=extra), key=key, origin="reply")

    async def send_reply(self, address: ChatAddress, message: OutboundMessage, *, run_id: str) -> None:
        """A run's reply. What the channel can't carry is left out rather than the whole reply."""
        account = self.accounts.find(address)
        if account is None:
            logger.warning("replies: reply of run %s dropped (channel %s is gone)", run_id, address.channel)
            return
        if not account.allows("thread"):
            address = msgspec.structs.replace(address, thread=None)
        message = msgspec.structs.replace(message, extra={**message.extra, RUN_MARK: run_id})
        await self.send(address, _drop_unsupported_parts(message, account), key=f"reply:{run_id}", origin="reply")

    async def _post(self, new: NewOutboxMessage, *, wait: float) -> PostResult:
        stored = await self.outbox.put(new)
        if stored.address != new.address:
            raise ChannelRefused("this idempotency key was used for another conversation; make a new one")
        stored = await self.outbox.wait_for_outcome(stored, seconds=wait)
        return PostResult(id=stored.uid, status=stored.status, receipts=stored.receipts, error=stored.error)


def _check_size(account: AccountChannel, message: OutboundMessage) -> None:
    if len(message.text) > MAX_TEXT_LENGTH:
        raise ChannelRefused(f"the text is longer than {MAX_TEXT_LENGTH} characters; send it as a file")
    limit = account.media_limit
    for attachment in message.attachments:
        if not account.carries(attachment.mime_type):
            raise ChannelRefused(f"this channel can't carry {attachment.mime_type}")
        if len(attachment.data or b"") > limit:
            raise ChannelRefused(f"an attachment is larger than {limit} bytes, the most this channel takes")


def _drop_unsupported_parts(message: OutboundMessage, account: AccountChannel) -> OutboundMessage:
    text, carried = message.text, []
    for each in message.attachments:
        fits = account.carries(each.mime_type) and len(each.data or b"") <= account.media_limit
        if fits and account.allows("attachment"):
            carried.append(each)
        else:
            text = f"{text}\n[{each.name or each.kind}: this channel can't carry it]".strip()
    reply_to = message.reply_to if account.allows("reply") else None
    return msgspec.structs.replace(message, text=text[:MAX_TEXT_LENGTH], attachments=tuple(carried), reply_to=reply_to)


def _split_message(message: OutboundMessage, limit: int) -> tuple[OutboundMessage, ...]:
    """Attachments, effect and the answered message are of the first part; the run that replies, of every part."""
    texts = split_text(message.text, limit) or [""]
    if len(texts) == 1:
        return (msgspec.structs.replace(message, text=texts[0]),)
    last = {RUN_MARK: message.extra[RUN_MARK]} if RUN_MARK in message.extra else {}
    more = {**last, MORE_MARK: True} if last else {}
    first = msgspec.structs.replace(message, text=texts[0], extra={**message.extra, **more})
    extras = [more] * (len(texts) - 2) + [last]
    rest = zip(texts[1:], extras, strict=True)
    return (first, *(OutboundMessage(text=text, silent=message.silent, extra=extra) for text, extra in rest))
