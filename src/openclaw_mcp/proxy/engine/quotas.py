"""How many sessions a peer may have, and of how many bytes, so that no peer fills the proxy for all others."""

from collections import Counter

from .app_session import AppRegistration, TooManySessions
from .limits import SessionLimits
from .tool_list import ToolManifest


class SessionQuota:
    """Counts sessions and their bytes by peer, and knows the sessions without a bridge, longest without first.

    Sessions of one peer that register the same tools share them, and are counted so.
    """

    def __init__(self, limits: SessionLimits) -> None:
        self._limits = limits
        self._peers: dict[str, str] = {}
        self._counts: Counter[str] = Counter()
        self._manifests: dict[str, ToolManifest] = {}
        self._manifest_uses: Counter[tuple[str, int]] = Counter()
        """How many sessions of a peer have a manifest."""
        self._about_sizes: dict[str, int] = {}
        self._bytes: Counter[str] = Counter()
        self._total_bytes = 0
        self._unclaimed: dict[str, dict[str, float]] = {}

    def refusal(self, peer: str, size: int) -> TooManySessions | None:
        """Why a session of `size` bytes can't be taken now; None: it can."""
        room = self._limits
        if self._counts[peer] >= room.sessions_per_peer:
            return too_many_sessions(room.sessions_per_peer, per_peer=True)
        if len(self._peers) >= room.sessions:
            return too_many_sessions(room.sessions, per_peer=False)
        if self._bytes[peer] + size > room.bytes_per_peer:
            return too_many_bytes(room.bytes_per_peer, per_peer=True)
        if self._total_bytes + size > room.bytes:
            return too_many_bytes(room.bytes, per_peer=False)
        return None

    def pick_evictable(self, peer: str, now: float, refusal: TooManySessions) -> str:
        """The session that gives way to a new one of this peer. Raises `refusal` when none does."""
        queues = [self._unclaimed.get(peer, {})] if refusal.per_peer else list(self._unclaimed.values())
        oldest = [(since, id) for queue in queues for id, since in list(queue.items())[:1]]
        since, id = min(oldest, default=(now, ""))
        if not id or now - since <= self._limits.unclaimed_timeout:
            raise refusal
        return id

    def added_bytes(self, registration: AppRegistration, manifest: ToolManifest) -> int:
        """Bytes that one more session with this menu adds."""
        shared = (registration.peer, id(manifest)) in self._manifest_uses
        return len(registration.about) + (0 if shared else len(manifest.raw))

    def add(self, registration: AppRegistration, manifest: ToolManifest, now: float) -> None:
        peer = registration.peer
        self._peers[registration.id] = peer
        self._counts[peer] += 1
        self._about_sizes[registration.id] = len(registration.about)
        self._charge(peer, len(registration.about))
        self._acquire_manifest(registration.id, manifest)
        self._unclaimed.setdefault(peer, {})[registration.id] = now

    def replace_tools(self, registration: AppRegistration, manifest: ToolManifest) -> None:
        """It has other tools now. Raises TooManySessions when they take more bytes than there are."""
        old = self._manifests.get(registration.id)
        if old is None:
            return
        self._release_manifest(registration.id)
        size = 0 if (registration.peer, id(manifest)) in self._manifest_uses else len(manifest.raw)
        for most, used, of_a_peer in (
            (self._limits.bytes_per_peer, self._bytes[registration.peer], True),
            (self._limits.bytes, self._total_bytes, False),
        ):
            if used + size > most:
                self._acquire_manifest(registration.id, old)
                raise too_many_bytes(most, per_peer=of_a_peer)
        self._acquire_manifest(registration.id, manifest)

    def claim(self, id: str) -> None:
        """Its app has come."""
        peer = self._peers.get(id)
        queue = None if peer is None else self._unclaimed.get(peer)
        if peer is not None and queue is not None:
            queue.pop(id, None)
            if not queue:
                del self._unclaimed[peer]

    def unclaim(self, id: str, now: float) -> None:
        """Its app has gone."""
        peer = self._peers.get(id)
        if peer is not None:
            self._unclaimed.setdefault(peer, {})[id] = now

    def remove(self, id: str) -> None:
        self.claim(id)
        peer = self._peers.get(id)
        if peer is None:
            return
        self._release_manifest(id)
        self._charge(peer, -self._about_sizes.pop(id))
        self._counts[peer] -= 1
        if not self._counts[peer]:
            del self._counts[peer], self._bytes[peer]
        del self._peers[id]

    def _acquire_manifest(self, session_id: str, manifest: ToolManifest) -> None:
        peer = self._peers[session_id]
        self._manifests[session_id] = manifest
        self._manifest_uses[peer, id(manifest)] += 1
        if self._manifest_uses[peer, id(manifest)] == 1:
            self._charge(peer, len(manifest.raw))

    def _release_manifest(self, session_id: str) -> None:
        peer, menu = self._peers[session_id], self._manifests.pop(session_id)
        self._manifest_uses[peer, id(menu)] -= 1
        if not self._manifest_uses[peer, id(menu)]:
            del self._manifest_uses[peer, id(menu)]
            self._charge(peer, -len(menu.raw))

    def _charge(self, peer: str, size: int) -> None:
        self._bytes[peer] += size
        self._total_bytes += size


def too_many_sessions(count: int, *, per_peer: bool) -> TooManySessions:
    if per_peer:
        words = "sessions are open already from your address; delete some, wait until they expire, or have"
        return TooManySessions(f"{count} {words} OPENCLAW_PROXY_MAX_SESSIONS_PER_PEER raised", per_peer=True)
    return TooManySessions(f"{count} sessions are open already; delete some or wait until they expire", per_peer=False)


def too_many_bytes(count: int, *, per_peer: bool) -> TooManySessions:
    where = " from your address" if per_peer else ""
    words = (
        "would take more bytes in all; delete some, register less, or have OPENCLAW_PROXY_MAX_REGISTERED_BYTES raised"
    )
    return TooManySessions(f"with this, the sessions open{where} {words} ({count} now)", per_peer=per_peer)
