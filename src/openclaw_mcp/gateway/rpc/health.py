"""How much of the gateway's health a connection is told. Pure."""

from typing import Final

from ...core.model import Caller, Json
from ...core.rpc import READ, has_scope

EMPTY_SESSIONS: Final[Json] = {"path": "", "count": 0, "recent": []}


def redact_health(caller: Caller, health: Json) -> Json:
    """Sessions, agents and folders are named to operators who may read, and to nobody else: not to nodes."""
    if caller.kind != "node" and (caller.is_owner or has_scope(caller.scopes, READ)):
        return health
    return {**health, "sessions": dict(EMPTY_SESSIONS), "agents": []}
