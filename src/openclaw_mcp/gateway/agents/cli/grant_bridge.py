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
from ....core.effects import Effects, completed
from ....core.model import Caller, Grant
from ....core.ports import GrantOffice
from .dialect import Entry

GRANT_SECONDS: Final = 24 * 3600.0  # the longest run there is; a grant ends with its run, this is for when we forget
LAUNCH: Final = '. "$0" && exec "$@"'
"""The server's environment lies in a file for this user alone, so that it stands on no command line, in no CLI's
configuration, and in no environment that the CLI's own tools and other servers inherit."""


class Bridge(Struct, frozen=True, kw_only=True):
    """What the caretaker knows of the gateway."""

    url: str
    grants: GrantOffice
    server: tuple[str, ...]
    """The command line of `remoteclaw-mcp-server`."""
    read_effects: Callable[[Path], Effects]
    menu: Callable[[Caller], Sequence[str]] | None = None
    """The tools a caller may use; None = whatever the server has."""


class Crossing:
    """The bridge as one run uses it."""

    def __init__(self, bridge: Bridge, folder: Path, token: str, turn: Turn, always: Mapping[str, str]) -> None:
        self.token = token
        self._bridge = bridge
        self._effects = folder / "effects.ndjson"
        self._pass = folder / "server.env"
        given = {**always, **self._environment(turn)}
        lines = [f"export {name}={shlex.quote(value)}\n" for name, value in given.items()]
        descriptor = os.open(self._pass, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.writelines(lines)

    @property
    def entry(self) -> Entry:
        return Entry("/bin/sh", ("-c", LAUNCH, str(self._pass), *self._bridge.server))

    async def effects(self) -> Effects:
        """What was done, now that the CLI is gone: as the server wrote it down, and what the gateway did for a server
        that died before it could. The grant ends here."""
        known = await self._bridge.grants.settle(self.token)
        return completed(await asyncio.to_thread(self._bridge.read_effects, self._effects), known)

    def _environment(self, turn: Turn) -> dict[str, str]:
        grant = turn.caller.grant or Grant()
        given = {
            "GATEWAY_URL": self._bridge.url,
            "GATEWAY_TOKEN": self.token,
            "SESSION_KEY": turn.session_key,
            "SIDE_EFFECTS_FILE": str(self._effects),
            "CHANNEL": grant.channel,
            "ACCOUNT_ID": grant.account,
            "TO": None if grant.handed_on else grant.to,
            "THREAD_ID": None if grant.handed_on else grant.thread,
            "SENDER_IS_OWNER": "true" if grant.owner else "false",
            "TOOL_PROFILE": str(turn.settings.get("toolProfile") or "full"),
        }
        told = {f"REMOTECLAW_{name}": value for name, value in given.items() if value}
        menu = self._bridge.menu
        # Even when it is empty: without it the server would list all it has.
        return told if menu is None else told | {"REMOTECLAW_TOOLS": ",".join(menu(turn.caller))}


@contextmanager
def crossing(
    bridge: Bridge | None, folder: Path, turn: Turn, *, always: Mapping[str, str]
) -> Iterator[Crossing | None]:
    """A grant for as long as the run lasts; none where there is no gateway to call back. `always` is what the server's
    environment holds whatever the CLI hands on."""
    if bridge is None:
        yield None
        return
    token = bridge.grants.issue(turn.caller, seconds=GRANT_SECONDS)
    try:
        yield Crossing(bridge, folder, token, turn, always)
    finally:
        bridge.grants.revoke(token)
