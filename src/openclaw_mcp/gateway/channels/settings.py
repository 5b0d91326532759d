"""The accounts that `channels` of the config names, each with the rules it follows. Pure."""

from collections.abc import Mapping

import msgspec
from msgspec import Struct

from ...core.config.channels import ChannelRules
from ...core.errors import BadRequest
from ...core.model import Json

DEFAULT_ACCOUNT = "default"  # the account there is without naming one
LOCAL, DEFAULTS = "local", "defaults"


class ChannelAccount(Struct, frozen=True, kw_only=True):
    """One account of a channel, as configured. `settings` is what the channel itself reads."""

    channel: str
    id: str
    rules: ChannelRules
    settings: Json


def read_accounts(channels: Mapping[str, Json]) -> list[ChannelAccount]:
    """Every enabled account; `local` is there without being named. Raises BadRequest with the path of what is wrong."""
    defaults = channels.get(DEFAULTS, {})
    return [
        _read_account(name, id, settings)
        for name in (LOCAL, *(name for name in channels if name not in (LOCAL, DEFAULTS)))
        if channels.get(name, {}).get("enabled", True)
        for id, settings in _merged_settings(channels.get(name, {}), defaults)
        if settings.get("enabled", True)
    ]


def _merged_settings(channel: Json, defaults: Json) -> list[tuple[str, Json]]:
    """The settings of each account: its own, else its channel's, else those of all channels."""
    common = {key: value for key, value in channel.items() if key not in ("accounts", "defaultAccount")}
    accounts: Json = channel.get("accounts") or {DEFAULT_ACCOUNT: {}}
    return [(id, {**defaults, **common, **own}) for id, own in accounts.items()]


def _read_account(channel: str, id: str, settings: Json) -> ChannelAccount:
    try:
        rules = msgspec.convert(settings, ChannelRules)
    except msgspec.ValidationError as exc:
        raise BadRequest(f"channels.{channel}, account {id}: {exc}") from None
    return ChannelAccount(channel=channel, id=id, rules=rules, settings=settings)


def default_account(channels: Mapping[str, Json], channel: str) -> str:
    """The account that speaks when none is named."""
    section = channels.get(channel, {})
    named = section.get("accounts") or {}
    chosen = section.get("defaultAccount")
    if isinstance(chosen, str):
        return chosen
    return DEFAULT_ACCOUNT if DEFAULT_ACCOUNT in named or not named else str(next(iter(named)))
