"""Nodes as the wire shows them: `node.list`, `node.describe`, `node.pair.list` and their events. Pure."""

from typing import Any

from msgspec import to_builtins

from ...core.model import Json
from .values import NodeConnection, NodeDescription, NodePairRequest, NodeRecord


def pair_request_view(request: NodePairRequest) -> Json:
    """In the shape of `node.pair.requested`."""
    view = {"requestId": request.request_id, "nodeId": request.node_id, **_description_view(request.description)}
    view |= {"requiredApproveScopes": list(request.scopes), "silent": request.silent, "ts": request.ts}
    return _drop_none(view | {"remoteIp": request.remote_ip})


def pair_entry_view(record: NodeRecord, *, name: str, last_contact: tuple[int | None, str | None]) -> Json:
    """An approved node in `node.pair.list`."""
    view = {"nodeId": record.node_id, **_description_view(record.face), "displayName": name}
    view |= {"createdAtMs": record.created_at_ms, "approvedAtMs": record.approved_at_ms}
    return _drop_none(view | {"lastSeenAtMs": last_contact[0], "lastSeenReason": last_contact[1]})


def node_view(
    record: NodeRecord,
    connection: NodeConnection | None,
    request: NodePairRequest | None,
    *,
    commands: tuple[str, ...],
    last_contact: tuple[int | None, str | None],
    extra: Json,
) -> Json:
    """A node in `node.list`: with the commands it may run, never merely those it offers."""
    approved = record.approved_at_ms is not None
    shown = connection.description if connection else record.face
    view: Json = {
        "nodeId": record.node_id,
        **_description_view(shown),
        "displayName": record.label or shown.display_name or record.name,
        "caps": list(record.face.caps) if approved else [],
        "commands": list(commands),
        "sessionHost": False,
        "nodePluginTools": [],
        "pathEnv": connection.path_env if connection else None,
        "remoteIp": connection.remote_ip if connection else None,
        "toolPrefix": record.alias,
        "approvalState": "approved" if approved else "unapproved",
        "connectedAtMs": connection.since if connection else None,
        "lastConnectedAtMs": connection.since if connection else None,
        "lastSeenAtMs": last_contact[0],
        "lastSeenReason": last_contact[1],
        "approvedAtMs": record.approved_at_ms,
        "paired": True,
        "connected": connection is not None,
    }
    if request is not None:
        view |= {
            "approvalState": "pending-reapproval" if approved else "pending-approval",
            "pendingRequestId": request.request_id,
            "pendingDeclaredCaps": list(request.description.caps),
            "pendingDeclaredCommands": list(request.description.commands),
            "pendingDeclaredPermissions": request.description.permissions,
        }
    return _drop_none(view | extra)


def _description_view(description: NodeDescription) -> dict[str, Any]:
    shown: dict[str, Any] = to_builtins(description)
    return shown | {"caps": list(description.caps), "commands": list(description.commands)}


def _drop_none(view: Json) -> Json:
    return {key: value for key, value in view.items() if value is not None}
