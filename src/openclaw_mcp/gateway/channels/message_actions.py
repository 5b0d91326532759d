"""Message actions: from what a client or an agent asks to letters and calls of a channel, under the house's rules."""

import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final

import msgspec
from msgspec import Struct

from ...core.agent import Attachment
from ...core.channel import Address, ChannelError, ChannelRefused, Letter, Posted, Seen
from ...core.claw_methods import Judge
from ...core.errors import ToolDenied
from ...core.mail import MailOrigin
from ...core.model import Caller, Json
from ...net.file_access import FileAccess
from .account_runner import Station
from .action_params import Wanted, read
from .action_tools import SENDS, conversation, tools_used
from .outgoing_files import Media
from .service import Mailroom, able, media_limit

logger = logging.getLogger(__name__)

DELIVERY_WAIT: Final = 20.0  # seconds a caller waits for a message to be delivered; after that it is told it waits
AT_HOME: Final = frozenset({"read", "delete", "edit", "pin", "unpin", "react", "poll"})
"""What a run that is not the owner's does in its own conversation alone, wherever the rules let it send to."""
ALL: Final = "all"


class Context(Struct, frozen=True, kw_only=True):
    """Who asks: the session, the conversation it is in, its agent, and whether that is the owner."""

    session: str | None = None
    address: Address | None = None
    agent: str | None = None
    origin: MailOrigin = "rpc"
    bound: bool = False
    """Whether it may not leave its conversation but by the rules. Operators may; agents are bound."""
    home: Address | None = None
    """The conversation it may not leave: of whoever started the run. Often, not always, where it is."""
    sends_anywhere: bool = False
    """Whether an operator planned the run outside every conversation, to send where its orders say."""
    owner: bool = False
    folder: str | None = None
    """Where the run works, when whoever started it said so."""
    judged: Caller | None = None
    """Whom the rules about tools bind; None: they bind nobody here."""
    own: tuple[Address, ...] = ()
    """The conversations, and the threads in them, that `judged` is in by its credential."""


class Undelivered(ChannelRefused):
    """The channel will not take it. It is kept in the outbox, under `delivery_id`, for a person to look at."""

    def __init__(self, posted: Posted, words: str) -> None:
        super().__init__(posted.error or words)
        self.delivery_id = posted.id


class Actions:
    """`files` says which files whoever asks may send, `judge` which tools it may use."""

    def __init__(
        self, mailroom: Mailroom, media: Media, *, files: Callable[[Context], FileAccess], judge: Judge
    ) -> None:
        self._mailroom = mailroom
        self._media = media
        self._files = files
        self._judge = judge

    async def perform(self, action: str, given: Json, context: Context, *, key: str) -> Json:
        """Do it; the result as clients know it. Raises ChannelError with a sentence for whoever asked, and ToolDenied
        when a tool whose work it does is refused to them."""
        wanted = read(action, given)
        if wanted.action == "broadcast":
            return await self._broadcast(wanted, context, key=key)
        address = self.address(wanted, context)
        self.permit(tools_used(wanted, (address,), context.own), context)
        self.check(wanted.action, address, context)
        if wanted.action in SENDS:
            return await self._send(wanted, address, context, key=key)
        if wanted.action == "poll":
            return await self._poll(wanted, address, context, key=key)
        return await self._act(wanted, address)

    # ---- sending -------------------------------------------------------------------------------------------------

    async def _send(self, wanted: Wanted, address: Address, context: Context, *, key: str) -> Json:
        posted = await self.deliver(wanted, address, context, key=key)
        if posted is not None and posted.status == "failed":
            raise Undelivered(posted, "the message could not be delivered")
        return _send_result(wanted, address, posted)

    async def deliver(self, wanted: Wanted, address: Address, context: Context, *, key: str) -> Posted | None:
        """None: nothing was sent, because it was only to be tried."""
        station = self._mailroom.station(address)
        for needed, given in (("reply", wanted.reply_to), ("thread", address.thread), ("effect", wanted.effect)):
            if given:
                able(station, needed)  # type: ignore[arg-type]  # three of the literals
        if wanted.media:
            able(station, "attachment")
        if wanted.dry_run:
            return None
        letter = Letter(
            text=self._marked(wanted.text, address, context),
            attachments=await self._loaded(wanted, context, most=media_limit(station)),
            reply_to=wanted.reply_to,
            effect=wanted.effect,
            silent=wanted.silent,
            extra=wanted.extra,
        )
        return await self._mailroom.send(
            address, letter, key=key, wait=DELIVERY_WAIT, session=context.session, origin=context.origin
        )

    async def _loaded(self, wanted: Wanted, context: Context, *, most: int) -> tuple[Attachment, ...]:
        if not wanted.media:
            return ()
        access = self._files(context)
        loading = [self._media.load(place, access, most=most, name=wanted.file_name) for place in wanted.media]
        return tuple([await one for one in loading])

    async def _broadcast(self, wanted: Wanted, context: Context, *, key: str) -> Json:
        settings = self._mailroom.config().get("tools", {}).get("message", {})
        if settings.get("broadcast", {}).get("enabled", True) is False:
            raise ChannelRefused("broadcasts are switched off (tools.message.broadcast.enabled)")
        names = self._mailroom.stations.names if wanted.channel == ALL else [wanted.channel]
        ones = [
            msgspec.structs.replace(wanted, channel=name, target=target, targets=())
            for name in names
            for target in wanted.targets
        ]
        self.permit(tools_used(wanted, self._found(ones, context), context.own), context)
        results = [await self._one_of_many(one, context, key=f"{key}:{n}") for n, one in enumerate(ones)]
        told: Json = {"kind": "broadcast", "channel": wanted.channel or "", "action": "broadcast", "handledBy": "core"}
        return {**told, "payload": {"results": results}, "dryRun": wanted.dry_run}

    def _found(self, ones: Iterable[Wanted], context: Context) -> list[Address]:
        """Those of a broadcast's conversations that there are."""
        found = []
        for one in ones:
            with suppress(ChannelError):
                found.append(self.address(one, context))
        return found

    async def _one_of_many(self, wanted: Wanted, context: Context, *, key: str) -> Json:
        """One target's result; what goes wrong with it is no other target's affair."""
        told: Json = {"channel": wanted.channel or "", "to": wanted.target}
        try:
            address = self.address(wanted, context)
            told |= {"channel": address.channel, "to": address.to}
            self.check(wanted.action, address, context)
            able(self._mailroom.station(address), "broadcast")
            posted = await self.deliver(wanted, address, context, key=key)
        except ChannelError as exc:
            return {**told, "ok": False, "error": str(exc)}
        if posted is not None and posted.status == "failed":
            return {**told, "ok": False, "error": posted.error}
        return {**told, "ok": True, "result": _delivered(address, posted)}

    async def _poll(self, wanted: Wanted, address: Address, context: Context, *, key: str) -> Json:
        able(self._mailroom.station(address), "poll")
        poll: Json = {"question": wanted.question, "options": list(wanted.options), "many": wanted.many}
        posted = None
        if not wanted.dry_run:
            posted = await self._mailroom.poll(address, poll, key=key, wait=DELIVERY_WAIT, session=context.session)
            if posted.status == "failed":
                raise Undelivered(posted, "the poll could not be delivered")
        told: Json = {"kind": "poll", "channel": address.channel, "action": "poll", "to": address.to}
        payload = {"ok": True, **_delivered(address, posted)}
        return {**told, "handledBy": "core", "payload": payload, "pollResult": payload, "dryRun": wanted.dry_run}

    # ---- other actions -------------------------------------------------------------------------------------------

    async def _act(self, wanted: Wanted, address: Address) -> Json:
        station = self._mailroom.station(address)
        ability = "pin" if wanted.action == "unpin" else wanted.action
        able(station, ability)  # type: ignore[arg-type]  # the rest of the actions are named as their ability
        told: Json = {"kind": "action", "channel": address.channel, "action": wanted.action, "to": address.to}
        told |= {"handledBy": "core", "dryRun": wanted.dry_run}
        if wanted.dry_run:
            return {**told, "payload": {"ok": True, "dryRun": True}}
        return {**told, "payload": await _acted(station, wanted, address)}

    # ---- where to ------------------------------------------------------------------------------------------------

    def address(self, wanted: Wanted, context: Context) -> Address:
        """The conversation that is meant. Raises ChannelRefused naming what is missing or unknown."""
        here = context.address
        channel, target = self._channel(wanted, here)
        account = self._account(wanted, channel, context)
        station = self._mailroom.station(Address(channel=channel, account=account, to=""))
        if target is None:
            if here is None or here.channel != channel:
                raise ChannelRefused("target required: name the conversation to send to")
            to = here.to
        else:
            to = station.channel.canonical(target)
        thread = wanted.thread
        if thread is None and here is not None and (here.channel, here.account, here.to) == (channel, account, to):
            thread = here.thread  # within the conversation we are in, an answer belongs into the thread we are in
        return Address(channel=channel, account=account, to=to, thread=thread)

    def _channel(self, wanted: Wanted, here: Address | None) -> tuple[str, str | None]:
        target, stations = wanted.target, self._mailroom.stations
        if wanted.channel is not None:
            name = wanted.channel.strip().lower()
            if name not in stations.names:
                there = ", ".join(stations.names)
                raise ChannelRefused(f"Unknown channel: {wanted.channel}; configured are {there}")
            return name, target
        before, colon, _ = (target or "").partition(":")
        if colon and before.strip().lower() in stations.names:
            return before.strip().lower(), target
        if here is not None:
            return here.channel, target
        others = [name for name in stations.names if name != "local"]
        if len(others) > 1:
            raise ChannelRefused(f"Channel is required: name one of {', '.join(stations.names)}")
        if not others and "local" not in stations.names:
            raise ChannelRefused("Channel is required (no configured channels detected)")
        return (others[0] if others else "local"), target

    def _account(self, wanted: Wanted, channel: str, context: Context) -> str:
        if wanted.account is not None:
            return wanted.account
        if context.address is not None and context.address.channel == channel:
            return context.address.account
        if context.agent is not None:
            for binding in self._mailroom.config().get("bindings", []):
                match = binding.get("match", {})
                bound = match.get("accountId")
                if (
                    binding.get("agentId") == context.agent
                    and match.get("channel") == channel
                    and bound not in (None, "*")
                ):
                    return str(bound)
        return self._mailroom.account_of(channel)

    def permit(self, tools: Iterable[str], context: Context) -> None:
        """Raises ToolDenied when one of these is refused to whoever asks."""
        for tool in tools:
            refusal = None if context.judged is None else self._judge(context.judged, tool)
            if refusal is not None:
                raise ToolDenied(refusal)

    def check(self, action: str, address: Address, context: Context) -> None:
        """Whether one conversation may reach into another. Raises ChannelRefused."""
        home = context.home
        if not context.bound or (home is not None and conversation(home) == conversation(address)):
            return
        if action in AT_HOME and not context.owner:
            raise ChannelRefused(
                f"Cross-context messaging denied: {action} works in the conversation the run is in; "
                "elsewhere it is for the owner"
            )
        settings = self._mailroom.config().get("tools", {}).get("message", {})
        rules = settings.get("crossContext", {})
        if settings.get("allowCrossContextSend") is True:
            return
        if home is not None and home.channel == address.channel:
            if rules.get("allowWithinProvider", True) is False:
                raise ChannelRefused(
                    "Cross-context messaging denied: the target is another conversation "
                    "(tools.message.crossContext.allowWithinProvider)"
                )
            return
        free = home is None and (context.owner or context.sends_anywhere)
        if not free and rules.get("allowAcrossProviders") is not True:
            here = "run is in no conversation" if home is None else f"conversation is on {home.channel}"
            raise ChannelRefused(
                f"Cross-context messaging denied: this {here}, the target on {address.channel} "
                "(tools.message.crossContext.allowAcrossProviders)"
            )

    def _marked(self, text: str, address: Address, context: Context) -> str:
        """Words put around what comes from another conversation, when the config wants them."""
        here = context.home or context.address
        settings = self._mailroom.config().get("tools", {}).get("message", {})
        marker = settings.get("crossContext", {}).get("marker", {})
        if here is None or (here.channel, here.to) == (address.channel, address.to):
            return text
        if marker.get("enabled") is not True:
            return text
        fill: Callable[[str], str] = lambda words: str(words).replace("{channel}", here.channel)  # noqa: E731
        return f"{fill(marker.get('prefix', '[from {channel}] '))}{text}{fill(marker.get('suffix', ''))}"


async def _acted(station: Station, wanted: Wanted, address: Address) -> Json:
    channel, id = station.channel, wanted.message_id or ""
    match wanted.action:
        case "react":
            await channel.react(address, id, wanted.emoji or "", remove=wanted.remove)
            return {"ok": True, "messageId": id, "removed" if wanted.remove else "added": wanted.emoji}
        case "delete":
            await channel.delete(address, id)
            return {"ok": True, "messageId": id, "deleted": True}
        case "edit":
            await channel.edit(address, id, wanted.text)
            return {"ok": True, "messageId": id}
        case "pin" | "unpin":
            await channel.pin(address, id, remove=wanted.remove)
            return {"ok": True, "messageId": id, "pinned": not wanted.remove}
    seen = await channel.read(address, limit=wanted.limit, before=wanted.before)
    return {"ok": True, "messages": [shown(message) for message in seen]}


def shown(seen: Seen) -> Json:
    """A message as `read` and the local channel's events tell it."""
    sender = seen.sender
    told: Json = {"id": seen.id, "messageId": seen.id, "text": seen.text, "timestamp": seen.at, "fromMe": seen.mine}
    told["sender"] = {n: v for n in ("id", "username", "name", "e164") if (v := getattr(sender, n)) is not None}
    for name, value in (
        ("threadId", seen.thread), ("replyToId", seen.reply_to), ("attachments", list(seen.attachments)),
        ("reactions", list(seen.reactions)), ("pinned", seen.pinned), ("edited", seen.edited), ("extra", seen.extra),
    ):  # fmt: skip
        if value:
            told[name] = value
    return told


def _delivered(address: Address, posted: Posted | None) -> Json:
    told: Json = {"channel": address.channel, "to": address.to, "chatId": address.to}
    if address.thread is not None:
        told["threadId"] = address.thread
    if posted is None:
        return told
    told |= {"deliveryId": posted.id, "status": posted.status}
    if posted.receipts:
        ids = [receipt.message_id for receipt in posted.receipts]
        told |= {"messageId": ids[0], "messageIds": ids, "timestamp": posted.receipts[0].at}
    if posted.status == "queued":
        told["note"] = "kept, and sent as soon as the channel takes it; do not send it again"
    return told


def _send_result(wanted: Wanted, address: Address, posted: Posted | None) -> Json:
    delivered = _delivered(address, posted)
    media = list(wanted.media)
    sent: Json = {
        "channel": address.channel,
        "to": address.to,
        "via": "direct",
        "mediaUrl": media[0] if media else None,
    }
    sent |= {"mediaUrls": media or None, "result": delivered, "dryRun": wanted.dry_run}
    told: Json = {"kind": "send", "channel": address.channel, "action": wanted.action, "to": address.to}
    payload = {"ok": True, **delivered, **({"dryRun": True, "message": wanted.text} if wanted.dry_run else {})}
    return {**told, "handledBy": "core", "payload": payload, "sendResult": sent, "dryRun": wanted.dry_run}
