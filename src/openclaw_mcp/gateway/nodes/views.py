"""Nodes as the wire shows them: `node.list`, `node.describe`, `node.pair.list` and their events. Pure."""

from collections.abc import Sequence

from msgspec import to_builtins

from ...core.json_values import drop_none
from ...core.model import Json
from .reports import HostStats, NodeToolDescription
from .values import NodeConnection, NodePairRequest, NodeRecord

LastContact = tuple[int | None, str | None]
"""When a node last sent something, and what."""


def pair_request_view(request: NodePairRequest) -> Json:
    """In the shape of `node.pair.requested`."""
    view = {"caps": (), "commands": (), **to_builtins(request.description), "remoteIp": request.remote_ip}
    view |= {"requestId": request.request_id, "nodeId": request.node_id, "ts": request.ts}
    return drop_none(view | {"requiredApproveScopes": request.scopes, "silent": request.silent})


def pair_entry_view(record: NodeRecord, last_contact: LastContact) -> Json:
    """An approved node in `node.pair.list`."""
    view = {"caps": (), "commands": (), **to_builtins(record.face), "displayName": record.name}
    view |= {"nodeId": record.node_id, "createdAtMs": record.created_at_ms, "approvedAtMs": record.approved_at_ms}
    return drop_none(view | {"lastSeenAtMs": last_contact[0], "lastSeenReason": last_contact[1]})


def node_view(
    record: NodeRecord,
    connection: NodeConnection | None,
    request: NodePairRequest | None,
    *,
    commands: tuple[str, ...],
    last_contact: LastContact,
    tools: Sequence[NodeToolDescription],
    stats: HostStats | None,
) -> Json:
    """A node in `node.list`: with the commands it may run, never merely those it offers."""
    approved = record.approved_at_ms is not None
    shown = connection.description if connection else record.face
    view = {
        **to_builtins(shown),
        "nodeId": record.node_id,
        "displayName": record.label or shown.display_name or record.name,
        "caps": record.face.caps if approved else (),
        "commands": commands,
        "sessionHost": False,
        "nodePluginTools": tools,
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
        "hostStats": stats,
    }
    if request is not None:
        view |= {
            "approvalState": "pending-reapproval" if approved else "pending-approval",
            "pendingRequestId": request.request_id,
            "pendingDeclaredCaps": request.description.caps,
            "pendingDeclaredCommands": request.description.commands,
            "pendingDeclaredPermissions": request.description.permissions,
        }
    return drop_none(view)
