"""Runs the accounts' channels: started as configured, and started again when they fail."""

import asyncio
import logging
import random
from typing import Final, Protocol, Self, runtime_checkable

from ...core.channel import ChannelError, ChannelRefused, InboundMessage, OnMessage
from ...core.sessions import now_ms
from ...net.tasks import Tasks, run_all
from .accounts import AccountChannel, AccountKey, ChannelAccounts
from .settings import ChannelAccount

logger = logging.getLogger(__name__)

FIRST_WAIT, LONGEST_WAIT = 1.0, 300.0  # seconds before a failed channel is started again; doubled each time
STABLE_AFTER: Final = 5.0  # seconds a channel must have run to count as connected
FAILURE_RESET_AFTER: Final = 60.0  # seconds a channel must have run for its earlier failures to be forgotten
STOP_WAIT: Final = 10.0  # seconds a channel has to close its connection


@runtime_checkable
class ClosableChannel(Protocol):
    """A channel that holds resources."""

    async def aclose(self) -> None: ...


class AccountRunner:
    """`async with` it: entering starts every account's channel, leaving stops them.

    Stopped accounts stay known: messages that are still being processed are judged by their rules.
    """

    def __init__(self, accounts: ChannelAccounts, on_message: OnMessage) -> None:
        self._accounts = accounts
        self._on_message = on_message
        self._tasks = Tasks("channels")
        self._running: dict[AccountKey, asyncio.Task[None]] = {}
        self._change_lock = asyncio.Lock()

    async def __aenter__(self) -> Self:
        for account in self._accounts.all:
            self._start(account)
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await run_all(self._stop(account) for account in self._accounts.all)
        await self._tasks.aclose()

    async def apply_config(self) -> None:
        """Start and stop channels as the config says now; those it does not change run on undisturbed."""
        async with self._change_lock:
            configured = self._accounts.read_config()
            if configured is None:
                return
            wanted = {(account.channel, account.id): account for account in configured}
            for present in self._accounts.all:
                if present.key not in wanted:
                    self._accounts.remove(present.key)
                    await self._stop(present)
            for key, account in wanted.items():
                before = self._accounts.get(*key)
                if before is None or before.account.settings != account.settings:
                    await self._replace(before, account)

    async def restart(self, channel: str, account: str) -> AccountChannel | None:
        """Stop and start an account's channel; None when there is no such account."""
        async with self._change_lock:
            before = self._accounts.get(channel, account)
            return None if before is None else await self._replace(before, before.account)

    async def _replace(self, before: AccountChannel | None, account: ChannelAccount) -> AccountChannel | None:
        """The account is known all the while: a message that is judged meanwhile must not find it gone."""
        if before is not None:
            await self._stop(before)
        created = self._accounts.create(account)
        if created is not None:
            self._start(created)
        return created

    def _start(self, account: AccountChannel) -> None:
        name = "{}, account {}".format(*account.key)
        self._running[account.key] = self._tasks.spawn(self._supervise(account), name=name)

    async def _stop(self, account: AccountChannel) -> None:
        task = self._running.pop(account.key, None)
        if task is not None:
            task.cancel()
            await asyncio.wait({task}, timeout=STOP_WAIT)
            if not task.done():
                logger.error("channels: %s did not stop within %g s", task.get_name(), STOP_WAIT)
        if isinstance(account.channel, ClosableChannel):
            try:
                async with asyncio.timeout(STOP_WAIT):
                    await account.channel.aclose()
            except Exception:
                logger.exception("channels: %s, account %s: closing failed", *account.key)
        account.state = "stopped"

    async def _supervise(self, account: AccountChannel) -> None:
        """Run the channel until it is stopped or refused; after a failure, again with a growing delay."""
        loop = asyncio.get_running_loop()
        while True:
            started = loop.time()
            account.state, account.started_at = "running", now_ms()
            stable = loop.call_later(STABLE_AFTER, self._mark_stable, account)
            try:
                await account.channel.run(lambda message: self._receive(account, message))
                account.error = "it ended by itself"
            except ChannelRefused as exc:
                account.state, account.error = "refused", str(exc)
                logger.error("channels: %s, account %s stopped (%s), a person must act", *account.key, exc)  # noqa: TRY400
                return
            except ChannelError as exc:
                account.error = str(exc)
            except Exception as exc:
                account.error = f"an internal error ({type(exc).__name__}); see the log"
                logger.exception("channels: %s, account %s failed", *account.key)
            finally:
                stable.cancel()
            account.failures = 1 if loop.time() - started > FAILURE_RESET_AFTER else account.failures + 1
            wait = min(LONGEST_WAIT, FIRST_WAIT * 2 ** min(account.failures, 10)) * random.uniform(0.5, 1.0)  # noqa: S311 - spreads load
            logger.warning(
                "channels: %s, account %s failed (%s), next start in %.0f s", *account.key, account.error, wait
            )
            account.state = "waiting"
            await asyncio.sleep(wait)

    def _mark_stable(self, account: AccountChannel) -> None:
        account.failures, account.error = 0, None
        self._accounts.available.emit(account.key)

    async def _receive(self, account: AccountChannel, message: InboundMessage) -> None:
        await self._on_message(message)
        account.last_inbound_at = now_ms()
        if not account.is_stable and account.state == "running":
            self._mark_stable(account)
