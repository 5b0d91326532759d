"""RPC methods of channels: `send`, `poll`, `message.action` and its older names, `channels.*`, `outbox.*`."""

import uuid
from collections.abc import Sequence
from typing import Annotated, Any, Final

from msgspec import Meta, Struct, structs, to_builtins

from ...core.channel import ChannelBusy, ChannelError, ChannelRefused, ChannelStatus, ChatAddress
from ...core.fields import NonEmptyStr
from ...core.json_values import drop_none
from ...core.mail import OutboxMessage, OutboxOrigin, OutboxStatus, SenderApproval
from ...core.message_request import tools_for_addresses
from ...core.model import Caller, Json
from ...core.rpc import ADMIN, READ, WRITE, RpcCall, RpcError, RpcMethod, has_scope, read_params
from ...core.sessions import now_ms
from ...net import asgi
from .account_runner import AccountRunner
from .accounts import ChannelAccounts, WebhookChannel
from .action_context import ActionContext, ActionContexts
from .message_actions import DeliveryFailed, MessageActions
from .outbox import OutboxSender
from .sender_approvals import MAX_PENDING_PAIRINGS, PAIRING_CODE_TTL_MS, SenderApprovals

LEGACY_ACTIONS: Final = (
    "send", "reply", "thread-reply", "broadcast", "react", "delete", "sendAttachment", "sendWithEffect", "pin",
)  # fmt: skip
"""Actions also offered as `message:<action>`, with the parameters at the top level."""
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


class ListPairingsParams(Struct, frozen=True, kw_only=True):
    channel: NonEmptyStr | None = None


class ApprovePairingParams(Struct, frozen=True, kw_only=True):
    channel: NonEmptyStr
    code: NonEmptyStr


class RemovePairingParams(Struct, frozen=True, kw_only=True):
    channel: NonEmptyStr
    sender: NonEmptyStr


class AccountParams(Struct, frozen=True, kw_only=True, rename="camel"):
    channel: NonEmptyStr
    account_id: str | None = None


class ChannelMethods(Struct, frozen=True, kw_only=True):
    """An `RpcModule` of messages, channels and the outbox; it adds to `health` and serves the channels' webhooks."""

    actions: MessageActions
    contexts: ActionContexts
    accounts: ChannelAccounts
    runner: AccountRunner
    approvals: SenderApprovals
    outbox: OutboxSender

    def methods(self) -> Sequence[RpcMethod]:
        legacy = {**dict.fromkeys(LEGACY_ACTIONS, WRITE), "edit": WRITE, "readMessages": READ}
        return (
            RpcMethod("send", WRITE, self._send),
            RpcMethod("poll", WRITE, self._poll, advertised=False),
            RpcMethod("message.action", WRITE, self._action),
            *(RpcMethod(f"message:{n}", s, self._legacy_action, advertised=False) for n, s in legacy.items()),
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
        params = read_params(call.params, ActionParams, call.method)
        action_params = {name: value for name, value in params.params.items() if not name.startswith("__")}
        named = {"channel": params.channel, "accountId": params.account_id, "dryRun": params.dry_run}
        action_params |= {name: value for name, value in named.items() if value}
        context = await self._context(call, params.session_key or params.params.get("__sessionKey"), params.agent_id)
        return await self._perform(params.action, action_params, context, params.idempotency_key)

    async def _legacy_action(self, call: RpcCall) -> Json:
        """`message:send` and the like: every parameter that does not name the caller is the action's."""
        context = await self._context(call, call.params.get("sessionKey"), call.params.get("agentId"))
        key = call.params.get("idempotencyKey")
        return await self._perform(call.method, call.params, context, key if isinstance(key, str) else None)

    async def _send(self, call: RpcCall) -> Json:
        params = read_params(call.params, ChannelSendParams, call.method)
        if params.channel == "webchat":
            raise RpcError("webchat is no channel to send to; use chat.send with the session's key")
        context = await self._context(call, params.session_key, params.agent_id)
        result = await self._perform("send", to_builtins(params), context, params.idempotency_key)
        delivery = {name: value for name, value in result["payload"].items() if name != "ok"}
        if delivery.get("status") == "queued":
            details = {"code": "OUTBOUND_DELIVERY_QUEUED", "deliveryId": delivery["deliveryId"]}
            raise RpcError(
                "the message is kept and will be sent when the channel takes it; do not send it again",
                kind="UNAVAILABLE", details=details, retryable=False,
            )  # fmt: skip
        return {"runId": params.idempotency_key, **delivery}

    async def _poll(self, call: RpcCall) -> Json:
        params = read_params(call.params, PollParams, call.method)
        context = await self._context(call, params.session_key, None)
        result = await self._perform("poll", to_builtins(params), context, params.idempotency_key)
        return {"runId": params.idempotency_key, **result["payload"]}

    async def _perform(self, action: str, params: Json, context: ActionContext, key: str | None) -> Json:
        try:
            result = await self.actions.perform(action, params, context, key=f"rpc:{key or uuid.uuid4()}")
        except ChannelBusy as exc:
            retry_after_ms = int(exc.retry_after * 1000)
            raise RpcError(str(exc), kind="UNAVAILABLE", retryable=True, retry_after_ms=retry_after_ms) from None
        except DeliveryFailed as exc:
            details = {"code": "OUTBOUND_DELIVERY_FAILED", "deliveryId": exc.delivery_id}
            raise RpcError(str(exc), kind="UNAVAILABLE", details=details, retryable=False) from None
        except ChannelRefused as exc:
            raise RpcError(str(exc)) from None
        except ChannelError as exc:
            raise RpcError(str(exc), kind="UNAVAILABLE", retryable=True) from None
        return to_builtins(result)  # type: ignore[no-any-return]  # a struct becomes an object

    async def authorize_send(self, caller: Caller, address: ChatAddress) -> None:
        """Raises ChannelError or ToolDenied unless the tool policy lets this caller send there from where it is."""
        context = await self.contexts.of_agent(caller)
        address = self.contexts.normalize(address)
        self.actions.check_tools(tools_for_addresses((address,), context.own_addresses), context)
        if caller.kind == "agent":
            self.actions.check_cross_context("send", address, context)

    async def _context(self, call: RpcCall, session: Any, agent: str | None) -> ActionContext:
        """An agent's session and conversation are its credential's; an operator may name a session to write to."""
        caller = call.caller
        if caller.kind == "agent":
            return await self.contexts.of_agent(caller)
        own = (await self.contexts.of_agent(caller)).own_addresses if caller.acts_in_session else ()
        context = ActionContext(agent=agent, owner=caller.is_owner, policy_caller=call.policy_caller, own_addresses=own)
        if not isinstance(session, str) or not session:
            return context
        origin: OutboxOrigin = "rpc" if caller.is_owner else "client"
        return await self.contexts.of_session(session, structs.replace(context, origin=origin))

    # ---- channels ------------------------------------------------------------------------------------------------

    async def _status(self, call: RpcCall) -> Json:
        names = self.accounts.names
        labels = _labels(names)
        rows: dict[str, list[ChannelStatus]] = {name: [] for name in names}
        for account in self.accounts.all:
            rows[account.channel.name].append(await account.status())
        issues = [(*key, message) for key, message in self.accounts.issues.items()]
        if self.accounts.config_error is not None:
            issues.append(("", "", self.accounts.config_error))
        return {
            "ts": now_ms(), "channelOrder": names, "channelLabels": labels, "channelDetailLabels": labels,
            "channelSystemImages": {},
            "channelMeta": [{"id": name, "label": labels[name], "detailLabel": labels[name]} for name in names],
            "channels": {
                name: {"configured": True, **{key: any(r[key] for r in rows[name]) for key in ("running", "connected")}}
                for name in names
            },
            "channelAccounts": rows,
            "channelDefaultAccountId": {name: self.accounts.default_account_id(name) for name in names},
            "statusIssues": [
                {"channel": channel, "accountId": account, "kind": "config", "message": message}
                for channel, account, message in issues
            ],
            "outbox": {"waiting": self.outbox.queue_length},
        }  # fmt: skip

    async def _restart(self, call: RpcCall) -> Json:
        params = read_params(call.params, AccountParams, call.method)
        id = params.account_id or self.accounts.default_account_id(params.channel)
        account = await self.runner.restart(params.channel, id)
        if account is None:
            raise RpcError(f"channel {params.channel} has no account {id}; see channels.status")
        return {"ok": True, "channel": params.channel, "account": await account.status()}

    async def _list_pairings(self, call: RpcCall) -> Json:
        asked = read_params(call.params, ListPairingsParams, call.method)
        if asked.channel is not None and asked.channel not in self.accounts.names:
            raise RpcError(f"unknown pairing channel: {asked.channel}")
        listed = [each for each in await self.approvals.list() if asked.channel in (None, each.channel)]
        return {
            "requests": [_approval_row(each) for each in listed if not each.approved],
            "approved": [_approval_row(each) for each in listed if each.approved],
            "limits": {"pendingPerAccount": MAX_PENDING_PAIRINGS, "ttlMs": PAIRING_CODE_TTL_MS},
        }

    async def _approve_sender(self, call: RpcCall) -> dict[str, str | bool]:
        params = read_params(call.params, ApprovePairingParams, call.method)
        approved = await self.approvals.approve(params.channel, params.code)
        if approved is None:
            raise RpcError(f"no sender on {params.channel} waits with this code, or it is over an hour old")
        return {"ok": True, "channel": approved.channel, "accountId": approved.account, "sender": approved.sender}

    async def _remove_sender(self, call: RpcCall) -> dict[str, bool]:
        params = read_params(call.params, RemovePairingParams, call.method)
        return {"ok": True, "removed": await self.approvals.remove(params.channel, params.sender)}

    # ---- outbox --------------------------------------------------------------------------------------------------

    async def _list_outbox(self, call: RpcCall) -> Json:
        params = read_params(call.params, OutboxParams, call.method)
        found = await self.outbox.page(status=params.status, limit=params.limit)
        with_text = has_scope(call.caller.scopes, WRITE)
        return {"ts": now_ms(), "items": [_outbox_row(message, with_text=with_text) for message in found]}

    async def _retry(self, call: RpcCall) -> dict[str, str | bool]:
        params = read_params(call.params, OutboxMessageParams, call.method)
        message = await self.outbox.retry(params.id)
        if message is None:
            raise _no_such_message(params.id)
        return {"ok": True, "id": message.uid, "status": "queued"}

    async def _drop(self, call: RpcCall) -> dict[str, str | bool]:
        params = read_params(call.params, OutboxMessageParams, call.method)
        if not await self.outbox.drop(params.id):
            raise _no_such_message(params.id)
        return {"ok": True, "id": params.id, "dropped": True}

    # ---- the gateway's status and HTTP server --------------------------------------------------------------------

    def health(self) -> Json:
        names = self.accounts.names
        running = {account.channel.name for account in self.accounts.all if account.state == "running"}
        channels = {name: {"configured": True, "running": name in running} for name in names}
        return {"channels": channels, "channelOrder": names, "channelLabels": _labels(names)}

    def status(self) -> dict[str, list[str]]:
        return {
            "channelSummary": [
                f"{a.channel.name.capitalize()} ({a.account.id}): {a.state}{f', {a.error}' if a.error else ''}"
                for a in self.accounts.all
            ]
        }

    def routes(self) -> dict[str, asgi.App]:
        return {"/channels/": self._webhook}

    async def _webhook(self, scope: asgi.Scope, receive: asgi.Receive, send: asgi.Send) -> None:
        """`/channels/<channel>/<account>` belongs to the channel, which checks the sender's secret itself."""
        channel, _, rest = scope["path"].partition("/channels/")[2].partition("/")
        found = self.accounts.get(channel, rest.partition("/")[0])
        if found is not None and isinstance(found.channel, WebhookChannel):
            await found.channel.http(scope, receive, send)
            return
        headers = [(b"content-type", b"text/plain; charset=utf-8")]
        await send({"type": "http.response.start", "status": 404, "headers": headers})
        await send({"type": "http.response.body", "body": b"Not Found"})


def _labels(names: Sequence[str]) -> dict[str, str]:
    return {name: name.capitalize() for name in names}


def _no_such_message(id: str) -> RpcError:
    return RpcError(f"no message {id} waits or has failed; outbox.list (openclaw outbox) lists them")


def _approval_row(approval: SenderApproval) -> dict[str, str | int | None]:
    code = {} if approval.approved else {"code": approval.code}
    return {
        "channel": approval.channel, "accountId": approval.account, "sender": approval.sender, "name": approval.name,
        "approved": approval.approved, "at": approval.at, **code,
    }  # fmt: skip


def _outbox_row(message: OutboxMessage, *, with_text: bool) -> Json:
    address = message.address
    fields = {
        "id": message.uid, "status": message.status, "channel": address.channel, "accountId": address.account,
        "to": address.to, "tries": message.tries, "createdAt": message.created_at, "parts": len(message.parts),
        "delivered": len(message.receipts), "origin": message.origin,
        "threadId": address.thread, "error": message.error, "sessionKey": message.session,
        "dueAt": message.due_at if message.status == "queued" else None,
        "preview": message.parts[0].text[:80] if with_text and message.parts else None,
    }  # fmt: skip
    return drop_none(fields)
