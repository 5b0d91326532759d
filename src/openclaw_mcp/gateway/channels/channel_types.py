"""Factories of the channels on other servers, each in a folder of its own."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from ...core.channel import Channel
from ...core.model import Json
from .accounts import ChannelFactory


def create_matrix(account: str, settings: Json, folder: Path) -> Channel:
    # Imported here for start-up: an HTTP client and a Markdown parser that most gateways never need.
    from .matrix import MatrixChannel, MatrixSettings

    return MatrixChannel(MatrixSettings.read(settings), account=account, folder=folder)


def create_telegram(account: str, settings: Json, folder: Path) -> Channel:
    # Imported here for start-up, as above. A bot stores nothing: Telegram remembers what was fetched.
    from .telegram import TelegramChannel, TelegramSettings

    return TelegramChannel(TelegramSettings.read(settings), account=account)


CHANNEL_FACTORIES: Final[Mapping[str, ChannelFactory]] = {"matrix": create_matrix, "telegram": create_telegram}
