"""One Matrix account as `channels.matrix` in openclaw.json describes it."""

from msgspec import ValidationError, convert

from ....core.channel import ChannelRefused
from ....core.config.channels import MatrixAccount
from ....core.model import Json
from ..secrets import read_secret
from ..settings import DEFAULT_ACCOUNT


class MatrixSettings(MatrixAccount, frozen=True):
    media_max_mb: float = 20
    """Megabytes of one attachment, in both directions."""

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
        """The environment is for the default account alone: two with one token would answer twice."""
        own = account == DEFAULT_ACCOUNT and not self.password and not self.password_file
        return read_secret(self.access_token, self.access_token_file, "MATRIX_ACCESS_TOKEN" if own else None)

    def resolve_password(self, account: str) -> str | None:
        return read_secret(self.password, self.password_file, "MATRIX_PASSWORD" if account == DEFAULT_ACCOUNT else None)
