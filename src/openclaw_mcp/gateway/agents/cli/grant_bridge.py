"""A CLI agent's access to the gateway: our MCP server beside it, a grant for its run, and the effects of both."""

import asyncio
import shlex
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from msgspec import Struct

from ....core.agent import Turn
from ....core.effects import RunEffects, merge_effects
from ....core.model import Caller, Grant
from ....core.ports import GrantIssuer
from .confinement import write_private_file
from .dialect import McpServerCommand

GRANT_SECONDS: Final = 24 * 3600.0
"""The longest run there is. A grant is revoked with its run; this bounds one that is not."""
LAUNCH: Final = '. "$0" && exec "$@"'
"""The server's environment is in a private file, so that it is on no command line, in no CLI's configuration, and in no
environment that the CLI's own tools and other servers inherit."""


class GatewayAccess(Struct, frozen=True, kw_only=True):
    """Where the gateway is, and how a run gets access to it."""

    url: str
    grants: GrantIssuer
    server_command: tuple[str, ...]
    """The command line of `remoteclaw-mcp-server`."""
    read_effects: Callable[[Path], RunEffects]
    list_tools: Callable[[Caller], Awaitable[Sequence[str]]] | None = None
    """Every tool of a caller, by name, once the MCP servers it needs have started; None = all that the server has."""


class RunGatewayAccess:
    """The access of one run."""

    def __init__(
        self,
        access: GatewayAccess,
        folder: Path,
        token: str,
        turn: Turn,
        *,
        tools: Sequence[str] | None,
        fixed_env: Mapping[str, str],
    ) -> None:
        self.token = token
        self._access = access
        self._effects_file = folder / "effects.ndjson"
        self._environment_file = folder / "server.env"
        variables = {**fixed_env, **self._environment(turn, tools)}
        lines = [f"export {name}={shlex.quote(value)}\n" for name, value in variables.items()]
        write_private_file(self._environment_file, "".join(lines).encode())

    @property
    def mcp_server(self) -> McpServerCommand:
        return McpServerCommand("/bin/sh", ("-c", LAUNCH, str(self._environment_file), *self._access.server_command))

    async def collect_effects(self) -> RunEffects:
        """The run's effects, once the CLI has ended: those the server recorded, and those the gateway carried out for a
        server that died before it recorded them. The grant ends here."""
        known = await self._access.grants.settle(self.token)
        return merge_effects(await asyncio.to_thread(self._access.read_effects, self._effects_file), known)

    def _environment(self, turn: Turn, tools: Sequence[str] | None) -> dict[str, str]:
        grant = turn.caller.grant or Grant()
        variables = {
            "GATEWAY_URL": self._access.url,
            "GATEWAY_TOKEN": self.token,
            "SESSION_KEY": turn.session_key,
            "SIDE_EFFECTS_FILE": str(self._effects_file),
            "CHANNEL": grant.channel,
            "ACCOUNT_ID": grant.account,
            "TO": None if grant.handed_on else grant.to,
            "THREAD_ID": None if grant.handed_on else grant.thread,
            "SENDER_IS_OWNER": "true" if grant.owner else "false",
            "TOOL_PROFILE": str(turn.settings.get("toolProfile") or "full"),
        }
        env = {f"REMOTECLAW_{name}": value for name, value in variables.items() if value}
        if tools is not None:
            # Even an empty list: without the variable the server would list all it has.
            env["REMOTECLAW_TOOLS"] = ",".join(tools)
        return env


@asynccontextmanager
async def open_gateway_access(
    access: GatewayAccess | None, folder: Path, turn: Turn, *, fixed_env: Mapping[str, str]
) -> AsyncIterator[RunGatewayAccess | None]:
    """Access for as long as the run lasts; None without a gateway. `fixed_env`: variables that the server has even if
    the CLI does not pass them on."""
    if access is None:
        yield None
        return
    tools = None if access.list_tools is None else await access.list_tools(turn.caller)
    token = access.grants.issue(turn.caller, seconds=GRANT_SECONDS)
    try:
        yield RunGatewayAccess(access, folder, token, turn, tools=tools, fixed_env=fixed_env)
    finally:
        access.grants.revoke(token)
