"""Requests that ask for another protocol than we speak: their heads as those of the plain requests they also are.

The parser stops behind such a head, even if the request has a body. To continue with it would read the body as the
next request, which an attacker may have written for the next client on one connection of a reverse proxy.
"""

from collections.abc import Iterable
from typing import Final

UPGRADE_HEADERS: Final = frozenset({b"upgrade", b"http2-settings"})  # headers, and words in `Connection`, of the wish
BODY_HEADERS: Final = frozenset({b"content-length", b"transfer-encoding"})

Headers = Iterable[tuple[bytes, bytes]]


def strip_upgrade(method: str, url: bytes, version: str, headers: Headers) -> bytes:
    """The same head without the wish."""
    lines = [b"%b %b HTTP/%b" % (method.encode(), url, version.encode())]
    for name, value in headers:
        if name == b"connection":
            words = [word.strip() for word in value.split(b",")]
            lines.append(b"connection: " + b", ".join(word for word in words if word.lower() not in UPGRADE_HEADERS))
        elif name not in UPGRADE_HEADERS:
            lines.append(name + b": " + value)
    return b"\r\n".join(lines) + b"\r\n\r\n"


def is_websocket_request(method: str, headers: Headers) -> bool:
    """Whether a request for a WebSocket is one: a GET without a body."""
    return method == "GET" and not any(name in BODY_HEADERS and value != b"0" for name, value in headers)
