"""The doctor on agents and their keys, CLI agents, MCP servers and this machine's node."""

import asyncio
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ..config.parsing import value_at
from ..config.roster import roster_from_config
from ..core.agents import AgentProfile
from ..core.config.config import Config
from ..core.errors import BadRequest, OpenClawError
from ..core.model import Json
from ..core.providers import model_choices, split_model_name
from ..gateway.agents.cli.claude import ClaudeAdapter
from ..gateway.agents.cli.codex import CodexAdapter
from ..gateway.agents.cli.dialect import CliAdapter
from ..gateway.agents.cli.gemini import GeminiAdapter
from ..gateway.agents.cli.opencode import OpenCodeAdapter
from ..gateway.agents.models.api_keys import KeyRing
from ..gateway.agents.models.errors import ModelError
from ..gateway.agents.models.settings import ModelProvider, choose_model, read_providers
from ..mcp.client.entry import BadServerEntry, ServerAddress, ServerProgram, read_entry
from ..node.exec.approvals import ExecAuthorizer
from ..node.exec.program_locator import ProgramLocator
from ..node.exec.rule_risks import DEFAULT_ALLOW, assess_policy
from ..node.host import LocalNode
from ..node.questions import PromptRouter
from ..node.token import BadToken, TokenFile
from .report import Finding, attention, fine, note

DIALECTS: Final[tuple[CliAdapter, ...]] = (ClaudeAdapter(), GeminiAdapter(), CodexAdapter(), OpenCodeAdapter())


def check_agents(config: Config, redacted_config: Json) -> Iterator[Finding]:
    """Each agent the config names: what it runs on, and whether that is there.

    `redacted_config`: the config as written, its secrets hidden; findings repeat nothing else that may hold one.
    """
    for agent in roster_from_config(config).agents:
        yield _check_agent(agent, config, redacted_config)


def _check_agent(agent: AgentProfile, config: Config, redacted_config: Json) -> Finding:
    dialect = next((each for each in DIALECTS if each.id == agent.runtime), None)
    label = f"agent {agent.id}"
    if agent.runtime == "demo":
        text = f"{label} is the demo, which repeats each message; no model is configured"
        return note("agents", text, "openclaw config set agents.defaults.model PROVIDER/MODEL")
    if dialect is not None:
        command = agent.settings.runtime_command or dialect.program
        if shutil.which(command) is None:
            remedy = f"{dialect.install}, or set the agent's runtimeCommand"
            return attention("agents", f"{label} runs on {dialect.title}, and there is no program {command}", remedy)
        return fine("agents", f"{label} runs on {dialect.title} ({command})")
    return _check_model(agent, config, redacted_config, label)


def _check_model(agent: AgentProfile, config: Config, redacted_config: Json, label: str) -> Finding:
    providers = read_providers(config.models)
    first, _ = model_choices(agent.settings.model)
    if not first:
        remedy = "openclaw config set agents.defaults.model PROVIDER/MODEL"
        return attention("agents", f"{label} runs on {agent.runtime} and has no model", remedy)
    try:
        if agent.runtime == "openclaw":
            provider: ModelProvider | None = providers.get(split_model_name(first, providers)[0])
        else:
            provider = choose_model(first, providers, namesake=agent.runtime).provider
    except BadRequest as exc:
        return attention("agents", f"{label}: {exc}", "correct it with openclaw config set")
    if provider is None:
        return attention("agents", f"{label}: the provider of {first} is not configured", "add it to models.providers")
    trouble = asyncio.run(_key_problem(provider))
    if trouble:
        remedy = "set the key there, then run openclaw doctor again"
        if any(source.kind == "env" for source in provider.keys):
            remedy = (
                "set the key there and start the gateway again from that terminal; "
                "this checks the environment of your terminal, not that of a running gateway"
            )
        return attention("agents", f"{label} uses {first}: {trouble}", remedy)
    key = "its key is set" if provider.keys else "it needs no key"
    address = value_at(redacted_config, ("models", "providers", provider.name, "baseUrl")) or provider.base_url
    return fine("agents", f"{label} uses {first} at {address}; {key}")


async def _key_problem(provider: ModelProvider) -> str:
    """Why none of its keys can be read; nothing when one can."""
    ring, trouble = KeyRing(provider), ""
    for source in ring.sort_sources():
        try:
            await ring.read(source)
        except ModelError as exc:
            trouble = trouble or str(exc)
        else:
            return ""
    return trouble


def check_cli_agents() -> Iterator[Finding]:
    found = {each.title: shutil.which(each.program) for each in DIALECTS}
    here = [f"{title} ({path})" for title, path in found.items() if path]
    text = f"found {', '.join(here)}" if here else "none of Claude Code, Gemini CLI, Codex and OpenCode is on the PATH"
    yield fine("cli agents", text) if here else note("cli agents", text)


def check_servers(config: Config, redacted_config: Json) -> Iterator[Finding]:
    """The entries of `mcp.servers`: whether each can be started. None is. `redacted_config`: as for agents."""
    for name, value in config.mcp.servers.items():
        yield _check_server(name, value, value_at(redacted_config, ("mcp", "servers", name)))


def _check_server(name: str, value: Json, redacted_entry: Json) -> Finding:
    try:
        entry = read_entry(name, value)
    except BadServerEntry as exc:
        return attention("servers", str(exc), f"openclaw mcp remove {name} and openclaw mcp add {name} write it again")
    if not entry.enabled:
        return note("servers", f"{name} is switched off")
    match entry.target:
        case ServerProgram(command=command, env=env, cwd=cwd):
            if cwd is not None and not Path(cwd).is_dir():
                return attention("servers", f"{name} is to start in {cwd}, which is no folder", "correct its cwd")
            if shutil.which(command, path=env.get("PATH")) is None:
                text = f"{name} can't be started: there is no program {command}"
                return attention("servers", text, "install it, or give its full path in the entry")
            return fine("servers", f"{name} starts {command}; openclaw mcp tools {name} tries it")
        case ServerAddress():
            return fine("servers", f"{name} is at {redacted_entry['url']}; openclaw mcp tools {name} tries it")


def check_exec_rules(folder: Path) -> Iterator[Finding]:
    """The exec rules that let through more than they seem to. Raises BadPolicy."""
    approvals = ExecAuthorizer(
        state_dir=folder, prompt_router=PromptRouter(seconds=lambda: 0, ask_in_client=lambda: False)
    )
    if not approvals.path.exists():
        yield note("rules", "no exec rules are there yet; the first question makes the default ones")
        return
    policy = approvals.load_policy()
    risks = assess_policy(policy, ProgramLocator(None).real_path)
    for risk in risks:
        remedy = f"{risk.safer_alternative}; openclaw approvals forget {shlex.quote(risk.pattern)} takes it away"
        if risk.pattern == DEFAULT_ALLOW:
            remedy = risk.safer_alternative
        yield attention("rules", str(risk), remedy) if risk.severe else note("rules", str(risk), remedy)
    if not risks:
        yield fine("rules", f"{len(policy.rules)} exec rules; none is known to let through more than it says")


def check_node(folder: Path) -> Iterator[Finding]:
    statuses = LocalNode(folder).capabilities.statuses()
    missing = [status for status in statuses if status.missing]
    text = f"{len(statuses) - len(missing)} of {len(statuses)} commands work on this machine"
    yield note("node", text, "openclaw node doctor says why the others do not") if missing else fine("node", text)
    try:
        TokenFile(folder).current_token()
    except BadToken as exc:
        yield attention("node", str(exc), "openclaw node token --reset makes a new one")
    except (OpenClawError, OSError):
        pass  # not made yet
