"""Who may write to us, and when we answer. Pure. Nobody gets in who is not named."""

from collections.abc import Collection, Iterable
from typing import Literal

from msgspec import Struct

from ...core.channel import InboundMessage
from ...core.config.channels import ChannelRules, GroupRules
from ...core.model import Sender


class AccessVerdict(Struct, frozen=True):
    """`in`: answer. `listen`: may write, but did not speak to us. `pair`: unknown, may ask to be let in. `out`."""

    outcome: Literal["in", "listen", "pair", "out"]
    reason: str


def is_on_allow_list(sender: Sender, allow_list: Iterable[str | int], *, channel: str) -> bool:
    """Whether a list names this sender, by id, user name or number, with or without the channel's name before it."""
    known = {value.casefold() for value in (sender.id, sender.e164) if value}
    if sender.username:
        known |= {sender.username.casefold().lstrip("@"), f"@{sender.username.casefold().lstrip('@')}"}
    for entry in allow_list:
        text = str(entry).strip().casefold()
        if text == "*" or text.removeprefix(f"{channel}:") in known:
            return True
    return False


def check_access(
    message: InboundMessage, rules: ChannelRules, *, owner: bool, approved: Collection[str]
) -> AccessVerdict:
    """`approved` are the ids of senders let in by pairing."""
    if message.chat == "direct":
        return _check_direct(message, rules, owner=owner, approved=approved)
    return _check_group(message, rules, owner=owner)


def _check_direct(
    message: InboundMessage, rules: ChannelRules, *, owner: bool, approved: Collection[str]
) -> AccessVerdict:
    if owner:
        return AccessVerdict("in", "the owner")
    if rules.dm_policy == "disabled":
        return AccessVerdict("out", "direct messages are switched off (dmPolicy)")
    if is_on_allow_list(message.sender, rules.allow_from, channel=message.address.channel):
        return AccessVerdict("in", "named in allowFrom")
    if rules.dm_policy == "pairing":
        if message.sender.id is not None and message.sender.id in approved:
            return AccessVerdict("in", "let in by pairing")
        return AccessVerdict("pair", "unknown sender")
    return AccessVerdict("out", "not named in allowFrom")


def _check_group(message: InboundMessage, rules: ChannelRules, *, owner: bool) -> AccessVerdict:
    if rules.group_policy == "disabled":
        return AccessVerdict("out", "groups are switched off (groupPolicy)")
    group = rules.groups.get(message.address.to) or rules.groups.get("*")
    if group is not None and not group.enabled:
        return AccessVerdict("out", "this group is switched off")
    if group is None and rules.groups:
        return AccessVerdict("out", "this group is not named in groups")
    if not owner and rules.group_policy == "allowlist" and not _may_write_in_group(message, rules, group):
        return AccessVerdict("out", "not named in groupAllowFrom")
    wanted = rules.require_mention if group is None or group.require_mention is None else group.require_mention
    if wanted and not message.mentioned:
        return AccessVerdict("listen", "a group, and it was not said to us")
    return AccessVerdict("in", "a group we answer in")


def _may_write_in_group(message: InboundMessage, rules: ChannelRules, group: GroupRules | None) -> bool:
    if group is not None and group.allow_from is not None:
        listed = group.allow_from
    else:
        listed = rules.allow_from if rules.group_allow_from is None else rules.group_allow_from
    return is_on_allow_list(message.sender, listed, channel=message.address.channel)
