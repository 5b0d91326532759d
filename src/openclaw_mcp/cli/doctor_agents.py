"""The doctor on whoever does the work: agents and their keys, CLI agents, MCP servers, this machine's node."""

import asyncio
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ..config.text import at
from ..config.views import roster_of
from ..core.agents import AgentCard
from ..core.errors import BadRequest, OpenClawError
from ..core.model import Json
from ..core.providers import split, wished
from ..gateway.agents.cli.claude import Claude
from ..gateway.agents.cli.codex import Codex
from ..gateway.agents.cli.dialect import Dialect
from ..gateway.agents.cli.gemini import Gemini
from ..gateway.agents.cli.opencode import OpenCode
from ..gateway.agents.cli.settings import settings_of
from ..gateway.agents.models.api_keys import KeyRing
from ..gateway.agents.models.errors import ModelTrouble
from ..gateway.agents.models.settings import Provider, catalogue, choose
from ..mcp.client.entry import Address, BadEntry, Program, read
from ..node.exec.approvals import Approvals
from ..node.exec.program_locator import Locator
from ..node.exec.rule_risks import EVERYTHING, risks_of
from ..node.host import Node
from ..node.questions import Asking
from ..node.token import BadToken, TokenFile
from .report import Finding, attention, fine, note

DIALECTS: Final[tuple[Dialect, ...]] = (Claude(), Gemini(), Codex(), OpenCode())


def agents(config: Json, shown: Json) -> Iterator[Finding]:
    """Each agent the config names: what it runs on, and whether that is there.

    `shown`: the config as it is written, its secrets hidden; findings repeat nothing else of what may hold one.
    """
    for card in roster_of(config).agents:
        yield _agent(card, config, shown)


def _agent(card: AgentCard, config: Json, shown: Json) -> Finding:
    dialect = next((each for each in DIALECTS if each.id == card.runtime), None)
    who = f"agent {card.id}"
    if card.runtime == "demo":
        words = f"{who} is the demo, which repeats what it hears; no model is configured"
        return note("agents", words, "openclaw config set agents.defaults.model PROVIDER/MODEL")
    if dialect is not None:
        command = settings_of(card.settings).command or dialect.program
        if shutil.which(command) is None:
            remedy = f"{dialect.install}, or set the agent's runtimeCommand"
            return attention("agents", f"{who} runs on {dialect.title}, and there is no program {command}", remedy)
        return fine("agents", f"{who} runs on {dialect.title} ({command})")
    return _model(card, config, shown, who)


def _model(card: AgentCard, config: Json, shown: Json, who: str) -> Finding:
    providers = catalogue(config)
    first, _ = wished(card.settings.get("model"))
    if not first:
        remedy = "openclaw config set agents.defaults.model PROVIDER/MODEL"
        return attention("agents", f"{who} runs on {card.runtime} and has no model", remedy)
    try:
        if card.runtime == "openclaw":
            provider: Provider | None = providers.get(split(first, providers)[0])
        else:
            provider = choose(first, providers, namesake=card.runtime).provider
    except BadRequest as exc:
        return attention("agents", f"{who}: {exc}", "correct it with openclaw config set")
    if provider is None:
        return attention("agents", f"{who}: nobody set up the provider of {first}", "add it to models.providers")
    trouble = asyncio.run(_key_trouble(provider))
    if trouble:
        return attention(
            "agents", f"{who} uses {first}: {trouble}", "set the key there, then run openclaw doctor again"
        )
    key = "its key is there" if provider.keys else "it needs no key"
    address = at(shown, ("models", "providers", provider.name, "baseUrl")) or provider.base_url
    return fine("agents", f"{who} uses {first} at {address}; {key}")


async def _key_trouble(provider: Provider) -> str:
    """Why none of its keys can be read; nothing when one can."""
    ring, trouble = KeyRing(provider), ""
    for source in ring.order():
        try:
            await ring.read(source)
        except ModelTrouble as exc:
            trouble = trouble or str(exc)
        else:
            return ""
    return trouble


def command_lines() -> Iterator[Finding]:
    found = {each.title: shutil.which(each.program) for each in DIALECTS}
    here = [f"{title} ({path})" for title, path in found.items() if path]
    words = f"found {', '.join(here)}" if here else "none of Claude Code, Gemini CLI, Codex and OpenCode is on the PATH"
    yield fine("cli agents", words) if here else note("cli agents", words)


def servers(config: Json, shown: Json) -> Iterator[Finding]:
    """The entries of `mcp.servers`: whether each can be started. None is. `shown`: as for `agents`."""
    for name, value in (config.get("mcp", {}).get("servers") or {}).items():
        yield _server(name, value, at(shown, ("mcp", "servers", name)))


def _server(name: str, value: Json, shown: Json) -> Finding:
    try:
        entry = read(name, value)
    except BadEntry as exc:
        return attention("servers", str(exc), f"openclaw mcp remove {name} and openclaw mcp add {name} write it anew")
    if not entry.enabled:
        return note("servers", f"{name} is switched off")
    match entry.where:
        case Program(command=command, env=env, cwd=cwd):
            if cwd is not None and not Path(cwd).is_dir():
                return attention("servers", f"{name} is to start in {cwd}, which is no folder", "correct its cwd")
            if shutil.which(command, path=env.get("PATH")) is None:
                words = f"{name} can't be started: there is no program {command}"
                return attention("servers", words, "install it, or give its full path in the entry")
            return fine("servers", f"{name} starts {command}; openclaw mcp tools {name} tries it")
        case Address():
            return fine("servers", f"{name} is at {shown['url']}; openclaw mcp tools {name} tries it")


def rules(folder: Path) -> Iterator[Finding]:
    """The exec rules that let through more than their words say. Raises BadPolicy."""
    approvals = Approvals(state_dir=folder, asking=Asking(seconds=lambda: 0, in_client=lambda: False))
    if not approvals.path.exists():
        yield note("rules", "no exec rules are there yet; the first question makes the default ones")
        return
    policy = approvals.policy()
    risks = risks_of(policy, Locator(None).path)
    for risk in risks:
        remedy = f"{risk.safer}; openclaw approvals forget {shlex.quote(risk.pattern)} takes it away"
        if risk.pattern == EVERYTHING:
            remedy = risk.safer
        yield attention("rules", str(risk), remedy) if risk.grave else note("rules", str(risk), remedy)
    if not risks:
        yield fine("rules", f"{len(policy.rules)} exec rules; none is known to let through more than it says")


def node(folder: Path) -> Iterator[Finding]:
    standings = Node(folder).capabilities.standings()
    missing = [standing for standing in standings if standing.missing]
    words = f"{len(standings) - len(missing)} of {len(standings)} commands work on this machine"
    yield note("node", words, "openclaw node doctor says why the others do not") if missing else fine("node", words)
    try:
        TokenFile(folder).current()
    except BadToken as exc:
        yield attention("node", str(exc), "openclaw node token --reset makes a new one")
    except (OpenClawError, OSError):
        pass  # not made yet
