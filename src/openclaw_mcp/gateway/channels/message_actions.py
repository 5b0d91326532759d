"""Message actions: requests of clients and agents, carried out on channels as the config and the tool policy allow."""

from collections.abc import Callable, Iterable
from typing import Any, Final, Literal

from msgspec import UNSET, Struct, UnsetType, to_builtins
from msgspec.structs import replace

from ...core.channel import (
    LOCAL_CHANNEL,
    Channel,
    ChannelError,
    ChannelRefused,
    ChatAddress,
    OutboundMessage,
    Poll,
    PostResult,
    StoredMessage,
)
from ...core.claw_methods import DenialCheck
from ...core.config.config import Config
from ...core.errors import ToolDenied
from ...core.message_request import SEND_ACTIONS, ActionRequest, parse_action, tools_for_action
from ...core.model import Json
from ...net.file_access import FileAccess
from .accounts import ChannelAccounts
from .action_context import ActionContext
from .attachments import MediaLoader
from .message_sender import MessageSender
from .question_notices import QuestionNotices

DELIVERY_WAIT: Final = 20.0  # seconds a caller waits for a delivery; after that the result says that it is queued
OWN_CONVERSATION_ACTIONS: Final = frozenset({"read", "delete", "edit", "pin", "unpin", "react", "poll"})
"""What a run that is not the owner's may do in its own conversation only, wherever the config lets it send."""
ALL_CHANNELS: Final = "all"
QUESTION_WAITS: Final = (
    "a question about a command waits for the owner on this channel: its messages are not edited or deleted until it "
    "is answered, so that the owner decides by what was asked; send another message"
)


NO_CHANNEL: Final = (
    "Channel is required (no configured channels detected). Name one, for example channel local, or configure one "
    "under channels in the config."
)


class DeliveryFailed(ChannelRefused):
    """The channel will not take it. The outbox keeps it under `delivery_id`, for a person to look at."""

    def __init__(self, posted: PostResult, message: str) -> None:
        super().__init__(posted.error or message)
        self.delivery_id = posted.id


class ActionResult(Struct, frozen=True, kw_only=True, rename="camel"):
    """An action's result, in the fields that clients know."""

    kind: Literal["send", "poll", "broadcast", "action"]
    channel: str
    action: str
    payload: Json
    dry_run: bool
    to: str | UnsetType = UNSET
    handled_by: str = "core"
    send_result: Json | UnsetType = UNSET
    poll_result: Json | UnsetType = UNSET


class MessageActions(Struct, frozen=True, kw_only=True):
    """`file_access` decides which files a caller may send, `tool_refusal` which tools it may use."""

    accounts: ChannelAccounts
    sender: MessageSender
    media: MediaLoader
    config: Callable[[], Config]
    file_access: Callable[[ActionContext], FileAccess]
    tool_refusal: DenialCheck
    questions: QuestionNotices | None = None

    async def perform(self, action: str, params: Json, context: ActionContext, *, key: str) -> ActionResult:
        """Raises ChannelError with a text for the caller, and ToolDenied when the action counts as a tool that the
        caller may not use."""
        request = parse_action(action, params)
        if request.action == "broadcast":
            return await self._broadcast(request, context, key=key)
        address = self.resolve_address(request, context)
        self.check_tools(tools_for_action(request, (address,), context.own_addresses), context)
        self.check_cross_context(request.action, address, context)
        if request.action in SEND_ACTIONS:
            return await self._send(request, address, context, key=key)
        if request.action == "poll":
            return await self._poll(request, address, context, key=key)
        return await self._act(request, address, context)

    # ---- sending -------------------------------------------------------------------------------------------------

    async def _send(
        self, request: ActionRequest, address: ChatAddress, context: ActionContext, *, key: str
    ) -> ActionResult:
        posted = await self._deliver(request, address, context, key=key)
        if posted is not None and posted.status == "failed":
            raise DeliveryFailed(posted, "the message could not be delivered")
        delivery, media = _delivery_view(address, posted), list(request.media)
        sent: Json = {
            "channel": address.channel, "to": address.to, "via": "direct", "mediaUrl": media[0] if media else None,
            "mediaUrls": media or None, "result": delivery, "dryRun": request.dry_run,
        }  # fmt: skip
        payload = {"ok": True, **delivery, **({"dryRun": True, "message": request.text} if request.dry_run else {})}
        return _result("send", request, address, payload, send_result=sent)

    async def _deliver(
        self, request: ActionRequest, address: ChatAddress, context: ActionContext, *, key: str
    ) -> PostResult | None:
        """None: nothing was sent, because it is a dry run."""
        account = self.accounts.require(address)
        account.require_used(
            {"reply": request.reply_to, "thread": address.thread, "effect": request.effect, "attachment": request.media}
        )
        if request.dry_run:
            return None
        limit, name = account.media_limit, request.file_name
        files = [
            await self.media.load(source, self.file_access(context), max_bytes=limit, name=name)
            for source in request.media
        ]
        message = OutboundMessage(
            text=self._add_origin_marker(request.text, address, context), attachments=tuple(files),
            reply_to=request.reply_to, effect=request.effect, silent=request.silent, extra=request.extra,
        )  # fmt: skip
        return await self.sender.send(
            address, message, key=key, wait=DELIVERY_WAIT, session=context.session, origin=context.origin
        )

    async def _broadcast(self, request: ActionRequest, context: ActionContext, *, key: str) -> ActionResult:
        if self.config().tools.get("message", {}).get("broadcast", {}).get("enabled", True) is False:
            raise ChannelRefused("broadcasts are switched off (tools.message.broadcast.enabled)")
        names = self.accounts.names if request.channel == ALL_CHANNELS else [request.channel]
        requests = [
            replace(request, channel=name, target=target, targets=()) for name in names for target in request.targets
        ]
        found = [self._try_resolve(each, context) for each in requests]
        addresses = [each for each in found if isinstance(each, ChatAddress)]
        self.check_tools(tools_for_action(request, addresses, context.own_addresses), context)
        results = [
            await self._broadcast_one(each, address, context, key=f"{key}:{number}")
            for number, (each, address) in enumerate(zip(requests, found, strict=True))
        ]
        return ActionResult(
            kind="broadcast", channel=request.channel or "", action="broadcast", payload={"results": results},
            dry_run=request.dry_run,
        )  # fmt: skip

    def _try_resolve(self, request: ActionRequest, context: ActionContext) -> ChatAddress | ChannelError:
        try:
            return self.resolve_address(request, context)
        except ChannelError as exc:
            return exc

    async def _broadcast_one(
        self, request: ActionRequest, address: ChatAddress | ChannelError, context: ActionContext, *, key: str
    ) -> Json:
        """One target's result; its failure does not affect the other targets."""
        if isinstance(address, ChannelError):
            return {"channel": request.channel or "", "to": request.target, "ok": False, "error": str(address)}
        target: Json = {"channel": address.channel, "to": address.to}
        try:
            self.check_cross_context(request.action, address, context)
            self.accounts.require(address).require("broadcast")
            posted = await self._deliver(request, address, context, key=key)
        except ChannelError as exc:
            return {**target, "ok": False, "error": str(exc)}
        if posted is not None and posted.status == "failed":
            return {**target, "ok": False, "error": posted.error}
        return {**target, "ok": True, "result": _delivery_view(address, posted)}

    async def _poll(
        self, request: ActionRequest, address: ChatAddress, context: ActionContext, *, key: str
    ) -> ActionResult:
        self.accounts.require(address).require("poll")
        posted = None
        if not request.dry_run:
            poll = Poll(question=request.question or "", options=request.options, many=request.many)
            posted = await self.sender.send_poll(address, poll, key=key, wait=DELIVERY_WAIT, session=context.session)
            if posted.status == "failed":
                raise DeliveryFailed(posted, "the poll could not be delivered")
        payload = {"ok": True, **_delivery_view(address, posted)}
        return _result("poll", request, address, payload, poll_result=payload)

    async def _act(self, request: ActionRequest, address: ChatAddress, context: ActionContext) -> ActionResult:
        account, questions = self.accounts.require(address), self.questions
        self._check_questions(request.action, address, context)
        ability = "pin" if request.action == "unpin" else request.action
        account.require(ability)  # type: ignore[arg-type]  # the rest of the actions are named as their ability
        payload: Json = {"ok": True, "dryRun": True}
        if not request.dry_run:
            payload = {"ok": True, **await _perform_on_channel(account.channel, request, address)}
        if questions is not None and context.policy_caller is not None:
            for message in payload.get("messages", ()):
                message["text"] = questions.hide_codes(message["text"])
        return _result("action", request, address, payload)

    # ---- the conversation ----------------------------------------------------------------------------------------

    def resolve_address(self, request: ActionRequest, context: ActionContext) -> ChatAddress:
        """The conversation that is meant. Raises ChannelRefused naming what is missing or unknown."""
        current = context.address
        channel = self._resolve_channel(request, current)
        address = ChatAddress(channel=channel, account=self._resolve_account(request, channel, context), to="")
        account = self.accounts.require(address)
        if request.target is not None:
            address = replace(address, to=account.channel.normalize_target(request.target))
        elif current is not None and current.channel == channel:
            address = replace(address, to=current.to)
        else:
            raise ChannelRefused("target required: name the conversation to send to")
        thread = request.thread
        if thread is None and current is not None and current.conversation == address.conversation:
            thread = current.thread  # an answer in the current conversation belongs into the current thread
        return replace(address, thread=thread)

    def _resolve_channel(self, request: ActionRequest, current: ChatAddress | None) -> str:
        names = self.accounts.names
        if request.channel is not None:
            name = request.channel.strip().lower()
            if name not in names:
                raise ChannelRefused(f"Unknown channel: {request.channel}; configured are {', '.join(names)}")
            return name
        prefix, colon, _ = (request.target or "").partition(":")
        if colon and prefix.strip().lower() in names:
            return prefix.strip().lower()
        if current is not None:
            return current.channel
        others = [name for name in names if name != LOCAL_CHANNEL]
        if len(others) > 1:
            raise ChannelRefused(f"Channel is required: name one of {', '.join(names)}")
        if not others:  # the local channel is always there, so it is never what a sender means without naming it
            raise ChannelRefused(NO_CHANNEL)
        return others[0]

    def _resolve_account(self, request: ActionRequest, channel: str, context: ActionContext) -> str:
        if request.account is not None:
            return request.account
        if context.address is not None and context.address.channel == channel:
            return context.address.account
        if context.agent is not None:
            for binding in self.config().bindings:
                match = binding.get("match", {})
                bound = match.get("accountId")
                same = binding.get("agentId") == context.agent and match.get("channel") == channel
                if same and bound not in (None, "*"):
                    return str(bound)
        return self.accounts.default_account_id(channel)

    # ---- permission ----------------------------------------------------------------------------------------------

    def check_tools(self, tools: Iterable[str], context: ActionContext) -> None:
        """Raises ToolDenied when the caller may not use one of these."""
        for tool in tools:
            refusal = None if context.policy_caller is None else self.tool_refusal(context.policy_caller, tool)
            if refusal is not None:
                raise ToolDenied(refusal)

    def _check_questions(self, action: str, address: ChatAddress, context: ActionContext) -> None:
        """Raises ChannelRefused when other than the owner in person would change a question that the owner is asked."""
        in_person = context.owner and context.policy_caller is None
        shown = self.questions is not None and self.questions.is_shown_on(address)
        if shown and not in_person and action in ("edit", "delete"):
            raise ChannelRefused(QUESTION_WAITS)

    def check_cross_context(self, action: str, address: ChatAddress, context: ActionContext) -> None:
        """Whether a run bound to one conversation may act in another. Raises ChannelRefused."""
        own = context.bound_address
        if not context.bound or (own is not None and own.conversation == address.conversation):
            return
        if action in OWN_CONVERSATION_ACTIONS and not context.owner:
            raise ChannelRefused(
                f"Cross-context messaging denied: {action} works in the conversation the run is in; "
                "elsewhere it is for the owner"
            )
        settings = self.config().tools.get("message", {})
        rules = settings.get("crossContext", {})
        if settings.get("allowCrossContextSend") is True:
            return
        if own is not None and own.channel == address.channel:
            if rules.get("allowWithinProvider", True) is False:
                raise ChannelRefused(
                    "Cross-context messaging denied: the target is another conversation "
                    "(tools.message.crossContext.allowWithinProvider)"
                )
            return
        free = own is None and (context.owner or context.sends_anywhere)
        if not free and rules.get("allowAcrossProviders") is not True:
            here = "run is in no conversation" if own is None else f"conversation is on {own.channel}"
            raise ChannelRefused(
                f"Cross-context messaging denied: this {here}, the target on {address.channel} "
                "(tools.message.crossContext.allowAcrossProviders)"
            )

    def _add_origin_marker(self, text: str, address: ChatAddress, context: ActionContext) -> str:
        """The config's text around a message that comes from another conversation."""
        origin = context.bound_address or context.address
        marker = self.config().tools.get("message", {}).get("crossContext", {}).get("marker", {})
        if origin is None or origin.conversation == address.conversation or marker.get("enabled") is not True:
            return text
        texts = marker.get("prefix", "[from {channel}] "), marker.get("suffix", "")
        prefix, suffix = (str(each).replace("{channel}", origin.channel) for each in texts)
        return f"{prefix}{text}{suffix}"


async def _perform_on_channel(channel: Channel, request: ActionRequest, address: ChatAddress) -> Json:
    id = request.message_id or ""
    match request.action:
        case "react":
            await channel.react(address, id, request.emoji or "", remove=request.remove)
            return {"messageId": id, "removed" if request.remove else "added": request.emoji}
        case "delete":
            await channel.delete(address, id)
            return {"messageId": id, "deleted": True}
        case "edit":
            await channel.edit(address, id, request.text)
            return {"messageId": id}
        case "pin" | "unpin":
            await channel.pin(address, id, remove=request.remove)
            return {"messageId": id, "pinned": not request.remove}
    found = await channel.read(address, limit=request.limit, before=request.before)
    return {"messages": [message_view(message) for message in found]}


def _result(
    kind: Literal["send", "poll", "action"], request: ActionRequest, address: ChatAddress, payload: Json, **more: Any
) -> ActionResult:
    return ActionResult(
        kind=kind, channel=address.channel, action=request.action, to=address.to, payload=payload,
        dry_run=request.dry_run, **more,
    )  # fmt: skip


def message_view(message: StoredMessage) -> Json:
    """A message in the form of `read` and of the local channel's events."""
    optional = {
        "threadId": message.thread, "replyToId": message.reply_to,
        "attachments": list(map(to_builtins, message.attachments)),
        "reactions": list(map(to_builtins, message.reactions)), "pinned": message.pinned, "edited": message.edited,
        "extra": message.extra,
    }  # fmt: skip
    return {
        "id": message.id, "messageId": message.id, "text": message.text, "timestamp": message.at,
        "fromMe": message.mine, "sender": to_builtins(message.sender),
        **{name: value for name, value in optional.items() if value},
    }  # fmt: skip


def _delivery_view(address: ChatAddress, posted: PostResult | None) -> Json:
    view: Json = {"channel": address.channel, "to": address.to, "chatId": address.to}
    if address.thread is not None:
        view["threadId"] = address.thread
    if posted is None:
        return view
    view |= {"deliveryId": posted.id, "status": posted.status}
    if posted.receipts:
        ids = [receipt.message_id for receipt in posted.receipts]
        view |= {"messageId": ids[0], "messageIds": ids, "timestamp": posted.receipts[0].at}
    if posted.status == "queued":
        view["note"] = "kept, and sent as soon as the channel takes it; do not send it again"
    return view
