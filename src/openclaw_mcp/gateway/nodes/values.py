"""Nodes as values: how one describes itself, its approval, its requests."""

from collections.abc import Callable
from typing import Any, Literal

from msgspec import Struct

NodePairDecision = Literal["approved", "rejected", "removed"]


class NodeDescription(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What a node says it is and can do. Only an approval gives it effect."""

    client_id: str
    client_mode: str
    platform: str
    version: str
    display_name: str | None = None
    device_family: str | None = None
    caps: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()
    permissions: dict[str, bool] | None = None


class NodeConnection(Struct, frozen=True, kw_only=True):
    """A node's connection. Its `node_id` is the authenticated device."""

    connection_id: str
    node_id: str
    description: NodeDescription
    since: int
    send_event: Callable[[str, Any], None]
    path_env: str | None = None
    remote_ip: str | None = None
    silent: bool = False
    """Whether its device was paired without an operator's approval."""


class NodeRecord(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A node as it is stored. `face` is the approved description; without an approval it offers nothing."""

    node_id: str
    face: NodeDescription
    created_at_ms: int
    alias: str | None = None
    """The prefix of its tools' names; given with the first approval, so a node can't take another's."""
    label: str | None = None
    """The name an operator gave it."""
    approved_at_ms: int | None = None
    last_seen_at_ms: int | None = None
    last_seen_reason: str | None = None

    @property
    def name(self) -> str:
        return self.label or self.face.display_name or self.node_id[:12]


class NodePairRequest(Struct, frozen=True, kw_only=True):
    """A node that wants its commands approved."""

    request_id: str
    node_id: str
    description: NodeDescription
    ts: int
    scopes: tuple[str, ...]
    """The scopes its approver must have."""
    remote_ip: str | None = None
    silent: bool = False


class NodePairResult(Struct, frozen=True, kw_only=True, rename="camel"):
    """The end of a request, or of a node, in the shape of `node.pair.resolved`."""

    request_id: str
    node_id: str
    decision: NodePairDecision
    ts: int
