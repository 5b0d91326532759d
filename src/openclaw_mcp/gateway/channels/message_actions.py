"""Message actions: from what a client or an agent asks to letters and calls of a channel, under the house's rules."""

import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final

import msgspec
from msgspec import Struct

from ...core.agent import Attachment
from ...core.channel import ChannelError, ChannelRefused, ChatAddress, OutboundMessage, PostResult, StoredMessage
from ...core.claw_methods import DenialCheck
from ...core.errors import ToolDenied
from ...core.mail import OutboxOrigin
from ...core.message_request import ActionRequest, parse_action
from ...core.model import Caller, Json
from ...net.file_access import FileAccess
from .account_runner import AccountRunner
from .action_tools import SEND_ACTIONS, conversation_key, tools_for_action
from .outgoing_files import MediaLoader
from .service import ChannelService, media_limit, require_ability

logger = logging.getLogger(__name__)

DELIVERY_WAIT: Final = 20.0  # seconds a caller waits for a message to be delivered; after that it is told it waits
OWN_CONVERSATION_ACTIONS: Final = frozenset({"read", "delete", "edit", "pin", "unpin", "react", "poll"})
"""What a run that is not the owner's does in its own conversation alone, wherever the rules let it send to."""
ALL_CHANNELS: Final = "all"


class ActionContext(Struct, frozen=True, kw_only=True):
    """Who asks: the session, the conversation it is in, its agent, and whether that is the owner."""

    session: str | None = None
    address: ChatAddress | None = None
    agent: str | None = None
    origin: OutboxOrigin = "rpc"
    bound: bool = False
    """Whether it may not leave its conversation but by the rules. Operators may; agents are bound."""
    bound_address: ChatAddress | None = None
    """The conversation it may not leave: of whoever started the run. Often, not always, where it is."""
    sends_anywhere: bool = False
    """Whether an operator planned the run outside every conversation, to send where its orders say."""
    owner: bool = False
    folder: str | None = None
    """Where the run works, when whoever started it said so."""
    policy_caller: Caller | None = None
    """Whom the rules about tools bind; None: they bind nobody here."""
    own_addresses: tuple[ChatAddress, ...] = ()
    """The conversations, and the threads in them, that `judged` is in by its credential."""


class DeliveryFailed(ChannelRefused):
    """The channel will not take it. It is kept in the outbox, under `delivery_id`, for a person to look at."""

    def __init__(self, posted: PostResult, message: str) -> None:
        super().__init__(posted.error or message)
        self.delivery_id = posted.id


class MessageActions:
    """`files` says which files whoever asks may send, `judge` which tools it may use."""

    def __init__(
        self,
        channels: ChannelService,
        media: MediaLoader,
        *,
        file_access: Callable[[ActionContext], FileAccess],
        tool_refusal: DenialCheck,
    ) -> None:
        self._channels = channels
        self._media = media
        self._file_access = file_access
        self._tool_refusal = tool_refusal

    async def perform(self, action: str, params: Json, context: ActionContext, *, key: str) -> Json:
        """Do it; the result as clients know it. Raises ChannelError with a sentence for whoever asked, and ToolDenied
        when a tool whose work it does is refused to them."""
        wanted = parse_action(action, params)
        if wanted.action == "broadcast":
            return await self._broadcast(wanted, context, key=key)
        address = self.resolve_address(wanted, context)
        self.check_tools(tools_for_action(wanted, (address,), context.own_addresses), context)
        self.check_cross_context(wanted.action, address, context)
        if wanted.action in SEND_ACTIONS:
            return await self._send(wanted, address, context, key=key)
        if wanted.action == "poll":
            return await self._poll(wanted, address, context, key=key)
        return await self._act(wanted, address)

    # ---- sending -------------------------------------------------------------------------------------------------

    async def _send(self, request: ActionRequest, address: ChatAddress, context: ActionContext, *, key: str) -> Json:
        posted = await self.deliver(request, address, context, key=key)
        if posted is not None and posted.status == "failed":
            raise DeliveryFailed(posted, "the message could not be delivered")
        return _send_result(request, address, posted)

    async def deliver(
        self, request: ActionRequest, address: ChatAddress, context: ActionContext, *, key: str
    ) -> PostResult | None:
        """None: nothing was sent, because it was only to be tried."""
        station = self._channels.account_runner(address)
        for needed, given in (("reply", request.reply_to), ("thread", address.thread), ("effect", request.effect)):
            if given:
                require_ability(station, needed)  # type: ignore[arg-type]  # three of the literals
        if request.media:
            require_ability(station, "attachment")
        if request.dry_run:
            return None
        letter = OutboundMessage(
            text=self._add_origin_marker(request.text, address, context),
            attachments=await self._load_attachments(request, context, max_bytes=media_limit(station)),
            reply_to=request.reply_to,
            effect=request.effect,
            silent=request.silent,
            extra=request.extra,
        )
        return await self._channels.send(
            address, letter, key=key, wait=DELIVERY_WAIT, session=context.session, origin=context.origin
        )

    async def _load_attachments(
        self, request: ActionRequest, context: ActionContext, *, max_bytes: int
    ) -> tuple[Attachment, ...]:
        if not request.media:
            return ()
        access = self._file_access(context)
        loading = [
            self._media.load(place, access, max_bytes=max_bytes, name=request.file_name) for place in request.media
        ]
        return tuple([await one for one in loading])

    async def _broadcast(self, request: ActionRequest, context: ActionContext, *, key: str) -> Json:
        settings = self._channels.config().get("tools", {}).get("message", {})
        if settings.get("broadcast", {}).get("enabled", True) is False:
            raise ChannelRefused("broadcasts are switched off (tools.message.broadcast.enabled)")
        names = self._channels.accounts.names if request.channel == ALL_CHANNELS else [request.channel]
        ones = [
            msgspec.structs.replace(request, channel=name, target=target, targets=())
            for name in names
            for target in request.targets
        ]
        self.check_tools(
            tools_for_action(request, self._resolvable_addresses(ones, context), context.own_addresses), context
        )
        results = [await self._broadcast_one(one, context, key=f"{key}:{n}") for n, one in enumerate(ones)]
        told: Json = {"kind": "broadcast", "channel": request.channel or "", "action": "broadcast", "handledBy": "core"}
        return {**told, "payload": {"results": results}, "dryRun": request.dry_run}

    def _resolvable_addresses(self, requests: Iterable[ActionRequest], context: ActionContext) -> list[ChatAddress]:
        """Those of a broadcast's conversations that there are."""
        found = []
        for one in requests:
            with suppress(ChannelError):
                found.append(self.resolve_address(one, context))
        return found

    async def _broadcast_one(self, request: ActionRequest, context: ActionContext, *, key: str) -> Json:
        """One target's result; what goes wrong with it is no other target's affair."""
        told: Json = {"channel": request.channel or "", "to": request.target}
        try:
            address = self.resolve_address(request, context)
            told |= {"channel": address.channel, "to": address.to}
            self.check_cross_context(request.action, address, context)
            require_ability(self._channels.account_runner(address), "broadcast")
            posted = await self.deliver(request, address, context, key=key)
        except ChannelError as exc:
            return {**told, "ok": False, "error": str(exc)}
        if posted is not None and posted.status == "failed":
            return {**told, "ok": False, "error": posted.error}
        return {**told, "ok": True, "result": _delivery_result(address, posted)}

    async def _poll(self, request: ActionRequest, address: ChatAddress, context: ActionContext, *, key: str) -> Json:
        require_ability(self._channels.account_runner(address), "poll")
        poll: Json = {"question": request.question, "options": list(request.options), "many": request.many}
        posted = None
        if not request.dry_run:
            posted = await self._channels.poll(address, poll, key=key, wait=DELIVERY_WAIT, session=context.session)
            if posted.status == "failed":
                raise DeliveryFailed(posted, "the poll could not be delivered")
        told: Json = {"kind": "poll", "channel": address.channel, "action": "poll", "to": address.to}
        payload = {"ok": True, **_delivery_result(address, posted)}
        return {**told, "handledBy": "core", "payload": payload, "pollResult": payload, "dryRun": request.dry_run}

    # ---- other actions -------------------------------------------------------------------------------------------

    async def _act(self, request: ActionRequest, address: ChatAddress) -> Json:
        station = self._channels.account_runner(address)
        ability = "pin" if request.action == "unpin" else request.action
        require_ability(station, ability)  # type: ignore[arg-type]  # the rest of the actions are named as their ability
        told: Json = {"kind": "action", "channel": address.channel, "action": request.action, "to": address.to}
        told |= {"handledBy": "core", "dryRun": request.dry_run}
        if request.dry_run:
            return {**told, "payload": {"ok": True, "dryRun": True}}
        return {**told, "payload": await _perform_on_channel(station, request, address)}

    # ---- where to ------------------------------------------------------------------------------------------------

    def resolve_address(self, request: ActionRequest, context: ActionContext) -> ChatAddress:
        """The conversation that is meant. Raises ChannelRefused naming what is missing or unknown."""
        here = context.address
        channel, target = self._resolve_channel(request, here)
        account = self._resolve_account(request, channel, context)
        station = self._channels.account_runner(ChatAddress(channel=channel, account=account, to=""))
        if target is None:
            if here is None or here.channel != channel:
                raise ChannelRefused("target required: name the conversation to send to")
            to = here.to
        else:
            to = station.channel.normalize_target(target)
        thread = request.thread
        if thread is None and here is not None and (here.channel, here.account, here.to) == (channel, account, to):
            thread = here.thread  # within the conversation we are in, an answer belongs into the thread we are in
        return ChatAddress(channel=channel, account=account, to=to, thread=thread)

    def _resolve_channel(self, request: ActionRequest, current: ChatAddress | None) -> tuple[str, str | None]:
        target, stations = request.target, self._channels.accounts
        if request.channel is not None:
            name = request.channel.strip().lower()
            if name not in stations.names:
                there = ", ".join(stations.names)
                raise ChannelRefused(f"Unknown channel: {request.channel}; configured are {there}")
            return name, target
        before, colon, _ = (target or "").partition(":")
        if colon and before.strip().lower() in stations.names:
            return before.strip().lower(), target
        if current is not None:
            return current.channel, target
        others = [name for name in stations.names if name != "local"]
        if len(others) > 1:
            raise ChannelRefused(f"Channel is required: name one of {', '.join(stations.names)}")
        if not others and "local" not in stations.names:
            raise ChannelRefused("Channel is required (no configured channels detected)")
        return (others[0] if others else "local"), target

    def _resolve_account(self, request: ActionRequest, channel: str, context: ActionContext) -> str:
        if request.account is not None:
            return request.account
        if context.address is not None and context.address.channel == channel:
            return context.address.account
        if context.agent is not None:
            for binding in self._channels.config().get("bindings", []):
                match = binding.get("match", {})
                bound = match.get("accountId")
                if (
                    binding.get("agentId") == context.agent
                    and match.get("channel") == channel
                    and bound not in (None, "*")
                ):
                    return str(bound)
        return self._channels.default_account_id(channel)

    def check_tools(self, tools: Iterable[str], context: ActionContext) -> None:
        """Raises ToolDenied when one of these is refused to whoever asks."""
        for tool in tools:
            refusal = None if context.policy_caller is None else self._tool_refusal(context.policy_caller, tool)
            if refusal is not None:
                raise ToolDenied(refusal)

    def check_cross_context(self, action: str, address: ChatAddress, context: ActionContext) -> None:
        """Whether one conversation may reach into another. Raises ChannelRefused."""
        home = context.bound_address
        if not context.bound or (home is not None and conversation_key(home) == conversation_key(address)):
            return
        if action in OWN_CONVERSATION_ACTIONS and not context.owner:
            raise ChannelRefused(
                f"Cross-context messaging denied: {action} works in the conversation the run is in; "
                "elsewhere it is for the owner"
            )
        settings = self._channels.config().get("tools", {}).get("message", {})
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

    def _add_origin_marker(self, text: str, address: ChatAddress, context: ActionContext) -> str:
        """Words put around what comes from another conversation, when the config wants them."""
        here = context.bound_address or context.address
        settings = self._channels.config().get("tools", {}).get("message", {})
        marker = settings.get("crossContext", {}).get("marker", {})
        if here is None or (here.channel, here.to) == (address.channel, address.to):
            return text
        if marker.get("enabled") is not True:
            return text
        fill: Callable[[str], str] = lambda words: str(words).replace("{channel}", here.channel)  # noqa: E731
        return f"{fill(marker.get('prefix', '[from {channel}] '))}{text}{fill(marker.get('suffix', ''))}"


async def _perform_on_channel(account_runner: AccountRunner, request: ActionRequest, address: ChatAddress) -> Json:
    channel, id = account_runner.channel, request.message_id or ""
    match request.action:
        case "react":
            await channel.react(address, id, request.emoji or "", remove=request.remove)
            return {"ok": True, "messageId": id, "removed" if request.remove else "added": request.emoji}
        case "delete":
            await channel.delete(address, id)
            return {"ok": True, "messageId": id, "deleted": True}
        case "edit":
            await channel.edit(address, id, request.text)
            return {"ok": True, "messageId": id}
        case "pin" | "unpin":
            await channel.pin(address, id, remove=request.remove)
            return {"ok": True, "messageId": id, "pinned": not request.remove}
    seen = await channel.read(address, limit=request.limit, before=request.before)
    return {"ok": True, "messages": [message_view(message) for message in seen]}


def message_view(message: StoredMessage) -> Json:
    """A message as `read` and the local channel's events tell it."""
    sender = message.sender
    told: Json = {
        "id": message.id,
        "messageId": message.id,
        "text": message.text,
        "timestamp": message.at,
        "fromMe": message.mine,
    }
    told["sender"] = {n: v for n in ("id", "username", "name", "e164") if (v := getattr(sender, n)) is not None}
    for name, value in (
        ("threadId", message.thread),
        ("replyToId", message.reply_to),
        ("attachments", list(message.attachments)),
        ("reactions", list(message.reactions)),
        ("pinned", message.pinned),
        ("edited", message.edited),
        ("extra", message.extra),
    ):
        if value:
            told[name] = value
    return told


def _delivery_result(address: ChatAddress, posted: PostResult | None) -> Json:
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


def _send_result(request: ActionRequest, address: ChatAddress, posted: PostResult | None) -> Json:
    delivered = _delivery_result(address, posted)
    media = list(request.media)
    sent: Json = {
        "channel": address.channel,
        "to": address.to,
        "via": "direct",
        "mediaUrl": media[0] if media else None,
    }
    sent |= {"mediaUrls": media or None, "result": delivered, "dryRun": request.dry_run}
    told: Json = {"kind": "send", "channel": address.channel, "action": request.action, "to": address.to}
    payload = {"ok": True, **delivered, **({"dryRun": True, "message": request.text} if request.dry_run else {})}
    return {**told, "handledBy": "core", "payload": payload, "sendResult": sent, "dryRun": request.dry_run}
