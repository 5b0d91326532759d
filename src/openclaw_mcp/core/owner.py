"""Who owns this gateway: one rule, for who may write and for which tools their runs get. Pure.

A caller is the owner by its credential: `Caller.is_owner`. A person on a channel is by `is_owner` below, and what a run
starts is by `intersect_grants`; no parameter of a request makes anyone the owner.
"""

import unicodedata
from collections.abc import Iterable

from msgspec.structs import replace

from .channel import LOCAL_CHANNEL, OWNER_SENDER_ID
from .model import Grant, Sender


def is_owner(sender: Sender | None, owners: Iterable[str | int] | None, *, channel: str, vouched: bool = False) -> bool:
    """Whether a channel's sender is the owner: at this machine, or named in `commands.ownerAllowFrom` (`owners`).

    A messenger authenticates its senders. On the local channel a client of the gateway names the sender, so there the
    name counts only when the client's own credential is the owner's (`vouched`). Being allowed by a channel's
    `allowFrom` makes no sender an owner, and neither does `*`.
    """
    if sender is None or (channel == LOCAL_CHANNEL and not vouched):
        return False
    listed = [str(owner) for owner in owners or () if str(owner).strip() != "*"]
    return (channel == LOCAL_CHANNEL and sender.id == OWNER_SENDER_ID) or is_in_list(sender, listed, channel=channel)


def is_in_list(sender: Sender, people: Iterable[str], *, channel: str) -> bool:
    """Whether a list of people names the sender by id or number, bare or as `<channel>:<id>`. `*` names everyone.

    Not by user name, unlike `is_on_allow_list` of the channels: another person can take over a user name, and must not
    become the owner or get the owner's tools.
    """
    listed = {str(person).strip().lower() for person in people}
    ids = {value.strip().lower() for value in (sender.id, sender.e164) if value and value.strip()}
    return "*" in listed or bool(listed & (ids | {f"{channel.lower()}:{id}" for id in ids}))


def looks_like_owner(id: str) -> bool:
    """Whether people would take this id for the owner's on the local channel, in any spelling."""
    plain = unicodedata.normalize("NFKC", id).casefold()
    return "".join(letter for letter in plain if letter.isalnum()) == OWNER_SENDER_ID


def intersect_grants(held: Grant, speaker: Grant) -> Grant:
    """The grant of a run that another sender now instructs: the speaker's, but no more than was `held` before."""
    base = held if speaker.owner else speaker
    tool_lists = [tools for tools in (held.tools, speaker.tools) if tools is not None]
    return replace(
        base,
        owner=held.owner and speaker.owner,
        depth=max(held.depth, speaker.depth),
        led_by=tuple(dict.fromkeys(held.led_by + speaker.led_by)),
        sends_anywhere=held.sends_anywhere and speaker.sends_anywhere,
        tools=frozenset.intersection(*tool_lists) if tool_lists else None,
    )
