"""The mailroom: every channel, the way in and the way out, as the rest of the house knows them."""

import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final, Self

import msgspec
from msgspec import Struct

from ...core.agent import Attachment
from ...core.agents import Roster
from ...core.channel import Ability, Address, Channel, ChannelRefused, Heard, Letter, Posted
from ...core.errors import BadRequest
from ...core.mail import Inbox, Mail, MailOrigin, NewMail, Outbox, People
from ...core.model import Json
from ...core.ports import Runner
from ...core.repositories import SessionBook
from ...core.sessions import Draft, Run
from ...core.transcript import marked
from .account_runner import Maker, Station, Stations
from .attachments import fetched
from .chunks import split
from .inbox import Around, Receiving
from .outbox import Sending
from .replying import Answers, Deps
from .settings import Rules, accounts, default_account

logger = logging.getLogger(__name__)

MOST_ROUTES: Final = 10_000  # sessions whose address is remembered in memory; the others' are read from the store
LONGEST_TEXT: Final = 500_000  # characters of one message; more is a file

CANNOT: Final[Mapping[Ability, str]] = {
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


class Books(Struct, frozen=True, kw_only=True):
    outbox: Outbox
    inbox: Inbox
    people: People
    sessions: SessionBook


class Mailroom:
    """A `core.channel.Mailroom`. `async with` it; `apply` again when the config has changed."""

    def __init__(
        self, books: Books, runner: Runner, *, kinds: Mapping[str, Maker], folder: Path,
        config: Callable[[], Json], roster: Callable[[], Roster], reset: Callable[[str], Awaitable[object]],
    ) -> None:  # fmt: skip
        self.books = books
        self.config = config
        self.stations = Stations(kinds, folder, self._hear, back=self._back)
        self.sending = Sending(books.outbox, self.stations.find, steady=self._steady, sent=self._sent)
        self.answers = Answers(
            Deps(
                outbox=books.outbox, sessions=books.sessions, runner=runner, config=config, find=self.stations.find,
                rules=self._rules, reply=self._reply,
            )
        )  # fmt: skip
        self.receiving = Receiving(
            Around(
                inbox=books.inbox, people=books.people, sessions=books.sessions, runner=runner, roster=roster,
                config=config, rules=self._rules, reset=reset, tell=self._tell, answer=self.answers.answer,
                fetch=self._fetch, routed=self._routed,
            )
        )  # fmt: skip
        self._routes: dict[str, Address] = {}
        self._stack = AsyncExitStack()
        self.issue: str | None = None
        """What is wrong with the config's channels, when it can't be followed."""

    async def __aenter__(self) -> Self:
        await self.apply()  # first: what is taken up next is judged by the accounts' rules, and sent by their channels
        self._stack.push_async_callback(self.stations.aclose)
        await self._stack.enter_async_context(self.sending)
        await self._stack.enter_async_context(self.receiving)
        return self

    async def __aexit__(self, *_exc: object) -> None:
        """Channels close first: nothing new comes in while what is in hand is put away."""
        await self.stations.aclose()
        await self._stack.aclose()

    async def apply(self) -> None:
        """Start and stop channels as the config says now. A config that can't be followed changes nothing."""
        try:
            wanted = accounts(self.config())
        except BadRequest as exc:
            self.issue = str(exc)
            logger.error("channels stay as they are: %s", exc)  # noqa: TRY400  (a sentence says it all)
            return
        self.issue = None
        await self.stations.apply(wanted)

    # ---- for everybody -------------------------------------------------------------------------------------------

    async def post(
        self, address: Address, letter: Letter, *, key: str, wait: float = 0.0, session: str | None = None
    ) -> Posted:
        return await self.send(address, letter, key=key, wait=wait, session=session, origin="post")

    async def route(self, session: str) -> Address | None:
        if session in self._routes:
            return self._routes[session]
        found = await self.books.sessions.get(session)
        told = None if found is None else found.entry.get("deliveryContext")
        if not isinstance(told, dict) or not isinstance(told.get("to"), str):
            return None
        return Address(
            channel=str(told.get("channel")), account=str(told.get("accountId")), to=told["to"],
            thread=told.get("threadId"),
        )  # fmt: skip

    async def spoke(self, run: Run, address: Address) -> bool:
        return await self.answers.spoke(run, address)

    async def send(
        self, address: Address, letter: Letter, *, key: str, wait: float = 0.0, session: str | None = None,
        origin: MailOrigin = "post",
    ) -> Posted:  # fmt: skip
        """`post`, saying who wrote it. Only what agents and clients write is mirrored to a transcript."""
        station = self.station(address)
        self._check(station, letter, address)
        mail = NewMail(
            key=key, address=address, letters=_parts(letter, _limit(station)), origin=origin, session=session
        )
        return await self._put(mail, wait=wait)

    async def poll(self, address: Address, poll: Json, *, key: str, wait: float, session: str | None) -> Posted:
        """`{question, options, many}` to vote on."""
        able(self.station(address), "poll")
        text = Letter(text=str(poll["question"]))
        mail = NewMail(key=key, address=address, letters=(text,), origin="rpc", session=session, poll=poll)
        return await self._put(mail, wait=wait)

    async def _put(self, mail: NewMail, *, wait: float) -> Posted:
        kept, _ = await self.sending.put(mail)
        if kept.address != mail.address:
            raise ChannelRefused("this idempotency key was used for another conversation; make a new one")
        kept = await self.sending.settled(kept, seconds=wait)
        return Posted(id=kept.uid, status=kept.status, receipts=kept.receipts, error=kept.error)

    def station(self, address: Address) -> Station:
        """Raises ChannelRefused when there is no such account."""
        station = self.stations.get(address.channel, address.account)
        if station is None:
            raise self._no_station(address.channel, address.account)
        return station

    def account_of(self, channel: str) -> str:
        """The account that speaks when none is named."""
        return default_account(self.config(), channel)

    def _no_station(self, channel: str, account: str) -> ChannelRefused:
        why = self.stations.issues.get((channel, account))
        if why is not None:
            return ChannelRefused(why)
        mine = [station.account.id for station in self.stations.all if station.channel.name == channel]
        if mine:
            return ChannelRefused(f"channel {channel} has no account {account}; there are {', '.join(mine)}")
        there = ", ".join(self.stations.names) or "none"
        return ChannelRefused(f"Unknown channel: {channel}; configured are {there}")

    def _check(self, station: Station, letter: Letter, address: Address) -> None:
        able(station, "send")
        for wanted, ability in (
            (letter.reply_to, "reply"), (address.thread, "thread"), (letter.effect, "effect"),
            (letter.attachments, "attachment"),
        ):  # fmt: skip
            if wanted:
                able(station, ability)  # type: ignore[arg-type]  # four of the literals
        if len(letter.text) > LONGEST_TEXT:
            raise ChannelRefused(f"the text is longer than {LONGEST_TEXT} characters; send it as a file")
        most = media_limit(station)
        for attachment in letter.attachments:
            fits = any(_fits(attachment.mime_type, prefix) for prefix in station.channel.abilities.media)
            if not fits:
                raise ChannelRefused(f"this channel can't carry {attachment.mime_type}")
            if len(attachment.data or b"") > most:
                raise ChannelRefused(f"an attachment is larger than {most} bytes, the most this channel takes")

    # ---- for the paths -------------------------------------------------------------------------------------------

    async def _hear(self, heard: Heard) -> None:
        await self.receiving.hear(heard)

    def _back(self, channel: str, account: str) -> None:
        self.sending.hurry(channel, account)

    def _steady(self, address: Address) -> bool:
        station = self.stations.get(address.channel, address.account)
        return station is not None and station.steady

    def _rules(self, address: Address) -> Rules | None:
        station = self.stations.get(address.channel, address.account)
        return None if station is None else station.account.rules

    async def _fetch(self, heard: Heard) -> tuple[Attachment, ...]:
        return await fetched(self.stations.find(heard.address), heard.files)

    async def _tell(self, address: Address, text: str, key: str) -> None:
        await self.send(address, Letter(text=text), key=key, origin="reply")

    async def _reply(self, address: Address, letter: Letter, key: str, run_id: str) -> None:
        """What the channel can't carry is left out rather than the whole answer."""
        station = self.stations.get(address.channel, address.account)
        if station is None:
            logger.warning("run %s answered on %s, which is gone", run_id, address.channel)
            return
        if "thread" not in station.channel.abilities.can:
            address = msgspec.structs.replace(address, thread=None)
        await self.send(address, _fitting(letter, station.channel), key=key, origin="reply")

    async def _routed(self, session: str, address: Address) -> None:
        if self._routes.get(session) == address:
            return
        told = {"channel": address.channel, "accountId": address.account, "to": address.to}
        told |= {"threadId": address.thread} if address.thread else {}
        entry: Json = {"deliveryContext": told, "lastChannel": address.channel, "lastTo": address.to}
        entry |= {"lastAccountId": address.account, "lastThreadId": address.thread}
        await self.books.sessions.patch(session, {}, entry)
        if len(self._routes) >= MOST_ROUTES:
            self._routes.clear()
        self._routes[session] = address

    async def _sent(self, mail: Mail) -> None:
        """Once delivered: the transcript of the session it belongs to tells of it too."""
        station = self.stations.get(mail.address.channel, mail.address.account)
        if station is not None and mail.receipts:
            station.sent_at = mail.receipts[-1].at
        if mail.session is None or mail.origin not in ("rpc", "post", "client"):
            return
        by_anybody = mail.origin == "client" or mail.poll is not None
        there = _same_conversation(await self.route(mail.session), mail.address)
        if by_anybody and not there:
            return  # words of the assistant in a session are an admin's to write: see `chat.inject`
        text = "\n".join(letter.text for letter in mail.letters)
        body: Json = {"role": "assistant", "content": [{"type": "text", "text": text}], "stopReason": "stop"}
        body |= {"provider": "openclaw", "model": "delivery-mirror"}
        body = marked(body, "owner", said=there)
        draft = Draft(role="assistant", body=body, text=text, idempotency_key=f"mirror:{mail.uid}")
        await self.books.sessions.append(mail.session, [draft])


def _same_conversation(one: Address | None, other: Address) -> bool:
    return one is not None and (one.channel, one.account, one.to) == (other.channel, other.account, other.to)


def able(station: Station, ability: Ability) -> None:
    """Raises ChannelRefused, in words a model understands, for what the channel can't do or may not do here."""
    if ability not in station.channel.abilities.can:
        raise ChannelRefused(f"this channel can't {CANNOT[ability]}")
    if station.account.rules.actions.get(ability) is False:
        name = station.channel.name
        raise ChannelRefused(f"on this channel nobody may {CANNOT[ability]} (channels.{name}.actions.{ability})")


def media_limit(station: Station) -> int:
    most = station.channel.abilities.media_limit
    chosen = station.account.rules.media_max_mb
    return most if chosen is None else min(most, int(chosen * (1 << 20)))


def _limit(station: Station) -> int:
    most = station.channel.abilities.text_limit
    return min(most, station.account.rules.text_chunk_limit or most)


def _fits(mime_type: str, prefix: str) -> bool:
    return prefix in ("*/*", "*", "") or mime_type.startswith(prefix.rstrip("*"))


def _fitting(letter: Letter, channel: Channel) -> Letter:
    can, carried = channel.abilities.can, channel.abilities
    kept = tuple(
        attachment
        for attachment in letter.attachments
        if "attachment" in can
        and any(_fits(attachment.mime_type, prefix) for prefix in carried.media)
        and len(attachment.data or b"") <= carried.media_limit
    )
    text = letter.text
    for attachment in letter.attachments:
        if attachment not in kept:
            text = f"{text}\n[{attachment.name or attachment.kind}: this channel can't carry it]".strip()
    reply_to = letter.reply_to if "reply" in can else None
    return msgspec.structs.replace(letter, text=text[:LONGEST_TEXT], attachments=kept, reply_to=reply_to)


def _parts(letter: Letter, limit: int) -> tuple[Letter, ...]:
    """Files, effect and answered message go with the first part."""
    texts = split(letter.text, limit) or [""]
    first = msgspec.structs.replace(letter, text=texts[0])
    return (first, *(Letter(text=text, silent=letter.silent) for text in texts[1:]))
