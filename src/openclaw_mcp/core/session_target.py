"""Where somebody acts who is no run of it: a session named by its key, and the conversation behind it."""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from msgspec import Struct
from msgspec.structs import replace

from .model import Caller, Grant

if TYPE_CHECKING:
    from .repositories import SessionRepository

MAX_SPAWN_DEPTH: Final = 16  # steps from a sub-agent up to the session that started it all; deeper is a ring


class SessionAddress(Struct, frozen=True, kw_only=True):
    """A session, and the conversation behind it as far as the client knows it."""

    session: str
    channel: str = ""
    account: str = ""
    to: str = ""
    thread: str = ""


BindSession = Callable[[Caller, SessionAddress], Awaitable[Caller]]
"""A caller as the rules about tools see it in this place. One answer, for every door at which a session is named."""


async def bind_by_key(caller: Caller, address: SessionAddress) -> Caller:
    """Where no sessions are kept: by the session's key alone."""
    return replace(caller, session=address.session, session_grant=Grant(owner=caller.is_owner))


async def find_root_session(key: str, sessions: "SessionRepository") -> str:
    """The session a sub-agent's work began in, however many lie between: its conversation's rules hold for all of them;
    of any other session, itself."""
    for _ in range(MAX_SPAWN_DEPTH):
        session = await sessions.get(key)
        if session is None or session.spawned_by is None:
            break
        key = session.spawned_by
    return key


# ---- the conversation whose rules hold -------------------------------------------------------------------------------


class SessionKeyInfo(Struct, frozen=True):
    """What a session key says of itself."""

    agent: str | None = None
    channel: str = ""
    groups: tuple[str, ...] = ()
    depth: int = 0


def parse_session_key(key: str | None) -> SessionKeyInfo:
    """`agent:<id>:<channel>:group:<gid>[:topic:<t>]` and its kin; what is not said is not there."""
    parts = (key or "").strip().lower().split(":")
    agent = None
    if parts[0] == "agent" and len(parts) > 2:
        agent, parts = parts[1], parts[2:]
    depth = 0
    while parts[:1] == ["subagent"]:
        depth, parts = depth + 1, parts[2:]
    if len(parts) < 3:
        return SessionKeyInfo(agent, depth=depth)
    channel, kind, *rest = parts
    if kind in ("group", "channel"):
        return SessionKeyInfo(agent, channel, group_with_parents(":".join(rest)), depth)
    is_direct = kind in ("direct", "dm") or rest[0] in ("direct", "dm")
    return SessionKeyInfo(agent, channel if is_direct else "", depth=depth)


def group_with_parents(id: str) -> tuple[str, ...]:
    """`<group>:topic:<t>` and the group; a thread counts as its group."""
    group, _, _ = id.partition(":thread:")
    parent, topic, _ = group.partition(":topic:")
    ids = (group, parent) if topic else (group,)
    return tuple(id for id in ids if id)


def policy_conversation(caller: Caller) -> tuple[str, tuple[str, ...]]:
    """The channel whose rules hold for a caller, and its group with that group's parents. What the grant does not say,
    the key of the session says, or that of the session its work began in."""
    own = parse_session_key(caller.session)
    grant = caller.session_grant or caller.grant
    if grant is None:
        return own.channel, own.groups
    place = own if own.groups else parse_session_key(grant.spawned_by)
    said = (grant.channel or "").strip().lower()
    if grant.group:
        return said or own.channel or place.channel, group_with_parents(grant.group.strip())
    if place.groups:
        return place.channel, place.groups
    return own.channel or said or place.channel, ()


# ---- what a caller starts --------------------------------------------------------------------------------------------


def child_grant(caller: Caller) -> Grant:
    """What a run acts under that this caller starts: no more than the caller's own standing, wherever the run goes.

    The caller's conversation comes along, for the rules that bind the caller to it bind the run as well; so do the
    models that led to it. An operator that acts in a session starts what that session's own run would start."""
    grant = caller.session_grant or caller.grant or Grant()
    channel, group = _policy_address(caller, grant)
    return Grant(
        channel=channel,
        account=grant.account,
        to=grant.to,
        group=group,
        space=grant.space,
        thread=grant.thread,
        sender=grant.sender,
        owner=caller.is_owner,
        depth=grant.depth,
        handed_on=caller.acts_in_session,
        led_by=_model_lineage(grant),
        delivers_to=grant.delivers_to,
        sends_anywhere=grant.sends_anywhere,
        tools=grant.tools,
    )


def _policy_address(caller: Caller, grant: Grant) -> tuple[str | None, str | None]:
    """Channel and group as the rules know them for the caller itself. A grant that names a conversation of another
    channel keeps it: there its orders came from, and the rest of its address belongs to it."""
    channel, groups = policy_conversation(caller)
    if grant.group or (grant.channel and grant.channel.strip().lower() != channel):
        return grant.channel, grant.group
    return grant.channel or channel or None, groups[0] if groups else None


def _model_lineage(grant: Grant) -> tuple[str, ...]:
    own = grant.models or ((f"@{grant.agent}",) if grant.agent else ())
    return tuple(dict.fromkeys((*grant.led_by, *own)))
