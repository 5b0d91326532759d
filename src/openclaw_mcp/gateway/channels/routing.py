"""Which agent answers a message, and in which session. Pure."""

from typing import Any, Final, Literal

from ...core.agents import Roster
from ...core.channel import Heard
from ...core.model import Json
from ...core.sessions import NewSession
from .settings import DEFAULT

DM_SCOPES: Final = ("main", "per-peer", "per-channel-peer", "per-account-channel-peer")
HOME: Final = "main"
"""The local conversation that is the main session's; every other local one has a session of its own."""


def agent_for(heard: Heard, config: Json, roster: Roster) -> str:
    """The agent of the most particular binding that fits: conversation, space, account, channel; else the default."""
    best, rank = roster.default_id, 0
    for binding in config.get("bindings", []):
        fits = _fit(binding.get("match", {}), heard)
        agent = binding.get("agentId")
        if fits > rank and isinstance(agent, str) and any(card.id == agent for card in roster.agents):
            best, rank = agent, fits
    return best


def _fit(match: Any, heard: Heard) -> int:
    """How particular a binding is that fits; 0 = it does not."""
    if not isinstance(match, dict) or match.get("channel") != heard.address.channel:
        return 0
    account, peer = match.get("accountId"), match.get("peer")
    space = match.get("guildId") or match.get("teamId")
    if account != "*" and heard.address.account != (account or DEFAULT):
        return 0
    if space is not None and str(space) != heard.space:
        return 0
    if peer is not None:
        return 5 if _is_peer(peer, heard) else 0
    if space is not None:
        return 4
    return 2 if account in (None, "*") else 3


def _is_peer(peer: Any, heard: Heard) -> bool:
    if not isinstance(peer, dict):
        return False
    kind = {"dm": "direct"}.get(str(peer.get("kind", "")), peer.get("kind"))
    ids = {heard.address.to, heard.sender.id} if heard.chat == "direct" else {heard.address.to}
    return kind in (None, heard.chat) and str(peer.get("id")) in ids


def session_for(heard: Heard, config: Json, roster: Roster, *, owner: bool) -> NewSession:
    """`owner`: whether the sender is. The main session is the owner's, and others' too where `dmScope` says `main`."""
    agent = agent_for(heard, config, roster)
    rest, classification = _rest(heard, config, roster.main_key, owner=owner)
    if heard.address.thread is not None:
        rest += f":thread:{heard.address.thread}"
        classification = "group" if heard.chat != "direct" else "direct"
    key = f"agent:{agent}:{rest}".lower()
    return NewSession(key=key, agent_id=agent, classification=classification, display_name=heard.title)


def _rest(heard: Heard, config: Json, main_key: str, *, owner: bool) -> tuple[str, str]:
    address = heard.address
    if heard.chat != "direct":
        kind: Literal["group", "channel"] = "group" if heard.chat == "group" else "channel"
        return f"{address.channel}:{kind}:{address.to}", "group"
    session = config.get("session", {})
    scope = session.get("dmScope") or ("main" if owner else "per-channel-peer")
    if address.channel == "local" and address.to != HOME and scope == "main":
        scope = "per-channel-peer"  # whoever names a conversation of their own wants one of its own
    if scope not in DM_SCOPES or scope == "main":
        return main_key, "main"
    peer = _person(heard, session.get("identityLinks", {}))
    if scope == "per-peer":
        return f"direct:{peer}", "direct"
    if scope == "per-channel-peer":
        return f"{address.channel}:direct:{peer}", "direct"
    return f"{address.channel}:{address.account}:direct:{peer}", "direct"


def _person(heard: Heard, links: Any) -> str:
    """One name for somebody known under several."""
    id = heard.address.to if heard.address.channel == "local" else heard.sender.id or heard.address.to
    for name, ids in links.items() if isinstance(links, dict) else ():
        if f"{heard.address.channel}:{id}" in ids or id in ids:
            return str(name)
    return id
