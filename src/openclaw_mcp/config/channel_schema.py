"""The schema of `channels.matrix` and `channels.telegram`: their own settings beside the rules every channel has."""

from typing import Any, Final

from ..core.model import Json

# What holds when nothing is set is told in words, not as `default`: filled in, it would hide `channels.defaults`.


def string(title: str, **more: Any) -> Json:
    return {"type": "string", "title": title, **more}


MATRIX: Final[Json] = {
    "homeserver": string("Homeserver's URL, such as https://matrix.org", pattern="^https?://"),
    "userId": string("Our own id, such as @bot:matrix.org"),
    "accessToken": string("Access token; or MATRIX_ACCESS_TOKEN, or a file"),
    "accessTokenFile": string("File with the access token"),
    "password": string("Password to log in with instead; or MATRIX_PASSWORD, or a file"),
    "passwordFile": string("File with the password"),
    "deviceName": string("What our login is called; else openclaw"),
    "encryption": {"type": "boolean", "title": "Take part in encrypted rooms (needs the extra `matrix`); else not"},
    "autoJoin": {"enum": ["off", "allowlist", "always"], "title": "Whose invitations are accepted; else nobody's"},
    "autoJoinAllowlist": {
        "type": "array",
        "title": "Ids of people who may invite us, and ids or aliases of rooms we may be invited to",
        "items": {"type": "string"},
    },
}
TELEGRAM: Final[Json] = {
    "botToken": string("Token from @BotFather; or TELEGRAM_BOT_TOKEN, or a file"),
    "tokenFile": string("File with the token"),
    "baseUrl": string("Another server of the Bot API than Telegram's", pattern="^https?://"),
    "webhookUrl": string("Public https address that leads to /channels/telegram/<account> here; else we poll"),
    "webhookSecret": string("What Telegram says to our webhook; else one made from the token"),
    "webhookSecretFile": string("File with that secret"),
    "linkPreview": {"type": "boolean", "title": "Show previews of links; else yes"},
}


def messenger_sections(rules: Json) -> Json:
    """Each messenger's section, closed: a key that is misspelt is named, not passed over."""
    bare = {name: {key: value for key, value in rule.items() if key != "default"} for name, rule in rules.items()}
    return {"matrix": _section("Matrix", bare | MATRIX), "telegram": _section("Telegram", bare | TELEGRAM)}


def _section(title: str, properties: Json) -> Json:
    """The settings of one account, or of several under `accounts`."""
    account = {"type": "object", "title": "One account", "properties": properties, "additionalProperties": False}
    several = {"type": "object", "title": "Accounts by id", "additionalProperties": account}
    more = {"accounts": several, "defaultAccount": string("The account that speaks when none is named")}
    return {
        "type": "object",
        "title": title,
        "properties": properties | more,
        "additionalProperties": False,
        "x-reload": "hot",
    }
