"""The pipeline: every rule that bears on a caller, in order. A tool is allowed when no step refuses it. Pure."""

from typing import Final, Literal

from msgspec import Struct, structs

from ..core.owner import is_named
from .policy_rules import Ids, Lists, Place, ProviderLists, RuleBook, ToolRules
from .subject import SENDER_KINDS, Standing, find_groups, find_place, rules_for_sender
from .tool_names import FOR_OWNERS, NAMED_ONLY, PROFILES, Names, Tool, names, normal

SUBAGENT_DENY: Final = (
    "gateway", "agents_list", "whatsapp_login", "session_status", "cron", "memory_search", "memory_get",
    "sessions_send",
)  # fmt: skip
LEAF_DENY: Final = ("sessions_list", "sessions_history", "sessions_spawn")
HTTP_DENY: Final = (
    "sessions_spawn", "sessions_send", "cron", "gateway", "whatsapp_login", "nodes", "exec", "spawn", "shell",
    "fs_write", "fs_delete", "fs_move", "apply_patch",
)  # fmt: skip
"""What `tools.invoke`, over HTTP or RPC, refuses unless `gateway.tools.allow` says otherwise."""
WIRES: Final = ("http", "rpc")
"""The doors at which a bare token calls single tools."""

StepName = Literal[
    "rule book", "access", "grant", "owner", "profile", "provider profile", "global", "provider", "agent",
    "agent provider", "server", "group", "sender", "subagent", "http",
]  # fmt: skip
Outcome = Literal["allow", "deny", "skip"]


class Verdict(Struct, frozen=True):
    """What one step said. `skip`: it has nothing to say about this caller or this tool."""

    step: StepName
    key: str
    outcome: Outcome
    reason: str
    notes: tuple[str, ...] = ()


class Step(Struct, frozen=True, kw_only=True):
    """One step, compiled for one caller. With none of its lists set it has nothing to say, and `why` says why."""

    name: StepName
    key: str
    """Where in the configuration it is written."""
    why: str = ""
    problem: str | None = None
    """Refuse everything, with this sentence."""
    deny: Names | None = None
    default_deny: Names | None = None
    """Refused too, unless `excused`."""
    excused: frozenset[str] = frozenset()
    given: Names | None = None
    """Whatever allows something to this caller: it may mean a guest's tool, which is else for the owner."""
    allow: Names | None = None
    grants: str = ""
    """What the allow list is called in sentences."""
    closed: Names | None = None
    """Sources that are not this agent's to use; `why` says which agent that is."""
    notes: tuple[str, ...] = ()

    @property
    def speaks(self) -> bool:
        return bool(self.problem or self.deny or self.default_deny or self.allow or self.closed)

    def refuses(self, tool: Tool) -> str | None:
        """Why, in the words that follow the tool's name; None = it does not."""
        if self.problem is not None:
            return f"is refused: {self.problem}"
        if self.deny is not None and (entry := self.deny.find(tool)) is not None:
            return f"is refused by {self.key}.deny, which names {entry}"
        if self.closed is not None and (entry := self.closed.find(tool)) is not None:
            return f"is refused: {self.key}.{entry.removeprefix('mcp/')}.agents does not name {self.why}"
        if self.default_deny is not None and not {tool.name, tool.family} & self.excused:
            entry = self.default_deny.find(tool)
            if entry == FOR_OWNERS:
                return "is refused: it is for the owner only"
            if entry == NAMED_ONLY and self.given is not None and self.given.means(tool):
                entry = None
            if entry == NAMED_ONLY:
                return f"is refused: it is for the owner, unless an allow list names it or {tool.source}"
            if entry is not None:
                return f"is refused: {self.why} {entry} unless {self.key} allows it by name"
        if self.allow is not None and self.allow.find_granted(tool) is None:
            return f"is refused: {self.grants} does not name it"
        return None

    def consent(self, tool: Tool) -> str:
        """Why an allow list lets the tool pass that it does not refuse."""
        return f"{self.grants} names {self.allow.find_granted(tool) if self.allow else 'everything'}"

    def judge(self, tool: Tool) -> Verdict:
        refusal = self.refuses(tool)
        if refusal is not None:
            return Verdict(self.name, self.key, "deny", f"{tool.name} {refusal}", self.notes)
        if self.allow is not None:
            return Verdict(self.name, self.key, "allow", self.consent(tool), self.notes)
        reason = "it does not concern this tool" if self.speaks else self.why
        return Verdict(self.name, self.key, "skip", reason, self.notes)


def steps(book: RuleBook, who: Standing) -> tuple[Step, ...]:
    """All steps in order; those with nothing to say about this caller are there to say so."""
    agent = book.agent(who.agent)
    here = f"agents.{who.agent}.tools"
    first, *others = who.models or ("",)
    shared, own = _provider(book.tools, first), _provider(agent, first)
    # The rules for each model that may answer hold at once: nobody knows beforehand which of them will, and naming
    # another for what it starts does not free a run from the rules for its own.
    besides = [step for model in others for step in _model_steps(book, agent, who, model)]
    return (
        _readable(book),
        _access(book, who),
        _menu(who),
        _owner(who, _given(book, agent, who, first)),
        _profile(book.tools, agent, here),
        _provider_profile(shared, own, here),
        _lists("global", "tools", book.tools, "tools sets neither allow nor deny"),
        _provider_lists("provider", "tools", shared, first),
        _lists("agent", here, agent, f"{here} sets neither allow nor deny"),
        _provider_lists("agent provider", here, own, first),
        *besides,
        _server(book, who),
        _group(book, who),
        _sender(book, agent, who, here),
        _subagent(book, who),
        _http(book, who),
    )


def _model_steps(book: RuleBook, agent: ToolRules | None, who: Standing, model: str) -> tuple[Step, ...]:
    """The steps that another model would make different."""
    here = f"agents.{who.agent}.tools"
    shared, own = _provider(book.tools, model), _provider(agent, model)
    return (
        _owner(who, _given(book, agent, who, model)),
        _provider_profile(shared, own, here),
        _provider_lists("provider", "tools", shared, model),
        _provider_lists("agent provider", here, own, model),
    )


# ---- before the lists ----


def _readable(book: RuleBook) -> Step:
    if book.problem is None:
        return Step(name="rule book", key="openclaw.json", why="the rule book can be read")
    problem = f"the rule book can't be read, so nothing is allowed: {book.problem}"
    return Step(name="rule book", key="openclaw.json", problem=problem)


def _access(book: RuleBook, who: Standing) -> Step:
    """Whether the sender may speak here at all. A list of people that is there and empty lets nobody in."""
    key = f"channels.{who.channel or '?'}"
    place = find_place(book, who.channel, who.account) if who.channel else None
    if who.sender is None or place is None:
        return Step(name="access", key=key, why="no sender of a configured channel is behind this call")
    policy = place.group_policy if who.groups else place.dm_policy
    if policy == "disabled":
        return Step(name="access", key=key, problem=f"{key} is closed to this kind of conversation")
    at, people = _people(place, who, policy)
    if people is None:
        return Step(name="access", key=key, why="this conversation has no list of senders")
    key = f"{key}.{at}"
    if is_named(who.sender, map(str, people), channel=who.channel):
        return Step(name="access", key=key, why="the sender is on the list")
    return Step(name="access", key=key, problem=f"the sender is not on the list {key}")


def _people(place: Place, who: Standing, policy: str | None) -> tuple[str, Ids]:
    """The list of senders that holds here, and its key. Direct messages under any policy but `allowlist` have none:
    who may write was settled by pairing, or is open to all."""
    closed = policy == "allowlist"
    lists: list[tuple[str, Ids]] = []
    if who.groups:
        lists += [(f"{at}.allowFrom", group.allow_from) for at, group in find_groups(place, who)]
        if policy != "open":
            lists.append(("groupAllowFrom", place.group_allow_from))
    if closed:
        lists.append(("allowFrom", place.allow_from if place.allow_from is not None else ()))
    return next(((at, people) for at, people in lists if people is not None), ("allowFrom", None))


def _menu(who: Standing) -> Step:
    if who.menu is None:
        return Step(name="grant", key="grant", why="the credential does not limit the tools")
    if not who.menu:
        return Step(name="grant", key="grant", problem="the credential grants no tools")
    return _compiled(Step(name="grant", key="grant", grants="the credential's tool menu"), allow=who.menu)


def _owner(who: Standing, given: tuple[str, ...]) -> Step:
    if who.owner:
        return Step(name="owner", key="owner", why="the caller is the owner")
    return Step(name="owner", key="owner", default_deny=names((FOR_OWNERS, NAMED_ONLY)), given=names(given))


def _given(book: RuleBook, agent: ToolRules | None, who: Standing, model: str) -> tuple[str, ...]:
    """Every entry of an allow list that holds for this caller. The steps themselves say what comes of them."""
    group, sender = _group_rules(book, who), _sender_rules(book, agent, who)
    providers = (_provider(book.tools, model), _provider(agent, model))
    lists: list[Lists | ToolRules | None] = [book.tools, agent]
    lists += [provider[1] for provider in providers if provider]
    lists += [found[1][1] for found in (group, sender) if found]
    lists += [book.tools.subagents.tools] if who.depth else []
    words = [word for rules in lists if rules for word in (*(rules.allow or ()), *(rules.also_allow or ()))]
    words += who.menu or ()
    words += (book.gateway.tools.allow or ()) if who.door in WIRES else ()
    return tuple(words)


# ---- allow and deny lists ----


def _profile(shared: ToolRules, agent: ToolRules | None, here: str) -> Step:
    profile, key = (agent.profile, f"{here}.profile") if agent and agent.profile else (shared.profile, "tools.profile")
    extra = agent.also_allow if agent and agent.also_allow is not None else shared.also_allow
    return _profile_step("profile", key, profile, extra or ())


def _provider_profile(shared: "_Provider", own: "_Provider", here: str) -> Step:
    chosen, key = (own, here) if own and own[1].profile else (shared, "tools")
    if chosen is None:
        return Step(name="provider profile", key="tools.byProvider", why="no rules for the model's provider")
    extra = next((each[1].also_allow for each in (own, shared) if each and each[1].also_allow is not None), ())
    return _profile_step("provider profile", f"{key}.byProvider.{chosen[0]}.profile", chosen[1].profile, extra or ())


def _profile_step(name: StepName, key: str, profile: str | None, extra: tuple[str, ...]) -> Step:
    if not (profile or "").strip():
        return Step(name=name, key=key, why="no profile is set")
    profile = normal(profile or "")
    if profile not in PROFILES:
        problem = f"{key} is {profile!r}, which is no profile; the profiles are {', '.join(PROFILES)}"
        return Step(name=name, key=key, problem=problem)
    allowed = PROFILES[profile]
    if allowed is None:
        return Step(name=name, key=key, why=f"the profile {profile} restricts nothing")
    return _compiled(Step(name=name, key=key, grants=f"{key} ({profile})"), allow=allowed + extra)


_Provider = tuple[str, ProviderLists] | None


def _provider(rules: ToolRules | None, model: str) -> _Provider:
    """The entry for `provider/model`, else the one for the provider."""
    if rules is None or not model:
        return None
    table = {key.strip().lower(): (key, lists) for key, lists in rules.by_provider.items()}
    return table.get(model) or table.get(model.partition("/")[0])


def _provider_lists(name: StepName, scope: str, found: _Provider, model: str) -> Step:
    if found is None:
        why = f"no rules for {model.rstrip('/')}" if model else "the model's provider is not known"
        return Step(name=name, key=f"{scope}.byProvider", why=why)
    return _lists(name, f"{scope}.byProvider.{found[0]}", found[1], "it sets neither allow nor deny")


def _lists(name: StepName, key: str, rules: Lists | ToolRules | None, why: str) -> Step:
    if rules is None:
        return Step(name=name, key=key, why=f"there is no {key}")
    return _with_lists(Step(name=name, key=key, why=why), rules)


def _server(book: RuleBook, who: Standing) -> Step:
    """An MCP server that names agents is for those alone."""
    key, why = "mcp.servers", "no server keeps this agent out"
    listed = [(f"mcp/{name}", server.agents) for name, server in book.mcp.servers.items() if server.agents is not None]
    closed = tuple(source for source, agents in listed if who.agent not in map(normal, agents))
    if not closed:
        return Step(name="server", key=key, why=why)
    return Step(name="server", key=key, why=f"the agent {who.agent}", closed=names(closed))


def _group(book: RuleBook, who: Standing) -> Step:
    """The nearest group that says something: for its sender first, then for everybody in it."""
    if not who.groups or not who.channel:
        return Step(name="group", key="channels", why="the conversation is no group")
    found = _group_rules(book, who)
    if found is None:
        return Step(name="group", key=f"channels.{who.channel}.groups", why="it has no rules for this group")
    key, chosen, table = found
    if table is None:
        return _lists("group", key, chosen[1], "its lists are empty")
    return _by_sender("group", key, chosen, table)


_Found = tuple[str, tuple[str, Lists], dict[str, Lists] | None] | None
"""The rules that hold: where they stand, under which word, and among which for senders."""


def _group_rules(book: RuleBook, who: Standing) -> _Found:
    place = find_place(book, who.channel, who.account) if who.groups and who.channel else None
    for at, group in find_groups(place, who) if place else ():
        key = f"channels.{who.channel}.{at}"
        chosen = rules_for_sender(group.tools_by_sender, who.sender, channel=who.channel)
        if chosen is not None:
            return f"{key}.toolsBySender", chosen, group.tools_by_sender
        if group.tools is not None:
            return f"{key}.tools", ("", group.tools), None
    return None


def _sender(book: RuleBook, agent: ToolRules | None, who: Standing, here: str) -> Step:
    """The agent's entry for the sender stands in for everybody's."""
    if who.sender is None and not who.channel:
        return Step(name="sender", key="tools.toolsBySender", why="no sender is behind this call")
    found = _sender_rules(book, agent, who)
    if found is None:
        return Step(name="sender", key="tools.toolsBySender", why="it has no rules for this sender")
    scope, chosen, table = found
    return _by_sender("sender", f"{here if scope == 'agent' else scope}.toolsBySender", chosen, table or {})


def _sender_rules(book: RuleBook, agent: ToolRules | None, who: Standing) -> _Found:
    if who.sender is None and not who.channel:
        return None
    for scope, rules in (("agent", agent), ("tools", book.tools)):
        table = rules.tools_by_sender if rules else {}
        chosen = rules_for_sender(table, who.sender, channel=who.channel)
        if chosen is not None:
            return scope, chosen, table
    return None


def _by_sender(name: StepName, key: str, chosen: tuple[str, Lists], table: dict[str, Lists]) -> Step:
    step = _lists(name, f"{key}.{chosen[0]}", chosen[1], "its lists are empty")
    untyped = [word for word in table if word != "*" and word.partition(":")[0].strip().lower() not in SENDER_KINDS]
    notes = tuple(f"{key}: {word!r} is read as an id; write id:{word}" for word in untyped)
    return structs.replace(step, notes=step.notes + notes)


# ---- after the lists ----


def _subagent(book: RuleBook, who: Standing) -> Step:
    key = "tools.subagents.tools"
    if who.depth < 1:
        return Step(name="subagent", key=key, why="the session is no sub-agent's")
    rules = book.tools.subagents.tools
    leaf = who.depth >= max(1, book.agents.defaults.subagents.max_spawn_depth)
    denied = SUBAGENT_DENY + LEAF_DENY if leaf else SUBAGENT_DENY
    step = Step(
        name="subagent",
        key=key,
        why="a sub-agent that may not spawn is denied" if leaf else "a sub-agent is denied",
        default_deny=names(denied),
        excused=frozenset(map(normal, (rules.allow or ()) + (rules.also_allow or ()))),
    )
    return _with_lists(step, rules)


def _http(book: RuleBook, who: Standing) -> Step:
    """Exact names only: a pattern here would look as if it protected."""
    key = "gateway.tools"
    if who.door not in WIRES:
        return Step(name="http", key=key, why="the call does not come as tools.invoke")
    rules = book.gateway.tools
    vague = [word for word in rules.deny or () if "*" in word or normal(word).startswith("group:")]
    if vague:
        return Step(name="http", key=key, problem=f"{key}.deny takes exact names only, and {vague[0]!r} is none")
    step = Step(
        name="http",
        key=key,
        why="tools.invoke is denied",
        default_deny=names(HTTP_DENY),
        excused=frozenset(map(normal, rules.allow or ())),
    )
    return _compiled(step, deny=rules.deny or ())


def _with_lists(step: Step, rules: Lists | ToolRules) -> Step:
    """`alsoAllow` adds to an allow list; alone it restricts nothing, but it must still make sense."""
    extra = rules.also_allow or ()
    problem = names(extra).problem
    if problem is not None:
        return _broken(step, "alsoAllow", problem)
    return _compiled(step, allow=rules.allow + extra if rules.allow else (), deny=rules.deny or ())


def _compiled(step: Step, *, allow: tuple[str, ...] = (), deny: tuple[str, ...] = ()) -> Step:
    """`step` with its lists. A list that can't be understood refuses everything."""
    made: dict[str, Names] = {}
    for word, entries in (("allow", allow), ("deny", deny)):
        if not entries:
            continue
        compiled = names(entries)
        if compiled.problem is not None:
            return _broken(step, word, compiled.problem)
        made[word] = compiled
    strangers = made["allow"].strangers if "allow" in made else ()
    notes = tuple(f"{word!r} is no tool of the house itself; it counts when a guest offers it" for word in strangers)
    return structs.replace(step, **made, grants=step.grants or f"{step.key}.allow", notes=step.notes + notes)


def _broken(step: Step, word: str, problem: str) -> Step:
    return Step(name=step.name, key=step.key, problem=f"{step.key}.{word} can't be understood: {problem}")
