"""The bearer token of the local MCP server: made at first need, kept, and not replaced because it can't be read."""

import re
import secrets
from pathlib import Path
from typing import Final

from ..core.errors import OpenClawError
from .private_files import FileStamp, file_stamp, read_private, write_private

TOKEN_FILE: Final = "mcp-token.txt"
RANDOM_BYTES: Final = 32  # 43 characters of base64url
MAX_FILE_BYTES: Final = 4096
_VALID_TOKEN: Final = re.compile(r"[\x21-\x7e]{16,512}")


class BadToken(OpenClawError):
    code = "bad_token"


class TokenFile:
    """The token that the file holds right now; a new one counts from the next request on."""

    def __init__(self, state_dir: Path) -> None:
        self.path = state_dir / TOKEN_FILE
        self._token: str | None = None
        self._file_stamp: FileStamp | None = None

    def ensure(self) -> str:
        """The token, made if the file is missing or blank. Raises BadToken when it is there and can't be used."""
        try:
            return self.read()
        except FileNotFoundError:
            return self.reset()

    def reset(self) -> str:
        token = secrets.token_urlsafe(RANDOM_BYTES)
        write_private(self.path, token.encode())
        return token

    def read(self) -> str:
        """Raises FileNotFoundError when there is none, BadToken when it can't be used."""
        try:
            token = read_private(self.path, largest=MAX_FILE_BYTES).decode("ascii").strip()
        except FileNotFoundError:
            raise
        except (OSError, UnicodeDecodeError) as exc:
            raise BadToken(f"{self.path} can't be read: make it a plain file of yours, or delete it") from exc
        if not token:
            raise FileNotFoundError(self.path)
        if not _VALID_TOKEN.fullmatch(token):
            raise BadToken(f"{self.path} holds no usable token: delete it and a new one is made")
        return token

    def current_token(self) -> str | None:
        """The token, read again when the file has changed; None while it can't be used: then no request is admitted."""
        stamp = file_stamp(self.path)
        if stamp is None or stamp != self._file_stamp:
            try:
                self._token, self._file_stamp = self.read(), stamp
            except (OSError, BadToken):
                self._token, self._file_stamp = None, None
        return self._token

    def is_readable_by_others(self) -> bool:
        return bool(self.path.stat().st_mode & 0o077)
