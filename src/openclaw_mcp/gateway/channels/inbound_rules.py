"""Rules for messages that arrive: who may write, which agent and session answer, what is joined into one. Pure."""

from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final, Literal

import msgspec
from msgspec import Struct

from ...core.agents import AgentRoster
from ...core.channel import LOCAL_CHANNEL, InboundMessage
from ...core.chat_commands import is_for_agent
from ...core.config.channels import ChannelRules, GroupRules
from ...core.config.config import Config
from ...core.config.gateway import InboundConfig
from ...core.model import Sender
from ...core.sessions import NewSession, QueueMode
from .settings import DEFAULT_ACCOUNT

DM_SCOPES: Final = ("main", "per-peer", "per-channel-peer", "per-account-channel-peer")
MAIN_CONVERSATION: Final = "main"
"""The local conversation of the main session; every other local one has a session of its own."""
MAX_COALESCED: Final = 20  # messages of one turn; a person who never pauses is answered all the same


class AccessVerdict(Struct, frozen=True):
    """`in`: answer. `listen`: may write, but did not mention us. `pair`: unknown, gets a code. `out`: ignore."""

    outcome: Literal["in", "listen", "pair", "out"]
    reason: str


def is_on_allow_list(sender: Sender, allow_list: Iterable[str | int], *, channel: str) -> bool:
    """Whether a list names this sender, by id, user name or number, with or without the channel's name before it.

    Unlike `core.owner.is_in_list` by user name too: being allowed to write gives no rights of the owner.
    """
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
    """`approved` are the ids of senders approved by pairing."""
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
            return AccessVerdict("in", "approved by pairing")
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
        return AccessVerdict("listen", "a group, and it does not mention us")
    return AccessVerdict("in", "a group we answer in")


def _may_write_in_group(message: InboundMessage, rules: ChannelRules, group: GroupRules | None) -> bool:
    if group is not None and group.allow_from is not None:
        listed = group.allow_from
    else:
        listed = rules.allow_from if rules.group_allow_from is None else rules.group_allow_from
    return is_on_allow_list(message.sender, listed, channel=message.address.channel)


# ---- agent and session -----------------------------------------------------------------------------------------------


def agent_for(message: InboundMessage, config: Config, roster: AgentRoster) -> str:
    """The agent of the most specific matching binding: conversation, space, account, channel; else the default."""
    best, best_rank = roster.default_id, 0
    for binding in config.bindings:
        rank = _match_rank(binding.get("match", {}), message)
        agent = binding.get("agentId")
        if rank > best_rank and isinstance(agent, str) and any(profile.id == agent for profile in roster.agents):
            best, best_rank = agent, rank
    return best


def _match_rank(match: Any, message: InboundMessage) -> int:
    """How specific a matching binding is; 0: it does not match."""
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
    """`owner`: whether the sender is. The main session is the owner's, and also others' where `dmScope` is `main`."""
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
        return f"{address.channel}:{message.chat}:{address.to}", "group"
    session = config.session
    scope = session.dm_scope or ("main" if owner else "per-channel-peer")
    if address.channel == LOCAL_CHANNEL and address.to != MAIN_CONVERSATION and scope == "main":
        scope = "per-channel-peer"  # a local conversation with a name of its own has a session of its own
    if scope not in DM_SCOPES or scope == "main":
        return main_key, "main"
    peer = _peer_id(message, session.identity_links)
    if scope == "per-peer":
        return f"direct:{peer}", "direct"
    if scope == "per-channel-peer":
        return f"{address.channel}:direct:{peer}", "direct"
    return f"{address.channel}:{address.account}:direct:{peer}", "direct"


def _peer_id(message: InboundMessage, links: Any) -> str:
    """One id for a person with several identities."""
    id = message.address.to if message.address.channel == LOCAL_CHANNEL else message.sender.id or message.address.to
    for name, ids in links.items() if isinstance(links, dict) else ():
        if f"{message.address.channel}:{id}" in ids or id in ids:
            return str(name)
    return id


def queue_mode(config: Config) -> QueueMode:
    """What a message does that comes while the agent works (`messages.queue.mode`)."""
    return config.messages.queue.mode


# ---- several messages as one -------------------------------------------------------------------------------------


def debounce_seconds(inbound: InboundConfig, channel: str) -> float:
    """Seconds to wait for the next message on this channel (`messages.inbound`); 0: each is a turn of its own."""
    return inbound.by_channel.get(channel, inbound.debounce_ms) / 1000


def accepts_more(message: InboundMessage) -> bool:
    """Whether more may be joined to it: a command is executed at once."""
    return is_for_agent(message.text)


def is_continuation(first: InboundMessage, message: InboundMessage) -> bool:
    """The same person, in the same conversation, and no command."""
    same = message.sender.id == first.sender.id and message.vouched == first.vouched
    return message.address == first.address and same and accepts_more(message)


def coalesce_messages(messages: Sequence[InboundMessage]) -> InboundMessage:
    """One message with the first one's id."""
    return msgspec.structs.replace(
        messages[0],
        text="\n".join(part.text for part in messages if part.text),
        at=messages[-1].at,
        attachments=tuple(file for part in messages for file in part.attachments),
        files=tuple(file for part in messages for file in part.files),
        reply_to=next((part.reply_to for part in messages if part.reply_to is not None), None),
        mentioned=any(part.mentioned for part in messages),
    )
