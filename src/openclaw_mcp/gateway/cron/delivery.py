"""Sending a result: to a conversation, through a channel, or to a webhook."""

import asyncio
import re
from collections.abc import Callable, Sequence
from typing import Final, Literal
from urllib.parse import urlsplit, urlunsplit

import msgspec
from msgspec import Struct

from ...core.channel import ChannelError, ChatAddress, MessageDelivery, OutboundMessage
from ...core.config.cron import CronSettings, WebhookRules
from ...core.errors import OpenClawError
from ...core.jobs import DeliveryStatus, FailureAlert, FailureDestination, JobDelivery
from ...core.model import Json
from ...core.sessions import Run
from ...net.internet import NoSuchHost, NotPublic, normalize_host, resolve_host, url_host
from .results import DeliveryDetail, DeliveryPlace, DeliveryReport

POST_WAIT: Final = 20.0  # seconds for a message to arrive before it is reported as on its way
WEBHOOK_WAIT: Final = 10.0  # seconds a webhook may take to answer; the reference's own limit
MAIN_ACCOUNT: Final = "default"
_CHANNEL: Final = re.compile(r"[a-z][a-z0-9_-]*")
_NOT_CHANNELS: Final = frozenset({"channel", "user", "group", "chat", "room", "direct", "dm", "topic", "thread"})


Destination = JobDelivery | FailureDestination | FailureAlert
"""What names a channel and a conversation, or a webhook, in a job's definition."""


class NoRoute(OpenClawError):
    """No address is known. The text names the setting that gives one."""

    code = "no_route"


class DeliveryTarget(Struct, frozen=True, kw_only=True):
    """Where a result is to go, as far as the job names it."""

    channel: str | None = None
    to: str | None = None
    account: str | None = None
    thread: str | None = None

    @property
    def is_explicit(self) -> bool:
        return any((self.channel not in (None, "last"), self.to, self.account, self.thread))

    @property
    def place(self) -> DeliveryPlace:
        source: Literal["explicit", "last"] = "explicit" if self.is_explicit else "last"
        return DeliveryPlace(
            channel=self.channel or "last", to=self.to, account_id=self.account, thread_id=self.thread, source=source
        )


class ResultDelivery:
    """Without `channels` no conversation can be reached."""

    def __init__(self, settings: Callable[[], CronSettings], channels: MessageDelivery | None = None) -> None:
        self._settings, self._channels = settings, channels

    @property
    def has_channels(self) -> bool:
        return self._channels is not None

    async def find_address(self, session: str) -> ChatAddress | None:
        return None if self._channels is None else await self._channels.find_address(session)

    def _require_channels(self) -> MessageDelivery:
        if self._channels is None:
            raise NoRoute("no channel is set up here; set one up, or give the job delivery mode none or webhook")
        return self._channels

    async def announce(
        self, target: DeliveryTarget, text: str, *, key: str, sessions: Sequence[str], mirror_session: str | None,
        run: Run | None = None,
    ) -> DeliveryReport:  # fmt: skip
        """Post the text. The same `key` delivers once. `sessions` are asked in turn for the conversation of their last
        message. When the agent of `run` itself wrote to that conversation, that was its answer: nothing is posted."""
        try:
            channels = self._require_channels()
            address = await self.resolve(target, sessions)
            if run is not None and await channels.has_run_message(run, address):
                return DeliveryReport(status="delivered", delivered=True)
            posted = await channels.post(
                address, OutboundMessage(text=text), key=key, wait=POST_WAIT, session=mirror_session
            )
        except (NoRoute, ChannelError) as exc:
            place = DeliveryPlace(ok=False, error=str(exc))
            detail = DeliveryDetail(intended=target.place, resolved=place, fallback_used=False, delivered=False)
            return DeliveryReport(status="not-delivered", delivered=False, error=str(exc), detail=detail)
        delivered = posted.status == "sent"
        place = DeliveryPlace(
            channel=address.channel, to=address.to, account_id=address.account, thread_id=address.thread,
            source=target.place.source, ok=True,
        )  # fmt: skip
        detail = DeliveryDetail(intended=target.place, resolved=place, fallback_used=False, delivered=delivered)
        status: DeliveryStatus = (
            "delivered" if delivered else "unknown" if posted.status == "queued" else "not-delivered"
        )
        return DeliveryReport(status=status, delivered=delivered, error=posted.error, detail=detail)

    async def resolve(self, target: DeliveryTarget, sessions: Sequence[str]) -> ChatAddress:
        """Raises NoRoute."""
        channels = self._require_channels()
        channel, to = split_target(target)
        if channel is not None and to is not None:
            return ChatAddress(channel=channel, account=target.account or MAIN_ACCOUNT, to=to, thread=target.thread)
        for session in sessions:
            known = await channels.find_address(session)
            if known is None or channel not in (None, known.channel) or target.account not in (None, known.account):
                continue
            thread = target.thread or (known.thread if to in (None, known.to) else None)
            return ChatAddress(channel=known.channel, account=known.account, to=to or known.to, thread=thread)
        if channel is not None:
            raise NoRoute(f"no message has come in on {channel} yet; name the conversation with delivery.to")
        raise NoRoute("no message has come in yet; set delivery.channel and delivery.to, or write to the agent first")

    async def post_webhook(self, url: str, body: Json, *, key: str, by_operator: bool) -> DeliveryReport:
        """POST the body. A receiver that sees the same key twice has it already.

        `by_operator`: an operator chose the address; `cron.webhookToken` is not sent to one that an agent chose."""
        try:
            async with asyncio.timeout(WEBHOOK_WAIT):
                status = await self._send_webhook(url, msgspec.json.encode(body), key, by_operator=by_operator)
        except NoRoute as exc:
            return DeliveryReport(status="not-delivered", delivered=False, error=str(exc))
        except TimeoutError:
            error = f"the webhook did not answer within {WEBHOOK_WAIT:g} s"
            return DeliveryReport(status="unknown", delivered=False, error=error)
        if 200 <= status < 300:
            return DeliveryReport(status="delivered", delivered=True)
        error = f"the webhook answered with status {status}"
        return DeliveryReport(status="not-delivered", delivered=False, error=error)

    async def _send_webhook(self, url: str, content: bytes, key: str, *, by_operator: bool) -> int:
        from ...net.httpx_client import create_client, httpx  # here for start-up: only a webhook that is due needs it

        rules = self._settings().webhook_ssrf_policy
        try:
            parts = urlsplit(url)
            host, port = parts.hostname or "", parts.port
        except ValueError:
            raise NoRoute("the webhook's address is no URL") from None
        address = await _resolve_host(host, port or (443 if parts.scheme == "https" else 80), rules)
        # To the very address that was checked: a name may point elsewhere a moment later.
        literal = url_host(address)
        target = urlunsplit((parts.scheme, f"{literal}:{port}" if port else literal, parts.path, parts.query, ""))
        token = self._settings().webhook_token if by_operator else None
        headers = {"host": parts.netloc, "content-type": "application/json", "idempotency-key": key}
        if token:
            headers["authorization"] = f"Bearer {token}"
        try:
            async with (
                create_client(timeout=WEBHOOK_WAIT, trust_environment=False) as client,
                client.stream(
                    "POST", target, content=content, headers=headers, extensions={"sni_hostname": host}
                ) as answer,
            ):
                return answer.status_code  # the body says nothing that we need
        except httpx.HTTPError as exc:
            raise NoRoute(f"the webhook can't be reached: {type(exc).__name__}") from exc

    async def preview(
        self, delivery: JobDelivery | None, sessions: Sequence[str], *, in_session: bool
    ) -> dict[str, str]:
        """Where a result would go, for display: `{label, detail}`."""
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


def delivery_target(source: Destination) -> DeliveryTarget:
    thread = source.thread_id if isinstance(source, JobDelivery) else None
    return DeliveryTarget(
        channel=source.channel, to=source.to, account=source.account_id, thread=None if thread is None else str(thread)
    )


def split_target(target: DeliveryTarget) -> tuple[str | None, str | None]:
    """Channel and conversation; `to` may name both: `matrix:!room:host`."""
    channel = None if target.channel in (None, "last") else target.channel
    name, colon, rest = (target.to or "").partition(":")
    if channel is None and colon and rest and _CHANNEL.fullmatch(name) and name not in _NOT_CHANNELS:
        return name, rest
    if channel is not None and colon and name == channel:
        return channel, rest
    return channel, target.to


async def _resolve_host(host: str, port: int, rules: WebhookRules) -> str:
    """An address of the host. Raises NoRoute for one that is not public, unless the rules allow it."""
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
            "name it in cron.webhookSsrfPolicy.allowedHostnames if that is intended"
        ) from None
    if named in blocked or not blocked.isdisjoint(addresses):
        raise NoRoute(f"webhooks may not go to {host} (cron.webhookSsrfPolicy.blockedHostnames)")
    return addresses[0]
