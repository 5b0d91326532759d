"""Where a caller stands: agent, model, conversation, sender, owner, depth. From the credential alone. Pure."""

from collections.abc import Mapping
from typing import Final, TypeVar

from msgspec import Struct, structs

from ..core.model import Caller, Door, Sender
from ..core.providers import ANY
from ..core.session_target import conversation, whereabouts, with_parents
from .policy_rules import Channel, Group, Lists, Place, RuleBook

T = TypeVar("T")

DEFAULT_ACCOUNT: Final = "default"
SENDER_KINDS: Final = ("channel", "id", "e164", "username", "name")
"""How a sender may be named, in the order in which names count."""


class Standing(Struct, frozen=True, kw_only=True):
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
    door: Door = "mcp"
    menu: tuple[str, ...] | None = None


def standing(caller: Caller, book: RuleBook) -> Standing:
    """What the grant does not say, the session's key says; the models are the agent's own unless the run has others."""
    own = conversation(caller.session)
    grant = caller.acting or caller.grant
    if grant is None:
        agent = own.agent or book.default_agent
        return Standing(
            agent=agent,
            models=_models(book, agent, book.may_answer(agent)),
            channel=own.channel,
            groups=own.groups,
            owner=caller.owner,
            depth=own.depth,
            door=caller.door,
        )
    channel, groups = whereabouts(caller)
    agent = _plain(grant.agent or own.agent or book.default_agent)
    models = grant.models or book.may_answer(agent)
    return Standing(
        agent=agent,
        models=_models(book, agent, (*models, *_led_by(book, grant.led_by))),
        channel=channel,
        account=(grant.account or DEFAULT_ACCOUNT).strip().lower(),
        groups=groups,
        space=(grant.space or "").strip(),
        sender=grant.sender,
        owner=caller.owner,
        depth=max(grant.depth, own.depth),
        door=caller.door,
        menu=None if grant.tools is None else tuple(sorted(grant.tools)),
    )


def _led_by(book: RuleBook, words: tuple[str, ...]) -> list[str]:
    found: list[str] = []
    for word in words:
        agent, _, model = word.removeprefix("@").partition(":")
        found += book.may_answer(agent, model or None) if word.startswith("@") else (word,)
    return found


def _models(book: RuleBook, agent: str, words: tuple[str, ...]) -> tuple[str, ...]:
    """Each once. Where it may be any of a provider, or any at all, it may be each of them that the rules name."""
    named: list[str] = []
    for word in map(_plain, words):
        named.append(word)
        if word == ANY or word.endswith("/"):
            named += [name for name in map(_plain, book.providers(agent)) if name.startswith(word.removesuffix(ANY))]
    return tuple(word for word in dict.fromkeys(named) if word)


def rules_for_sender(rules: Mapping[str, Lists], sender: Sender | None, *, channel: str) -> tuple[str, Lists] | None:
    """The entry for this sender, and the key it stands under. An untyped key is an id; a name never matches an id."""
    found: dict[tuple[str, str], tuple[str, Lists]] = {}
    for key, lists in rules.items():
        found.setdefault(_sender_key(key), (key, lists))
    for wanted in _sender_words(sender, channel):
        if wanted in found:
            return found[wanted]
    return found.get(("*", ""))


def find_place(book: RuleBook, channel: str, account: str) -> Place | None:
    """A channel's settings with those of the account laid over them."""
    whole: Channel | None = look_up(book.channels, channel)
    if whole is None:
        return None
    own = look_up(whole.accounts, account)
    if own is None:
        return whole
    said = {name: value for name, value in structs.asdict(own).items() if value is not None}
    return structs.replace(whole, **said)


def listed_group(book: RuleBook, *, channel: str, account: str, to: str) -> str | None:
    """The group a target names, when the rules have something to say about it; a session's key may not tell of it."""
    place = find_place(book, channel.strip().lower(), (account or DEFAULT_ACCOUNT).strip().lower()) if channel else None
    if place is None or not to:
        return None
    guilds = [guild.channels for guild in (place.guilds or {}).values()]
    tables = [place.groups or {}, place.channels or {}, *guilds]
    plain = to.strip()
    for prefix in (f"{channel}:", "group:", "channel:"):
        plain = plain.removeprefix(prefix)
    known = any(look_up(table, id) is not None for table in tables for id in with_parents(plain) if id != "*")
    return plain if known else None


def find_groups(place: Place, who: Standing) -> list[tuple[str, Group]]:
    """The settings that may hold for the conversation, the nearest first, each with its key."""
    found: list[tuple[str, Group]] = []
    guild = look_up(place.guilds or {}, who.space) if who.space else None
    if guild is not None:
        nearer = _nearest(guild.channels, who.groups)
        found += [(f"guilds.{who.space}.channels.{key}", group) for key, group in nearer]
        found.append((f"guilds.{who.space}", guild))
    for kind, groups in (("groups", place.groups), ("channels", place.channels)):
        found += [(f"{kind}.{key}", group) for key, group in _nearest(groups or {}, who.groups)]
    return found


def look_up(table: Mapping[str, T], key: str) -> T | None:
    """As written, else whatever the case: session keys are lower case, settings need not be."""
    if key in table:
        return table[key]
    key = key.strip().lower()
    return next((value for name, value in table.items() if name.strip().lower() == key), None)


def _nearest(groups: Mapping[str, Group], ids: tuple[str, ...]) -> list[tuple[str, Group]]:
    """The first of `ids` that is there, then everybody's."""
    own = next(((id, group) for id in ids if (group := look_up(groups, id)) is not None), None)
    return [pair for pair in (own, ("*", groups["*"]) if "*" in groups else None) if pair is not None]


def _sender_words(sender: Sender | None, channel: str) -> list[tuple[str, str]]:
    if sender is None:
        return []
    id, username = _plain(sender.id), _plain(sender.username).removeprefix("@")
    words = [("channel", f"{channel.strip().lower()}:{id}")] if channel and id else []
    ids = dict.fromkeys((id, id.removeprefix("@")))
    words += [("id", each) for each in ids]
    words += [("e164", _plain(sender.e164)), ("username", username), ("name", _plain(sender.name))]
    return [(kind, value) for kind, value in words if value]


def _sender_key(key: str) -> tuple[str, str]:
    key = key.strip().lower()
    if key == "*":
        return "*", ""
    kind, colon, value = key.partition(":")
    if colon and kind in SENDER_KINDS:
        value = value.strip()
        return kind, value.removeprefix("@") if kind == "username" else value
    return "id", key.removeprefix("@")


def _plain(text: str | None) -> str:
    return (text or "").strip().lower()
