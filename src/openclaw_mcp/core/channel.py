"""Words of the mailroom: where a message goes, what arrives, what a channel can do; and the port each one fills."""

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Final, Literal, Protocol

from msgspec import Struct

from .agent import Attachment
from .errors import OpenClawError
from .model import Json, Sender

if TYPE_CHECKING:
    # For the types alone: channels know nothing of runs.
    from .sessions import Run

Ability = Literal[
    "send", "reply", "thread", "broadcast", "react", "delete", "attachment", "effect", "pin", "read", "edit",
    "typing", "poll",
]  # fmt: skip
ChatKind = Literal["direct", "group", "channel"]


LOCAL_CHANNEL: Final = "local"
"""The channel that is built in."""
OWNER_SENDER_ID: Final = "owner"
"""The sender at this machine's terminal, and every client with the owner's credential that speaks for nobody else."""


class ChatAddress(Struct, frozen=True, kw_only=True, cache_hash=True):
    """A conversation. `to` is in the channel's own canonical form: see `Channel.canonical`."""

    channel: str
    account: str
    to: str
    thread: str | None = None


class ChannelAbilities(Struct, frozen=True, kw_only=True):
    """What a channel can do here; asked for anything else, the mailroom refuses before the channel hears of it."""

    can: frozenset[Ability]
    text_limit: int
    """Characters a single message holds; longer texts are sent in parts."""
    markup: Literal["plain", "markdown", "html"]
    media: tuple[str, ...] = ()
    """MIME prefixes it carries as attachments; `*/*` = any."""
    media_limit: int = 0
    """Bytes of one attachment."""
    once: bool = False
    """Whether sending twice under one key delivers once. Elsewhere a crash between sending and noting sends again."""


class OutboundMessage(Struct, frozen=True, kw_only=True):
    """One message on its way out, no longer than the channel's limit."""

    text: str = ""
    attachments: tuple[Attachment, ...] = ()
    reply_to: str | None = None
    effect: str | None = None
    silent: bool = False
    extra: Json = {}
    """What only this channel understands: buttons, cards."""


class DeliveryReceipt(Struct, frozen=True, kw_only=True):
    """The channel has the message. `message_id` is its name there."""

    message_id: str
    at: int
    """Unix milliseconds."""
    extra: Json = {}


class InboundMessage(Struct, frozen=True, kw_only=True):
    """A message that arrived, as the channel itself vouches for it."""

    id: str
    """Unique in its account: the same message told twice has the same id."""
    address: ChatAddress
    chat: ChatKind
    sender: Sender
    text: str
    at: int
    attachments: tuple[Attachment, ...] = ()
    files: tuple[Json, ...] = ()
    """Attachments that still lie on the channel's server, in its own words; fetched if the sender may write to us."""
    reply_to: str | None = None
    mentioned: bool = False
    """Whether the text speaks to us by name, or answers a message of ours."""
    title: str | None = None
    """What the conversation is called."""
    space: str | None = None
    """The guild, team or server the conversation belongs to."""
    vouched: bool = False
    """Whether a client with the owner's credential handed it in. The local channel's alone: see `core.owner`."""


class StoredMessage(Struct, frozen=True, kw_only=True):
    """A message as `read` finds it."""

    id: str
    sender: Sender
    text: str
    at: int
    mine: bool = False
    thread: str | None = None
    reply_to: str | None = None
    attachments: tuple[Json, ...] = ()
    """`{name, mimeType, size}` of each."""
    reactions: tuple[Json, ...] = ()
    """`{emoji, sender}` of each."""
    pinned: bool = False
    edited: bool = False
    extra: Json = {}
    """What only this channel knows: an effect, a poll."""


OnMessage = Callable[[InboundMessage], Awaitable[None]]
"""Hand over a message. Returns when it is on disk: only then may the channel tell its server it has it."""


class ChannelError(OpenClawError):
    """A channel could not do it. Try again unless it says otherwise."""

    code = "channel_error"


class ChannelRefused(ChannelError):
    """It never will: no such conversation, blocked, malformed. The text says which."""

    code = "channel_refused"


class ChannelBusy(ChannelError):
    """Too much at once; `seconds` is how long the server asked us to wait."""

    code = "channel_busy"

    def __init__(self, message: str, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Channel(Protocol):
    """One account on one messenger. It moves messages and decides nothing: who may write, what is answered, retries,
    order, parts of long texts and duplicates are the mailroom's affair.

    Every method but `run` raises ChannelError, ChannelRefused or ChannelBusy. Those of abilities it did not declare are
    never called.
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
        """Connect and receive until cancelled. Returns only by raising: ChannelRefused when a person must act (a wrong
        token), anything else to be started again after a while."""

    async def status(self) -> Json:
        """`{connected, …}` for `channels.status`; no secrets."""

    async def send(self, address: ChatAddress, message: OutboundMessage, *, key: str) -> DeliveryReceipt:
        """Send one message. The same `key` again: the same receipt and no second message, where `abilities.once`."""

    async def react(self, address: ChatAddress, message_id: str, emoji: str, *, remove: bool = False) -> None: ...

    async def delete(self, address: ChatAddress, message_id: str) -> None: ...

    async def edit(self, address: ChatAddress, message_id: str, text: str) -> None: ...

    async def pin(self, address: ChatAddress, message_id: str, *, remove: bool = False) -> None: ...

    async def read(self, address: ChatAddress, *, limit: int, before: str | None = None) -> Sequence[StoredMessage]:
        """The newest messages, oldest first."""

    async def send_poll(
        self, address: ChatAddress, question: str, options: Sequence[str], *, many: bool, key: str
    ) -> DeliveryReceipt: ...

    async def set_typing(self, address: ChatAddress, *, on: bool) -> None: ...


class PostResult(Struct, frozen=True, kw_only=True):
    """What became of a message handed to the mailroom: delivered, or kept and tried again."""

    id: str
    """Its name in the outbox."""
    status: Literal["sent", "queued", "failed"]
    receipts: tuple[DeliveryReceipt, ...] = ()
    """One for each part, in order."""
    error: str | None = None


class MessageDelivery(Protocol):
    """Whoever takes messages to people. Used by cron, agents and tools, who know no channel."""

    async def post(
        self, address: ChatAddress, message: OutboundMessage, *, key: str, wait: float = 0.0, session: str | None = None
    ) -> PostResult:
        """Send a letter of any length. It is in the outbox, on disk, before anything is tried; `wait` seconds for its
        delivery. `key` is the caller's idempotency key: once posted, ever after the same Posted. `session` names the
        transcript it is mirrored to. Raises ChannelRefused for a channel, target or ability there is not."""

    def find_address(self, session: str) -> "Awaitable[ChatAddress | None]":
        """Where the person behind a session is to be reached: the conversation it last heard from."""

    def has_run_message(self, run: "Run", address: ChatAddress) -> "Awaitable[bool]":
        """Whether the run's agent has itself written to that conversation: then its answer is there already."""
