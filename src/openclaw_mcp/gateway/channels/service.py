"""The mailroom: every channel, the way in and the way out, as the rest of the house knows them."""

import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final, Self

import msgspec
from msgspec import Struct

from ...core.agent import Attachment
from ...core.agents import AgentRoster
from ...core.channel import Ability, Channel, ChannelRefused, ChatAddress, InboundMessage, OutboundMessage, PostResult
from ...core.config.channels import ChannelRules
from ...core.config.config import Config
from ...core.errors import BadRequest
from ...core.mail import Inbox, NewOutboxMessage, Outbox, OutboxMessage, OutboxOrigin, SenderApprovalRepository
from ...core.model import Json
from ...core.ports import RunExecutor
from ...core.repositories import SessionRepository
from ...core.sessions import MessageDraft, Run
from ...core.transcript import mark_visibility
from .account_runner import AccountRunner, AccountRunners, ChannelFactory
from .attachments import fetch_attachments
from .chunks import split_text
from .inbox import InboundDependencies, InboundProcessor
from .outbox import OutboxSender
from .replying import ReplyDependencies, ReplySender
from .settings import default_account, read_accounts

logger = logging.getLogger(__name__)

MAX_CACHED_ROUTES: Final = 10_000  # sessions whose address is remembered in memory; the others' are read from the store
MAX_TEXT_LENGTH: Final = 500_000  # characters of one message; more is a file

ABILITY_DESCRIPTIONS: Final[Mapping[Ability, str]] = {
    "send": "send messages",
    "reply": "reply to messages",
    "thread": "write in threads",
    "broadcast": "send to several conversations",
    "react": "react to messages",
    "delete": "delete messages",
    "attachment": "send attachments",
    "effect": "send messages with an effect",
    "pin": "pin messages",
    "read": "read messages",
    "edit": "edit messages",
    "typing": "show that somebody types",
    "poll": "make polls",
}


class ChannelRepositories(Struct, frozen=True, kw_only=True):
    outbox: Outbox
    inbox: Inbox
    sender_approvals: SenderApprovalRepository
    sessions: SessionRepository


class ChannelService:
    """A `core.channel.Mailroom`. `async with` it; `apply` again when the config has changed."""

    def __init__(
        self,
        repositories: ChannelRepositories,
        runner: RunExecutor,
        *,
        factories: Mapping[str, ChannelFactory],
        folder: Path,
        config: Callable[[], Config],
        roster: Callable[[], AgentRoster],
        reset_session: Callable[[str], Awaitable[object]],
    ) -> None:
        self.repositories = repositories
        self.config = config
        self.accounts = AccountRunners(factories, folder, self._on_inbound, on_available=self._on_available)
        self.outbox = OutboxSender(
            repositories.outbox,
            self.accounts.find_channel,
            is_stable=self._is_stable,
            on_sent=self._mirror_to_transcript,
        )
        self.reply_sender = ReplySender(
            ReplyDependencies(
                outbox=repositories.outbox,
                sessions=repositories.sessions,
                runner=runner,
                config=config,
                find_channel=self.accounts.find_channel,
                rules_for=self._rules_for,
                send_reply=self._send_reply,
            )
        )
        self.inbound = InboundProcessor(
            InboundDependencies(
                inbox=repositories.inbox,
                sender_approvals=repositories.sender_approvals,
                sessions=repositories.sessions,
                runner=runner,
                roster=roster,
                config=config,
                rules_for=self._rules_for,
                reset_session=reset_session,
                send_notice=self._send_notice,
                send_reply=self.reply_sender.send_reply,
                fetch_attachments=self._fetch_attachments,
                save_route=self._save_route,
            )
        )
        self._routes: dict[str, ChatAddress] = {}
        self._stack = AsyncExitStack()
        self.config_error: str | None = None
        """What is wrong with the config's channels, when it can't be followed."""

    async def __aenter__(self) -> Self:
        await (
            self.apply_config()
        )  # first: what is taken up next is judged by the accounts' rules, and sent by their channels
        self._stack.push_async_callback(self.accounts.aclose)
        await self._stack.enter_async_context(self.outbox)
        await self._stack.enter_async_context(self.inbound)
        return self

    async def __aexit__(self, *_exc: object) -> None:
        """Channels close first: nothing new comes in while what is in hand is put away."""
        await self.accounts.aclose()
        await self._stack.aclose()

    async def apply_config(self) -> None:
        """Start and stop channels as the config says now. A config that can't be followed changes nothing."""
        try:
            wanted = read_accounts(self.config().channels)
        except BadRequest as exc:
            self.config_error = str(exc)
            logger.error("channels stay as they are: %s", exc)  # noqa: TRY400  (a sentence says it all)
            return
        self.config_error = None
        await self.accounts.apply(wanted)

    # ---- for everybody -------------------------------------------------------------------------------------------

    async def post(
        self, address: ChatAddress, message: OutboundMessage, *, key: str, wait: float = 0.0, session: str | None = None
    ) -> PostResult:
        return await self.send(address, message, key=key, wait=wait, session=session, origin="post")

    async def find_address(self, session: str) -> ChatAddress | None:
        if session in self._routes:
            return self._routes[session]
        found = await self.repositories.sessions.get(session)
        told = None if found is None else found.entry.get("deliveryContext")
        if not isinstance(told, dict) or not isinstance(told.get("to"), str):
            return None
        return ChatAddress(
            channel=str(told.get("channel")), account=str(told.get("accountId")), to=told["to"],
            thread=told.get("threadId"),
        )  # fmt: skip

    async def has_run_message(self, run: Run, address: ChatAddress) -> bool:
        return await self.reply_sender.has_run_message(run, address)

    async def send(
        self,
        address: ChatAddress,
        message: OutboundMessage,
        *,
        key: str,
        wait: float = 0.0,
        session: str | None = None,
        origin: OutboxOrigin = "post",
    ) -> PostResult:
        """`post`, saying who wrote it. Only what agents and clients write is mirrored to a transcript."""
        station = self.account_runner(address)
        self._check_message(station, message, address)
        mail = NewOutboxMessage(
            key=key,
            address=address,
            parts=_split_message(message, _text_limit(station)),
            origin=origin,
            session=session,
        )
        return await self._enqueue(mail, wait=wait)

    async def poll(self, address: ChatAddress, poll: Json, *, key: str, wait: float, session: str | None) -> PostResult:
        """`{question, options, many}` to vote on."""
        require_ability(self.account_runner(address), "poll")
        text = OutboundMessage(text=str(poll["question"]))
        mail = NewOutboxMessage(key=key, address=address, parts=(text,), origin="rpc", session=session, poll=poll)
        return await self._enqueue(mail, wait=wait)

    async def _enqueue(self, message: NewOutboxMessage, *, wait: float) -> PostResult:
        kept, _ = await self.outbox.put(message)
        if kept.address != message.address:
            raise ChannelRefused("this idempotency key was used for another conversation; make a new one")
        kept = await self.outbox.wait_for_outcome(kept, seconds=wait)
        return PostResult(id=kept.uid, status=kept.status, receipts=kept.receipts, error=kept.error)

    def account_runner(self, address: ChatAddress) -> AccountRunner:
        """Raises ChannelRefused when there is no such account."""
        station = self.accounts.get(address.channel, address.account)
        if station is None:
            raise self._unknown_account_error(address.channel, address.account)
        return station

    def default_account_id(self, channel: str) -> str:
        """The account that speaks when none is named."""
        return default_account(self.config().channels, channel)

    def _unknown_account_error(self, channel: str, account: str) -> ChannelRefused:
        why = self.accounts.issues.get((channel, account))
        if why is not None:
            return ChannelRefused(why)
        mine = [station.account.id for station in self.accounts.all if station.channel.name == channel]
        if mine:
            return ChannelRefused(f"channel {channel} has no account {account}; there are {', '.join(mine)}")
        there = ", ".join(self.accounts.names) or "none"
        return ChannelRefused(f"Unknown channel: {channel}; configured are {there}")

    def _check_message(self, account_runner: AccountRunner, message: OutboundMessage, address: ChatAddress) -> None:
        require_ability(account_runner, "send")
        for wanted, ability in (
            (message.reply_to, "reply"), (address.thread, "thread"), (message.effect, "effect"),
            (message.attachments, "attachment"),
        ):  # fmt: skip
            if wanted:
                require_ability(account_runner, ability)  # type: ignore[arg-type]  # four of the literals
        if len(message.text) > MAX_TEXT_LENGTH:
            raise ChannelRefused(f"the text is longer than {MAX_TEXT_LENGTH} characters; send it as a file")
        most = media_limit(account_runner)
        for attachment in message.attachments:
            fits = any(
                _matches_mime_type(attachment.mime_type, prefix) for prefix in account_runner.channel.abilities.media
            )
            if not fits:
                raise ChannelRefused(f"this channel can't carry {attachment.mime_type}")
            if len(attachment.data or b"") > most:
                raise ChannelRefused(f"an attachment is larger than {most} bytes, the most this channel takes")

    # ---- for the paths -------------------------------------------------------------------------------------------

    async def _on_inbound(self, message: InboundMessage) -> None:
        await self.inbound.receive(message)

    def _on_available(self, channel: str, account: str) -> None:
        self.outbox.retry_account(channel, account)

    def _is_stable(self, address: ChatAddress) -> bool:
        station = self.accounts.get(address.channel, address.account)
        return station is not None and station.is_stable

    def _rules_for(self, address: ChatAddress) -> ChannelRules | None:
        station = self.accounts.get(address.channel, address.account)
        return None if station is None else station.account.rules

    async def _fetch_attachments(self, message: InboundMessage) -> tuple[Attachment, ...]:
        return await fetch_attachments(self.accounts.find_channel(message.address), message.files)

    async def _send_notice(self, address: ChatAddress, text: str, key: str) -> None:
        await self.send(address, OutboundMessage(text=text), key=key, origin="reply")

    async def _send_reply(self, address: ChatAddress, message: OutboundMessage, key: str, run_id: str) -> None:
        """What the channel can't carry is left out rather than the whole answer."""
        station = self.accounts.get(address.channel, address.account)
        if station is None:
            logger.warning("run %s answered on %s, which is gone", run_id, address.channel)
            return
        if "thread" not in station.channel.abilities.can:
            address = msgspec.structs.replace(address, thread=None)
        await self.send(address, _drop_unsupported_parts(message, station.channel), key=key, origin="reply")

    async def _save_route(self, session: str, address: ChatAddress) -> None:
        if self._routes.get(session) == address:
            return
        told = {"channel": address.channel, "accountId": address.account, "to": address.to}
        told |= {"threadId": address.thread} if address.thread else {}
        entry: Json = {"deliveryContext": told, "lastChannel": address.channel, "lastTo": address.to}
        entry |= {"lastAccountId": address.account, "lastThreadId": address.thread}
        await self.repositories.sessions.patch(session, {}, entry)
        if len(self._routes) >= MAX_CACHED_ROUTES:
            self._routes.clear()
        self._routes[session] = address

    async def _mirror_to_transcript(self, message: OutboxMessage) -> None:
        """Once delivered: the transcript of the session it belongs to tells of it too."""
        station = self.accounts.get(message.address.channel, message.address.account)
        if station is not None and message.receipts:
            station.last_outbound_at = message.receipts[-1].at
        if message.session is None or message.origin not in ("rpc", "post", "client"):
            return
        by_anybody = message.origin == "client" or message.poll is not None
        there = _is_same_conversation(await self.find_address(message.session), message.address)
        if by_anybody and not there:
            return  # words of the assistant in a session are an admin's to write: see `chat.inject`
        text = "\n".join(letter.text for letter in message.parts)
        body: Json = {"role": "assistant", "content": [{"type": "text", "text": text}], "stopReason": "stop"}
        body |= {"provider": "openclaw", "model": "delivery-mirror"}
        body = mark_visibility(body, "owner", in_conversation=there)
        draft = MessageDraft(role="assistant", body=body, text=text, idempotency_key=f"mirror:{message.uid}")
        await self.repositories.sessions.append(message.session, [draft])


def _is_same_conversation(one: ChatAddress | None, other: ChatAddress) -> bool:
    return one is not None and (one.channel, one.account, one.to) == (other.channel, other.account, other.to)


def require_ability(account_runner: AccountRunner, ability: Ability) -> None:
    """Raises ChannelRefused, in words a model understands, for what the channel can't do or may not do here."""
    if ability not in account_runner.channel.abilities.can:
        raise ChannelRefused(f"this channel can't {ABILITY_DESCRIPTIONS[ability]}")
    if account_runner.account.rules.actions.get(ability) is False:
        name = account_runner.channel.name
        raise ChannelRefused(
            f"on this channel nobody may {ABILITY_DESCRIPTIONS[ability]} (channels.{name}.actions.{ability})"
        )


def media_limit(account_runner: AccountRunner) -> int:
    most = account_runner.channel.abilities.media_limit
    chosen = account_runner.account.rules.media_max_mb
    return most if chosen is None else min(most, int(chosen * (1 << 20)))


def _text_limit(account_runner: AccountRunner) -> int:
    most = account_runner.channel.abilities.text_limit
    return min(most, account_runner.account.rules.text_chunk_limit or most)


def _matches_mime_type(mime_type: str, prefix: str) -> bool:
    return prefix in ("*/*", "*", "") or mime_type.startswith(prefix.rstrip("*"))


def _drop_unsupported_parts(message: OutboundMessage, channel: Channel) -> OutboundMessage:
    can, carried = channel.abilities.can, channel.abilities
    kept = tuple(
        attachment
        for attachment in message.attachments
        if "attachment" in can
        and any(_matches_mime_type(attachment.mime_type, prefix) for prefix in carried.media)
        and len(attachment.data or b"") <= carried.media_limit
    )
    text = message.text
    for attachment in message.attachments:
        if attachment not in kept:
            text = f"{text}\n[{attachment.name or attachment.kind}: this channel can't carry it]".strip()
    reply_to = message.reply_to if "reply" in can else None
    return msgspec.structs.replace(message, text=text[:MAX_TEXT_LENGTH], attachments=kept, reply_to=reply_to)


def _split_message(message: OutboundMessage, limit: int) -> tuple[OutboundMessage, ...]:
    """Files, effect and answered message go with the first part."""
    texts = split_text(message.text, limit) or [""]
    first = msgspec.structs.replace(message, text=texts[0])
    return (first, *(OutboundMessage(text=text, silent=message.silent) for text in texts[1:]))
