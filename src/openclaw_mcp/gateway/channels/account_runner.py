"""Channels at work: one station for each account, started as configured, started again when it breaks."""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Literal, Protocol, runtime_checkable

from ...core.channel import Channel, ChannelError, ChannelRefused, ChatAddress, InboundMessage
from ...core.model import Json
from ...core.sessions import now_ms
from .settings import ChannelAccount

logger = logging.getLogger(__name__)

FIRST_WAIT, LONGEST_WAIT = 1.0, 300.0  # seconds before a channel that broke is started again; doubled each time
STABLE_AFTER: Final = 5.0  # seconds a channel must have run for us to believe that it is connected
FAILURE_RESET_AFTER: Final = 60.0  # seconds a channel must have run for its failures before to be forgotten
STOP_WAIT: Final = 10.0  # seconds a channel has to let go of its connection
STATUS_WAIT: Final = 5.0  # seconds a channel has to say how it is


class ChannelFactory(Protocol):
    def __call__(self, account: str, settings: Json, folder: Path) -> Channel:
        """A channel for one account. `folder` is its own, to keep state in. Raises ChannelRefused for bad settings."""


@runtime_checkable
class ClosableChannel(Protocol):
    """A channel that holds something to let go of."""

    async def aclose(self) -> None: ...


@runtime_checkable
class WebhookChannel(Protocol):
    """A channel that is called over HTTP, at `/channels/<channel>/<account>`: an ASGI application."""

    async def http(self, scope: Any, receive: Any, send: Any) -> None: ...


class AccountRunner:
    """One account's channel and how it fares."""

    def __init__(self, account: ChannelAccount, channel: Channel) -> None:
        self.account = account
        self.channel = channel
        self.state: Literal["starting", "running", "waiting", "refused", "stopped"] = "starting"
        self.error: str | None = None
        self.started_at: int | None = None
        self.last_inbound_at: int | None = None
        self.last_outbound_at: int | None = None
        self.failures = 0
        self.task: asyncio.Task[None] | None = None

    @property
    def is_stable(self) -> bool:
        """Whether it works, as far as we know: a letter it fails to send then is the letter's own trouble."""
        return self.state == "running" and self.failures == 0

    async def stop(self) -> None:
        if self.task is not None:
            self.task.cancel()
            await asyncio.wait({self.task}, timeout=STOP_WAIT)
        if isinstance(self.channel, ClosableChannel):
            with suppress(ChannelError, TimeoutError):
                async with asyncio.timeout(STOP_WAIT):
                    await self.channel.aclose()
        self.state = "stopped"

    async def status(self) -> Json:
        """A row of `channels.status`."""
        own: Json = {}
        try:
            async with asyncio.timeout(STATUS_WAIT):
                own = await self.channel.status()
        except (ChannelError, TimeoutError) as exc:
            own = {"connected": False, "lastError": str(exc) or "no answer in time"}
        running = self.state == "running"
        row: Json = {"accountId": self.account.id, "enabled": True, "configured": True, "running": running}
        row |= {"connected": running, "state": self.state, "dmPolicy": self.account.rules.dm_policy, **own}
        for name, value in (
            ("lastError", self.error),
            ("lastStartAt", self.started_at),
            ("lastInboundAt", self.last_inbound_at),
            ("lastOutboundAt", self.last_outbound_at),
        ):
            if value is not None:
                row[name] = value
        row["reconnectAttempts"] = self.failures
        return row


class AccountRunners:
    """Every account's station. `apply` makes them what the config says; those it does not touch go on undisturbed."""

    def __init__(
        self,
        factories: Mapping[str, ChannelFactory],
        folder: Path,
        on_message: Callable[[InboundMessage], Awaitable[None]],
        *,
        on_available: Callable[[str, str], None],
    ) -> None:
        self._factories = factories
        self._folder = folder
        self._on_message = on_message
        self._on_available = on_available
        self._runners: dict[tuple[str, str], AccountRunner] = {}
        self.issues: dict[tuple[str, str], str] = {}
        """Accounts that can't be started, and why."""
        self._apply_lock = asyncio.Lock()

    @property
    def all(self) -> Sequence[AccountRunner]:
        return tuple(self._runners.values())

    @property
    def names(self) -> list[str]:
        return list(dict.fromkeys(name for name, _ in self._runners))

    def has_factory(self, channel: str) -> bool:
        return channel in self._factories

    def get(self, channel: str, account: str) -> AccountRunner | None:
        return self._runners.get((channel, account))

    def find_channel(self, address: ChatAddress) -> Channel | None:
        station = self.get(address.channel, address.account)
        return None if station is None or station.state == "refused" else station.channel

    async def apply(self, accounts: Sequence[ChannelAccount]) -> None:
        async with self._apply_lock:
            wanted = {(account.channel, account.id): account for account in accounts}
            self.issues.clear()
            for place in [place for place in self._runners if place not in wanted]:
                await self._runners.pop(place).stop()
            for place, account in wanted.items():
                present = self._runners.get(place)
                if present is None or present.account.settings != account.settings:
                    await self._replace(present, account)

    async def restart(self, channel: str, account: str) -> AccountRunner | None:
        """Begin anew, as a person asked."""
        async with self._apply_lock:
            station = self.get(channel, account)
            if station is None:
                return None
            await self._replace(station, station.account)
        return self.get(channel, account)

    async def aclose(self) -> None:
        """They stop, and stay known: what is in hand is still judged by their rules."""
        await asyncio.gather(*(station.stop() for station in self._runners.values()))

    async def _replace(self, previous: AccountRunner | None, account: ChannelAccount) -> None:
        """The account is known all the while: a message that comes to be judged now must not find it gone."""
        if previous is not None:
            await previous.stop()
        self._start(account)

    def _start(self, account: ChannelAccount) -> None:
        make = self._factories.get(account.channel)
        if make is None:
            words = f"there is no channel {account.channel}; there are {', '.join(sorted(self._factories))}"
            self._record_issue(account, words)
            return
        try:
            channel = make(account.id, account.settings, self._folder / account.channel / account.id)
        except (ChannelError, ImportError) as exc:
            self._record_issue(account, str(exc))
            return
        station = AccountRunner(account, channel)
        station.task = asyncio.get_running_loop().create_task(self._supervise(station))
        self._runners[account.channel, account.id] = station

    def _record_issue(self, account: ChannelAccount, message: str) -> None:
        self._runners.pop((account.channel, account.id), None)
        self.issues[account.channel, account.id] = message
        logger.error("channel %s, account %s: %s", account.channel, account.id, message)

    async def _supervise(self, runner: AccountRunner) -> None:
        """Run the channel until it is stopped or refused; after a failure, again after a while."""
        loop = asyncio.get_running_loop()
        where = runner.channel.name, runner.channel.account
        while True:
            begun = loop.time()
            runner.state, runner.started_at = "running", now_ms()
            steady = loop.call_later(STABLE_AFTER, self._mark_stable, runner)
            try:
                await runner.channel.run(lambda heard: self._receive(runner, heard))
                runner.error = "it ended by itself"
            except ChannelRefused as exc:
                runner.state, runner.error = "refused", str(exc)
                logger.error("channel %s, account %s: a person must act: %s", *where, exc)  # noqa: TRY400  (a sentence)
                return
            except ChannelError as exc:
                runner.error = str(exc)
            except Exception as exc:
                runner.error = f"an internal error ({type(exc).__name__}); see the log"
                logger.exception("channel %s, account %s failed", *where)
            finally:
                steady.cancel()
            runner.failures = 1 if loop.time() - begun > FAILURE_RESET_AFTER else runner.failures + 1
            wait = min(LONGEST_WAIT, FIRST_WAIT * 2 ** min(runner.failures, 10)) * random.uniform(0.5, 1.0)  # noqa: S311 - spreads load
            logger.warning("channel %s, account %s: %s; again in %.0f s", *where, runner.error, wait)
            runner.state = "waiting"
            await asyncio.sleep(wait)

    def _mark_stable(self, runner: AccountRunner) -> None:
        runner.failures, runner.error = 0, None
        self._on_available(runner.channel.name, runner.channel.account)

    async def _receive(self, runner: AccountRunner, message: InboundMessage) -> None:
        await self._on_message(message)
        runner.last_inbound_at = now_ms()
        if not runner.is_stable and runner.state == "running":
            self._mark_stable(runner)
