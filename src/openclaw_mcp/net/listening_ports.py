"""Which process listens on a port, and whether one does."""

import socket
from typing import Final
from urllib.parse import urlsplit

CONNECT_TIMEOUT: Final = 1.0  # seconds to find out whether a server listens


def can_connect(url: str) -> bool:
    """Whether a server listens there. Blocks for CONNECT_TIMEOUT at most."""
    address = urlsplit(url)
    try:
        with socket.create_connection((address.hostname or "", address.port or 0), CONNECT_TIMEOUT):
            return True
    except (OSError, ValueError):
        return False


def find_port_owner(port: int) -> str | None:
    """The name and number of a process; None when none listens there, or the system does not say."""
    import psutil  # here for start-up: only a start that fails and reports ask

    try:
        for held in psutil.net_connections("tcp"):
            if held.status == psutil.CONN_LISTEN and held.pid and held.laddr and held.laddr.port == port:
                return f"{psutil.Process(held.pid).name()} (process {held.pid})"
    except (psutil.Error, OSError):
        pass
    return None
