"""Ports of stored messages: outbox, inbox, senders waiting for approval, conversations of the local channel."""

from collections.abc import Callable, Sequence
from typing import Literal, Protocol

from msgspec import Struct

from .agent import Attachment
from .channel import ChatAddress, DeliveryReceipt, InboundMessage, OutboundMessage, Poll, StoredMessage
from .model import Json, Sender

OutboxStatus = Literal["queued", "sent", "failed"]
OutboxOrigin = Literal["reply", "tool", "rpc", "client", "post"]
"""Who wrote it: a run as its reply, an agent's tool, an admin's client, another client, another part of the gateway."""


class NewOutboxMessage(Struct, frozen=True, kw_only=True):
    """A message to be stored and sent. `key` is its idempotency key: a second one of that key is the first."""

    key: str
    address: ChatAddress
    parts: tuple[OutboundMessage, ...]
    """Its parts, in order, each within the channel's limit."""
    origin: OutboxOrigin = "post"
    session: str | None = None
    poll: Poll | None = None
    """A poll to send instead of the parts."""


class OutboxMessage(NewOutboxMessage, frozen=True, kw_only=True):
    """A message in the outbox."""

    id: int
    uid: str
    status: OutboxStatus
    created_at: int
    tries: int = 0
    due_at: int = 0
    """Unix milliseconds before which it is not sent."""
    receipts: tuple[DeliveryReceipt, ...] = ()
    """Receipts of the delivered parts, in order."""
    error: str | None = None


class Outbox(Protocol):
    """Outgoing messages. What a method stores is on disk when it returns."""

    async def put(self, new: NewOutboxMessage) -> tuple[OutboxMessage, bool]:
        """Store it; returns the message stored under that key, and whether it is new."""

    async def get(self, uid: str) -> OutboxMessage | None: ...

    async def update(self, message: OutboxMessage) -> None:
        """Store its progress: status, tries, receipts, error, due time."""

    async def adopt(self, *, after: int = 0) -> Sequence[OutboxMessage]:
        """Queued messages of this process, and of dead ones, which become this one's; oldest first, ids above `after`.

        One page; an empty one means there are no more.
        """

    async def page(self, *, status: OutboxStatus | None, limit: int) -> Sequence[OutboxMessage]:
        """The newest first, without the bytes of attachments."""

    async def drop(self, uid: str) -> bool:
        """Delete one that is not sent."""

    async def list_direct_sends(self, session: str, *, since: int) -> Sequence[OutboxMessage]:
        """What tools and clients sent in a session since then; not replies of runs, not the gateway's own posts."""

    async def prune(self, *, before: int) -> int:
        """Delete what ended before then; returns how many."""


class InboxEntry(Struct, frozen=True, kw_only=True):
    """A message that arrived and its state: `new`, or `asked`: submitted to an agent as run `run_id`."""

    id: int
    message: InboundMessage
    status: Literal["new", "asked"]
    run_id: str | None = None
    session: str | None = None


class Inbox(Protocol):
    """Messages that arrived: each id of an account once."""

    async def add(self, message: InboundMessage) -> InboxEntry | None:
        """Store it; None when it was received before."""

    async def link_run(self, id: int, *, run_id: str, session: str) -> None: ...

    async def merge(self, id: int, message: InboundMessage, *, others: Sequence[int]) -> None:
        """Replace this entry's message by one that contains the others', and mark the others complete."""

    async def mark_complete(self, ids: Sequence[int]) -> None:
        """Nothing remains to be done for these. Their ids stay known."""

    async def pending(self, *, after: int) -> Sequence[InboxEntry]:
        """One page of the entries that are not complete, oldest first, ids above `after`."""

    async def last_id(self) -> int:
        """The highest id of an entry; 0 when there is none. Later entries have higher ones."""

    async def prune(self, *, before: int) -> int: ...


class SenderApproval(Struct, frozen=True, kw_only=True):
    """An unknown sender who wrote to us: waits with a pairing code, or is approved."""

    channel: str
    account: str
    sender: str
    name: str | None
    code: str
    at: int
    approved: bool = False


class SenderApprovalRepository(Protocol):
    """Senders that asked for approval, by channel and account."""

    async def request(
        self, approval: SenderApproval, *, max_pending: int, since: int
    ) -> tuple[SenderApproval | None, bool]:
        """The sender's current request, and whether it is new; None when `max_pending` wait already.
        Requests from before `since` have expired."""

    async def approve(self, channel: str, code: str, *, since: int) -> SenderApproval | None:
        """Approve the sender with this code; None when no request since then has it."""

    async def remove(self, channel: str, sender: str) -> bool: ...

    async def all(self) -> Sequence[SenderApproval]: ...


class NewLocalMessage(Struct, frozen=True, kw_only=True):
    """A message to be added to a local conversation. The same `key` again is the same message."""

    account: str
    conversation: str
    sender: Sender
    text: str
    mine: bool
    key: str
    thread: str | None = None
    reply_to: str | None = None
    attachments: tuple[Attachment, ...] = ()
    extra: Json = {}


class LocalMessageRepository(Protocol):
    """Conversations of the local channel. The first message creates its conversation."""

    async def add(self, new: NewLocalMessage) -> tuple[StoredMessage, bool]:
        """The stored message, and whether it is new."""

    async def get(self, account: str, conversation: str, id: str) -> StoredMessage | None: ...

    async def change(
        self, account: str, conversation: str, id: str, edit: Callable[[StoredMessage], StoredMessage]
    ) -> StoredMessage | None:
        """Replace a message by the result of `edit`; None when there is no such message."""

    async def remove(self, account: str, conversation: str, id: str) -> bool: ...

    async def read(
        self, account: str, conversation: str, *, limit: int, thread: str | None = None, before: str | None = None
    ) -> Sequence[StoredMessage]:
        """The newest messages, oldest first; only those of `thread` when one is named."""

    async def list_recent(self, account: str, *, since: int, limit: int) -> Sequence[tuple[str, StoredMessage]]:
        """The newest `limit` messages that people wrote since then, oldest first; each with its conversation."""

    async def files(self, account: str, conversation: str, id: str) -> Sequence[Attachment]: ...

    async def conversations(self, account: str, *, limit: int) -> Sequence[Json]:
        """`{name, messages, updatedAt}` of each, the latest first."""
