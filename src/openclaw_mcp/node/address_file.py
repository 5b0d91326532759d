"""Where the local MCP server answers right now, for clients of this machine: a file beside that of its token."""

import socket
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from .private_files import read_private, write_private

ADDRESS_FILE: Final = "mcp-url.txt"
MAX_FILE_BYTES: Final = 4096
CONNECT_TIMEOUT: Final = 0.5  # seconds a server of this machine has to accept a connection


class AddressFile:
    """Holds the address of the server that was opened last in a state directory."""

    def __init__(self, state_dir: Path) -> None:
        self.path = state_dir / ADDRESS_FILE
        self._before: str | None = None
        """What the file held when it was written."""

    def write(self, address: str) -> None:
        self._before = self.read()
        write_private(self.path, f"{address}\n".encode())

    def read(self) -> str | None:
        """None while no server answers; a killed one leaves the address at which it last did."""
        try:
            return read_private(self.path, largest=MAX_FILE_BYTES).decode("ascii").strip() or None
        except (OSError, UnicodeDecodeError):
            return None

    def remove(self, address: str) -> None:
        """To be called when the server at `address` closes; a newer server's address stays, and that of an earlier one
        that still listens is written again."""
        if self.read() != address:
            return
        if self._before is not None and self._before != address and _listens(self._before):
            self.write(self._before)
        else:
            self.path.unlink(missing_ok=True)


def _listens(address: str) -> bool:
    url = urlsplit(address)
    try:
        socket.create_connection((url.hostname or "", url.port or 0), CONNECT_TIMEOUT).close()
    except (OSError, ValueError):
        return False
    return True
