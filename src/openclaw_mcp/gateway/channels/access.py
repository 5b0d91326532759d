"""Who may write to us, and when we answer. Pure. Nobody gets in who is not named."""

from collections.abc import Collection, Iterable
from typing import Literal

from msgspec import Struct

from ...core.channel import Heard
from ...core.model import Sender
from .settings import GroupRules, Rules


class Verdict(Struct, frozen=True):
    """`in`: answer. `listen`: may write, but did not speak to us. `pair`: unknown, may ask to be let in. `out`."""

    outcome: Literal["in", "listen", "pair", "out"]
    reason: str


def named(sender: Sender, listed: Iterable[str | int], *, channel: str) -> bool:
    """Whether a list names this sender, by id, user name or number, with or without the channel's name before it."""
    known = {value.casefold() for value in (sender.id, sender.e164) if value}
    if sender.username:
        known |= {sender.username.casefold().lstrip("@"), f"@{sender.username.casefold().lstrip('@')}"}
    for entry in listed:
        text = str(entry).strip().casefold()
        if text == "*" or text.removeprefix(f"{channel}:") in known:
            return True
    return False


def judged(heard: Heard, rules: Rules, *, owner: bool, approved: Collection[str]) -> Verdict:
    """`approved` are the ids of senders let in by pairing."""
    if heard.chat == "direct":
        return _direct(heard, rules, owner=owner, approved=approved)
    return _group(heard, rules, owner=owner)


def _direct(heard: Heard, rules: Rules, *, owner: bool, approved: Collection[str]) -> Verdict:
    if owner:
        return Verdict("in", "the owner")
    if rules.dm_policy == "disabled":
        return Verdict("out", "direct messages are switched off (dmPolicy)")
    if named(heard.sender, rules.allow_from, channel=heard.address.channel):
        return Verdict("in", "named in allowFrom")
    if rules.dm_policy == "pairing":
        if heard.sender.id is not None and heard.sender.id in approved:
            return Verdict("in", "let in by pairing")
        return Verdict("pair", "unknown sender")
    return Verdict("out", "not named in allowFrom")


def _group(heard: Heard, rules: Rules, *, owner: bool) -> Verdict:
    if rules.group_policy == "disabled":
        return Verdict("out", "groups are switched off (groupPolicy)")
    group = rules.groups.get(heard.address.to) or rules.groups.get("*")
    if group is not None and not group.enabled:
        return Verdict("out", "this group is switched off")
    if group is None and rules.groups:
        return Verdict("out", "this group is not named in groups")
    if not owner and rules.group_policy == "allowlist" and not _may_in_group(heard, rules, group):
        return Verdict("out", "not named in groupAllowFrom")
    wanted = rules.require_mention if group is None or group.require_mention is None else group.require_mention
    if wanted and not heard.mentioned:
        return Verdict("listen", "a group, and it was not said to us")
    return Verdict("in", "a group we answer in")


def _may_in_group(heard: Heard, rules: Rules, group: GroupRules | None) -> bool:
    if group is not None and group.allow_from is not None:
        listed = group.allow_from
    else:
        listed = rules.allow_from if rules.group_allow_from is None else rules.group_allow_from
    return named(heard.sender, listed, channel=heard.address.channel)
