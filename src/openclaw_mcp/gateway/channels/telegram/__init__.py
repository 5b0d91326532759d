"""Telegram: one bot, over the Bot API, by long polling or by webhook."""

from .channel import TelegramChannel
from .settings import TelegramSettings

__all__ = ["TelegramChannel", "TelegramSettings"]
