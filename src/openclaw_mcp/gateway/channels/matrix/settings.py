"""One Matrix account as `channels.matrix` in openclaw.json describes it."""

from typing import Literal

from msgspec import Struct, ValidationError, convert

from ....core.channel import ChannelRefused
from ....core.model import Json
from ..secrets import DEFAULT_ACCOUNT, read_secret


class MatrixSettings(Struct, frozen=True, kw_only=True, rename="camel"):
    """Further keys of the section are the mailroom's: who may write, and when we answer."""

    homeserver: str = ""
    user_id: str | None = None
    access_token: str | None = None
    access_token_file: str | None = None
    password: str | None = None
    password_file: str | None = None
    device_name: str = "openclaw"
    encryption: bool = False
    auto_join: Literal["off", "allowlist", "always"] = "off"
    """Whose invitations are accepted; `off`: nobody's."""
    auto_join_allowlist: tuple[str, ...] = ()
    """Ids of people who may invite us, and ids or aliases of rooms we may be invited to."""
    media_max_mb: float = 20
    """Megabytes of one attachment, either way."""

    @classmethod
    def read(cls, config: Json) -> "MatrixSettings":
        """Raises ChannelRefused naming what to change."""
        try:
            settings = convert(config, cls)
        except ValidationError as exc:
            raise ChannelRefused(f"channels.matrix is not right: {exc}") from exc
        if not settings.homeserver.startswith(("https://", "http://")):
            raise ChannelRefused("channels.matrix.homeserver must be the server's URL, such as https://matrix.org")
        return settings

    @property
    def media_limit(self) -> int:
        return int(self.media_max_mb * (1 << 20))

    def resolve_token(self, account: str) -> str | None:
        """The environment speaks for the default account alone: two with one token would answer twice."""
        own = account == DEFAULT_ACCOUNT and not self.password and not self.password_file
        return read_secret(self.access_token, self.access_token_file, "MATRIX_ACCESS_TOKEN" if own else None)

    def resolve_password(self, account: str) -> str | None:
        return read_secret(self.password, self.password_file, "MATRIX_PASSWORD" if account == DEFAULT_ACCOUNT else None)
