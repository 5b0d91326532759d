"""The caretaker of the CLI agents: claude, gemini, codex and opencode, made when the first turn asks for one."""

import asyncio
import shutil
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ...core.agent import AgentEvent, Turn
from ...core.agents import Roster
from ...core.model import Caller
from ...core.ports import AgentRuntime, GrantOffice

if TYPE_CHECKING:
    # For the types alone: a gateway without CLI agents starts without them.
    from ..agents.cli.runtime import CliAgent, Surroundings

NAMES: Final = ("claude", "gemini", "codex", "opencode")
SERVER: Final = "remoteclaw-mcp-server"
RUNS: Final = "runs"
"""The folder in the state directory that holds a folder for each run."""


@asynccontextmanager
async def cli_runtimes(
    state: Path,
    roster: Callable[[], Roster],
    *,
    url: str = "",
    grants: GrantOffice | None = None,
    menu: Callable[[Caller], Sequence[str]] | None = None,
) -> AsyncIterator[Mapping[str, AgentRuntime]]:
    """The four by name. Entering sweeps up what a crash left; leaving ends what still runs.

    Without `grants` they answer, but have none of the gateway's tools; `menu` says which of them a caller has.
    """
    bench = _Bench(state, roster, url, grants, menu)
    await asyncio.to_thread(bench.sweep)
    try:
        yield {name: _Later(name, bench) for name in NAMES}
    finally:
        await asyncio.to_thread(bench.close)


class _Bench:
    """What the four share."""

    def __init__(
        self,
        state: Path,
        roster: Callable[[], Roster],
        url: str,
        grants: GrantOffice | None,
        menu: Callable[[Caller], Sequence[str]] | None,
    ) -> None:
        self._state = state
        self._roster = roster
        self._url = url
        self._grants = grants
        self._menu = menu
        self._around: Surroundings | None = None
        self._close: list[Callable[[], None]] = []

    def sweep(self) -> None:
        if (self._state / RUNS).exists():
            from ..agents.cli.run_folder import sweep  # here for start-up: most gateways have nothing to sweep

            sweep(self._state / RUNS)

    def close(self) -> None:
        for close in self._close:
            close()

    def agent(self, name: str) -> "CliAgent":
        # Here for start-up: none of this is needed until somebody asks a CLI.
        from ..agents.cli.claude import Claude
        from ..agents.cli.codex import Codex
        from ..agents.cli.gemini import Gemini  # here for start-up, as above
        from ..agents.cli.opencode import OpenCode
        from ..agents.cli.runtime import CliAgent

        dialects = {each.id: each for each in (Claude, Gemini, Codex, OpenCode)}
        return CliAgent(dialects[name](), self._surroundings())

    def _surroundings(self) -> "Surroundings":
        if self._around is None:
            # Here for start-up, as above.
            from ...net.orphan_reaper import Watchman
            from ...net.side_effects_file import read_effects
            from ..agents.cli.grant_bridge import Bridge
            from ..agents.cli.run_folder import Folders
            from ..agents.cli.runtime import MOST_AT_ONCE, Surroundings  # here for start-up, as above

            folders, watchman = Folders(self._state / RUNS), Watchman()
            self._close += [watchman.close, folders.close]
            bridge = None
            if self._grants is not None:
                bridge = Bridge(
                    url=self._url, grants=self._grants, server=_server(), read_effects=read_effects, menu=self._menu
                )
            self._around = Surroundings(
                state=self._state,
                folders=folders,
                card=lambda agent_id: self._roster().card(agent_id),
                bridge=bridge,
                guard=watchman,
                slots=asyncio.Semaphore(MOST_AT_ONCE),
            )
        return self._around


class _Later:
    """A runtime that is loaded when it is first asked for."""

    def __init__(self, name: str, bench: _Bench) -> None:
        self.id = name
        self._bench = bench
        self._agent: CliAgent | None = None

    @property
    def takes(self) -> tuple[str, ...]:
        return self._loaded().takes

    def run(self, turn: Turn) -> AsyncGenerator[AgentEvent]:
        return self._loaded().run(turn)

    def _loaded(self) -> "CliAgent":
        if self._agent is None:
            self._agent = self._bench.agent(self.id)
        return self._agent


def _server() -> tuple[str, ...]:
    """Our server's command line: the script beside this interpreter, else the one on the PATH."""
    beside = Path(sys.executable).with_name(SERVER)
    if beside.exists():
        return (str(beside),)
    found = shutil.which(SERVER)
    if found is not None:
        return (found,)
    start = "import sys; from openclaw_mcp.cli.remoteclaw import main; sys.exit(main())"
    return (sys.executable, "-c", start)
