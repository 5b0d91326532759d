"""What the mailroom remembers: letters on their way, messages that arrived, people who asked, local conversations."""

from collections.abc import Callable, Sequence
from typing import Literal, Protocol

from msgspec import Struct

from .agent import Attachment
from .channel import Address, Heard, Letter, Receipt, Seen
from .model import Json, Sender

MailStatus = Literal["queued", "sent", "failed"]
MailOrigin = Literal["reply", "tool", "rpc", "client", "post"]
"""Who wrote it: the answer of a run, an agent's tool, an admin's client, another client, another room."""


class NewMail(Struct, frozen=True, kw_only=True):
    """A message to be kept and sent. `key` is unique for ever: the second of that key is the first."""

    key: str
    address: Address
    letters: tuple[Letter, ...]
    """Its parts, in order, each as long as the channel takes."""
    origin: MailOrigin = "post"
    session: str | None = None
    poll: Json | None = None
    """`{question, options, many}`: a question to vote on instead of letters."""


class Mail(Struct, frozen=True, kw_only=True):
    """A message in the outbox."""

    id: int
    uid: str
    key: str
    address: Address
    letters: tuple[Letter, ...]
    origin: MailOrigin
    status: MailStatus
    created_at: int
    tries: int = 0
    due_at: int = 0
    """Not to be tried before."""
    receipts: tuple[Receipt, ...] = ()
    """Of the parts that are delivered, in order."""
    error: str | None = None
    session: str | None = None
    poll: Json | None = None


class Outbox(Protocol):
    """The book of letters. Everything that returns is on disk."""

    async def put(self, new: NewMail) -> tuple[Mail, bool]:
        """Keep it; the one kept under that key, and whether it is new."""

    async def get(self, uid: str) -> Mail | None: ...

    async def note(self, mail: Mail) -> None:
        """Remember how far it is: status, tries, receipts, error, when it is due."""

    async def adopt(self, *, after: int = 0) -> Sequence[Mail]:
        """What waits and is ours, or was a dead process's and is ours now; the oldest first, from after that id on.

        As many as are read at once; nothing: there is no more.
        """

    async def page(self, *, status: MailStatus | None, limit: int) -> Sequence[Mail]:
        """The newest first, without the bytes of attachments."""

    async def drop(self, uid: str) -> bool:
        """Forget one that is not sent."""

    async def said(self, session: str, *, since: int) -> Sequence[Mail]:
        """What tools and clients wrote in a session since then; answers of runs and other rooms' posts left out."""

    async def forget(self, *, before: int) -> int:
        """Drop what ended before then; how many."""


class Arrival(Struct, frozen=True, kw_only=True):
    """A message that arrived, and how far we are with it: `new`, or `asked` of an agent by `run_id`."""

    id: int
    heard: Heard
    status: Literal["new", "asked"]
    run_id: str | None = None
    session: str | None = None


class Inbox(Protocol):
    """The book of arrivals: each id of an account once."""

    async def hear(self, heard: Heard) -> Arrival | None:
        """Keep it; None when it was heard before."""

    async def asked(self, id: int, *, run_id: str, session: str) -> None: ...

    async def join(self, id: int, heard: Heard, *, others: Sequence[int]) -> None:
        """From now on this arrival says all of it, and nothing is owed for the others."""

    async def done(self, ids: Sequence[int]) -> None:
        """Nothing more is owed for these. Their ids stay known."""

    async def pending(self, *, after: int) -> Sequence[Arrival]:
        """Those something is owed for, the oldest first, from the one behind `after` on; as many as fit the memory."""

    async def forget(self, *, before: int) -> int: ...


class Acquaintance(Struct, frozen=True, kw_only=True):
    """Somebody who wrote without being known: waits with a code, or was let in."""

    channel: str
    account: str
    sender: str
    name: str | None
    code: str
    at: int
    approved: bool = False


class People(Protocol):
    """The book of people who asked to be let in, by channel and account."""

    async def ask(self, who: Acquaintance, *, most: int, since: int) -> tuple[Acquaintance | None, bool]:
        """The request that stands for this sender, and whether it is new; None when `most` wait already.
        Requests from before `since` count no more."""

    async def approve(self, channel: str, code: str, *, since: int) -> Acquaintance | None:
        """Let in whoever was given this code; None when no request of that age bears it."""

    async def remove(self, channel: str, sender: str) -> bool: ...

    async def all(self) -> Sequence[Acquaintance]: ...


class LocalNote(Struct, frozen=True, kw_only=True):
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


class LocalBook(Protocol):
    """Conversations of the local channel. They come into being with their first message."""

    async def add(self, note: LocalNote) -> tuple[Seen, bool]:
        """The message, and whether it is new."""

    async def get(self, account: str, conversation: str, id: str) -> Seen | None: ...

    async def change(self, account: str, conversation: str, id: str, edit: Callable[[Seen], Seen]) -> Seen | None:
        """Replace a message by what `edit` makes of it; None when there is no such message."""

    async def remove(self, account: str, conversation: str, id: str) -> bool: ...

    async def read(
        self, account: str, conversation: str, *, limit: int, thread: str | None = None, before: str | None = None
    ) -> Sequence[Seen]:
        """The newest, oldest first. A thread's alone, when one is named."""

    async def lately(self, account: str, *, since: int, limit: int) -> Sequence[tuple[str, Seen]]:
        """What people wrote since then, the newest so many, oldest first; each with its conversation."""

    async def files(self, account: str, conversation: str, id: str) -> Sequence[Attachment]: ...

    async def conversations(self, account: str, *, limit: int) -> Sequence[Json]:
        """`{name, messages, updatedAt}` of each, the latest first."""
