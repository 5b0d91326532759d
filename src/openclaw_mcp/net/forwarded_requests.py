"""Requests that a reverse proxy passes on: whose they are. Pure."""

import ipaddress
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Final

from msgspec import Struct

from .peers import is_loopback

FORWARDED_FOR: Final = "x-forwarded-for"


class RequestRefusal(Struct, frozen=True):
    """Why a request is refused before it is read."""

    message: str
    type: str = "forbidden"

    def body(self) -> dict[str, dict[str, str]]:
        """As the gateway's HTTP answers have it."""
        return {"error": {"message": self.message, "type": self.type}}


UNATTRIBUTED: Final = RequestRefusal(
    "Proxy client attribution is required. Configure gateway.trustedProxies narrowly and make the proxy overwrite or "
    "safely rebuild forwarded client headers.",
    "proxy_attribution_required",
)

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def is_forwarded(header_names: Iterable[str]) -> bool:
    """Whether a request says that it was passed on, by the names of its headers in lower case."""
    return any(name in ("forwarded", "x-real-ip") or name.startswith("x-forwarded-") for name in header_names)


def client_address(
    peer: str, *, forwarded: bool, forwarded_for: Sequence[str], trusted: Sequence[str]
) -> str | None:  # fmt: skip
    """The address of who sent a request: the peer's own, or the one that a trusted proxy names.

    None: it was passed on, and no trusted proxy says from where, so it is neither this machine's nor a known other's.
    A proxy adds the address it got the request from at the end; what stands before those of trusted proxies may be
    the client's own invention.
    """
    networks = _read_networks(tuple(trusted))
    if not _is_within(peer, networks):
        return None if forwarded else peer
    if not forwarded and is_loopback(peer):
        return peer  # a program beside the proxy
    named = [part.strip() for value in forwarded_for for part in value.split(",")]
    found = next((part for part in reversed(named) if not _is_within(part, networks)), None)
    return found if found is not None and _is_address(found) and not is_loopback(found) else None


@lru_cache(maxsize=16)
def _read_networks(trusted: tuple[str, ...]) -> tuple[Network, ...]:
    """What can't be read trusts no one."""
    found = []
    for text in trusted:
        try:
            found.append(ipaddress.ip_network(text.strip(), strict=False))
        except ValueError:
            continue
    return tuple(found)


def _is_within(text: str, networks: Sequence[Network]) -> bool:
    if not networks or not _is_address(text):
        return False
    address = ipaddress.ip_address(text.partition("%")[0])
    mapped = getattr(address, "ipv4_mapped", None)
    return any((mapped or address) in network for network in networks)


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return False
    return True
