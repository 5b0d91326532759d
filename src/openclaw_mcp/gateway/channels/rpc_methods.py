"""The mailroom over the intercom: `send`, `poll`, `message.action` and its older names, `channels.*`, `outbox.*`."""

import uuid
from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated, Any, Final

from msgspec import Meta, Struct, structs

from ...core.channel import Address, ChannelBusy, ChannelError, ChannelRefused
from ...core.mail import Mail, MailOrigin, MailStatus
from ...core.model import Caller, Grant, Json
from ...core.rpc import ADMIN, READ, WRITE, Fault, Method, RpcCall, covers, read_params
from ...core.sessions import now_ms
from .account_runner import Answering
from .action_tools import tools_to_reach
from .inbox import CODE_AGE
from .message_actions import Actions, Context, Undelivered
from .service import Mailroom

OLD_NAMES: Final = (
    "send", "reply", "thread-reply", "broadcast", "react", "delete", "sendAttachment", "sendWithEffect", "pin",
)  # fmt: skip
"""Actions also offered as `message:<action>`, with the parameters flat."""
LABELS: Final = {"local": "Local", "matrix": "Matrix", "telegram": "Telegram"}
LARGEST_LIST: Final = 500

Text = Annotated[str, Meta(min_length=1)]


class ActionParams(Struct, frozen=True, kw_only=True, rename="camel"):
    action: Text
    params: Json = {}
    channel: str | None = None
    account_id: str | None = None
    agent_id: str | None = None
    session_key: str | None = None
    idempotency_key: str | None = None
    dry_run: bool = False


class SendParams(Struct, frozen=True, kw_only=True, rename="camel"):
    to: Text
    idempotency_key: Text
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
    to: Text
    question: Text
    options: Annotated[list[str], Meta(min_length=2, max_length=12)]
    idempotency_key: Text
    max_selections: int = 1
    channel: str | None = None
    account_id: str | None = None
    thread_id: str | int | None = None
    session_key: str | None = None


class OutboxParams(Struct, frozen=True, kw_only=True):
    status: MailStatus | None = None
    limit: Annotated[int, Meta(ge=1, le=LARGEST_LIST)] = 100


class OneParams(Struct, frozen=True, kw_only=True):
    id: Text


class ApproveParams(Struct, frozen=True, kw_only=True):
    channel: Text
    code: Text


class RemoveParams(Struct, frozen=True, kw_only=True):
    channel: Text
    sender: Text


class AccountParams(Struct, frozen=True, kw_only=True, rename="camel"):
    channel: Text
    account_id: str | None = None


class MailMethods:
    """A `Room`, with a part in `health` and the web hooks of channels."""

    def __init__(self, mailroom: Mailroom, actions: Actions) -> None:
        self._mailroom = mailroom
        self._actions = actions

    def methods(self) -> Sequence[Method]:
        old = [Method(f"message:{name}", WRITE, self._old, advertised=False) for name in OLD_NAMES]
        return (
            Method("send", WRITE, self._send),
            Method("poll", WRITE, self._poll, advertised=False),
            Method("message.action", WRITE, self._action),
            *old,
            Method("message:edit", WRITE, self._old, advertised=False),
            Method("message:readMessages", READ, self._old, advertised=False),
            Method("channels.status", READ, self._status),
            Method("channels.restart", ADMIN, self._restart, advertised=False),
            Method("channels.pairing.list", ADMIN, self._people),
            Method("channels.pairing.approve", ADMIN, self._approve),
            Method("channels.pairing.remove", ADMIN, self._remove),
            Method("outbox.list", READ, self._outbox),
            Method("outbox.retry", ADMIN, self._retry),
            Method("outbox.drop", ADMIN, self._drop),
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
        return await self._performed(asked.action, given, context, _key(asked.idempotency_key))

    async def _old(self, call: RpcCall) -> Json:
        """`message:send` and its like: whatever is not about who asks is the action's."""
        session, agent = call.params.get("sessionKey"), call.params.get("agentId")
        key = call.params.get("idempotencyKey")
        context = await self._context(call, session, agent)
        return await self._performed(call.method, call.params, context, _key(key if isinstance(key, str) else None))

    async def _send(self, call: RpcCall) -> Json:
        asked = read_params(call.params, SendParams, call.method)
        if asked.channel == "webchat":
            raise Fault("webchat is no channel to send to; use chat.send with the session's key")
        given: Json = {
            "target": asked.to, "message": asked.message, "media": asked.media_url, "mediaUrls": asked.media_urls,
            "channel": asked.channel, "accountId": asked.account_id, "threadId": asked.thread_id,
            "replyTo": asked.reply_to_id, "silent": asked.silent,
        }  # fmt: skip
        context = await self._context(call, asked.session_key, asked.agent_id)
        done = await self._performed("send", given, context, _key(asked.idempotency_key))
        delivered: Json = done["payload"]
        if delivered.get("status") == "queued":
            details = {"code": "OUTBOUND_DELIVERY_QUEUED", "deliveryId": delivered["deliveryId"]}
            raise Fault(
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
        done = await self._performed("poll", given, context, _key(asked.idempotency_key))
        return {"runId": asked.idempotency_key, **done["payload"]}

    async def _performed(self, action: str, given: Json, context: Context, key: str) -> Json:
        try:
            return await self._actions.perform(action, given, context, key=key)
        except ChannelBusy as exc:
            raise Fault(str(exc), kind="UNAVAILABLE", retryable=True, retry_after_ms=int(exc.seconds * 1000)) from None
        except Undelivered as exc:
            details = {"code": "OUTBOUND_DELIVERY_FAILED", "deliveryId": exc.delivery_id}
            raise Fault(str(exc), kind="UNAVAILABLE", details=details, retryable=False) from None
        except ChannelRefused as exc:
            raise Fault(str(exc)) from None
        except ChannelError as exc:
            raise Fault(str(exc), kind="UNAVAILABLE", retryable=True) from None

    async def check_sending(self, caller: Caller, there: Address) -> None:
        """Raises ChannelError or ToolDenied unless whoever the rules about tools bind may have words sent there from
        where it is."""
        context = await agent_context(self._mailroom, caller)
        station = self._mailroom.stations.get(there.channel, there.account)
        to = there.to if station is None else station.channel.canonical(there.to)
        there = structs.replace(there, to=to)
        self._actions.permit(tools_to_reach((there,), context.own), context)
        if caller.kind == "agent":
            self._actions.check("send", there, context)

    async def _context(self, call: RpcCall, session: Any, agent: str | None) -> Context:
        """An agent's session and conversation are its credential's; an operator may name a session to write to."""
        caller = call.caller
        if caller.kind == "agent":
            return await agent_context(self._mailroom, caller)
        own = () if not caller.bound else (await agent_context(self._mailroom, caller)).own
        known = Context(agent=agent, owner=caller.owner, judged=call.judged, own=own)
        if not isinstance(session, str) or not session:
            return known
        address = await self._mailroom.route(session)
        origin: MailOrigin = "rpc" if caller.owner else "client"
        return structs.replace(known, session=session, address=address, origin=origin)

    # ---- channels ------------------------------------------------------------------------------------------------

    async def _status(self, call: RpcCall) -> Json:
        return await status(self._mailroom)

    async def _restart(self, call: RpcCall) -> Json:
        asked = read_params(call.params, AccountParams, call.method)
        account = asked.account_id or self._mailroom.account_of(asked.channel)
        station = await self._mailroom.stations.restart(asked.channel, account)
        if station is None:
            raise Fault(f"channel {asked.channel} has no account {account}; see channels.status")
        return {"ok": True, "channel": asked.channel, "account": await station.status()}

    async def _people(self, call: RpcCall) -> Json:
        people = await self._mailroom.books.people.all()
        fresh = [person for person in people if person.approved or person.at >= now_ms() - CODE_AGE]
        shown = [
            {
                "channel": person.channel, "accountId": person.account, "sender": person.sender, "name": person.name,
                "approved": person.approved, "at": person.at, **({} if person.approved else {"code": person.code}),
            }
            for person in fresh
        ]  # fmt: skip
        return {"requests": [p for p in shown if not p["approved"]], "approved": [p for p in shown if p["approved"]]}

    async def _approve(self, call: RpcCall) -> Json:
        asked = read_params(call.params, ApproveParams, call.method)
        code = asked.code.strip().upper()
        person = await self._mailroom.books.people.approve(asked.channel, code, since=now_ms() - CODE_AGE)
        if person is None:
            raise Fault(f"nobody on {asked.channel} waits with this code, or it is over an hour old")
        await self._mailroom.receiving.look_at_people()
        where = Address(channel=person.channel, account=person.account, to=person.sender)
        return {"ok": True, "channel": where.channel, "accountId": where.account, "sender": person.sender}

    async def _remove(self, call: RpcCall) -> Json:
        asked = read_params(call.params, RemoveParams, call.method)
        removed = await self._mailroom.books.people.remove(asked.channel, asked.sender)
        await self._mailroom.receiving.look_at_people()
        return {"ok": True, "removed": removed}

    # ---- outbox --------------------------------------------------------------------------------------------------

    async def _outbox(self, call: RpcCall) -> Json:
        asked = read_params(call.params, OutboxParams, call.method)
        found = await self._mailroom.books.outbox.page(status=asked.status, limit=asked.limit)
        texts = covers(call.caller.scopes, WRITE)
        return {"ts": now_ms(), "items": [_row(mail, texts=texts) for mail in found]}

    async def _retry(self, call: RpcCall) -> Json:
        asked = read_params(call.params, OneParams, call.method)
        mail = await self._mailroom.sending.retry(asked.id)
        if mail is None:
            raise Fault(f"no message {asked.id} waits or has failed; see outbox.list")
        return {"ok": True, "id": mail.uid, "status": "queued"}

    async def _drop(self, call: RpcCall) -> Json:
        asked = read_params(call.params, OneParams, call.method)
        if not await self._mailroom.sending.drop(asked.id):
            raise Fault(f"no message {asked.id} waits or has failed; see outbox.list")
        return {"ok": True, "id": asked.id, "dropped": True}

    # ---- the rest of the house -----------------------------------------------------------------------------------

    def health(self) -> Json:
        names = self._mailroom.stations.names
        channels = {
            name: {
                "configured": True,
                "running": any(s.state == "running" for s in self._mailroom.stations.all if s.channel.name == name),
            }
            for name in names
        }
        return {"channels": channels, "channelOrder": names, "channelLabels": {n: _label(n) for n in names}}

    def status(self) -> Json:
        return {
            "channelSummary": [
                f"{_label(s.channel.name)} ({s.account.id}): {s.state}{f', {s.error}' if s.error else ''}"
                for s in self._mailroom.stations.all
            ]
        }

    def routes(self) -> dict[str, Any]:
        return {"/channels/": self._hook}

    async def _hook(self, scope: Any, receive: Any, send: Any) -> None:
        """`/channels/<channel>/<account>` is for the channel, which checks the sender's secret itself."""
        _, _, rest = scope["path"].partition("/channels/")
        channel, _, account = rest.partition("/")
        station = self._mailroom.stations.get(channel, account.partition("/")[0])
        if station is not None and isinstance(station.channel, Answering):
            await station.channel.http(scope, receive, send)
            return
        headers = [(b"content-type", b"text/plain; charset=utf-8")]
        await send({"type": "http.response.start", "status": 404, "headers": headers})
        await send({"type": "http.response.body", "body": b"Not Found"})


async def agent_context(mailroom: Mailroom, caller: Caller) -> Context:
    """Where an agent is: what its credential says, else where its session was last heard from.

    A run that another one started is where its session is, if people are heard there; what binds it is the conversation
    its credential names."""
    grant = caller.grant or caller.acting or Grant()
    named, route = _named(mailroom, grant), None
    if caller.session is not None and (named is None or grant.handed_on):
        route = await mailroom.route(caller.session)
    address = route or named
    return Context(
        session=caller.session, address=address, agent=grant.agent, origin="tool",
        bound=caller.kind == "agent" or address is not None,  # an operator in no conversation speaks for itself
        home=address if caller.owner else named or route,
        sends_anywhere=grant.sends_anywhere, owner=caller.owner, folder=grant.folder, judged=caller,
        own=tuple(place for place in (named, route) if place is not None),
    )  # fmt: skip


def _named(mailroom: Mailroom, grant: Grant) -> Address | None:
    """The conversation a credential names."""
    if grant.channel and grant.to:
        account = grant.account or mailroom.account_of(grant.channel)
        return _canonical(mailroom, Address(channel=grant.channel, account=account, to=grant.to, thread=grant.thread))
    if grant.delivers_to is None:
        return None
    channel, account, to = grant.delivers_to
    return Address(channel=channel, account=account, to=to)


def _canonical(mailroom: Mailroom, address: Address) -> Address:
    """The address as its channel writes it; as it is where there is no such channel or it can't be understood."""
    station = mailroom.stations.get(address.channel, address.account)
    if station is None:
        return address
    with suppress(ChannelError):
        return structs.replace(address, to=station.channel.canonical(address.to))
    return address


async def status(mailroom: Mailroom) -> Json:
    names = mailroom.stations.names
    rows: dict[str, list[Json]] = {name: [] for name in names}
    for station in mailroom.stations.all:
        rows[station.channel.name].append(await station.status())
    issues = [
        {"channel": channel, "accountId": account, "kind": "config", "message": why}
        for (channel, account), why in mailroom.stations.issues.items()
    ]
    if mailroom.issue is not None:
        issues.append({"channel": "", "accountId": "", "kind": "config", "message": mailroom.issue})
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
        "channelDefaultAccountId": {name: mailroom.account_of(name) for name in names},
        "statusIssues": issues,
        "outbox": {"waiting": mailroom.sending.waiting},
    }


def _label(name: str) -> str:
    return LABELS.get(name, name.capitalize())


def _key(given: str | None) -> str:
    return f"rpc:{given or uuid.uuid4()}"


def _row(mail: Mail, *, texts: bool) -> Json:
    address = mail.address
    row: Json = {"id": mail.uid, "status": mail.status, "channel": address.channel, "accountId": address.account}
    row |= {"to": address.to, "tries": mail.tries, "createdAt": mail.created_at, "parts": len(mail.letters)}
    row |= {"delivered": len(mail.receipts), "origin": mail.origin}
    for name, value in (("threadId", address.thread), ("error", mail.error), ("sessionKey", mail.session)):
        if value is not None:
            row[name] = value
    if mail.status == "queued":
        row["dueAt"] = mail.due_at
    if texts and mail.letters:
        row["preview"] = mail.letters[0].text[:80]
    return row
