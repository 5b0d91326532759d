"""The way back for a CLI agent: a server of ours beside it, a grant for its run, and what it did with them."""

import asyncio
import os
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from msgspec import Struct

from ....core.agent import Turn
from ....core.effects import RunEffects, merge_effects
from ....core.model import Caller, Grant
from ....core.ports import GrantIssuer
from .dialect import McpServerCommand

GRANT_SECONDS: Final = 24 * 3600.0  # the longest run there is; a grant ends with its run, this is for when we forget
LAUNCH: Final = '. "$0" && exec "$@"'
"""The server's environment lies in a file for this user alone, so that it stands on no command line, in no CLI's
configuration, and in no environment that the CLI's own tools and other servers inherit."""


class GatewayAccess(Struct, frozen=True, kw_only=True):
    """What the caretaker knows of the gateway."""

    url: str
    grants: GrantIssuer
    server_command: tuple[str, ...]
    """The command line of `remoteclaw-mcp-server`."""
    read_effects: Callable[[Path], RunEffects]
    allowed_tools: Callable[[Caller], Sequence[str]] | None = None
    """The tools a caller may use; None = whatever the server has."""


class RunGatewayAccess:
    """The bridge as one run uses it."""

    def __init__(
        self, access: GatewayAccess, folder: Path, token: str, turn: Turn, fixed_env: Mapping[str, str]
    ) -> None:
        self.token = token
        self._access = access
        self._effects_file = folder / "effects.ndjson"
        self._environment_file = folder / "server.env"
        given = {**fixed_env, **self._environment(turn)}
        lines = [f"export {name}={shlex.quote(value)}\n" for name, value in given.items()]
        descriptor = os.open(self._environment_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.writelines(lines)

    @property
    def mcp_server(self) -> McpServerCommand:
        return McpServerCommand("/bin/sh", ("-c", LAUNCH, str(self._environment_file), *self._access.server_command))

    async def collect_effects(self) -> RunEffects:
        """What was done, now that the CLI is gone: as the server wrote it down, and what the gateway did for a server
        that died before it could. The grant ends here."""
        known = await self._access.grants.settle(self.token)
        return merge_effects(await asyncio.to_thread(self._access.read_effects, self._effects_file), known)

    def _environment(self, turn: Turn) -> dict[str, str]:
        grant = turn.caller.grant or Grant()
        given = {
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
        told = {f"REMOTECLAW_{name}": value for name, value in given.items() if value}
        menu = self._access.allowed_tools
        # Even when it is empty: without it the server would list all it has.
        return told if menu is None else told | {"REMOTECLAW_TOOLS": ",".join(menu(turn.caller))}


@contextmanager
def open_gateway_access(
    access: GatewayAccess | None, folder: Path, turn: Turn, *, fixed_env: Mapping[str, str]
) -> Iterator[RunGatewayAccess | None]:
    """A grant for as long as the run lasts; none where there is no gateway to call back. `always` is what the server's
    environment holds whatever the CLI hands on."""
    if access is None:
        yield None
        return
    token = access.grants.issue(turn.caller, seconds=GRANT_SECONDS)
    try:
        yield RunGatewayAccess(access, folder, token, turn, fixed_env)
    finally:
        access.grants.revoke(token)
