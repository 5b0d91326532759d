"""What policy rules judge a caller by: agent, model, conversation, sender, owner, depth. From its credential. Pure."""

from collections.abc import Mapping
from typing import Final, TypeVar

from msgspec import Struct, structs

from ..core.model import Caller, EntryPoint, Sender
from ..core.providers import ANY_MODEL
from ..core.session_target import group_with_parents, parse_session_key, policy_conversation
from .policy_rules import AccountToolRules, AllowDenyLists, ChannelToolRules, GroupToolRules, PolicyRules

T = TypeVar("T")

DEFAULT_ACCOUNT: Final = "default"
SENDER_KINDS: Final = ("channel", "id", "e164", "username", "name")
"""How a sender may be named, in the order in which names count."""


class PolicySubject(Struct, frozen=True, kw_only=True):
    """Everything a decision depends on besides the tool. `groups`: the conversation's id, then its parents'."""

    agent: str
    models: tuple[str, ...] = ()
    """Those that may answer, the first choice first, and those of the runs that led to this one."""
    channel: str = ""
    account: str = DEFAULT_ACCOUNT
    groups: tuple[str, ...] = ()
    space: str = ""
    sender: Sender | None = None
    owner: bool = False
    depth: int = 0
    entry_point: EntryPoint = "mcp"
    granted_tools: tuple[str, ...] | None = None


def resolve_subject(caller: Caller, policy_rules: PolicyRules) -> PolicySubject:
    """From the grant, else from the session's key; the models are the agent's own unless the run has others."""
    own = parse_session_key(caller.session)
    grant = caller.session_grant or caller.grant
    if grant is None:
        agent = own.agent or policy_rules.default_agent
        return PolicySubject(
            agent=agent,
            models=_expand_models(policy_rules, agent, policy_rules.possible_models(agent)),
            channel=own.channel,
            groups=own.groups,
            owner=caller.is_owner,
            depth=own.depth,
            entry_point=caller.entry_point,
        )
    channel, groups = policy_conversation(caller)
    agent = _normalize(grant.agent or own.agent or policy_rules.default_agent)
    models = grant.models or policy_rules.possible_models(agent)
    return PolicySubject(
        agent=agent,
        models=_expand_models(policy_rules, agent, (*models, *_ancestor_models(policy_rules, grant.led_by))),
        channel=channel,
        account=(grant.account or DEFAULT_ACCOUNT).strip().lower(),
        groups=groups,
        space=(grant.space or "").strip(),
        sender=grant.sender,
        owner=caller.is_owner,
        depth=max(grant.depth, own.depth),
        entry_point=caller.entry_point,
        granted_tools=None if grant.tools is None else tuple(sorted(grant.tools)),
    )


def _ancestor_models(policy_rules: PolicyRules, models: tuple[str, ...]) -> list[str]:
    found: list[str] = []
    for name in models:
        agent, _, model = name.removeprefix("@").partition(":")
        found += policy_rules.possible_models(agent, model or None) if name.startswith("@") else (name,)
    return found


def _expand_models(policy_rules: PolicyRules, agent: str, models: tuple[str, ...]) -> tuple[str, ...]:
    """Each once. Where it may be any of a provider, or any at all, it may be each of them that the rules name."""
    named: list[str] = []
    for model in map(_normalize, models):
        named.append(model)
        if model == ANY_MODEL or model.endswith("/"):
            named += [
                name
                for name in map(_normalize, policy_rules.providers_with_rules(agent))
                if name.startswith(model.removesuffix(ANY_MODEL))
            ]
    return tuple(model for model in dict.fromkeys(named) if model)


def rules_for_sender(
    rules: Mapping[str, AllowDenyLists], sender: Sender | None, *, channel: str
) -> tuple[str, AllowDenyLists] | None:
    """The entry for this sender, and its key. An untyped key is an id; a name never matches an id."""
    found: dict[tuple[str, str], tuple[str, AllowDenyLists]] = {}
    for key, lists in rules.items():
        found.setdefault(_parse_sender_key(key), (key, lists))
    for wanted in _sender_keys(sender, channel):
        if wanted in found:
            return found[wanted]
    return found.get(("*", ""))


def find_account_rules(policy_rules: PolicyRules, channel: str, account: str) -> AccountToolRules | None:
    """A channel's settings with those of the account laid over them."""
    whole: ChannelToolRules | None = get_ignoring_case(policy_rules.channels, channel)
    if whole is None:
        return None
    own = get_ignoring_case(whole.accounts, account)
    if own is None:
        return whole
    given = {name: value for name, value in structs.asdict(own).items() if value is not None}
    return structs.replace(whole, **given)


def find_listed_group(policy_rules: PolicyRules, *, channel: str, account: str, to: str) -> str | None:
    """The group a target names, when the rules have something to say about it; a session's key may not tell of it."""
    place = (
        find_account_rules(policy_rules, channel.strip().lower(), (account or DEFAULT_ACCOUNT).strip().lower())
        if channel
        else None
    )
    if place is None or not to:
        return None
    guilds = [guild.channels for guild in (place.guilds or {}).values()]
    tables = [place.groups or {}, place.channels or {}, *guilds]
    plain = to.strip()
    for prefix in (f"{channel}:", "group:", "channel:"):
        plain = plain.removeprefix(prefix)
    known = any(
        get_ignoring_case(table, id) is not None for table in tables for id in group_with_parents(plain) if id != "*"
    )
    return plain if known else None


def find_groups(account_rules: AccountToolRules, subject: PolicySubject) -> list[tuple[str, GroupToolRules]]:
    """The settings that may hold for the conversation, the nearest first, each with its key."""
    found: list[tuple[str, GroupToolRules]] = []
    guild = get_ignoring_case(account_rules.guilds or {}, subject.space) if subject.space else None
    if guild is not None:
        nearer = _nearest_groups(guild.channels, subject.groups)
        found += [(f"guilds.{subject.space}.channels.{key}", group) for key, group in nearer]
        found.append((f"guilds.{subject.space}", guild))
    for kind, groups in (("groups", account_rules.groups), ("channels", account_rules.channels)):
        found += [(f"{kind}.{key}", group) for key, group in _nearest_groups(groups or {}, subject.groups)]
    return found


def get_ignoring_case(table: Mapping[str, T], key: str) -> T | None:
    """The value under this key, else under one that differs in case: settings need not be lower case."""
    if key in table:
        return table[key]
    key = key.strip().lower()
    return next((value for name, value in table.items() if name.strip().lower() == key), None)


def _nearest_groups(groups: Mapping[str, GroupToolRules], ids: tuple[str, ...]) -> list[tuple[str, GroupToolRules]]:
    """The first of `ids` that is there, then everybody's."""
    own = next(((id, group) for id in ids if (group := get_ignoring_case(groups, id)) is not None), None)
    return [pair for pair in (own, ("*", groups["*"]) if "*" in groups else None) if pair is not None]


def _sender_keys(sender: Sender | None, channel: str) -> list[tuple[str, str]]:
    if sender is None:
        return []
    id, username = _normalize(sender.id), _normalize(sender.username).removeprefix("@")
    keys = [("channel", f"{channel.strip().lower()}:{id}")] if channel and id else []
    ids = dict.fromkeys((id, id.removeprefix("@")))
    keys += [("id", each) for each in ids]
    keys += [("e164", _normalize(sender.e164)), ("username", username), ("name", _normalize(sender.name))]
    return [(kind, value) for kind, value in keys if value]


def _parse_sender_key(key: str) -> tuple[str, str]:
    key = key.strip().lower()
    if key == "*":
        return "*", ""
    kind, colon, value = key.partition(":")
    if colon and kind in SENDER_KINDS:
        value = value.strip()
        return kind, value.removeprefix("@") if kind == "username" else value
    return "id", key.removeprefix("@")


def _normalize(text: str | None) -> str:
    return (text or "").strip().lower()
