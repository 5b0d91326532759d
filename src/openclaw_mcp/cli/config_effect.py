"""When a change of the config file is in force: asked of the gateway that runs, never guessed."""

import asyncio
from pathlib import Path
from typing import Final

from ..config.file import Snapshot
from ..core.config.keys import LISTENER_PATHS, ReloadKind
from ..core.errors import OpenClawError
from ..core.rpc import READ
from .gateway_connection import connect_operator, resolve_port
from .locations import local_url, port_from_env, port_from_state

GATEWAY_WAIT: Final = 5.0  # seconds the gateway has to read the file again and answer


def describe_effect(folder: Path, after: Snapshot, kind: ReloadKind, path: str = "") -> str:
    """A sentence for people, after the file was written as `after`; `kind`: what a change of the key at `path` takes.

    A running gateway has adopted the change when this returns, unless the sentence says otherwise.
    """
    applied = asyncio.run(_read_applied_hash(folder))
    if applied is None:
        return "no gateway runs here; it counts from the next start"
    if applied != after.hash:
        return "the running gateway has not read it yet; openclaw logs says why"
    if path in LISTENER_PATHS:
        return f"it counts from the next openclaw down and openclaw up: a restart keeps its address{_port_hint(path)}"
    if kind != "restart":
        return "in force in the running gateway"
    if after.config.gateway.reload.mode in ("hybrid", "restart") and after.config.commands.restart:
        return "the running gateway restarts to apply it, within a minute"
    return "restart the gateway to apply it"


def _port_hint(path: str) -> str:
    return " (openclaw restart --gateway-port moves it now)" if path == "gateway.port" else ""


async def _read_applied_hash(folder: Path) -> str | None:
    """The hash of the config the gateway of this folder uses, once it has looked at the file; None: none runs."""
    try:
        async with asyncio.timeout(GATEWAY_WAIT):
            address = local_url(port_from_state(folder) or port_from_env() or resolve_port(None, folder))
            async with connect_operator(folder, url=address, scopes=(READ,)) as client:
                return str((await client.call("config.get"))["appliedConfigHash"])
    except (OpenClawError, OSError, TimeoutError):
        return None
