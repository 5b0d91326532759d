"""Names whose values are secret: of settings and of a program's options. Pure."""

import re
from collections.abc import Sequence
from typing import Final

SECRET_WORD: Final = "(token|password|passwd|secret|key|credential|authorization)"
SHORT_SECRET_WORD: Final = (
    "(pass|passphrase|passcode|pwd|pw|pin|pat|otp|totp|jwt|bearer|cookie|cred|psk|nsec|dsn|mnemonic|sas|sig|signature)"
)
"""Secret as a word of its own: `smtpPass`, and not `bypass`."""
PLAIN_NAME: Final = re.compile(
    r"((main|session|idempotency|declaration|public)[-_]?keys?"
    r"|(max|min|most|total|context|input|output|prompt|completion|budget|reserve)[-_]?(\w*[-_])?tokens?)$",
    re.IGNORECASE,
)
"""Keys that open nothing, the names of sessions, of jobs, of what was sent already; and counts of tokens."""
_LONG_SUFFIX: Final = re.compile(rf"{SECRET_WORD}s?$|(connection|session)[-_ ]?(string|id)$", re.IGNORECASE)
_SHORT_SUFFIX: Final = re.compile(rf"(^|[-_ .]){SHORT_SECRET_WORD}s?$", re.IGNORECASE)
_FORM_SUFFIX: Final = re.compile(
    r"[-_ .](value|values|pem|der|text|data|raw|string|base|b64|hex|plain|hash|old|new|current|\d+)$"
)
"""Suffixes for the form of a secret, after its name: `privateKeyPem`, `TOKEN_2`."""
_CAMEL_BOUNDARY: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Za-z])(?=\d)")
VALUE_NAMES: Final = frozenset({"value", "values", "data", "raw", "text", "access", "refresh", "code", "verifier"})
_HOLDER_NAMES: Final = frozenset({"env", "runtimeEnv", "headers"})
_HOLDER_PATTERN: Final = re.compile(r"(^|[-_])(env|environment|headers)([-_](vars|variables|policy))?$")
_WEBHOOK_NAME: Final = re.compile(r"(^|[-_])(web_?hooks?|hook|callback)([-_]?(url|uri|address|endpoint|to))?$")


def is_secret_name(name: str) -> bool:
    """Whether a value under this name is secret at any path, with all below it."""
    if PLAIN_NAME.search(name):
        return False
    snake = _CAMEL_BOUNDARY.sub("_", name).lower()
    while _LONG_SUFFIX.search(snake) is None and _SHORT_SUFFIX.search(snake) is None:
        shorter = _FORM_SUFFIX.sub("", snake)
        if shorter == snake:
            return False
        snake = shorter
    return True


def is_plural_name(name: str) -> bool:
    """Whether the name may also count things: `tokens: 4096` is a limit, `tokens: ["…"]` are secrets."""
    return re.search(r"(token|key|pin|secret|credential)s$", name, re.IGNORECASE) is not None


def is_auth_name(name: str) -> bool:
    """Whether a value under this name, called no more than that, proves who we are: `basicAuth: {value}`."""
    return re.search(r"(^|_)o?auth_?2?$", _CAMEL_BOUNDARY.sub("_", name).lower()) is not None


def has_secret_holder(names: Sequence[str]) -> bool:
    """Whether one of these, the names on the path to a value, holds what is sent to a program or server under any name:
    most of it proves who we are."""
    return not _HOLDER_NAMES.isdisjoint(names) or any(
        _HOLDER_PATTERN.search(_CAMEL_BOUNDARY.sub("_", name).lower()) for name in names[:-1]
    )


def is_webhook_name(name: str) -> bool:
    """Whether an address under this name is known to few: who knows it may post there."""
    return _WEBHOOK_NAME.search(_CAMEL_BOUNDARY.sub("_", name).lower()) is not None
