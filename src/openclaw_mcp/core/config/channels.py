"""`channels` of openclaw.json: the rules every channel has, and the keys of Matrix and Telegram.

`channels.defaults`, a channel and its accounts override each other, so the section is kept as it is written, and an
account is read from all three together (`gateway/channels/settings.py`).
"""

from typing import Annotated, Literal

from msgspec import Struct

from .keys import ACCESS, ADDRESS, FREE, LIMIT, PERMISSIONS, SECRET, SENDERS, UNKNOWN, Section, key

DmPolicy = Literal["pairing", "allowlist", "open", "disabled"]
GroupPolicy = Literal["allowlist", "open", "disabled"]
SenderIds = tuple[str | int, ...]


class GroupRules(Struct, frozen=True, kw_only=True, rename="camel"):
    enabled: bool = True
    require_mention: bool | None = None
    allow_from: SenderIds | None = None


class ChannelRules(Section, frozen=True):
    """What an account follows. An empty list admits no sender; `*` admits every one."""

    enabled: Annotated[bool, key("Used", ACCESS)] = True
    dm_policy: Annotated[DmPolicy, key("Who may write directly", SENDERS)] = "pairing"
    allow_from: Annotated[SenderIds, key("Who may write; * is everybody, an empty list no one", SENDERS)] = ()
    group_policy: Annotated[GroupPolicy, key("Who may write in groups", SENDERS)] = "allowlist"
    group_allow_from: Annotated[
        SenderIds | None, key("Who may write in groups, when others than allowFrom", SENDERS)
    ] = None
    groups: Annotated[
        dict[str, GroupRules],
        key("Rules for single groups by id; * for the others", SENDERS, reload="hot", any_object=True),
    ] = {}
    require_mention: Annotated[bool, key("In groups, answer only messages that mention us", SENDERS)] = True
    reply_to_mode: Annotated[Literal["off", "first", "all"], key("Whether answers quote the question", FREE)] = "off"
    text_chunk_limit: (
        Annotated[int, key("Characters of one message, when fewer than the channel takes", FREE, ge=1)] | None
    ) = None
    media_max_mb: Annotated[float, key("Megabytes of one file", LIMIT, gt=0)] | None = None
    actions: Annotated[
        dict[str, bool], key("Abilities switched off: {pin: false}", PERMISSIONS, reload="hot", any_object=True)
    ] = {}


class OtherAccount(ChannelRules, frozen=True):
    """One account."""

    is_open = True


DefaultAccountId = Annotated[str | None, key("The account that speaks when none is named", ADDRESS)]


class OtherChannel(ChannelRules, frozen=True):
    """One channel."""

    is_open = True
    accounts: Annotated[
        dict[str, Annotated[OtherAccount, key(agents=UNKNOWN, reload="hot")]], key("Accounts by id")
    ] = {}
    default_account: DefaultAccountId = None


class MatrixAccount(ChannelRules, frozen=True):
    """One account."""

    homeserver: Annotated[str, key("Homeserver's URL, such as https://matrix.org", ADDRESS, pattern="^https?://")] = ""
    user_id: Annotated[str | None, key("Our own id, such as @bot:matrix.org", SENDERS)] = None
    access_token: Annotated[str | None, key("Access token; or MATRIX_ACCESS_TOKEN, or a file", SECRET)] = None
    access_token_file: Annotated[str | None, key("File with the access token", SECRET)] = None
    password: Annotated[str | None, key("Password to log in with instead; or MATRIX_PASSWORD, or a file", SECRET)] = (
        None
    )
    password_file: Annotated[str | None, key("File with the password", SECRET)] = None
    device_name: Annotated[str, key("Name of our login; else openclaw", FREE)] = "openclaw"
    encryption: Annotated[bool, key("Take part in encrypted rooms (needs the extra `matrix`); else not", ACCESS)] = (
        False
    )
    auto_join: Annotated[
        Literal["off", "allowlist", "always"], key("Whose invitations are accepted; else none", SENDERS)
    ] = "off"
    auto_join_allowlist: Annotated[
        tuple[str, ...],
        key("Ids of people who may invite us, and ids or aliases of rooms we may be invited to", SENDERS),
    ] = ()


class MatrixChannelConfig(MatrixAccount, frozen=True):
    """Matrix."""

    accounts: Annotated[dict[str, Annotated[MatrixAccount, key(reload="hot")]], key("Accounts by id")] = {}
    default_account: DefaultAccountId = None


TELEGRAM_API_URL = "https://api.telegram.org"


class TelegramAccount(ChannelRules, frozen=True):
    """One account."""

    bot_token: Annotated[str | None, key("Token from @BotFather; or TELEGRAM_BOT_TOKEN, or a file", SECRET)] = None
    token_file: Annotated[str | None, key("File with the token", SECRET)] = None
    base_url: Annotated[str, key("Another server of the Bot API than Telegram's", ADDRESS, pattern="^https?://")] = (
        TELEGRAM_API_URL
    )
    webhook_url: Annotated[
        str | None, key("Public https address that leads to /channels/telegram/<account> here; else we poll", ADDRESS)
    ] = None
    webhook_secret: Annotated[
        str | None, key("Secret Telegram sends to our webhook; else one made from the token", SECRET)
    ] = None
    webhook_secret_file: Annotated[str | None, key("File with that secret", SECRET)] = None
    link_preview: Annotated[bool, key("Show previews of links; else yes", FREE)] = True


class TelegramChannelConfig(TelegramAccount, frozen=True):
    """Telegram."""

    accounts: Annotated[dict[str, Annotated[TelegramAccount, key(reload="hot")]], key("Accounts by id")] = {}
    default_account: DefaultAccountId = None
