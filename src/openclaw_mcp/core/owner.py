"""Who owns this gateway: one rule, for who is let in and for which tools their runs get. Pure."""

from collections.abc import Iterable

from .channel import at_home
from .model import Sender


def is_owner(sender: Sender | None, owners: Iterable[str | int] | None, *, channel: str) -> bool:
    """Whether a channel's sender is the owner: at this machine, or named in `commands.ownerAllowFrom` (`owners`).

    Being let in by a channel's `allowFrom` makes nobody an owner, and neither does `*`.
    """
    if sender is None:
        return False
    listed = [str(owner) for owner in owners or () if str(owner).strip() != "*"]
    return at_home(channel, sender) or is_named(sender, listed, channel=channel)


def is_named(sender: Sender, people: Iterable[str], *, channel: str) -> bool:
    """Whether a list of people names the sender by id or number, bare or as `<channel>:<id>`. `*` names everybody.

    Not by user name: that can be given up, and taken by somebody else.
    """
    listed = {str(person).strip().lower() for person in people}
    ids = {value.strip().lower() for value in (sender.id, sender.e164) if value and value.strip()}
    return "*" in listed or bool(listed & (ids | {f"{channel.lower()}:{id}" for id in ids}))
