"""Where somebody acts who is no run of it: a session named by its key, and the conversation behind it."""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from msgspec import Struct
from msgspec.structs import replace

from .model import Caller, Grant

if TYPE_CHECKING:
    from .repositories import SessionBook

FARTHEST: Final = 16  # steps from a sub-agent up to the session that started it all; deeper is a ring


class Place(Struct, frozen=True, kw_only=True):
    """A session, and the conversation behind it as far as the client knows it."""

    session: str
    channel: str = ""
    account: str = ""
    to: str = ""
    thread: str = ""


Acting = Callable[[Caller, Place], Awaitable[Caller]]
"""A caller as the rules about tools see it in this place. One answer, for every door at which a session is named."""


async def by_session(caller: Caller, place: Place) -> Caller:
    """Where no sessions are kept: by the session's key alone."""
    return replace(caller, session=place.session, acting=Grant(owner=caller.owner))


async def began_in(key: str, sessions: "SessionBook") -> str:
    """The session a sub-agent's work began in, however many lie between: its conversation's rules hold for all of them;
    of any other session, itself."""
    for _ in range(FARTHEST):
        session = await sessions.get(key)
        if session is None or session.spawned_by is None:
            break
        key = session.spawned_by
    return key


# ---- the conversation whose rules hold -------------------------------------------------------------------------------


class Conversation(Struct, frozen=True):
    """What a session key says of itself."""

    agent: str | None = None
    channel: str = ""
    groups: tuple[str, ...] = ()
    depth: int = 0


def conversation(key: str | None) -> Conversation:
    """`agent:<id>:<channel>:group:<gid>[:topic:<t>]` and its kin; what is not said is not there."""
    parts = (key or "").strip().lower().split(":")
    agent = None
    if parts[0] == "agent" and len(parts) > 2:
        agent, parts = parts[1], parts[2:]
    depth = 0
    while parts[:1] == ["subagent"]:
        depth, parts = depth + 1, parts[2:]
    if len(parts) < 3:
        return Conversation(agent, depth=depth)
    channel, kind, *rest = parts
    if kind in ("group", "channel"):
        return Conversation(agent, channel, with_parents(":".join(rest)), depth)
    is_direct = kind in ("direct", "dm") or rest[0] in ("direct", "dm")
    return Conversation(agent, channel if is_direct else "", depth=depth)


def with_parents(id: str) -> tuple[str, ...]:
    """`<group>:topic:<t>` and the group; a thread counts as its group."""
    group, _, _ = id.partition(":thread:")
    parent, topic, _ = group.partition(":topic:")
    ids = (group, parent) if topic else (group,)
    return tuple(id for id in ids if id)


def whereabouts(caller: Caller) -> tuple[str, tuple[str, ...]]:
    """The channel whose rules hold for a caller, and its group with that group's parents. What the grant does not say,
    the key of the session says, or that of the session its work began in."""
    own = conversation(caller.session)
    grant = caller.acting or caller.grant
    if grant is None:
        return own.channel, own.groups
    place = own if own.groups else conversation(grant.spawned_by)
    said = (grant.channel or "").strip().lower()
    if grant.group:
        return said or own.channel or place.channel, with_parents(grant.group.strip())
    if place.groups:
        return place.channel, place.groups
    return own.channel or said or place.channel, ()


# ---- what a caller starts --------------------------------------------------------------------------------------------


def passed_on(caller: Caller) -> Grant:
    """What a run acts under that this caller starts: no more than the caller's own standing, wherever the run goes.

    The caller's conversation comes along, for the rules that bind the caller to it bind the run as well; so do the
    models that led to it. An operator that acts in a session starts what that session's own run would start.

    Whoever submits a run puts it into `RunRequest.options["grant"]`, in builtins."""
    grant = caller.acting or caller.grant or Grant()
    channel, group = _known_by(caller, grant)
    return Grant(
        channel=channel,
        account=grant.account,
        to=grant.to,
        group=group,
        space=grant.space,
        thread=grant.thread,
        sender=grant.sender,
        owner=caller.owner,
        depth=grant.depth,
        handed_on=caller.bound,
        led_by=_led_by(grant),
        delivers_to=grant.delivers_to,
        sends_anywhere=grant.sends_anywhere,
        tools=grant.tools,
    )


def _known_by(caller: Caller, grant: Grant) -> tuple[str | None, str | None]:
    """Channel and group as the rules know them for the caller itself. A grant that names a conversation of another
    channel keeps it: there its orders came from, and the rest of its address belongs to it."""
    channel, groups = whereabouts(caller)
    if grant.group or (grant.channel and grant.channel.strip().lower() != channel):
        return grant.channel, grant.group
    return grant.channel or channel or None, groups[0] if groups else None


def _led_by(grant: Grant) -> tuple[str, ...]:
    own = grant.models or ((f"@{grant.agent}",) if grant.agent else ())
    return tuple(dict.fromkeys((*grant.led_by, *own)))
