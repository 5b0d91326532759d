"""The policy pipeline: every rule that concerns a caller, in order. A tool is allowed when no step refuses it. Pure."""

from typing import Final, Literal

from msgspec import Struct, structs

from ..core.owner import is_in_list
from .policy_rules import AccountToolRules, AllowDenyLists, IdList, PolicyRules, ProviderLists, ToolRules
from .subject import SENDER_KINDS, PolicySubject, find_account_rules, find_groups, rules_for_sender
from .tool_names import (
    EXPLICIT_ONLY_TAG,
    OWNER_ONLY_TAG,
    PROFILES,
    NameMatcher,
    PolicyTool,
    compile_names,
    normalize_name,
)

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
INVOKE_ENTRY_POINTS: Final = ("http", "rpc")
"""The entry points at which a bare token calls single tools."""

StepName = Literal[
    "rule book", "access", "grant", "owner", "profile", "provider profile", "global", "provider", "agent",
    "agent provider", "server", "group", "sender", "subagent", "http",
]  # fmt: skip
StepOutcome = Literal["allow", "deny", "skip"]


class StepVerdict(Struct, frozen=True):
    """The outcome of one step. `skip`: it does not concern this caller or this tool."""

    step: StepName
    key: str
    outcome: StepOutcome
    reason: str
    notes: tuple[str, ...] = ()


class PolicyStep(Struct, frozen=True, kw_only=True):
    """One step, compiled for one caller. With none of its lists set it decides nothing, and `reason` says why."""

    name: StepName
    key: str
    """Where in the configuration it is written."""
    reason: str = ""
    problem: str | None = None
    """Refuse everything, with this sentence."""
    deny: NameMatcher | None = None
    default_deny: NameMatcher | None = None
    """Refused too, unless in `exempt_names`."""
    exempt_names: frozenset[str] = frozenset()
    explicit_allow: NameMatcher | None = None
    """Every allow list of this caller: it may name a foreign tool, which is else for the owner."""
    allow: NameMatcher | None = None
    allow_label: str = ""
    """What the allow list is called in sentences."""
    closed_sources: NameMatcher | None = None
    """Sources that are not this agent's to use; `reason` says which agent that is."""
    notes: tuple[str, ...] = ()

    @property
    def is_active(self) -> bool:
        return bool(self.problem or self.deny or self.default_deny or self.allow or self.closed_sources)

    def refusal_reason(self, tool: PolicyTool) -> str | None:
        """Why it refuses the tool, as text to follow the tool's name; None if it does not."""
        if self.problem is not None:
            return f"is refused: {self.problem}"
        if self.deny is not None and (entry := self.deny.find_entry(tool)) is not None:
            return f"is refused by {self.key}.deny, which names {entry}"
        if self.closed_sources is not None and (entry := self.closed_sources.find_entry(tool)) is not None:
            return f"is refused: {self.key}.{entry.removeprefix('mcp/')}.agents does not name {self.reason}"
        if self.default_deny is not None and not {tool.name, tool.parent} & self.exempt_names:
            entry = self.default_deny.find_entry(tool)
            if entry == OWNER_ONLY_TAG:
                return "is refused: it is for the owner only"
            if (
                entry == EXPLICIT_ONLY_TAG
                and self.explicit_allow is not None
                and self.explicit_allow.names_explicitly(tool)
            ):
                entry = None
            if entry == EXPLICIT_ONLY_TAG:
                return f"is refused: it is for the owner, unless an allow list names it or {tool.source}"
            if entry is not None:
                return f"is refused: {self.reason} {entry} unless {self.key} allows it by name"
        if self.allow is not None and self.allow.find_allow_entry(tool) is None:
            return f"is refused: {self.allow_label} does not name it"
        return None

    def allow_reason(self, tool: PolicyTool) -> str:
        """Why an allow list lets the tool pass that it does not refuse."""
        return f"{self.allow_label} names {self.allow.find_allow_entry(tool) if self.allow else 'everything'}"

    def evaluate(self, tool: PolicyTool) -> StepVerdict:
        refusal = self.refusal_reason(tool)
        if refusal is not None:
            return StepVerdict(self.name, self.key, "deny", f"{tool.name} {refusal}", self.notes)
        if self.allow is not None:
            return StepVerdict(self.name, self.key, "allow", self.allow_reason(tool), self.notes)
        reason = "it does not concern this tool" if self.is_active else self.reason
        return StepVerdict(self.name, self.key, "skip", reason, self.notes)


def build_steps(policy_rules: PolicyRules, subject: PolicySubject) -> tuple[PolicyStep, ...]:
    """All steps in order; those that do not concern this caller are there to say so."""
    agent = policy_rules.agent_rules(subject.agent)
    here = f"agents.{subject.agent}.tools"
    first, *others = subject.models or ("",)
    shared, own = _find_provider(policy_rules.tools, first), _find_provider(agent, first)
    # The rules for each model that may answer hold at once: it is not known beforehand which of them will, and naming
    # another for what it starts does not free a run from the rules for its own.
    besides = [step for model in others for step in _model_steps(policy_rules, agent, subject, model)]
    return (
        _readable_step(policy_rules),
        _access_step(policy_rules, subject),
        _grant_step(subject),
        _owner_step(subject, _all_allow_entries(policy_rules, agent, subject, first)),
        _tool_profile_step(policy_rules.tools, agent, here),
        _provider_profile_step(shared, own, here),
        _lists_step("global", "tools", policy_rules.tools, "tools sets neither allow nor deny"),
        _provider_step("provider", "tools", shared, first),
        _lists_step("agent", here, agent, f"{here} sets neither allow nor deny"),
        _provider_step("agent provider", here, own, first),
        *besides,
        _server_step(policy_rules, subject),
        _group_step(policy_rules, subject),
        _sender_step(policy_rules, agent, subject, here),
        _subagent_step(policy_rules, subject),
        _http_step(policy_rules, subject),
    )


def _model_steps(
    policy_rules: PolicyRules, agent: ToolRules | None, subject: PolicySubject, model: str
) -> tuple[PolicyStep, ...]:
    """The steps that another model would make different."""
    here = f"agents.{subject.agent}.tools"
    shared, own = _find_provider(policy_rules.tools, model), _find_provider(agent, model)
    return (
        _owner_step(subject, _all_allow_entries(policy_rules, agent, subject, model)),
        _provider_profile_step(shared, own, here),
        _provider_step("provider", "tools", shared, model),
        _provider_step("agent provider", here, own, model),
    )


# ---- before the lists ----


def _readable_step(policy_rules: PolicyRules) -> PolicyStep:
    if policy_rules.problem is None:
        return PolicyStep(name="rule book", key="openclaw.json", reason="the rule book can be read")
    problem = f"the rule book can't be read, so nothing is allowed: {policy_rules.problem}"
    return PolicyStep(name="rule book", key="openclaw.json", problem=problem)


def _access_step(policy_rules: PolicyRules, subject: PolicySubject) -> PolicyStep:
    """Whether the sender may write here at all. An empty list of senders admits no one."""
    key = f"channels.{subject.channel or '?'}"
    place = find_account_rules(policy_rules, subject.channel, subject.account) if subject.channel else None
    if subject.sender is None or place is None:
        return PolicyStep(name="access", key=key, reason="no sender of a configured channel is behind this call")
    policy = place.group_policy if subject.groups else place.dm_policy
    if policy == "disabled":
        return PolicyStep(name="access", key=key, problem=f"{key} is closed to this kind of conversation")
    at, people = _sender_list(place, subject, policy)
    if people is None:
        return PolicyStep(name="access", key=key, reason="this conversation has no list of senders")
    key = f"{key}.{at}"
    if is_in_list(subject.sender, map(str, people), channel=subject.channel):
        return PolicyStep(name="access", key=key, reason="the sender is on the list")
    return PolicyStep(name="access", key=key, problem=f"the sender is not on the list {key}")


def _sender_list(account_rules: AccountToolRules, subject: PolicySubject, policy: str | None) -> tuple[str, IdList]:
    """The list of senders that holds here, and its key. Direct messages under any policy but `allowlist` have none:
    who may write was settled by pairing, or is open to all."""
    closed = policy == "allowlist"
    lists: list[tuple[str, IdList]] = []
    if subject.groups:
        lists += [(f"{at}.allowFrom", group.allow_from) for at, group in find_groups(account_rules, subject)]
        if policy != "open":
            lists.append(("groupAllowFrom", account_rules.group_allow_from))
    if closed:
        lists.append(("allowFrom", account_rules.allow_from if account_rules.allow_from is not None else ()))
    return next(((at, people) for at, people in lists if people is not None), ("allowFrom", None))


def _grant_step(subject: PolicySubject) -> PolicyStep:
    if subject.granted_tools is None:
        return PolicyStep(name="grant", key="grant", reason="the credential does not limit the tools")
    if not subject.granted_tools:
        return PolicyStep(name="grant", key="grant", problem="the credential grants no tools")
    return _compile_lists(
        PolicyStep(name="grant", key="grant", allow_label="the credential's list of tools"), allow=subject.granted_tools
    )


def _owner_step(subject: PolicySubject, allow_entries: tuple[str, ...]) -> PolicyStep:
    if subject.owner:
        return PolicyStep(name="owner", key="owner", reason="the caller is the owner")
    return PolicyStep(
        name="owner",
        key="owner",
        default_deny=compile_names((OWNER_ONLY_TAG, EXPLICIT_ONLY_TAG)),
        explicit_allow=compile_names(allow_entries),
    )


def _all_allow_entries(
    policy_rules: PolicyRules, agent: ToolRules | None, subject: PolicySubject, model: str
) -> tuple[str, ...]:
    """Every entry of an allow list that holds for this caller. The steps themselves say what comes of them."""
    group, sender = _find_group_rules(policy_rules, subject), _find_sender_rules(policy_rules, agent, subject)
    providers = (_find_provider(policy_rules.tools, model), _find_provider(agent, model))
    lists: list[AllowDenyLists | ToolRules | None] = [policy_rules.tools, agent]
    lists += [provider[1] for provider in providers if provider]
    lists += [found[1][1] for found in (group, sender) if found]
    lists += [policy_rules.tools.subagents.tools] if subject.depth else []
    entries = [entry for rules in lists if rules for entry in (*(rules.allow or ()), *(rules.also_allow or ()))]
    entries += subject.granted_tools or ()
    entries += (policy_rules.gateway.tools.allow or ()) if subject.entry_point in INVOKE_ENTRY_POINTS else ()
    return tuple(entries)


# ---- allow and deny lists ----


def _tool_profile_step(shared: ToolRules, agent: ToolRules | None, agent_key: str) -> PolicyStep:
    profile, key = (
        (agent.profile, f"{agent_key}.profile") if agent and agent.profile else (shared.profile, "tools.profile")
    )
    extra = agent.also_allow if agent and agent.also_allow is not None else shared.also_allow
    return _compile_profile("profile", key, profile, extra or ())


def _provider_profile_step(shared: "_ProviderEntry", own: "_ProviderEntry", agent_key: str) -> PolicyStep:
    chosen, key = (own, agent_key) if own and own[1].profile else (shared, "tools")
    if chosen is None:
        return PolicyStep(name="provider profile", key="tools.byProvider", reason="no rules for the model's provider")
    extra = next((each[1].also_allow for each in (own, shared) if each and each[1].also_allow is not None), ())
    return _compile_profile("provider profile", f"{key}.byProvider.{chosen[0]}.profile", chosen[1].profile, extra or ())


def _compile_profile(name: StepName, key: str, profile: str | None, extra: tuple[str, ...]) -> PolicyStep:
    if not (profile or "").strip():
        return PolicyStep(name=name, key=key, reason="no profile is set")
    profile = normalize_name(profile or "")
    if profile not in PROFILES:
        problem = f"{key} is {profile!r}, which is no profile; the profiles are {', '.join(PROFILES)}"
        return PolicyStep(name=name, key=key, problem=problem)
    allowed = PROFILES[profile]
    if allowed is None:
        return PolicyStep(name=name, key=key, reason=f"the profile {profile} restricts nothing")
    return _compile_lists(PolicyStep(name=name, key=key, allow_label=f"{key} ({profile})"), allow=allowed + extra)


_ProviderEntry = tuple[str, ProviderLists] | None


def _find_provider(rules: ToolRules | None, model: str) -> _ProviderEntry:
    """The entry for `provider/model`, else the one for the provider."""
    if rules is None or not model:
        return None
    table = {key.strip().lower(): (key, lists) for key, lists in rules.by_provider.items()}
    return table.get(model) or table.get(model.partition("/")[0])


def _provider_step(name: StepName, scope: str, entry: _ProviderEntry, model: str) -> PolicyStep:
    if entry is None:
        why = f"no rules for {model.rstrip('/')}" if model else "the model's provider is not known"
        return PolicyStep(name=name, key=f"{scope}.byProvider", reason=why)
    return _lists_step(name, f"{scope}.byProvider.{entry[0]}", entry[1], "it sets neither allow nor deny")


def _lists_step(name: StepName, key: str, rules: AllowDenyLists | ToolRules | None, reason: str) -> PolicyStep:
    if rules is None:
        return PolicyStep(name=name, key=key, reason=f"there is no {key}")
    return _apply_lists(PolicyStep(name=name, key=key, reason=reason), rules)


def _server_step(policy_rules: PolicyRules, subject: PolicySubject) -> PolicyStep:
    """An MCP server that names agents is for those alone."""
    key, why = "mcp.servers", "no server keeps this agent out"
    listed = [
        (f"mcp/{name}", server.agents) for name, server in policy_rules.mcp.servers.items() if server.agents is not None
    ]
    closed = tuple(source for source, agents in listed if subject.agent not in map(normalize_name, agents))
    if not closed:
        return PolicyStep(name="server", key=key, reason=why)
    return PolicyStep(name="server", key=key, reason=f"the agent {subject.agent}", closed_sources=compile_names(closed))


def _group_step(policy_rules: PolicyRules, subject: PolicySubject) -> PolicyStep:
    """The nearest group that says something: for its sender first, then for everyone in it."""
    if not subject.groups or not subject.channel:
        return PolicyStep(name="group", key="channels", reason="the conversation is no group")
    found = _find_group_rules(policy_rules, subject)
    if found is None:
        return PolicyStep(
            name="group", key=f"channels.{subject.channel}.groups", reason="it has no rules for this group"
        )
    key, chosen, table = found
    if table is None:
        return _lists_step("group", key, chosen[1], "its lists are empty")
    return _sender_lists_step("group", key, chosen, table)


_MatchingRules = tuple[str, tuple[str, AllowDenyLists], dict[str, AllowDenyLists] | None] | None
"""The rules that hold: their key, the sender's key with its lists, and the table of senders they are from."""


def _find_group_rules(policy_rules: PolicyRules, subject: PolicySubject) -> _MatchingRules:
    place = (
        find_account_rules(policy_rules, subject.channel, subject.account)
        if subject.groups and subject.channel
        else None
    )
    for at, group in find_groups(place, subject) if place else ():
        key = f"channels.{subject.channel}.{at}"
        chosen = rules_for_sender(group.tools_by_sender, subject.sender, channel=subject.channel)
        if chosen is not None:
            return f"{key}.toolsBySender", chosen, group.tools_by_sender
        if group.tools is not None:
            return f"{key}.tools", ("", group.tools), None
    return None


def _sender_step(
    policy_rules: PolicyRules, agent: ToolRules | None, subject: PolicySubject, agent_key: str
) -> PolicyStep:
    """The agent's entry for the sender replaces the one for all agents."""
    if subject.sender is None and not subject.channel:
        return PolicyStep(name="sender", key="tools.toolsBySender", reason="no sender is behind this call")
    found = _find_sender_rules(policy_rules, agent, subject)
    if found is None:
        return PolicyStep(name="sender", key="tools.toolsBySender", reason="it has no rules for this sender")
    scope, chosen, table = found
    return _sender_lists_step(
        "sender", f"{agent_key if scope == 'agent' else scope}.toolsBySender", chosen, table or {}
    )


def _find_sender_rules(policy_rules: PolicyRules, agent: ToolRules | None, subject: PolicySubject) -> _MatchingRules:
    if subject.sender is None and not subject.channel:
        return None
    for scope, rules in (("agent", agent), ("tools", policy_rules.tools)):
        table = rules.tools_by_sender if rules else {}
        chosen = rules_for_sender(table, subject.sender, channel=subject.channel)
        if chosen is not None:
            return scope, chosen, table
    return None


def _sender_lists_step(
    name: StepName, key: str, entry: tuple[str, AllowDenyLists], table: dict[str, AllowDenyLists]
) -> PolicyStep:
    step = _lists_step(name, f"{key}.{entry[0]}", entry[1], "its lists are empty")
    untyped = [name for name in table if name != "*" and name.partition(":")[0].strip().lower() not in SENDER_KINDS]
    notes = tuple(f"{key}: {name!r} is read as an id; write id:{name}" for name in untyped)
    return structs.replace(step, notes=step.notes + notes)


# ---- after the lists ----


def _subagent_step(policy_rules: PolicyRules, subject: PolicySubject) -> PolicyStep:
    key = "tools.subagents.tools"
    if subject.depth < 1:
        return PolicyStep(name="subagent", key=key, reason="the session is no sub-agent's")
    rules = policy_rules.tools.subagents.tools
    leaf = subject.depth >= max(1, policy_rules.agents.defaults.subagents.max_spawn_depth)
    denied = SUBAGENT_DENY + LEAF_DENY if leaf else SUBAGENT_DENY
    step = PolicyStep(
        name="subagent",
        key=key,
        reason="a sub-agent that may not spawn is denied" if leaf else "a sub-agent is denied",
        default_deny=compile_names(denied),
        exempt_names=frozenset(map(normalize_name, (rules.allow or ()) + (rules.also_allow or ()))),
    )
    return _apply_lists(step, rules)


def _http_step(policy_rules: PolicyRules, subject: PolicySubject) -> PolicyStep:
    """Exact names only: a pattern here would look as if it protected."""
    key = "gateway.tools"
    if subject.entry_point not in INVOKE_ENTRY_POINTS:
        return PolicyStep(name="http", key=key, reason="the call does not come as tools.invoke")
    rules = policy_rules.gateway.tools
    vague = [name for name in rules.deny or () if "*" in name or normalize_name(name).startswith("group:")]
    if vague:
        return PolicyStep(name="http", key=key, problem=f"{key}.deny takes exact names only, and {vague[0]!r} is none")
    step = PolicyStep(
        name="http",
        key=key,
        reason="tools.invoke is denied",
        default_deny=compile_names(HTTP_DENY),
        exempt_names=frozenset(map(normalize_name, rules.allow or ())),
    )
    return _compile_lists(step, deny=rules.deny or ())


def _apply_lists(step: PolicyStep, rules: AllowDenyLists | ToolRules) -> PolicyStep:
    """`alsoAllow` adds to an allow list; alone it restricts nothing, but it must still make sense."""
    extra = rules.also_allow or ()
    problem = compile_names(extra).problem
    if problem is not None:
        return _unusable_step(step, "alsoAllow", problem)
    return _compile_lists(step, allow=rules.allow + extra if rules.allow else (), deny=rules.deny or ())


def _compile_lists(step: PolicyStep, *, allow: tuple[str, ...] = (), deny: tuple[str, ...] = ()) -> PolicyStep:
    """`step` with its lists. A list that can't be understood refuses everything."""
    made: dict[str, NameMatcher] = {}
    for name, entries in (("allow", allow), ("deny", deny)):
        if not entries:
            continue
        compiled = compile_names(entries)
        if compiled.problem is not None:
            return _unusable_step(step, name, compiled.problem)
        made[name] = compiled
    unknown = made["allow"].unknown_entries if "allow" in made else ()
    notes = tuple(
        f"{name!r} is no tool of the gateway itself; it counts when another source offers it" for name in unknown
    )
    return structs.replace(step, **made, allow_label=step.allow_label or f"{step.key}.allow", notes=step.notes + notes)


def _unusable_step(step: PolicyStep, list_name: str, problem: str) -> PolicyStep:
    return PolicyStep(name=step.name, key=step.key, problem=f"{step.key}.{list_name} can't be understood: {problem}")
