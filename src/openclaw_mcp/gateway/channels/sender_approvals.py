"""Unknown senders: each gets a pairing code, and is approved when the owner enters it."""

import secrets
from collections.abc import Collection, Sequence
from typing import Final

from ...core.channel import ChatAddress, InboundMessage
from ...core.mail import SenderApproval, SenderApprovalRepository
from ...core.sessions import now_ms
from .accounts import AccountKey

PAIRING_CODE_ALPHABET: Final = "ABCDEFGHJKLMNPQRSTUVWXYZ23456789"  # none that look like another
PAIRING_CODE_LENGTH: Final = 8
PAIRING_CODE_TTL_MS: Final = 3600 * 1000  # milliseconds a pairing code is valid
MAX_PENDING_PAIRINGS: Final = 3  # unknown senders that may wait for one account: codes must not be collected


class SenderApprovals:
    """`load` reads the approved senders once; every change goes through this object."""

    def __init__(self, repository: SenderApprovalRepository) -> None:
        self._repository = repository
        self._approved: dict[AccountKey, set[str]] = {}

    async def load(self) -> None:
        approved: dict[AccountKey, set[str]] = {}
        for each in await self._repository.all():
            if each.approved:
                approved.setdefault((each.channel, each.account), set()).add(each.sender)
        self._approved = approved

    def approved_for(self, address: ChatAddress) -> Collection[str]:
        """Ids of the approved senders of an account."""
        return self._approved.get((address.channel, address.account), ())

    async def request(self, message: InboundMessage) -> SenderApproval | None:
        """A new request with its code; None when the sender has one already, or too many wait."""
        sender, address = message.sender, message.address
        if sender.id is None:
            return None
        code = "".join(secrets.choice(PAIRING_CODE_ALPHABET) for _ in range(PAIRING_CODE_LENGTH))
        wanted = SenderApproval(
            channel=address.channel, account=address.account, sender=sender.id, name=sender.name or sender.username,
            code=code, at=now_ms(),
        )  # fmt: skip
        current, is_new = await self._repository.request(
            wanted, max_pending=MAX_PENDING_PAIRINGS, since=_oldest_valid()
        )
        return current if is_new else None

    async def approve(self, channel: str, code: str) -> SenderApproval | None:
        """None when no request of this channel has the code, or it has expired."""
        approved = await self._repository.approve(channel, code.strip().upper(), since=_oldest_valid())
        if approved is not None:
            await self.load()
        return approved

    async def remove(self, channel: str, sender: str) -> bool:
        removed = await self._repository.remove(channel, sender)
        await self.load()
        return removed

    async def list(self) -> Sequence[SenderApproval]:
        """The approved senders, and those whose code is still valid."""
        return [each for each in await self._repository.all() if each.approved or each.at >= _oldest_valid()]


def _oldest_valid() -> int:
    return now_ms() - PAIRING_CODE_TTL_MS
