"""Acting in a session without being a run of it: a session named by its key, and the conversation behind it."""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, Protocol

from msgspec import Struct
from msgspec.structs import replace

from .model import Caller, Grant

if TYPE_CHECKING:
    from .repositories import SessionRepository

ALL_SCOPES: Final = frozenset({"*"})
MAX_SPAWN_DEPTH: Final = 16  # steps from a sub-agent up to the first session; deeper is a cycle


class SessionAddress(Struct, frozen=True, kw_only=True):
    """A session, and the conversation behind it as far as the client names it."""

    session: str
    channel: str = ""
    account: str = ""
    to: str = ""
    thread: str = ""


BindSession = Callable[[Caller, SessionAddress], Awaitable[Caller]]
"""A caller as the tool rules see it in a session. One function, for every entry point at which a session is named."""


async def bind_by_key(caller: Caller, address: SessionAddress) -> Caller:
    """Without stored sessions: by the session's key alone."""
    return replace(caller, session=address.session, session_grant=Grant(owner=caller.is_owner))


class SessionResolver(Protocol):
    """Turns the sessions that requests name into keys and callers."""

    def resolve_key(self, session: str | None, agent: str | None) -> str | None:
        """The full key of a session, or of an agent's main session; None when neither is named.

        Raises RpcError for an agent that does not exist, and for a session and an agent that contradict each other.
        """

    async def agent_caller(self, session: str | None, agent: str | None) -> Caller:
        """As whom the agent of that session, or of that agent's main session, calls tools."""

    async def bind(self, caller: Caller, address: SessionAddress) -> Caller:
        """The caller as the tool rules see it in that session."""


class UnstoredSessions:
    """A `SessionResolver` without a store: a session is its key, an agent is its name."""

    def resolve_key(self, session: str | None, agent: str | None) -> str | None:
        return session

    async def agent_caller(self, session: str | None, agent: str | None) -> Caller:
        return Caller(kind="agent", name=agent or "main", scopes=ALL_SCOPES, session=session, entry_point="agent")

    async def bind(self, caller: Caller, address: SessionAddress) -> Caller:
        return await bind_by_key(caller, address)


async def find_root_session(key: str, sessions: "SessionRepository") -> str:
    """The session a sub-agent's work began in, however many are between: that conversation's rules apply to all of
    them. Any other session is its own root."""
    for _ in range(MAX_SPAWN_DEPTH):
        session = await sessions.get(key)
        if session is None or session.spawned_by is None:
            break
        key = session.spawned_by
    return key


# ---- the conversation whose rules apply -----------------------------------------------------------------------------


class SessionKeyInfo(Struct, frozen=True):
    """The parts of a session key."""

    agent: str | None = None
    channel: str = ""
    groups: tuple[str, ...] = ()
    depth: int = 0


def parse_session_key(key: str | None) -> SessionKeyInfo:
    """`agent:<id>:<channel>:group:<gid>[:topic:<t>]` and its variants; parts that the key does not have stay empty."""
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
    """The channel whose rules apply to a caller, and its group with that group's parents: from the grant, else from the
    key of the session, else from the key of the session its work began in."""
    own = parse_session_key(caller.session)
    grant = caller.session_grant or caller.grant
    if grant is None:
        return own.channel, own.groups
    place = own if own.groups else parse_session_key(grant.spawned_by)
    channel = (grant.channel or "").strip().lower()
    if grant.group:
        return channel or own.channel or place.channel, group_with_parents(grant.group.strip())
    if place.groups:
        return place.channel, place.groups
    return own.channel or channel or place.channel, ()


# ---- runs a caller starts --------------------------------------------------------------------------------------------


def child_grant(caller: Caller) -> Grant:
    """The grant of a run that this caller starts: never more than the caller may do itself, wherever the run acts.

    It includes the caller's conversation, because rules that bind the caller to it bind the run as well, and the
    models that led to it. An operator that acts in a session starts what that session's own run would start.
    """
    grant = caller.session_grant or caller.grant or Grant()
    channel, group = _policy_address(caller, grant)
    return Grant(
        channel=channel, account=grant.account, to=grant.to, group=group, space=grant.space, thread=grant.thread,
        sender=grant.sender, owner=caller.is_owner, depth=grant.depth, handed_on=caller.acts_in_session,
        led_by=_model_lineage(grant), delivers_to=grant.delivers_to, sends_anywhere=grant.sends_anywhere,
        tools=grant.tools,
    )  # fmt: skip


def _policy_address(caller: Caller, grant: Grant) -> tuple[str | None, str | None]:
    """Channel and group as the rules see them for the caller itself. A grant that names a conversation of another
    channel keeps it: its message came from there, and the rest of its address belongs to it."""
    channel, groups = policy_conversation(caller)
    if grant.group or (grant.channel and grant.channel.strip().lower() != channel):
        return grant.channel, grant.group
    return grant.channel or channel or None, groups[0] if groups else None


def _model_lineage(grant: Grant) -> tuple[str, ...]:
    own = grant.models or ((f"@{grant.agent}",) if grant.agent else ())
    return tuple(dict.fromkeys((*grant.led_by, *own)))
