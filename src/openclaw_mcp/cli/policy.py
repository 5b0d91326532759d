"""`openclaw policy`: which tools a caller may use, and which rule says so."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Final, get_args

import msgspec

from ..config import parsing
from ..core.errors import BadRequest
from ..core.model import Caller, EntryPoint, Grant, Sender, ToolSpec
from ..core.owner import is_owner
from ..core.providers import model_from_settings
from ..core.session_target import parse_session_key
from ..core.tool_naming import SEPARATOR
from ..mcp.client.names import server_names
from ..net.state_dir import state_dir_path
from ..tools import policy_rules
from ..tools.config_policy import ConfigPolicy, Explanation
from ..tools.policy_rules import PolicyRules
from ..tools.tool_names import CLAW_TOOLS, is_builtin_name

CLAW_SOURCE: Final = "claw"
SERVER_PREFIX: Final = "mcp/"
NODE_PREFIX: Final = "node/"
MAX_CONFIG_BYTES: Final = 16 * 1024 * 1024  # a configuration is written by hand; what is larger is another file


def arguments(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="explain|list")
    explain = verbs.add_parser("explain", help="what each step says about a tool, and which one decides")
    explain.add_argument("--tool", required=True, help="the tool's name, for instance message_send")
    _caller_arguments(explain)
    _caller_arguments(verbs.add_parser("list", help="the tools this caller may use"))


def _caller_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--source", help="who offers the tool: mcp/files, node/laptop (default: by the tool's name)")
    parser.add_argument("--session", metavar="KEY", help="session key, for instance agent:main:telegram:group:-100")
    parser.add_argument("--agent", metavar="ID", help="agent (default: the session's, else the default agent)")
    parser.add_argument("--model", metavar="M", help="the model a run names (default: the agent's, with its fallbacks)")
    parser.add_argument("--provider", metavar="P", help="the model's provider, or provider/model")
    parser.add_argument("--channel", metavar="C", help="channel (default: the session's)")
    parser.add_argument("--account", metavar="A", help="the channel's account")
    parser.add_argument("--group", metavar="G", help="group (default: the session's)")
    parser.add_argument("--space", metavar="S", help="the guild or team the group belongs to")
    parser.add_argument("--sender", metavar="S", help="the sender's id")
    parser.add_argument("--sender-e164", metavar="NUMBER", help="the sender's telephone number")
    parser.add_argument("--sender-username", metavar="NAME", help="the sender's handle")
    parser.add_argument("--sender-name", metavar="NAME", help="the sender's display name")
    parser.add_argument("--depth", type=int, default=0, help="how deep a sub-agent (default: the session's)")
    parser.add_argument(
        "--owner", action=argparse.BooleanOptionalAction, help="whether the sender is the owner (default: by the rules)"
    )
    parser.add_argument(
        "--door", choices=get_args(EntryPoint), default="cli", help="how the call comes in (default cli)"
    )
    parser.add_argument(
        "--config", metavar="FILE", type=Path, help="config with the rules (default: openclaw.json in the state dir)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(options: argparse.Namespace) -> int:
    """Status 0 for every decision: the question was answered."""
    rules = read_rules(options.config)
    policy = ConfigPolicy(rules)
    caller = caller_from_options(options, rules)
    if options.verb == "explain":
        source = options.source or guess_source(options.tool, rules)
        explanation = policy.explain(caller, source, ToolSpec(name=options.tool))
        caveats = _caveats(explanation, rules)
        print((_explanation_json if options.json else _format_explanation)(explanation, caveats))
        return 0
    explanations = [policy.explain(caller, options.source or CLAW_SOURCE, ToolSpec(name=name)) for name in CLAW_TOOLS]
    print((_tool_list_json if options.json else _format_tool_list)(explanations))
    return 0


def read_rules(path: Path | None) -> PolicyRules:
    """The rules in a configuration file; without one named, those of this machine, and none if it has no file.

    The one place that knows where the rules are kept.
    """
    file = path or state_dir_path() / "openclaw.json"
    try:
        with file.open("rb") as opened:
            data = opened.read(MAX_CONFIG_BYTES + 1)
    except FileNotFoundError:
        if path is None:
            return PolicyRules()
        raise BadRequest(f"there is no file {path}; name the configuration with --config FILE") from None
    except OSError as exc:
        return policy_rules.refuse_everything(f"{file}: {exc.strerror}")
    if len(data) > MAX_CONFIG_BYTES:
        return policy_rules.refuse_everything(f"{file} is larger than {MAX_CONFIG_BYTES} bytes")
    return parse_rules(data)


def parse_rules(data: bytes) -> PolicyRules:
    """The rules in a configuration file's bytes. Never raises: rules that can't be read refuse every tool."""
    try:
        return policy_rules.from_config(parsing.parse(data.decode(errors="replace")))
    except BadRequest as exc:
        return policy_rules.refuse_everything(str(exc))


def guess_source(tool: str, rules: PolicyRules) -> str:
    """Who offers a tool of this name: a configured server, a node, or this package."""
    prefixes = server_names(rules.mcp.servers)
    offering = [name for name, prefix in prefixes.items() if tool.lower().startswith(f"{prefix}{SEPARATOR}".lower())]
    if offering:
        return SERVER_PREFIX + max(offering, key=lambda name: len(prefixes[name]))
    alias, between, _ = tool.partition(SEPARATOR)
    return NODE_PREFIX + alias if alias and between else CLAW_SOURCE


def caller_from_options(options: argparse.Namespace, rules: PolicyRules) -> Caller:
    """A caller as an entry point would make it. Without a sender it is the owner; a sender is if the rules say so."""
    sender = Sender(
        id=options.sender, e164=options.sender_e164, username=options.sender_username, name=options.sender_name
    )
    known = sender != Sender()
    owner = options.owner
    if owner is None:
        channel = options.channel or parse_session_key(options.session).channel
        owners = rules.commands.owner_allow_from
        owner = is_owner(sender, owners, channel=channel, vouched=True) if known else options.door == "cli"
    grant = Grant(
        agent=options.agent,
        models=_possible_models(options, rules),
        channel=options.channel,
        account=options.account,
        group=options.group,
        space=options.space,
        sender=sender if known else None,
        owner=owner,
        depth=options.depth,
    )
    scopes = frozenset({"*"})
    return Caller(
        kind="local", name="policy", scopes=scopes, session=options.session, entry_point=options.door, grant=grant
    )


def _possible_models(options: argparse.Namespace, rules: PolicyRules) -> tuple[str, ...]:
    """The models that may answer. A provider alone counts as one: no run names it so."""
    model, provider = options.model, options.provider
    if provider and "/" in provider:
        model, provider = provider, None
    if not model:
        return (provider,) if provider else ()
    agent = options.agent or parse_session_key(options.session).agent or rules.default_agent
    return rules.possible_models(agent.strip().lower(), model_from_settings({"model": model, "provider": provider}))


def _caveats(explanation: Explanation, rules: PolicyRules) -> list[str]:
    """Why the gateway may refuse what the rules allow."""
    source, agent = explanation.source, explanation.subject.agent
    caveats = []
    if rules.problem is None and not rules.has_agent(agent):
        caveats.append(f"no agent {agent!r} is configured, so the gateway has no session of it")
    if explanation.subject.depth and not explanation.subject.groups:
        caveats.append(
            "a sub-agent is under the rules of the group its work began in; if there is one, name it with --group"
        )
    if source == CLAW_SOURCE and not is_builtin_name(explanation.tool):
        caveats.append(f"this package has no tool {explanation.tool!r}; name who offers it with --source")
    if source.startswith(SERVER_PREFIX) and source.removeprefix(SERVER_PREFIX) not in rules.mcp.servers:
        caveats.append(f"mcp.servers names no server {source.removeprefix(SERVER_PREFIX)!r}")
    if source.startswith(NODE_PREFIX):
        caveats.append(f"it is there only while a node {source.removeprefix(NODE_PREFIX)!r} is connected and offers it")
    return caveats


def _format_explanation(explanation: Explanation, caveats: Sequence[str]) -> str:
    decision = explanation.decision
    lines = [f"{explanation.tool}: {'allowed' if decision.allowed else 'refused'}", f"  because {decision.reason}"]
    lines += [*(f"  but {caveat}" for caveat in caveats), ""]
    width = max(len(verdict.step) for verdict in explanation.steps)
    decided = [verdict for verdict in explanation.steps if verdict.outcome == ("allow" if decision.allowed else "deny")]
    for verdict in explanation.steps:
        mark = "*" if decided and verdict is decided[-1 if decision.allowed else 0] else " "
        lines.append(f"{mark} {verdict.step:{width}}  {verdict.outcome:5}  {verdict.reason}")
        lines += [f"  {'':{width}}  note   {note}" for note in verdict.notes]
    lines.append("")
    lines.append(
        "* the step that decided" if decision.step != "default" else "no step decided: nothing refuses the tool"
    )
    return "\n".join(lines)


def _explanation_json(explanation: Explanation, caveats: Sequence[str]) -> str:
    decision = explanation.decision
    report = {
        "tool": explanation.tool,
        "source": explanation.source,
        "allowed": decision.allowed,
        "step": decision.step,
        "reason": decision.reason,
        "doubts": caveats,
        "caller": explanation.subject,
        "steps": explanation.steps,
    }
    return _to_json(report)


def _tool_list_json(explanations: Sequence[Explanation]) -> str:
    refused = {each.tool: each.decision for each in explanations if not each.decision.allowed}
    reasons = {tool: {"step": decision.step, "reason": decision.reason} for tool, decision in refused.items()}
    return _to_json({"tools": [each.tool for each in explanations if each.decision.allowed], "refused": reasons})


def _format_tool_list(explanations: Sequence[Explanation]) -> str:
    allowed = [each.tool for each in explanations if each.decision.allowed]
    lines = [*allowed, f"{len(allowed)} of {len(explanations)} tools; openclaw policy explain --tool NAME says why"]
    return "\n".join(lines)


def _to_json(value: object) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
