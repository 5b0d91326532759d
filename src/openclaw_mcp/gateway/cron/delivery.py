"""Taking a result to whoever is to have it: a conversation, through the mailroom, or a webhook."""

import asyncio
import re
from collections.abc import Callable, Sequence
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit

import msgspec
from msgspec import Struct

from ...core.channel import ChannelError, ChatAddress, MessageDelivery, OutboundMessage
from ...core.errors import OpenClawError
from ...core.jobs import DeliveryStatus
from ...core.model import Json
from ...core.sessions import Run
from ...net.internet import NoSuchHost, NotPublic, normalize_host, resolve_host, url_host
from .settings import CronSettings, WebhookRules

POST_WAIT: Final = 20.0  # seconds for a message to arrive before it is reported as on its way
WEBHOOK_WAIT: Final = 10.0  # seconds a webhook may take to answer; the reference's own limit
MAIN_ACCOUNT: Final = "default"
_CHANNEL: Final = re.compile(r"[a-z][a-z0-9_-]*")
_NOT_CHANNELS: Final = frozenset({"channel", "user", "group", "chat", "room", "direct", "dm", "topic", "thread"})


class NoRoute(OpenClawError):
    """Nobody knows where to. The text says what to set."""

    code = "no_route"


class DeliveryTarget(Struct, frozen=True, kw_only=True):
    """Where somebody wants it, as far as they said."""

    channel: str | None = None
    to: str | None = None
    account: str | None = None
    thread: str | None = None

    @property
    def is_explicit(self) -> bool:
        return any((self.channel not in (None, "last"), self.to, self.account, self.thread))


class DeliveryReport(Struct, frozen=True, kw_only=True):
    """What became of it."""

    status: DeliveryStatus
    delivered: bool | None = None
    error: str | None = None
    detail: Json | None = None


class ResultDelivery:
    """`mailroom` None: there is none in this house, and every conversation is out of reach."""

    def __init__(self, settings: Callable[[], CronSettings], channels: MessageDelivery | None = None) -> None:
        self._settings = settings
        self.channels = channels

    async def announce(
        self, target: DeliveryTarget, text: str, *, key: str, sessions: Sequence[str], mirror_session: str | None,
        run: Run | None = None,
    ) -> DeliveryReport:  # fmt: skip
        """Post it. `key` once delivers once; `sessions` are asked in turn where their person was last heard from.
        What the agent of `run` itself wrote to that very conversation was its answer: nothing follows."""
        intended = _target_json(target)
        try:
            address = await self.resolve(target, sessions)
            assert self.channels is not None
            if run is not None and await self.channels.has_run_message(run, address):
                return DeliveryReport(status="delivered", delivered=True)
            posted = await self.channels.post(
                address, OutboundMessage(text=text), key=key, wait=POST_WAIT, session=mirror_session
            )
        except (NoRoute, ChannelError) as exc:
            resolved = {"ok": False, "error": str(exc)}
            detail = {"intended": intended, "resolved": resolved, "fallbackUsed": False, "delivered": False}
            return DeliveryReport(status="not-delivered", delivered=False, error=str(exc), detail=detail)
        delivered = posted.status == "sent"
        resolved = {**_address_json(address), "source": "explicit" if target.is_explicit else "last", "ok": True}
        detail = {"intended": intended, "resolved": resolved, "fallbackUsed": False, "delivered": delivered}
        status: DeliveryStatus = (
            "delivered" if delivered else "unknown" if posted.status == "queued" else "not-delivered"
        )
        return DeliveryReport(status=status, delivered=delivered, error=posted.error, detail=detail)

    async def resolve(self, target: DeliveryTarget, sessions: Sequence[str]) -> ChatAddress:
        """Raises NoRoute."""
        if self.channels is None:
            raise NoRoute("no channel is set up here; set one up, or give the job delivery mode none or webhook")
        channel, to = split_target(target)
        if channel is not None and to is not None:
            return ChatAddress(channel=channel, account=target.account or MAIN_ACCOUNT, to=to, thread=target.thread)
        for session in sessions:
            known = await self.channels.find_address(session)
            if known is None or channel not in (None, known.channel) or target.account not in (None, known.account):
                continue
            thread = target.thread or (known.thread if to in (None, known.to) else None)
            return ChatAddress(channel=known.channel, account=known.account, to=to or known.to, thread=thread)
        if channel is not None:
            raise NoRoute(f"nobody was heard from on {channel} yet; say to whom with delivery.to")
        raise NoRoute("nobody was heard from yet; set delivery.channel and delivery.to, or write to the agent first")

    async def post_webhook(self, url: str, body: Json, *, key: str, by_operator: bool) -> DeliveryReport:
        """POST it. A receiver that sees a key twice has it already.

        `chosen`: a person named the address; to one that an agent named, `cron.webhookToken` does not go."""
        try:
            status = await asyncio.wait_for(self._send_webhook(url, body, key, by_operator=by_operator), WEBHOOK_WAIT)
        except NoRoute as exc:
            return DeliveryReport(status="not-delivered", delivered=False, error=str(exc))
        except TimeoutError:
            return DeliveryReport(
                status="unknown", delivered=False, error=f"the webhook did not answer within {WEBHOOK_WAIT:g} s"
            )
        if 200 <= status < 300:
            return DeliveryReport(status="delivered", delivered=True)
        return DeliveryReport(
            status="not-delivered", delivered=False, error=f"the webhook answered with status {status}"
        )

    async def _send_webhook(self, url: str, body: Json, key: str, *, by_operator: bool) -> int:
        from ...net.httpx_client import create_client, httpx  # here for start-up: only a webhook that is due needs it

        rules = self._settings().webhook_ssrf_policy
        try:
            parts = urlsplit(url)
            host, port = parts.hostname or "", parts.port
        except ValueError:
            raise NoRoute("the webhook's address can't be understood") from None
        address = await _resolve_host(host, port or (443 if parts.scheme == "https" else 80), rules)
        # To the very address that was looked at: a name may point elsewhere a moment later.
        literal = url_host(address)
        there = urlunsplit((parts.scheme, f"{literal}:{port}" if port else literal, parts.path, parts.query, ""))
        token = self._settings().webhook_token if by_operator else None
        headers = {"host": parts.netloc, "content-type": "application/json", "idempotency-key": key}
        if token:
            headers["authorization"] = f"Bearer {token}"
        content = msgspec.json.encode(body)
        try:
            async with (
                create_client(timeout=WEBHOOK_WAIT, trust_environment=False) as client,
                client.stream(
                    "POST", there, content=content, headers=headers, extensions={"sni_hostname": host}
                ) as answer,
            ):
                return answer.status_code  # the body says nothing that we need
        except httpx.HTTPError as exc:
            raise NoRoute(f"the webhook can't be reached: {type(exc).__name__}") from exc

    async def preview(self, delivery: Any, sessions: Sequence[str], *, in_session: bool) -> Json:
        """Where it would go, for a person who looks: `{label, detail}`."""
        if delivery is None or delivery.mode == "none":
            return {"label": "not requested", "detail": "not requested"}
        if delivery.mode == "webhook":
            return {"label": f"webhook:{urlsplit(delivery.to or '').hostname or ''}", "detail": "webhook"}
        target = delivery_target(delivery)
        channel, to = split_target(target)
        if channel is not None and to is not None:
            return {"label": f"announce -> {channel}:{to}", "detail": "explicit"}
        if in_session and not target.is_explicit:
            return {"label": "announce -> current session", "detail": "commits to this conversation"}
        try:
            address = await self.resolve(target, sessions)
        except NoRoute as exc:
            return {"label": f"announce -> {channel or 'last'}", "detail": f"last -> no route, will fail-closed: {exc}"}
        return {"label": f"announce -> {address.channel}:{address.to}", "detail": f"last -> {address.channel}"}


def delivery_target(source: Any) -> DeliveryTarget:
    """Of a delivery, a destination or an alert."""
    thread = getattr(source, "thread_id", None)
    return DeliveryTarget(
        channel=source.channel, to=source.to, account=source.account_id, thread=None if thread is None else str(thread)
    )


def split_target(target: DeliveryTarget) -> tuple[str | None, str | None]:
    """Channel and conversation, where `to` may name both: `matrix:!room:host`."""
    channel = None if target.channel in (None, "last") else target.channel
    name, colon, rest = (target.to or "").partition(":")
    if channel is None and colon and rest and _CHANNEL.fullmatch(name) and name not in _NOT_CHANNELS:
        return name, rest
    if channel is not None and colon and name == channel:
        return channel, rest
    return channel, target.to


def _target_json(target: DeliveryTarget) -> Json:
    said = {"channel": target.channel or "last", "to": target.to, "accountId": target.account}
    said |= {"threadId": target.thread, "source": "explicit" if target.is_explicit else "last"}
    return {name: value for name, value in said.items() if value is not None}


def _address_json(address: ChatAddress) -> Json:
    said = {"channel": address.channel, "to": address.to, "accountId": address.account, "threadId": address.thread}
    return {name: value for name, value in said.items() if value is not None}


async def _resolve_host(host: str, port: int, rules: WebhookRules) -> str:
    """An address of the host. Raises NoRoute for one that is not out in the world, unless it is allowed."""
    named = normalize_host(host)
    blocked = set(map(normalize_host, rules.blocked_hostnames))
    allowed = rules.dangerously_allow_private_network or named in map(normalize_host, rules.allowed_hostnames)
    try:
        addresses = [] if named in blocked else await resolve_host(host, port, allow_private=allowed)
    except NoSuchHost:
        raise NoRoute(f"the webhook's host {host} can't be found") from None
    except NotPublic:
        raise NoRoute(
            f"the webhook's host {host} is on this machine or its network; "
            "name it in cron.webhookSsrfPolicy.allowedHostnames if it is meant"
        ) from None
    if named in blocked or not blocked.isdisjoint(addresses):
        raise NoRoute(f"webhooks may not go to {host} (cron.webhookSsrfPolicy.blockedHostnames)")
    return addresses[0]
