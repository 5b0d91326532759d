"""Which addresses are of the public internet, and the one way to look a host up before something is sent to it.

A peer that may name an address that we then fetch must not reach what only we can reach: this machine, its network, the
neighbours of a cloud machine. Our own list decides, since Python's `is_global` says other things in other versions and
takes no notice of an IPv4 address inside of an IPv6 one.
"""

import asyncio
import ipaddress
import re
import socket
import unicodedata
from typing import Final
from urllib.parse import unquote

from ..core.errors import OpenClawError

IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address

NON_PUBLIC_NETWORKS: Final = tuple(
    ipaddress.ip_network(text)
    for text in (
        "0.0.0.0/8",  # this network
        "10.0.0.0/8",
        "100.64.0.0/10",  # behind a provider's NAT
        "127.0.0.0/8",
        "169.254.0.0/16",  # link-local; the metadata of cloud machines
        "172.16.0.0/12",
        "192.0.0.0/24",  # protocol assignments
        "192.0.2.0/24",  # documentation
        "192.88.99.0/24",  # relays of 6to4
        "192.168.0.0/16",
        "198.18.0.0/15",  # benchmarks
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved; 255.255.255.255 is broadcast
        "2001::/23",  # protocol assignments; Teredo, benchmarks, ORCHID
        "2001:db8::/32",  # documentation
        "3ffe::/16",  # given back
        "3fff::/20",  # documentation
    )
)
GLOBAL_UNICAST: Final = ipaddress.IPv6Network("2000::/3")
"""Of IPv6 only this part is the internet's: not ::1, fc00::, fe80::, fec0::, ff00::, nor what is not given out yet."""
IPV4_CARRIERS: Final = (
    (ipaddress.IPv6Network("::ffff:0:0/96"), 0),  # IPv4-mapped
    (ipaddress.IPv6Network("64:ff9b::/96"), 0),  # NAT64
    (ipaddress.IPv6Network("2002::/16"), 80),  # 6to4
)
"""IPv6 that is a way to an IPv4 address, and how many bits follow it. Such an address is what it carries."""
ISATAP_MARKERS: Final = (0x00005EFE, 0x02005EFE)
"""The middle of an address that leads to the IPv4 address at its end, in any network."""
IPV4_NUMBERS: Final = re.compile(r"(0x[0-9a-f]*|[0-9]+)(\.(0x[0-9a-f]*|[0-9]+)){0,3}")


class NoSuchHost(OpenClawError):
    code = "no_such_host"


class NotPublic(OpenClawError):
    """The host has an address that is not of the public internet."""

    code = "not_public"


def is_public(address: str | IpAddress) -> bool:
    """Whether this address means the same machine everywhere. What is no address is not public."""
    if isinstance(address, str):
        try:  # one with a zone, fe80::1%eth0, is a neighbour's
            address = ipaddress.ip_address(address)
        except ValueError:
            return False
    if isinstance(address, ipaddress.IPv6Address):
        if address.scope_id is not None:
            return False
        for network, behind in IPV4_CARRIERS:
            if address in network:
                return is_public(ipaddress.IPv4Address(int(address) >> behind & 0xFFFFFFFF))
        if int(address) >> 32 & 0xFFFFFFFF in ISATAP_MARKERS and not is_public(
            ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        ):
            return False
        if address not in GLOBAL_UNICAST:
            return False
    return not any(address in network for network in NON_PUBLIC_NETWORKS if network.version == address.version)


def normalize_host(host: str) -> str:
    """A host as others may have meant it: without escapes, wide letters, capitals, brackets, the dot at the end."""
    plain = unicodedata.normalize("NFKC", unquote(host)).strip().lower()
    plain = plain.removeprefix("[").removesuffix("]").rstrip(".")
    if ":" in plain or plain.isascii():
        return plain
    try:
        return plain.encode("idna").decode()
    except UnicodeError:
        return plain


def parse_ip_literal(host: str) -> IpAddress | None:
    """The address a host spells, in any of the ways that are understood: 127.1, 0x7f000001, 0177.1, [::1%lo], …"""
    host = normalize_host(host)
    if ":" in host:
        try:
            return ipaddress.IPv6Address(host)
        except ValueError:
            return None
    if not IPV4_NUMBERS.fullmatch(host):
        return None
    try:
        return ipaddress.IPv4Address(socket.inet_aton(host))
    except OSError:
        return None


async def resolve_host(host: str, port: int | None, *, allow_private: bool = False) -> list[str]:
    """The addresses of a host, each of the public internet unless `allow_private`. Raises NoSuchHost and NotPublic.

    Connect to one of these and to no other: a name may mean another address the next time it is asked."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise NoSuchHost(f"the host {host[:255]} can't be found") from None
    addresses = [str(one[4][0]) for one in found]
    if not addresses:
        raise NoSuchHost(f"the host {host[:255]} has no address")
    if not allow_private and not all(map(is_public, addresses)):
        raise NotPublic(f"the host {host[:255]} is on this machine or its network")
    return addresses


def url_host(address: str) -> str:
    """An address as the host of a URL."""
    return f"[{address.partition('%')[0]}]" if ":" in address else address
