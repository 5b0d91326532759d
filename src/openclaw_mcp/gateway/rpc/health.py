"""How much of the gateway's health a connection is told. Pure."""

from typing import Final

from ...core.model import Caller, Json
from ...core.rpc import READ, covers

NO_SESSIONS: Final[Json] = {"path": "", "count": 0, "recent": []}


def health_for(caller: Caller, health: Json) -> Json:
    """Sessions, agents and folders are named to operators who may read, and to nobody else: not to nodes."""
    if caller.kind != "node" and (caller.owner or covers(caller.scopes, READ)):
        return health
    return {**health, "sessions": dict(NO_SESSIONS), "agents": []}
