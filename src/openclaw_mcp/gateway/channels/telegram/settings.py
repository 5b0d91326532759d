"""One Telegram bot as `channels.telegram` in openclaw.json describes it."""

import hashlib
import hmac
import re
from typing import Final

from msgspec import ValidationError, convert

from ....core.channel import ChannelRefused
from ....core.config.channels import TELEGRAM_API_URL, TelegramAccount
from ....core.model import Json
from ..secrets import read_secret
from ..settings import DEFAULT_ACCOUNT

TOKEN_PATTERN: Final = re.compile(r"\d+:[A-Za-z0-9_-]{10,}")
SECRET_PATTERN: Final = re.compile(r"[A-Za-z0-9_-]{1,256}")  # what Telegram accepts in its header
MAX_MEDIA_MB: Final = 50  # what the Bot API sends; a local server sends more, which fits few chats


class TelegramSettings(TelegramAccount, frozen=True):
    media_max_mb: float = 20
    """Megabytes of one attachment. The Bot API serves files of 20 MB and accepts files of 50."""

    @classmethod
    def read(cls, config: Json) -> "TelegramSettings":
        """Raises ChannelRefused naming what to change."""
        try:
            settings = convert(config, cls)
        except ValidationError as exc:
            raise ChannelRefused(f"channels.telegram is not right: {exc}") from exc
        own = settings.base_url != TELEGRAM_API_URL  # one's own Bot API server may call plain http too
        if settings.webhook_url is not None and not settings.webhook_url.startswith("https://") and not own:
            raise ChannelRefused("channels.telegram.webhookUrl must begin with https://, which Telegram insists on")
        return settings

    @property
    def media_limit(self) -> int:
        return int(min(self.media_max_mb, MAX_MEDIA_MB) * (1 << 20))

    def resolve_token(self, account: str) -> str:
        """The environment is for the default account alone: two that poll with one token block each other."""
        token = read_secret(
            self.bot_token, self.token_file, "TELEGRAM_BOT_TOKEN" if account == DEFAULT_ACCOUNT else None
        )
        if token is None:
            raise ChannelRefused(
                "channels.telegram needs a botToken, a tokenFile or TELEGRAM_BOT_TOKEN (ask @BotFather)"
            )
        if not TOKEN_PATTERN.fullmatch(token):
            raise ChannelRefused("the Telegram bot token must look like 123456:ABC…, as @BotFather gave it")
        return token

    def resolve_webhook_secret(self, account: str) -> str:
        """The secret in each call of the webhook: the one that is set, else one computed from the token."""
        own = read_secret(self.webhook_secret, self.webhook_secret_file, None)
        if own is not None and not SECRET_PATTERN.fullmatch(own):
            raise ChannelRefused("channels.telegram.webhookSecret may hold 1 to 256 letters, digits, _ and - only")
        return own or hmac.new(self.resolve_token(account).encode(), b"openclaw webhook", hashlib.sha256).hexdigest()
