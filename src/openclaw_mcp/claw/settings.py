"""What a run tells its tool server, as environment variables."""

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from ..core.claw_methods import GRANT_PREFIX

SENDER_IS_OWNER: Final = "REMOTECLAW_SENDER_IS_OWNER"
TOOL_PROFILE: Final = "REMOTECLAW_TOOL_PROFILE"
TOOLS: Final = "REMOTECLAW_TOOLS"


class ClawSettings(Struct, frozen=True, kw_only=True):
    """Where the gateway is and which conversation the run belongs to. Hints, all of it: what the run may do is what the
    gateway finds under the token."""

    url: str
    token: str
    session_key: str
    effects_file: str
    channel: str = ""
    account: str = ""
    to: str = ""
    thread: str = ""
    owner: bool | None = None
    """None: not said, as when somebody starts the server by hand with the gateway's own token."""
    profile: str = ""
    tools: tuple[str, ...] | None = None
    """The tools to be listed; None = all that profile and owner leave."""

    @property
    def has_grant(self) -> bool:
        """Whether this server works for a run: then it lends no rights of ours, whatever else it was told."""
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
    "profile": TOOL_PROFILE,
}


def from_environment(environ: Mapping[str, str]) -> ClawSettings:
    words = {field: environ.get(name, "").strip() for field, name in _VARIABLES.items()}
    owner = environ.get(SENDER_IS_OWNER)
    menu = environ.get(TOOLS)
    return ClawSettings(
        **words,
        owner=None if owner is None else owner == "true",
        tools=None if menu is None else tuple(menu.replace(",", " ").split()),
    )


def as_environment(settings: ClawSettings) -> dict[str, str]:
    """What a bridge gives the server it has started; empty where there is nothing to say, so that nothing is inherited
    from the bridge's own environment."""
    variables = {name: str(getattr(settings, field)) for field, name in _VARIABLES.items()}
    if settings.owner is not None:
        variables[SENDER_IS_OWNER] = "true" if settings.owner else "false"
    if settings.tools is not None:
        variables[TOOLS] = ",".join(settings.tools)
    return variables
