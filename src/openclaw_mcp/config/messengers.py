"""The schema of `channels`: what every account may say, and what each messenger's own settings are."""

from typing import Any, Final

from ..core.model import Json

WHO: Final[Json] = {"type": ["string", "integer"]}


# Defaults are told in words, not as `default`: filled in, they would hide what `channels.defaults` says.


def text(title: str, **more: Any) -> Json:
    return {"type": "string", "title": title, **more}


def flag(title: str, usual: bool | None = None) -> Json:
    return {"type": "boolean", "title": title} | ({} if usual is None else _usually(str(usual).lower()))


def choice(title: str, *words: str) -> Json:
    """The first is the usual one."""
    return {"enum": list(words), "title": title} | _usually(words[0])


def _usually(value: str) -> Json:
    return {"description": f"Unless set: {value}"}


def people(title: str) -> Json:
    return {"type": "array", "title": title, "items": WHO}


GROUP: Final[Json] = {
    "type": "object",
    "title": "One group, by its id; `*` for those not named",
    "properties": {
        "enabled": flag("Answered at all", True),
        "requireMention": flag("Answer only when spoken to"),
        "allowFrom": people("Who may write there"),
    },
    "additionalProperties": False,
}
RULES: Final[Json] = {
    "enabled": flag("Started", True),
    "dmPolicy": choice("Who may write directly", "pairing", "allowlist", "open", "disabled"),
    "allowFrom": people("People who may write; empty = nobody, * = everybody"),
    "groupPolicy": choice("Which groups are answered", "allowlist", "open", "disabled"),
    "groupAllowFrom": people("People who may write in groups; without it, those of allowFrom"),
    "groups": {"type": "object", "title": "Groups by id", "additionalProperties": GROUP},
    "requireMention": flag("In groups, answer only when spoken to", True),
    "replyToMode": choice("Whether answers name what they answer", "off", "first", "all"),
    "textChunkLimit": {
        "type": "integer",
        "title": "Characters of one message, below the messenger's own",
        "minimum": 1,
    },
    "mediaMaxMb": {"type": "number", "title": "Megabytes of one attachment", "exclusiveMinimum": 0} | _usually("20"),
    "actions": {"type": "object", "title": "Abilities switched off", "additionalProperties": {"type": "boolean"}},
}
MATRIX: Final[Json] = {
    "homeserver": text("Homeserver's URL, such as https://matrix.org", pattern="^https?://"),
    "userId": text("Our own id, such as @bot:matrix.org"),
    "accessToken": text("Access token; or MATRIX_ACCESS_TOKEN, or a file"),
    "accessTokenFile": text("File with the access token"),
    "password": text("Password, to log in with instead; or MATRIX_PASSWORD, or a file"),
    "passwordFile": text("File with the password"),
    "deviceName": text("What our login is called", **_usually("openclaw")),
    "encryption": flag("Take part in encrypted rooms (needs the extra `matrix`)", False),
    "autoJoin": choice("Whose invitations are accepted", "off", "allowlist", "always"),
    "autoJoinAllowlist": people("Who may invite us, or which rooms we may be invited to"),
}
TELEGRAM: Final[Json] = {
    "botToken": text("Token from @BotFather; or TELEGRAM_BOT_TOKEN, or a file"),
    "tokenFile": text("File with the token"),
    "baseUrl": text("Another server of the Bot API", pattern="^https?://"),
    "webhookUrl": text("Public https address that leads to /channels/telegram/<account>; without it we poll"),
    "webhookSecret": text("What Telegram says to our webhook; made from the token if unset"),
    "webhookSecretFile": text("File with that secret"),
    "linkPreview": flag("Show previews of links", True),
}


def _messenger(title: str, own: Json) -> Json:
    """A channel's section: settings of its one account, or of several under `accounts`."""
    properties = RULES | own
    account = {"type": "object", "title": "One account", "properties": properties, "additionalProperties": False}
    several = {"type": "object", "title": "Accounts by name", "additionalProperties": account}
    return {
        "type": "object",
        "title": title,
        "properties": properties
        | {"accounts": several, "defaultAccount": text("The account meant when none is named")},
        "additionalProperties": False,
        "x-reload": "hot",
    }


CHANNELS: Final[Json] = {
    "type": "object",
    "title": "Channels by name",
    "properties": {"matrix": _messenger("Matrix", MATRIX), "telegram": _messenger("Telegram", TELEGRAM)},
    "additionalProperties": True,  # `local`, `defaults`, and channels others bring
    "x-reload": "hot",
}
