"""The mailroom over the intercom: `send`, `poll`, `message.action` and its older names, `channels.*`, `outbox.*`."""

import uuid
from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated, Any, Final

from msgspec import Meta, Struct, structs

from ...core.channel import ChannelBusy, ChannelError, ChannelRefused, ChatAddress
from ...core.fields import NonEmptyStr
from ...core.mail import OutboxMessage, OutboxOrigin, OutboxStatus
from ...core.model import Caller, Grant, Json
from ...core.rpc import ADMIN, READ, WRITE, RpcCall, RpcError, RpcMethod, has_scope, read_params
from ...core.sessions import now_ms
from .account_runner import WebhookChannel
from .action_tools import tools_for_addresses
from .inbox import PAIRING_CODE_TTL_MS
from .message_actions import ActionContext, DeliveryFailed, MessageActions
from .service import ChannelService

LEGACY_ACTIONS: Final = (
    "send", "reply", "thread-reply", "broadcast", "react", "delete", "sendAttachment", "sendWithEffect", "pin",
)  # fmt: skip
"""Actions also offered as `message:<action>`, with the parameters flat."""
CHANNEL_LABELS: Final = {"local": "Local", "matrix": "Matrix", "telegram": "Telegram"}
MAX_LIST: Final = 500


class ActionParams(Struct, frozen=True, kw_only=True, rename="camel"):
    action: NonEmptyStr
    params: Json = {}
    channel: str | None = None
    account_id: str | None = None
    agent_id: str | None = None
    session_key: str | None = None
    idempotency_key: str | None = None
    dry_run: bool = False


class ChannelSendParams(Struct, frozen=True, kw_only=True, rename="camel"):
    to: NonEmptyStr
    idempotency_key: NonEmptyStr
    message: str | None = None
    media_url: str | None = None
    media_urls: list[str] | None = None
    channel: str | None = None
    account_id: str | None = None
    agent_id: str | None = None
    thread_id: str | int | None = None
    reply_to_id: str | None = None
    silent: bool = False
    session_key: str | None = None


class PollParams(Struct, frozen=True, kw_only=True, rename="camel"):
    to: NonEmptyStr
    question: NonEmptyStr
    options: Annotated[list[str], Meta(min_length=2, max_length=12)]
    idempotency_key: NonEmptyStr
    max_selections: int = 1
    channel: str | None = None
    account_id: str | None = None
    thread_id: str | int | None = None
    session_key: str | None = None


class OutboxParams(Struct, frozen=True, kw_only=True):
    status: OutboxStatus | None = None
    limit: Annotated[int, Meta(ge=1, le=MAX_LIST)] = 100


class OutboxMessageParams(Struct, frozen=True, kw_only=True):
    id: NonEmptyStr


class ApprovePairingParams(Struct, frozen=True, kw_only=True):
    channel: NonEmptyStr
    code: NonEmptyStr


class RemovePairingParams(Struct, frozen=True, kw_only=True):
    channel: NonEmptyStr
    sender: NonEmptyStr


class AccountParams(Struct, frozen=True, kw_only=True, rename="camel"):
    channel: NonEmptyStr
    account_id: str | None = None


class ChannelMethods:
    """A `Room`, with a part in `health` and the web hooks of channels."""

    def __init__(self, channels: ChannelService, actions: MessageActions) -> None:
        self._channels = channels
        self._actions = actions

    def methods(self) -> Sequence[RpcMethod]:
        old = [RpcMethod(f"message:{name}", WRITE, self._legacy_action, advertised=False) for name in LEGACY_ACTIONS]
        return (
            RpcMethod("send", WRITE, self._send),
            RpcMethod("poll", WRITE, self._poll, advertised=False),
            RpcMethod("message.action", WRITE, self._action),
            *old,
            RpcMethod("message:edit", WRITE, self._legacy_action, advertised=False),
            RpcMethod("message:readMessages", READ, self._legacy_action, advertised=False),
            RpcMethod("channels.status", READ, self._status),
            RpcMethod("channels.restart", ADMIN, self._restart, advertised=False),
            RpcMethod("channels.pairing.list", ADMIN, self._list_pairings),
            RpcMethod("channels.pairing.approve", ADMIN, self._approve_sender),
            RpcMethod("channels.pairing.remove", ADMIN, self._remove_sender),
            RpcMethod("outbox.list", READ, self._list_outbox),
            RpcMethod("outbox.retry", ADMIN, self._retry),
            RpcMethod("outbox.drop", ADMIN, self._drop),
        )

    # ---- messages ------------------------------------------------------------------------------------------------

    async def _action(self, call: RpcCall) -> Json:
        asked = read_params(call.params, ActionParams, call.method)
        given = {name: value for name, value in asked.params.items() if not name.startswith("__")}
        named = {"channel": asked.channel, "accountId": asked.account_id}
        given |= {name: value for name, value in named.items() if value}
        if asked.dry_run:
            given["dryRun"] = True
        session = asked.session_key or asked.params.get("__sessionKey")
        context = await self._context(call, session, asked.agent_id)
        return await self._perform(asked.action, given, context, _idempotency_key(asked.idempotency_key))

    async def _legacy_action(self, call: RpcCall) -> Json:
        """`message:send` and its like: whatever is not about who asks is the action's."""
        session, agent = call.params.get("sessionKey"), call.params.get("agentId")
        key = call.params.get("idempotencyKey")
        context = await self._context(call, session, agent)
        return await self._perform(
            call.method, call.params, context, _idempotency_key(key if isinstance(key, str) else None)
        )

    async def _send(self, call: RpcCall) -> Json:
        asked = read_params(call.params, ChannelSendParams, call.method)
        if asked.channel == "webchat":
            raise RpcError("webchat is no channel to send to; use chat.send with the session's key")
        given: Json = {
            "target": asked.to, "message": asked.message, "media": asked.media_url, "mediaUrls": asked.media_urls,
            "channel": asked.channel, "accountId": asked.account_id, "threadId": asked.thread_id,
            "replyTo": asked.reply_to_id, "silent": asked.silent,
        }  # fmt: skip
        context = await self._context(call, asked.session_key, asked.agent_id)
        done = await self._perform("send", given, context, _idempotency_key(asked.idempotency_key))
        delivered: Json = done["payload"]
        if delivered.get("status") == "queued":
            details = {"code": "OUTBOUND_DELIVERY_QUEUED", "deliveryId": delivered["deliveryId"]}
            raise RpcError(
                "the message is kept and will be sent when the channel takes it; do not send it again",
                kind="UNAVAILABLE", details=details, retryable=False,
            )  # fmt: skip
        delivered.pop("ok")
        return {"runId": asked.idempotency_key, **delivered}

    async def _poll(self, call: RpcCall) -> Json:
        asked = read_params(call.params, PollParams, call.method)
        given: Json = {
            "target": asked.to, "question": asked.question, "options": asked.options, "channel": asked.channel,
            "maxSelections": asked.max_selections, "accountId": asked.account_id, "threadId": asked.thread_id,
        }  # fmt: skip
        context = await self._context(call, asked.session_key, None)
        done = await self._perform("poll", given, context, _idempotency_key(asked.idempotency_key))
        return {"runId": asked.idempotency_key, **done["payload"]}

    async def _perform(self, action: str, params: Json, context: ActionContext, key: str) -> Json:
        try:
            return await self._actions.perform(action, params, context, key=key)
        except ChannelBusy as exc:
            raise RpcError(
                str(exc), kind="UNAVAILABLE", retryable=True, retry_after_ms=int(exc.retry_after * 1000)
            ) from None
        except DeliveryFailed as exc:
            details = {"code": "OUTBOUND_DELIVERY_FAILED", "deliveryId": exc.delivery_id}
            raise RpcError(str(exc), kind="UNAVAILABLE", details=details, retryable=False) from None
        except ChannelRefused as exc:
            raise RpcError(str(exc)) from None
        except ChannelError as exc:
            raise RpcError(str(exc), kind="UNAVAILABLE", retryable=True) from None

    async def authorize_send(self, caller: Caller, address: ChatAddress) -> None:
        """Raises ChannelError or ToolDenied unless whoever the rules about tools bind may have words sent there from
        where it is."""
        context = await agent_context(self._channels, caller)
        station = self._channels.accounts.get(address.channel, address.account)
        to = address.to if station is None else station.channel.normalize_target(address.to)
        address = structs.replace(address, to=to)
        self._actions.check_tools(tools_for_addresses((address,), context.own_addresses), context)
        if caller.kind == "agent":
            self._actions.check_cross_context("send", address, context)

    async def _context(self, call: RpcCall, session: Any, agent: str | None) -> ActionContext:
        """An agent's session and conversation are its credential's; an operator may name a session to write to."""
        caller = call.caller
        if caller.kind == "agent":
            return await agent_context(self._channels, caller)
        own = () if not caller.acts_in_session else (await agent_context(self._channels, caller)).own_addresses
        known = ActionContext(agent=agent, owner=caller.is_owner, policy_caller=call.policy_caller, own_addresses=own)
        if not isinstance(session, str) or not session:
            return known
        address = await self._channels.find_address(session)
        origin: OutboxOrigin = "rpc" if caller.is_owner else "client"
        return structs.replace(known, session=session, address=address, origin=origin)

    # ---- channels ------------------------------------------------------------------------------------------------

    async def _status(self, call: RpcCall) -> Json:
        return await channels_status(self._channels)

    async def _restart(self, call: RpcCall) -> Json:
        asked = read_params(call.params, AccountParams, call.method)
        account = asked.account_id or self._channels.default_account_id(asked.channel)
        station = await self._channels.accounts.restart(asked.channel, account)
        if station is None:
            raise RpcError(f"channel {asked.channel} has no account {account}; see channels.status")
        return {"ok": True, "channel": asked.channel, "account": await station.status()}

    async def _list_pairings(self, call: RpcCall) -> Json:
        people = await self._channels.repositories.sender_approvals.all()
        fresh = [person for person in people if person.approved or person.at >= now_ms() - PAIRING_CODE_TTL_MS]
        shown = [
            {
                "channel": person.channel, "accountId": person.account, "sender": person.sender, "name": person.name,
                "approved": person.approved, "at": person.at, **({} if person.approved else {"code": person.code}),
            }
            for person in fresh
        ]  # fmt: skip
        return {"requests": [p for p in shown if not p["approved"]], "approved": [p for p in shown if p["approved"]]}

    async def _approve_sender(self, call: RpcCall) -> Json:
        asked = read_params(call.params, ApprovePairingParams, call.method)
        code = asked.code.strip().upper()
        person = await self._channels.repositories.sender_approvals.approve(
            asked.channel, code, since=now_ms() - PAIRING_CODE_TTL_MS
        )
        if person is None:
            raise RpcError(f"nobody on {asked.channel} waits with this code, or it is over an hour old")
        await self._channels.inbound.reload_approved_senders()
        where = ChatAddress(channel=person.channel, account=person.account, to=person.sender)
        return {"ok": True, "channel": where.channel, "accountId": where.account, "sender": person.sender}

    async def _remove_sender(self, call: RpcCall) -> Json:
        asked = read_params(call.params, RemovePairingParams, call.method)
        removed = await self._channels.repositories.sender_approvals.remove(asked.channel, asked.sender)
        await self._channels.inbound.reload_approved_senders()
        return {"ok": True, "removed": removed}

    # ---- outbox --------------------------------------------------------------------------------------------------

    async def _list_outbox(self, call: RpcCall) -> Json:
        asked = read_params(call.params, OutboxParams, call.method)
        found = await self._channels.repositories.outbox.page(status=asked.status, limit=asked.limit)
        texts = has_scope(call.caller.scopes, WRITE)
        return {"ts": now_ms(), "items": [_outbox_row(mail, with_text=texts) for mail in found]}

    async def _retry(self, call: RpcCall) -> Json:
        asked = read_params(call.params, OutboxMessageParams, call.method)
        mail = await self._channels.outbox.retry(asked.id)
        if mail is None:
            raise RpcError(f"no message {asked.id} waits or has failed; see outbox.list")
        return {"ok": True, "id": mail.uid, "status": "queued"}

    async def _drop(self, call: RpcCall) -> Json:
        asked = read_params(call.params, OutboxMessageParams, call.method)
        if not await self._channels.outbox.drop(asked.id):
            raise RpcError(f"no message {asked.id} waits or has failed; see outbox.list")
        return {"ok": True, "id": asked.id, "dropped": True}

    # ---- the rest of the house -----------------------------------------------------------------------------------

    def health(self) -> Json:
        names = self._channels.accounts.names
        channels = {
            name: {
                "configured": True,
                "running": any(s.state == "running" for s in self._channels.accounts.all if s.channel.name == name),
            }
            for name in names
        }
        return {"channels": channels, "channelOrder": names, "channelLabels": {n: _label(n) for n in names}}

    def status(self) -> Json:
        return {
            "channelSummary": [
                f"{_label(s.channel.name)} ({s.account.id}): {s.state}{f', {s.error}' if s.error else ''}"
                for s in self._channels.accounts.all
            ]
        }

    def routes(self) -> dict[str, Any]:
        return {"/channels/": self._webhook}

    async def _webhook(self, scope: Any, receive: Any, send: Any) -> None:
        """`/channels/<channel>/<account>` is for the channel, which checks the sender's secret itself."""
        _, _, rest = scope["path"].partition("/channels/")
        channel, _, account = rest.partition("/")
        station = self._channels.accounts.get(channel, account.partition("/")[0])
        if station is not None and isinstance(station.channel, WebhookChannel):
            await station.channel.http(scope, receive, send)
            return
        headers = [(b"content-type", b"text/plain; charset=utf-8")]
        await send({"type": "http.response.start", "status": 404, "headers": headers})
        await send({"type": "http.response.body", "body": b"Not Found"})


async def agent_context(channels: ChannelService, caller: Caller) -> ActionContext:
    """Where an agent is: what its credential says, else where its session was last heard from.

    A run that another one started is where its session is, if people are heard there; what binds it is the conversation
    its credential names."""
    grant = caller.grant or caller.session_grant or Grant()
    named, route = _grant_address(channels, grant), None
    if caller.session is not None and (named is None or grant.handed_on):
        route = await channels.find_address(caller.session)
    address = route or named
    return ActionContext(
        session=caller.session, address=address, agent=grant.agent, origin="tool",
        bound=caller.kind == "agent" or address is not None,  # an operator in no conversation speaks for itself
        bound_address=address if caller.is_owner else named or route,
        sends_anywhere=grant.sends_anywhere, owner=caller.is_owner, folder=grant.folder, policy_caller=caller,
        own_addresses=tuple(place for place in (named, route) if place is not None),
    )  # fmt: skip


def _grant_address(channels: ChannelService, grant: Grant) -> ChatAddress | None:
    """The conversation a credential names."""
    if grant.channel and grant.to:
        account = grant.account or channels.default_account_id(grant.channel)
        return _canonical_address(
            channels, ChatAddress(channel=grant.channel, account=account, to=grant.to, thread=grant.thread)
        )
    if grant.delivers_to is None:
        return None
    channel, account, to = grant.delivers_to
    return ChatAddress(channel=channel, account=account, to=to)


def _canonical_address(channels: ChannelService, address: ChatAddress) -> ChatAddress:
    """The address as its channel writes it; as it is where there is no such channel or it can't be understood."""
    station = channels.accounts.get(address.channel, address.account)
    if station is None:
        return address
    with suppress(ChannelError):
        return structs.replace(address, to=station.channel.normalize_target(address.to))
    return address


async def channels_status(service: ChannelService) -> Json:
    names = service.accounts.names
    rows: dict[str, list[Json]] = {name: [] for name in names}
    for station in service.accounts.all:
        rows[station.channel.name].append(await station.status())
    issues = [
        {"channel": channel, "accountId": account, "kind": "config", "message": why}
        for (channel, account), why in service.accounts.issues.items()
    ]
    if service.config_error is not None:
        issues.append({"channel": "", "accountId": "", "kind": "config", "message": service.config_error})
    summary = {
        name: {"configured": True, **{key: any(r[key] for r in rows[name]) for key in ("running", "connected")}}
        for name in names
    }
    labels = {name: _label(name) for name in names}
    return {
        "ts": now_ms(),
        "channelOrder": names,
        "channelLabels": labels,
        "channelDetailLabels": labels,
        "channelSystemImages": {},
        "channelMeta": [{"id": name, "label": labels[name], "detailLabel": labels[name]} for name in names],
        "channels": summary,
        "channelAccounts": rows,
        "channelDefaultAccountId": {name: service.default_account_id(name) for name in names},
        "statusIssues": issues,
        "outbox": {"waiting": service.outbox.queue_length},
    }


def _label(name: str) -> str:
    return CHANNEL_LABELS.get(name, name.capitalize())


def _idempotency_key(key: str | None) -> str:
    return f"rpc:{key or uuid.uuid4()}"


def _outbox_row(message: OutboxMessage, *, with_text: bool) -> Json:
    address = message.address
    row: Json = {"id": message.uid, "status": message.status, "channel": address.channel, "accountId": address.account}
    row |= {"to": address.to, "tries": message.tries, "createdAt": message.created_at, "parts": len(message.parts)}
    row |= {"delivered": len(message.receipts), "origin": message.origin}
    for name, value in (("threadId", address.thread), ("error", message.error), ("sessionKey", message.session)):
        if value is not None:
            row[name] = value
    if message.status == "queued":
        row["dueAt"] = message.due_at
    if with_text and message.parts:
        row["preview"] = message.parts[0].text[:80]
    return row
