"""Where the person behind a session is, and copies of sent messages in the session's transcript."""

from typing import Final

import msgspec
from msgspec import Struct

from ...core.channel import ChatAddress
from ...core.mail import OutboxMessage
from ...core.model import Json
from ...core.repositories import SessionRepository
from ...core.sessions import MessageDraft
from ...core.transcript import mark_visibility
from .accounts import ChannelAccounts

MAX_CACHED_ROUTES: Final = 10_000  # sessions whose address is held in memory; the others' are read from the store


class DeliveryContext(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A session's `deliveryContext`."""

    channel: str
    account_id: str
    to: str
    thread_id: str | None = None


class SessionRoutes:
    """The conversation that each session's latest message came from."""

    def __init__(self, sessions: SessionRepository) -> None:
        self._sessions = sessions
        self._cached: dict[str, ChatAddress] = {}

    async def find_address(self, session: str) -> ChatAddress | None:
        if session in self._cached:
            return self._cached[session]
        found = await self._sessions.get(session)
        try:
            context = msgspec.convert(found.entry.get("deliveryContext") if found else None, DeliveryContext)
        except msgspec.ValidationError:
            return None
        return ChatAddress(channel=context.channel, account=context.account_id, to=context.to, thread=context.thread_id)

    async def save(self, session: str, address: ChatAddress) -> None:
        if self._cached.get(session) == address:
            return
        context = DeliveryContext(
            channel=address.channel, account_id=address.account, to=address.to, thread_id=address.thread or None
        )
        entry = {"deliveryContext": msgspec.to_builtins(context), "lastChannel": address.channel}
        entry |= {"lastTo": address.to, "lastAccountId": address.account, "lastThreadId": address.thread}
        await self._sessions.patch(session, {}, entry)
        if len(self._cached) >= MAX_CACHED_ROUTES:
            self._cached.clear()
        self._cached[session] = address


class TranscriptMirror(Struct, frozen=True):
    """Copies delivered messages of agents and clients to the transcript of the session they belong to."""

    sessions: SessionRepository
    routes: SessionRoutes
    accounts: ChannelAccounts

    async def write(self, message: OutboxMessage) -> None:
        account = self.accounts.find(message.address)
        if account is not None and message.receipts:
            account.last_outbound_at = message.receipts[-1].at
        if message.session is None or message.origin not in ("rpc", "post", "client"):
            return
        route = await self.routes.find_address(message.session)
        there = route is not None and route.conversation == message.address.conversation
        if not there and (message.origin == "client" or message.poll is not None):
            return  # only an admin may add text of the assistant to another session: see `chat.inject`
        text = "\n".join(part.text for part in message.parts)
        body: Json = {"role": "assistant", "content": [{"type": "text", "text": text}], "stopReason": "stop"}
        body |= {"provider": "openclaw", "model": "delivery-mirror"}
        body = mark_visibility(body, "owner", in_conversation=there)
        draft = MessageDraft(role="assistant", body=body, text=text, idempotency_key=f"mirror:{message.uid}")
        await self.sessions.append(message.session, [draft])
