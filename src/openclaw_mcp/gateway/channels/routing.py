"""Which agent answers a message, and in which session. Pure."""

from typing import Any, Final, Literal

from ...core.agents import AgentRoster
from ...core.channel import InboundMessage
from ...core.config.config import Config
from ...core.sessions import NewSession
from .settings import DEFAULT_ACCOUNT

DM_SCOPES: Final = ("main", "per-peer", "per-channel-peer", "per-account-channel-peer")
MAIN_CONVERSATION: Final = "main"
"""The local conversation that is the main session's; every other local one has a session of its own."""


def agent_for(message: InboundMessage, config: Config, roster: AgentRoster) -> str:
    """The agent of the most particular binding that fits: conversation, space, account, channel; else the default."""
    best, rank = roster.default_id, 0
    for binding in config.bindings:
        fits = _match_rank(binding.get("match", {}), message)
        agent = binding.get("agentId")
        if fits > rank and isinstance(agent, str) and any(card.id == agent for card in roster.agents):
            best, rank = agent, fits
    return best


def _match_rank(match: Any, message: InboundMessage) -> int:
    """How particular a binding is that fits; 0 = it does not."""
    if not isinstance(match, dict) or match.get("channel") != message.address.channel:
        return 0
    account, peer = match.get("accountId"), match.get("peer")
    space = match.get("guildId") or match.get("teamId")
    if account != "*" and message.address.account != (account or DEFAULT_ACCOUNT):
        return 0
    if space is not None and str(space) != message.space:
        return 0
    if peer is not None:
        return 5 if _is_peer(peer, message) else 0
    if space is not None:
        return 4
    return 2 if account in (None, "*") else 3


def _is_peer(peer: Any, message: InboundMessage) -> bool:
    if not isinstance(peer, dict):
        return False
    kind = {"dm": "direct"}.get(str(peer.get("kind", "")), peer.get("kind"))
    ids = {message.address.to, message.sender.id} if message.chat == "direct" else {message.address.to}
    return kind in (None, message.chat) and str(peer.get("id")) in ids


def session_for(message: InboundMessage, config: Config, roster: AgentRoster, *, owner: bool) -> NewSession:
    """`owner`: whether the sender is. The main session is the owner's, and others' too where `dmScope` says `main`."""
    agent = agent_for(message, config, roster)
    rest, classification = _session_suffix(message, config, roster.main_key, owner=owner)
    if message.address.thread is not None:
        rest += f":thread:{message.address.thread}"
        classification = "group" if message.chat != "direct" else "direct"
    key = f"agent:{agent}:{rest}".lower()
    return NewSession(key=key, agent_id=agent, classification=classification, display_name=message.title)


def _session_suffix(message: InboundMessage, config: Config, main_key: str, *, owner: bool) -> tuple[str, str]:
    address = message.address
    if message.chat != "direct":
        kind: Literal["group", "channel"] = "group" if message.chat == "group" else "channel"
        return f"{address.channel}:{kind}:{address.to}", "group"
    session = config.session
    scope = session.dm_scope or ("main" if owner else "per-channel-peer")
    if address.channel == "local" and address.to != MAIN_CONVERSATION and scope == "main":
        scope = "per-channel-peer"  # whoever names a conversation of their own wants one of its own
    if scope not in DM_SCOPES or scope == "main":
        return main_key, "main"
    peer = _peer_id(message, session.identity_links)
    if scope == "per-peer":
        return f"direct:{peer}", "direct"
    if scope == "per-channel-peer":
        return f"{address.channel}:direct:{peer}", "direct"
    return f"{address.channel}:{address.account}:direct:{peer}", "direct"


def _peer_id(message: InboundMessage, links: Any) -> str:
    """One name for somebody known under several."""
    id = message.address.to if message.address.channel == "local" else message.sender.id or message.address.to
    for name, ids in links.items() if isinstance(links, dict) else ():
        if f"{message.address.channel}:{id}" in ids or id in ids:
            return str(name)
    return id
