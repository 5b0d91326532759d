"""What the mailroom remembers: letters on their way, messages that arrived, people who asked, local conversations."""

from collections.abc import Callable, Sequence
from typing import Literal, Protocol

from msgspec import Struct

from .agent import Attachment
from .channel import ChatAddress, DeliveryReceipt, InboundMessage, OutboundMessage, StoredMessage
from .model import Json, Sender

OutboxStatus = Literal["queued", "sent", "failed"]
OutboxOrigin = Literal["reply", "tool", "rpc", "client", "post"]
"""Who wrote it: the answer of a run, an agent's tool, an admin's client, another client, another room."""


class NewOutboxMessage(Struct, frozen=True, kw_only=True):
    """A message to be kept and sent. `key` is unique for ever: the second of that key is the first."""

    key: str
    address: ChatAddress
    parts: tuple[OutboundMessage, ...]
    """Its parts, in order, each as long as the channel takes."""
    origin: OutboxOrigin = "post"
    session: str | None = None
    poll: Json | None = None
    """`{question, options, many}`: a question to vote on instead of letters."""


class OutboxMessage(Struct, frozen=True, kw_only=True):
    """A message in the outbox."""

    id: int
    uid: str
    key: str
    address: ChatAddress
    parts: tuple[OutboundMessage, ...]
    origin: OutboxOrigin
    status: OutboxStatus
    created_at: int
    tries: int = 0
    due_at: int = 0
    """Not to be tried before."""
    receipts: tuple[DeliveryReceipt, ...] = ()
    """Of the parts that are delivered, in order."""
    error: str | None = None
    session: str | None = None
    poll: Json | None = None


class Outbox(Protocol):
    """The book of letters. Everything that returns is on disk."""

    async def put(self, new: NewOutboxMessage) -> tuple[OutboxMessage, bool]:
        """Keep it; the one kept under that key, and whether it is new."""

    async def get(self, uid: str) -> OutboxMessage | None: ...

    async def update(self, message: OutboxMessage) -> None:
        """Remember how far it is: status, tries, receipts, error, when it is due."""

    async def adopt(self, *, after: int = 0) -> Sequence[OutboxMessage]:
        """What waits and is ours, or was a dead process's and is ours now; the oldest first, from after that id on.

        As many as are read at once; nothing: there is no more.
        """

    async def page(self, *, status: OutboxStatus | None, limit: int) -> Sequence[OutboxMessage]:
        """The newest first, without the bytes of attachments."""

    async def drop(self, uid: str) -> bool:
        """Forget one that is not sent."""

    async def list_direct_sends(self, session: str, *, since: int) -> Sequence[OutboxMessage]:
        """What tools and clients wrote in a session since then; answers of runs and other rooms' posts left out."""

    async def prune(self, *, before: int) -> int:
        """Drop what ended before then; how many."""


class InboxEntry(Struct, frozen=True, kw_only=True):
    """A message that arrived, and how far we are with it: `new`, or `asked` of an agent by `run_id`."""

    id: int
    message: InboundMessage
    status: Literal["new", "asked"]
    run_id: str | None = None
    session: str | None = None


class Inbox(Protocol):
    """The book of arrivals: each id of an account once."""

    async def add(self, message: InboundMessage) -> InboxEntry | None:
        """Keep it; None when it was heard before."""

    async def link_run(self, id: int, *, run_id: str, session: str) -> None: ...

    async def merge(self, id: int, message: InboundMessage, *, others: Sequence[int]) -> None:
        """From now on this arrival says all of it, and nothing is owed for the others."""

    async def mark_complete(self, ids: Sequence[int]) -> None:
        """Nothing more is owed for these. Their ids stay known."""

    async def pending(self, *, after: int) -> Sequence[InboxEntry]:
        """Those something is owed for, the oldest first, from the one behind `after` on; as many as fit the memory."""

    async def prune(self, *, before: int) -> int: ...


class SenderApproval(Struct, frozen=True, kw_only=True):
    """Somebody who wrote without being known: waits with a code, or was let in."""

    channel: str
    account: str
    sender: str
    name: str | None
    code: str
    at: int
    approved: bool = False


class SenderApprovalRepository(Protocol):
    """The book of people who asked to be let in, by channel and account."""

    async def request(
        self, approval: SenderApproval, *, max_pending: int, since: int
    ) -> tuple[SenderApproval | None, bool]:
        """The request that stands for this sender, and whether it is new; None when `most` wait already.
        Requests from before `since` count no more."""

    async def approve(self, channel: str, code: str, *, since: int) -> SenderApproval | None:
        """Let in whoever was given this code; None when no request of that age bears it."""

    async def remove(self, channel: str, sender: str) -> bool: ...

    async def all(self) -> Sequence[SenderApproval]: ...


class NewLocalMessage(Struct, frozen=True, kw_only=True):
    """A message about to join a local conversation. The same `key` again is the same message."""

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
    """Conversations of the local channel. They come into being with their first message."""

    async def add(self, new: NewLocalMessage) -> tuple[StoredMessage, bool]:
        """The message, and whether it is new."""

    async def get(self, account: str, conversation: str, id: str) -> StoredMessage | None: ...

    async def change(
        self, account: str, conversation: str, id: str, edit: Callable[[StoredMessage], StoredMessage]
    ) -> StoredMessage | None:
        """Replace a message by what `edit` makes of it; None when there is no such message."""

    async def remove(self, account: str, conversation: str, id: str) -> bool: ...

    async def read(
        self, account: str, conversation: str, *, limit: int, thread: str | None = None, before: str | None = None
    ) -> Sequence[StoredMessage]:
        """The newest, oldest first. A thread's alone, when one is named."""

    async def list_recent(self, account: str, *, since: int, limit: int) -> Sequence[tuple[str, StoredMessage]]:
        """What people wrote since then, the newest so many, oldest first; each with its conversation."""

    async def files(self, account: str, conversation: str, id: str) -> Sequence[Attachment]: ...

    async def conversations(self, account: str, *, limit: int) -> Sequence[Json]:
        """`{name, messages, updatedAt}` of each, the latest first."""
