"""The config's words on channels, read: which accounts there are, who may write to them. Pure."""

from collections.abc import Mapping
from typing import Any, Literal

import msgspec
from msgspec import Struct

from ...core.errors import BadRequest
from ...core.model import Json

DEFAULT_ACCOUNT = "default"
DmPolicy = Literal["pairing", "allowlist", "open", "disabled"]
GroupPolicy = Literal["allowlist", "open", "disabled"]


class GroupRules(Struct, frozen=True, kw_only=True, rename="camel"):
    enabled: bool = True
    require_mention: bool | None = None
    allow_from: list[str | int] | None = None


class ChannelRules(Struct, frozen=True, kw_only=True, rename="camel"):
    """What an account follows. An empty list lets nobody in; `*` lets everybody in."""

    enabled: bool = True
    dm_policy: DmPolicy = "pairing"
    allow_from: list[str | int] = []
    group_policy: GroupPolicy = "allowlist"
    group_allow_from: list[str | int] | None = None
    groups: dict[str, GroupRules] = {}
    """By conversation; `*` speaks for those not named."""
    require_mention: bool = True
    reply_to_mode: Literal["off", "first", "all"] = "off"
    text_chunk_limit: int | None = None
    media_max_mb: float | None = None
    actions: dict[str, bool] = {}
    """Abilities switched off here."""


class ChannelAccount(Struct, frozen=True, kw_only=True):
    """One account of a channel, as configured. `settings` is what the channel itself reads."""

    channel: str
    id: str
    rules: ChannelRules
    settings: Json


def read_accounts(config: Json) -> list[ChannelAccount]:
    """Every enabled account. `local` is there without being named. Raises BadRequest with the path of what is wrong."""
    channels: Mapping[str, Any] = config.get("channels", {})
    found = []
    for name in ("local", *(name for name in channels if name not in ("local", "defaults"))):
        section = channels.get(name, {})
        if not isinstance(section, dict):
            raise BadRequest(f"channels.{name} must be an object")
        if section.get("enabled", True):
            found += _channel_accounts(name, section, channels.get("defaults", {}))
    return found


def _channel_accounts(name: str, section: Json, defaults: Json) -> list[ChannelAccount]:
    common = {key: value for key, value in section.items() if key not in ("accounts", "defaultAccount")}
    named = section.get("accounts") or {DEFAULT_ACCOUNT: {}}
    accounts = []
    for id, own in named.items():
        settings = {**defaults, **common, **(own or {})}
        if settings.get("enabled", True):
            accounts.append(
                ChannelAccount(channel=name, id=id, rules=_read_rules(name, id, settings), settings=settings)
            )
    return accounts


def default_account(config: Json, channel: str) -> str:
    section = config.get("channels", {}).get(channel, {})
    named = section.get("accounts") or {}
    chosen = section.get("defaultAccount")
    if isinstance(chosen, str):
        return chosen
    return DEFAULT_ACCOUNT if DEFAULT_ACCOUNT in named or not named else str(next(iter(named)))


def _read_rules(channel: str, account: str, settings: Json) -> ChannelRules:
    try:
        return msgspec.convert(settings, ChannelRules)
    except msgspec.ValidationError as exc:
        raise BadRequest(f"channels.{channel}, account {account}: {exc}") from None
