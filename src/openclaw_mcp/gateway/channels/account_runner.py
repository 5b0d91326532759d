"""Channels at work: one station for each account, started as configured, started again when it breaks."""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Literal, Protocol, runtime_checkable

from ...core.channel import Address, Channel, ChannelError, ChannelRefused, Heard
from ...core.model import Json
from ...core.sessions import now_ms
from .settings import Account

logger = logging.getLogger(__name__)

FIRST_WAIT, LONGEST_WAIT = 1.0, 300.0  # seconds before a channel that broke is started again; doubled each time
STEADY: Final = 5.0  # seconds a channel must have run for us to believe that it is connected
GOOD_RUN: Final = 60.0  # seconds a channel must have run for its failures before to be forgotten
STOP_WAIT: Final = 10.0  # seconds a channel has to let go of its connection
STATUS_WAIT: Final = 5.0  # seconds a channel has to say how it is


class Maker(Protocol):
    def __call__(self, account: str, settings: Json, folder: Path) -> Channel:
        """A channel for one account. `folder` is its own, to keep state in. Raises ChannelRefused for bad settings."""


@runtime_checkable
class Closing(Protocol):
    """A channel that holds something to let go of."""

    async def aclose(self) -> None: ...


@runtime_checkable
class Answering(Protocol):
    """A channel that is called over HTTP, at `/channels/<channel>/<account>`: an ASGI application."""

    async def http(self, scope: Any, receive: Any, send: Any) -> None: ...


class Station:
    """One account's channel and how it fares."""

    def __init__(self, account: Account, channel: Channel) -> None:
        self.account = account
        self.channel = channel
        self.state: Literal["starting", "running", "waiting", "refused", "stopped"] = "starting"
        self.error: str | None = None
        self.started_at: int | None = None
        self.heard_at: int | None = None
        self.sent_at: int | None = None
        self.failures = 0
        self.task: asyncio.Task[None] | None = None

    @property
    def steady(self) -> bool:
        """Whether it works, as far as we know: a letter it fails to send then is the letter's own trouble."""
        return self.state == "running" and self.failures == 0

    async def stop(self) -> None:
        if self.task is not None:
            self.task.cancel()
            await asyncio.wait({self.task}, timeout=STOP_WAIT)
        if isinstance(self.channel, Closing):
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
            ("lastInboundAt", self.heard_at),
            ("lastOutboundAt", self.sent_at),
        ):
            if value is not None:
                row[name] = value
        row["reconnectAttempts"] = self.failures
        return row


class Stations:
    """Every account's station. `apply` makes them what the config says; those it does not touch go on undisturbed."""

    def __init__(
        self, kinds: Mapping[str, Maker], folder: Path, hear: Callable[[Heard], Awaitable[None]],
        *, back: Callable[[str, str], None],
    ) -> None:  # fmt: skip
        self._kinds = kinds
        self._folder = folder
        self._hear = hear
        self._back = back
        self._stations: dict[tuple[str, str], Station] = {}
        self.issues: dict[tuple[str, str], str] = {}
        """Accounts that can't be started, and why."""
        self._applying = asyncio.Lock()

    @property
    def all(self) -> Sequence[Station]:
        return tuple(self._stations.values())

    @property
    def names(self) -> list[str]:
        return list(dict.fromkeys(name for name, _ in self._stations))

    def known(self, channel: str) -> bool:
        return channel in self._kinds

    def get(self, channel: str, account: str) -> Station | None:
        return self._stations.get((channel, account))

    def find(self, address: Address) -> Channel | None:
        station = self.get(address.channel, address.account)
        return None if station is None or station.state == "refused" else station.channel

    async def apply(self, accounts: Sequence[Account]) -> None:
        async with self._applying:
            wanted = {(account.channel, account.id): account for account in accounts}
            self.issues.clear()
            for place in [place for place in self._stations if place not in wanted]:
                await self._stations.pop(place).stop()
            for place, account in wanted.items():
                present = self._stations.get(place)
                if present is None or present.account.settings != account.settings:
                    await self._replace(present, account)

    async def restart(self, channel: str, account: str) -> Station | None:
        """Begin anew, as a person asked."""
        async with self._applying:
            station = self.get(channel, account)
            if station is None:
                return None
            await self._replace(station, station.account)
        return self.get(channel, account)

    async def aclose(self) -> None:
        """They stop, and stay known: what is in hand is still judged by their rules."""
        await asyncio.gather(*(station.stop() for station in self._stations.values()))

    async def _replace(self, present: Station | None, account: Account) -> None:
        """The account is known all the while: a message that comes to be judged now must not find it gone."""
        if present is not None:
            await present.stop()
        self._start(account)

    def _start(self, account: Account) -> None:
        make = self._kinds.get(account.channel)
        if make is None:
            words = f"there is no channel {account.channel}; there are {', '.join(sorted(self._kinds))}"
            self._cannot(account, words)
            return
        try:
            channel = make(account.id, account.settings, self._folder / account.channel / account.id)
        except (ChannelError, ImportError) as exc:
            self._cannot(account, str(exc))
            return
        station = Station(account, channel)
        station.task = asyncio.get_running_loop().create_task(self._keep(station))
        self._stations[account.channel, account.id] = station

    def _cannot(self, account: Account, words: str) -> None:
        self._stations.pop((account.channel, account.id), None)
        self.issues[account.channel, account.id] = words
        logger.error("channel %s, account %s: %s", account.channel, account.id, words)

    async def _keep(self, station: Station) -> None:
        """Run the channel until it is stopped or refused; after a failure, again after a while."""
        loop = asyncio.get_running_loop()
        where = station.channel.name, station.channel.account
        while True:
            begun = loop.time()
            station.state, station.started_at = "running", now_ms()
            steady = loop.call_later(STEADY, self._steady, station)
            try:
                await station.channel.run(lambda heard: self._heard(station, heard))
                station.error = "it ended by itself"
            except ChannelRefused as exc:
                station.state, station.error = "refused", str(exc)
                logger.error("channel %s, account %s: a person must act: %s", *where, exc)  # noqa: TRY400  (a sentence)
                return
            except ChannelError as exc:
                station.error = str(exc)
            except Exception as exc:
                station.error = f"an internal error ({type(exc).__name__}); see the log"
                logger.exception("channel %s, account %s failed", *where)
            finally:
                steady.cancel()
            station.failures = 1 if loop.time() - begun > GOOD_RUN else station.failures + 1
            wait = min(LONGEST_WAIT, FIRST_WAIT * 2 ** min(station.failures, 10)) * random.uniform(0.5, 1.0)  # noqa: S311 - spreads load
            logger.warning("channel %s, account %s: %s; again in %.0f s", *where, station.error, wait)
            station.state = "waiting"
            await asyncio.sleep(wait)

    def _steady(self, station: Station) -> None:
        station.failures, station.error = 0, None
        self._back(station.channel.name, station.channel.account)

    async def _heard(self, station: Station, heard: Heard) -> None:
        await self._hear(heard)
        station.heard_at = now_ms()
        if not station.steady and station.state == "running":
            self._steady(station)
