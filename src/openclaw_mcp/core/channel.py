"""Channels: where a message goes, what arrives, what a channel can do; and the port each channel implements."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Literal, Protocol

from msgspec import Struct

from .agent import Attachment
from .errors import OpenClawError
from .model import Json, Sender

if TYPE_CHECKING:
    # For the types alone: channels do not use runs.
    from .sessions import Run

Ability = Literal[
    "send", "reply", "thread", "broadcast", "react", "delete", "attachment", "effect", "pin", "read", "edit",
    "typing", "poll",
]  # fmt: skip
ChatKind = Literal["direct", "group", "channel"]
ConversationKey = tuple[str, str, str]
"""Channel, account and target: a conversation with all its threads."""

ChannelStatus = Mapping[str, str | int | None]
"""`connected`, and what else a channel reports of itself; no secrets."""

LOCAL_CHANNEL: Final = "local"
"""The built-in channel."""
OWNER_SENDER_ID: Final = "owner"
"""The sender at this machine's terminal, and every client with the owner's credential that names no other sender."""


class ChatAddress(Struct, frozen=True, kw_only=True, cache_hash=True):
    """A conversation. `to` is in the channel's canonical form: see `Channel.normalize_target`."""

    channel: str
    account: str
    to: str
    thread: str | None = None

    @property
    def conversation(self) -> ConversationKey:
        """The conversation, whichever of its threads is meant."""
        return self.channel, self.account, self.to


class ChannelAbilities(Struct, frozen=True, kw_only=True):
    """What a channel can do. Anything else is refused before the channel is called."""

    can: frozenset[Ability]
    text_limit: int
    """Characters of a single message; longer texts are sent in parts."""
    markup: Literal["plain", "markdown", "html"]
    media: tuple[str, ...] = ()
    """MIME prefixes it carries as attachments; `*/*` = any."""
    media_limit: int = 0
    """Bytes of one attachment."""
    once: bool = False
    """Whether sending twice under one key delivers once. Elsewhere, a crash after the send and before its receipt is
    stored sends the message again."""


class OutboundMessage(Struct, frozen=True, kw_only=True):
    """One message on its way out, no longer than the channel's limit."""

    text: str = ""
    attachments: tuple[Attachment, ...] = ()
    reply_to: str | None = None
    effect: str | None = None
    silent: bool = False
    extra: Json = {}
    """What only this channel understands: buttons, cards."""


class Poll(Struct, frozen=True, kw_only=True):
    """A question to vote on."""

    question: str
    options: tuple[str, ...]
    many: bool = False
    """Whether one person may choose several options."""

    @property
    def text(self) -> str:
        """The poll as plain text."""
        return "\n".join([self.question, *(f"{number}. {option}" for number, option in enumerate(self.options, 1))])


class DeliveryReceipt(Struct, frozen=True, kw_only=True):
    """The channel has accepted the message. `message_id` is its id there."""

    message_id: str
    at: int
    """Unix milliseconds."""
    extra: Mapping[str, list[str]] = {}
    """`messageIds`, when the channel made several messages of it."""


class InboundMessage(Struct, frozen=True, kw_only=True):
    """A message that arrived, as the channel itself attests it."""

    id: str
    """Unique in its account: the same message received twice has the same id."""
    address: ChatAddress
    chat: ChatKind
    sender: Sender
    text: str
    at: int
    attachments: tuple[Attachment, ...] = ()
    files: tuple[Json, ...] = ()
    """Attachments still on the channel's server, in the channel's own format; fetched once the sender is allowed."""
    reply_to: str | None = None
    mentioned: bool = False
    """Whether the text mentions us by name, or answers a message of ours."""
    title: str | None = None
    """The conversation's name."""
    space: str | None = None
    """The guild, team or server the conversation belongs to."""
    vouched: bool = False
    """Whether a client with the owner's credential submitted it. Only the local channel sets this: see `core.owner`."""


class FileSummary(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """An attachment of a message, without its bytes."""

    name: str | None
    mime_type: str
    size: int
    url: str | None = None


class Reaction(Struct, frozen=True, kw_only=True):
    emoji: str
    sender: str


class StoredMessage(Struct, frozen=True, kw_only=True):
    """A message as `read` returns it."""

    id: str
    sender: Sender
    text: str
    at: int
    mine: bool = False
    thread: str | None = None
    reply_to: str | None = None
    attachments: tuple[FileSummary, ...] = ()
    reactions: tuple[Reaction, ...] = ()
    pinned: bool = False
    edited: bool = False
    extra: Json = {}
    """What only this channel knows: an effect, a poll."""


OnMessage = Callable[[InboundMessage], Awaitable[None]]
"""Receives one message. Returns when it is on disk: only then may the channel acknowledge it to its server."""


class ChannelError(OpenClawError):
    """A channel failed. Trying again may help, unless it is one of the subclasses below."""

    code = "channel_error"


class ChannelRefused(ChannelError):
    """A permanent failure: no such conversation, blocked, malformed. The text says which."""

    code = "channel_refused"


class ChannelBusy(ChannelError):
    """The server limits our rate; `retry_after` is how many seconds it asked us to wait."""

    code = "channel_busy"

    def __init__(self, message: str, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Channel(Protocol):
    """One account on one messenger. It moves messages and decides nothing: who may write, what is answered, retries,
    order, splitting and duplicates are decided by its callers.

    Every method but `run` raises ChannelError, ChannelRefused or ChannelBusy. Methods of abilities it did not declare
    are never called.
    """

    @property
    def name(self) -> str:
        """The channel's id: `local`, `matrix`, `telegram`."""

    @property
    def account(self) -> str: ...

    @property
    def abilities(self) -> ChannelAbilities: ...

    def normalize_target(self, target: str) -> str:
        """The one spelling of a target, so that two ways to write a conversation compare equal. Raises ChannelRefused
        with a hint when it can't be one."""

    async def run(self, on_message: OnMessage) -> None:
        """Connect and receive until cancelled. Ends only by raising: ChannelRefused when a person must act (a wrong
        token); after any other error it is started again with a growing delay."""

    async def status(self) -> ChannelStatus: ...

    async def send(self, address: ChatAddress, message: OutboundMessage, *, key: str) -> DeliveryReceipt:
        """Send one message. The same `key` again: the same receipt and no second message, where `abilities.once`."""

    async def react(self, address: ChatAddress, message_id: str, emoji: str, *, remove: bool = False) -> None: ...

    async def delete(self, address: ChatAddress, message_id: str) -> None: ...

    async def edit(self, address: ChatAddress, message_id: str, text: str) -> None: ...

    async def pin(self, address: ChatAddress, message_id: str, *, remove: bool = False) -> None: ...

    async def read(self, address: ChatAddress, *, limit: int, before: str | None = None) -> Sequence[StoredMessage]:
        """The newest messages, oldest first."""

    async def send_poll(self, address: ChatAddress, poll: Poll, *, key: str) -> DeliveryReceipt: ...

    async def set_typing(self, address: ChatAddress, *, on: bool) -> None: ...


class PostResult(Struct, frozen=True, kw_only=True):
    """The state of a posted message: delivered, stored for another attempt, or failed."""

    id: str
    """Its id in the outbox."""
    status: Literal["sent", "queued", "failed"]
    receipts: tuple[DeliveryReceipt, ...] = ()
    """One for each part, in order."""
    error: str | None = None


class MessageDelivery(Protocol):
    """Delivers messages to people, for cron, agents and tools, which know no channel."""

    async def post(
        self, address: ChatAddress, message: OutboundMessage, *, key: str, wait: float = 0.0, session: str | None = None
    ) -> PostResult:
        """Send a message of any length. It is in the outbox, on disk, before anything is sent; `wait` seconds for its
        delivery. `key` is the caller's idempotency key: every later post with that key gets the first one's result.
        `session` names the transcript it is copied to. Raises ChannelRefused for an unknown channel or target, or for
        an ability the channel lacks."""

    def find_address(self, session: str) -> "Awaitable[ChatAddress | None]":
        """The conversation the session's latest message came from."""

    def has_run_message(self, run: "Run", address: ChatAddress) -> "Awaitable[bool]":
        """Whether the run's agent has itself written to that conversation: then its reply is there already."""
