"""What a run gives its tool server, as environment variables."""

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from ..core.claw_methods import GRANT_PREFIX

SENDER_IS_OWNER: Final = "REMOTECLAW_SENDER_IS_OWNER"


class ClawSettings(Struct, frozen=True, kw_only=True):
    """Where the gateway is and which conversation the run belongs to. All of it are hints: what the run may do, the
    gateway decides by the token."""

    url: str
    token: str
    session_key: str
    effects_file: str
    channel: str = ""
    account: str = ""
    to: str = ""
    thread: str = ""
    owner: bool | None = None
    """None: not given, as when a person starts the server with the gateway's own token."""

    @property
    def has_grant(self) -> bool:
        """Whether this server works for a run: then it adds no rights of its own."""
        return self.token.startswith(GRANT_PREFIX)

    def __repr__(self) -> str:
        return f"Settings(url={self.url!r}, session_key={self.session_key!r}, …)"  # the token must not slip into a log


_VARIABLES: Final = {
    "url": "REMOTECLAW_GATEWAY_URL",
    "token": "REMOTECLAW_GATEWAY_TOKEN",
    "session_key": "REMOTECLAW_SESSION_KEY",
    "effects_file": "REMOTECLAW_SIDE_EFFECTS_FILE",
    "channel": "REMOTECLAW_CHANNEL",
    "account": "REMOTECLAW_ACCOUNT_ID",
    "to": "REMOTECLAW_TO",
    "thread": "REMOTECLAW_THREAD_ID",
}


def from_environment(environ: Mapping[str, str]) -> ClawSettings:
    texts = {field: environ.get(name, "").strip() for field, name in _VARIABLES.items()}
    owner = environ.get(SENDER_IS_OWNER)
    return ClawSettings(**texts, owner=None if owner is None else owner == "true")
