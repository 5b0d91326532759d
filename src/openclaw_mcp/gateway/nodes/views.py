"""Nodes as the wire shows them: `node.list`, `node.describe`, `node.pair.list` and their events. Pure."""

from typing import Any

from msgspec import to_builtins

from ...core.model import Json
from .values import Arrival, Face, Known, Wish


def wish_view(wish: Wish) -> Json:
    """In the shape of `node.pair.requested`."""
    view = {"requestId": wish.request_id, "nodeId": wish.node_id, **_face(wish.face)}
    view |= {"requiredApproveScopes": list(wish.scopes), "silent": wish.silent, "ts": wish.ts}
    return _present(view | {"remoteIp": wish.remote_ip})


def paired_view(known: Known, *, name: str, seen: tuple[int | None, str | None]) -> Json:
    """An approved node in `node.pair.list`."""
    view = {"nodeId": known.node_id, **_face(known.face), "displayName": name}
    view |= {"createdAtMs": known.created_at_ms, "approvedAtMs": known.approved_at_ms}
    return _present(view | {"lastSeenAtMs": seen[0], "lastSeenReason": seen[1]})


def node_view(
    known: Known,
    arrival: Arrival | None,
    wish: Wish | None,
    *,
    commands: tuple[str, ...],
    seen: tuple[int | None, str | None],
    more: Json,
) -> Json:
    """A node in `node.list`: what it may be asked to do, never merely what it says it can."""
    approved = known.approved_at_ms is not None
    shown = arrival.face if arrival else known.face
    view: Json = {
        "nodeId": known.node_id,
        **_face(shown),
        "displayName": known.label or shown.display_name or known.name,
        "caps": list(known.face.caps) if approved else [],
        "commands": list(commands),
        "sessionHost": False,
        "nodePluginTools": [],
        "pathEnv": arrival.path_env if arrival else None,
        "remoteIp": arrival.remote_ip if arrival else None,
        "toolPrefix": known.alias,
        "approvalState": "approved" if approved else "unapproved",
        "connectedAtMs": arrival.since if arrival else None,
        "lastConnectedAtMs": arrival.since if arrival else None,
        "lastSeenAtMs": seen[0],
        "lastSeenReason": seen[1],
        "approvedAtMs": known.approved_at_ms,
        "paired": True,
        "connected": arrival is not None,
    }
    if wish is not None:
        view |= {
            "approvalState": "pending-reapproval" if approved else "pending-approval",
            "pendingRequestId": wish.request_id,
            "pendingDeclaredCaps": list(wish.face.caps),
            "pendingDeclaredCommands": list(wish.face.commands),
            "pendingDeclaredPermissions": wish.face.permissions,
        }
    return _present(view | more)


def _face(face: Face) -> dict[str, Any]:
    shown: dict[str, Any] = to_builtins(face)
    return shown | {"caps": list(face.caps), "commands": list(face.commands)}


def _present(view: Json) -> Json:
    return {key: value for key, value in view.items() if value is not None}
