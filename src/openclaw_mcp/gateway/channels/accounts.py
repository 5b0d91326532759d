"""The configured accounts and their channels: what each may do, and how it fares. Starts none: see `account_runner`."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, Protocol, runtime_checkable

from ...core.channel import Ability, Channel, ChannelError, ChannelRefused, ChannelStatus, ChatAddress
from ...core.config.channels import ChannelRules
from ...core.config.config import Config
from ...core.errors import BadRequest
from ...core.json_values import drop_none
from ...core.model import Json
from ...core.signal import Signal
from .settings import ChannelAccount, default_account, read_accounts

logger = logging.getLogger(__name__)

STATUS_WAIT: Final = 5.0  # seconds a channel has to report its status
ABILITY_DESCRIPTIONS: Final[Mapping[Ability, str]] = {
    "send": "send messages", "reply": "reply to messages", "thread": "write in threads",
    "broadcast": "send to several conversations", "react": "react to messages", "delete": "delete messages",
    "attachment": "send attachments", "effect": "send messages with an effect", "pin": "pin messages",
    "read": "read messages", "edit": "edit messages", "typing": "show that we are typing", "poll": "make polls",
}  # fmt: skip
AccountKey = tuple[str, str]
"""A channel's name and the account's id."""


class ChannelFactory(Protocol):
    def __call__(self, account: str, settings: Json, folder: Path, /) -> Channel:
        """A channel for one account. `folder` is its own, for its state. Raises ChannelRefused for bad settings."""


@runtime_checkable
class WebhookChannel(Protocol):
    """A channel that is called over HTTP, at `/channels/<channel>/<account>`: an ASGI application."""

    async def http(self, scope: Any, receive: Any, send: Any) -> None: ...


class AccountChannel:
    """One account's channel, the rules for it, and its state."""

    def __init__(self, account: ChannelAccount, channel: Channel) -> None:
        self.account = account
        self.channel = channel
        self.state: Literal["starting", "running", "waiting", "refused", "stopped"] = "starting"
        self.error: str | None = None
        self.started_at: int | None = None
        self.last_inbound_at: int | None = None
        self.last_outbound_at: int | None = None
        self.failures = 0

    @property
    def key(self) -> AccountKey:
        return self.account.channel, self.account.id

    @property
    def is_stable(self) -> bool:
        """Whether it works, as far as we know: a message it fails to send is then that message's own failure."""
        return self.state == "running" and self.failures == 0

    @property
    def text_limit(self) -> int:
        limit = self.channel.abilities.text_limit
        return min(limit, self.account.rules.text_chunk_limit or limit)

    @property
    def media_limit(self) -> int:
        limit, configured = self.channel.abilities.media_limit, self.account.rules.media_max_mb
        return limit if configured is None else min(limit, int(configured * (1 << 20)))

    def carries(self, mime_type: str) -> bool:
        prefixes = self.channel.abilities.media
        return any(prefix in ("*/*", "*", "") or mime_type.startswith(prefix.rstrip("*")) for prefix in prefixes)

    def allows(self, ability: Ability) -> bool:
        return ability in self.channel.abilities.can and self.account.rules.actions.get(ability) is not False

    def require(self, ability: Ability) -> None:
        """Raises ChannelRefused, with a text for a model, for what the channel can't do or the config forbids."""
        if ability not in self.channel.abilities.can:
            raise ChannelRefused(f"this channel can't {ABILITY_DESCRIPTIONS[ability]}")
        if not self.allows(ability):
            setting = f"channels.{self.channel.name}.actions.{ability}"
            raise ChannelRefused(
                f"on this channel the config does not allow to {ABILITY_DESCRIPTIONS[ability]} ({setting})"
            )

    def require_used(self, uses: Mapping[Ability, object]) -> None:
        """`require` for each ability whose value is set."""
        for ability, value in uses.items():
            if value:
                self.require(ability)

    async def status(self) -> ChannelStatus:
        """A row of `channels.status`."""
        try:
            async with asyncio.timeout(STATUS_WAIT):
                own = await self.channel.status()
        except (ChannelError, TimeoutError) as exc:
            own = {"connected": False, "lastError": str(exc) or "no answer in time"}
        running = self.state == "running"
        optional = {
            "lastError": self.error, "lastStartAt": self.started_at, "lastInboundAt": self.last_inbound_at,
            "lastOutboundAt": self.last_outbound_at,
        }  # fmt: skip
        return {
            "accountId": self.account.id, "enabled": True, "configured": True, "running": running,
            "connected": running, "state": self.state, "dmPolicy": self.account.rules.dm_policy, **own,
            **drop_none(optional), "reconnectAttempts": self.failures,
        }  # fmt: skip


class ChannelAccounts:
    """Every account by channel and id. `available` reports an account whose channel has just become usable."""

    def __init__(self, factories: Mapping[str, ChannelFactory], folder: Path, config: Callable[[], Config]) -> None:
        self._factories = factories
        self._folder = folder
        self._config = config
        self._accounts: dict[AccountKey, AccountChannel] = {}
        self.available: Signal[AccountKey] = Signal()
        self.issues: dict[AccountKey, str] = {}
        """Accounts that can't be started, and why."""
        self.config_error: str | None = None
        """Why the config's `channels` can't be used; the accounts stay as they were."""

    @property
    def all(self) -> Sequence[AccountChannel]:
        return tuple(self._accounts.values())

    @property
    def names(self) -> list[str]:
        return list(dict.fromkeys(channel for channel, _ in self._accounts))

    def get(self, channel: str, account: str) -> AccountChannel | None:
        return self._accounts.get((channel, account))

    def find(self, address: ChatAddress) -> AccountChannel | None:
        return self._accounts.get((address.channel, address.account))

    def require(self, address: ChatAddress) -> AccountChannel:
        """Raises ChannelRefused when there is no such account."""
        account = self.find(address)
        if account is None:
            raise ChannelRefused(self._unknown_account(address.channel, address.account))
        return account

    def _unknown_account(self, channel: str, account: str) -> str:
        if (channel, account) in self.issues:
            return self.issues[channel, account]
        if ids := [each.account.id for each in self.all if each.channel.name == channel]:
            return f"channel {channel} has no account {account}; there are {', '.join(ids)}"
        return f"Unknown channel: {channel}; configured are {', '.join(self.names) or 'none'}"

    def find_channel(self, address: ChatAddress) -> Channel | None:
        """The channel to send through; None when there is none, or a person must mend it first."""
        account = self.find(address)
        return None if account is None or account.state == "refused" else account.channel

    def rules_for(self, address: ChatAddress) -> ChannelRules | None:
        account = self.find(address)
        return None if account is None else account.account.rules

    def is_stable(self, address: ChatAddress) -> bool:
        account = self.find(address)
        return account is not None and account.is_stable

    def default_account_id(self, channel: str) -> str:
        """The account that is used when none is named."""
        return default_account(self._config().channels, channel)

    # ---- changes -------------------------------------------------------------------------------------------------

    def load(self) -> None:
        """Create the channel of every configured account."""
        for account in self.read_config() or ():
            self.create(account)

    def read_config(self) -> Sequence[ChannelAccount] | None:
        """The accounts that the config wants now; None when it can't be used: then nothing is to change."""
        try:
            wanted = read_accounts(self._config().channels)
        except BadRequest as exc:
            self.config_error = str(exc)
            logger.error("channels: config not applied (%s), the channels stay as they are", exc)  # noqa: TRY400
            return None
        self.config_error = None
        self.issues.clear()
        return wanted

    def create(self, account: ChannelAccount) -> AccountChannel | None:
        """Make the account's channel, in place of the one before; None, with an issue, when it can't be made."""
        key = account.channel, account.id
        try:
            channel = self._create_channel(account)
        except (ChannelError, ImportError) as exc:
            issue = str(exc)
        except Exception as exc:
            issue = f"an internal error ({type(exc).__name__}); see the log"
            logger.exception("channels: %s, account %s: creating the channel failed", *key)
        else:
            created = self._accounts[key] = AccountChannel(account, channel)
            return created
        self.remove(key)
        self.issues[key] = issue
        logger.error("channels: %s, account %s not started (%s)", *key, issue)
        return None

    def _create_channel(self, account: ChannelAccount) -> Channel:
        factory = self._factories.get(account.channel)
        if factory is None:
            there = ", ".join(sorted(self._factories))
            raise ChannelRefused(f"there is no channel {account.channel}; there are {there}")
        return factory(account.id, account.settings, self._folder / account.channel / account.id)

    def remove(self, key: AccountKey) -> None:
        self._accounts.pop(key, None)
