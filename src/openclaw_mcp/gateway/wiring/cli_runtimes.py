"""The CLI agents claude, gemini, codex and opencode, each created by its first turn."""

import asyncio
import shutil
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec import Struct, field

from ...core.agents import AgentRoster
from ...core.model import Caller
from ...core.ports import AgentRuntime, GrantIssuer
from .model_runtimes import LazyRuntime

if TYPE_CHECKING:
    # Only for types: a gateway without CLI agents does not load them.
    from ..agents.cli.runtime import CliAgent, CliRuntimeContext

CLI_NAMES: Final = ("claude", "gemini", "codex", "opencode")
SERVER_PROGRAM: Final = "remoteclaw-mcp-server"
RUNS_FOLDER: Final = "runs"
"""The folder in the state directory that holds a folder for each run."""


@asynccontextmanager
async def cli_runtimes(
    state: Path,
    roster: Callable[[], AgentRoster],
    *,
    url: str = "",
    grants: GrantIssuer | None = None,
    list_tools: Callable[[Caller], Awaitable[Sequence[str]]] | None = None,
) -> AsyncIterator[Mapping[str, AgentRuntime]]:
    """The four by name. Entering removes what a crash left; leaving ends what still runs.

    Without `grants` they have none of the gateway's tools; `list_tools` names those of a caller.
    """
    factory = _CliAgentFactory(state=state, roster=roster, url=url, grants=grants, list_tools=list_tools)
    await asyncio.to_thread(factory.remove_leftovers)
    try:
        yield {name: LazyRuntime(name, factory.get_agent) for name in CLI_NAMES}
    finally:
        await asyncio.to_thread(factory.close)


class _CliAgentFactory(Struct, kw_only=True):
    """What the four share."""

    state: Path
    roster: Callable[[], AgentRoster]
    url: str
    grants: GrantIssuer | None
    list_tools: Callable[[Caller], Awaitable[Sequence[str]]] | None
    context: "CliRuntimeContext | None" = None
    agents: "dict[str, CliAgent]" = field(default_factory=dict)
    closers: list[Callable[[], None]] = field(default_factory=list)

    def remove_leftovers(self) -> None:
        if (self.state / RUNS_FOLDER).exists():
            # Here for start-up: most gateways have nothing to remove.
            from ..agents.cli.run_folder import remove_stale_folders

            remove_stale_folders(self.state / RUNS_FOLDER)

    def close(self) -> None:
        for close in self.closers:
            close()

    def get_agent(self, name: str) -> "CliAgent":
        if name in self.agents:
            return self.agents[name]
        # Here for start-up: none of this is needed until a CLI is asked.
        from ..agents.cli.claude import ClaudeAdapter
        from ..agents.cli.codex import CodexAdapter
        from ..agents.cli.gemini import GeminiAdapter  # here for start-up, as above
        from ..agents.cli.opencode import OpenCodeAdapter
        from ..agents.cli.runtime import CliAgent

        adapters = {each.id: each for each in (ClaudeAdapter, GeminiAdapter, CodexAdapter, OpenCodeAdapter)}
        if self.context is None:
            self.context = self._create_context()
        return self.agents.setdefault(name, CliAgent(adapters[name](), self.context))

    def _create_context(self) -> "CliRuntimeContext":
        # Here for start-up, as above.
        from ...net.orphan_reaper import OrphanReaper
        from ...net.side_effects_file import read_effects
        from ..agents.cli.grant_bridge import GatewayAccess  # here for start-up, as above
        from ..agents.cli.run_folder import RunFolders
        from ..agents.cli.runtime import MOST_CONCURRENT_CLIS, CliRuntimeContext

        folders, reaper = RunFolders(self.state / RUNS_FOLDER), OrphanReaper()
        self.closers += [reaper.close, folders.close]
        access = None
        if self.grants is not None:
            access = GatewayAccess(
                url=self.url, grants=self.grants, server_command=_server_command(), read_effects=read_effects,
                list_tools=self.list_tools,
            )  # fmt: skip
        return CliRuntimeContext(
            state_folder=self.state, run_folders=folders,
            get_agent=lambda agent_id: self.roster().get_agent(agent_id), gateway_access=access, guard=reaper,
            slots=asyncio.Semaphore(MOST_CONCURRENT_CLIS),
        )  # fmt: skip


def _server_command() -> tuple[str, ...]:
    """Our server's command line: the script beside this interpreter, else the one on the PATH."""
    beside = Path(sys.executable).with_name(SERVER_PROGRAM)
    if beside.exists():
        return (str(beside),)
    found = shutil.which(SERVER_PROGRAM)
    if found is not None:
        return (found,)
    start = "import sys; from openclaw_mcp.cli.remoteclaw import main; sys.exit(main())"
    return (sys.executable, "-P", "-c", start)  # -P: imports nothing from the agent's folder
