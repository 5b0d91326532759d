"""What `config.get` shows: no secret, whatever it is called and wherever it stands; what is none stays to be seen."""

import json
from typing import Any

import pytest

from openclaw_mcp.config import redaction

HUSH = "hidden-hush-value"
PLUGIN = ("plugins", "entries", "p", "config")

NAMES = (
    "pass", "passphrase", "passcode", "pwd", "pw", "pin", "otp", "jwt", "bearer", "cookie", "cookies", "pat", "nsec",
    "psk", "dsn", "mnemonic", "signature", "creds", "cred", "credential", "credentials", "apiKeys", "token", "tokens",
    "keys", "secrets", "passwords", "authorization", "privateKeyPem", "clientSecretValue", "TOKEN_2", "apiKey1",
    "secret_base64", "passwordHash", "smtpPass", "db_pass", "SMTP_PWD", "userPin", "sessionCookie", "connectionString",
    "sessionId", "session-id", "refreshTokens", "API_KEYS", "accessTokenOld", "auth",
)  # fmt: skip


def put(path: tuple[Any, ...], value: Any) -> Any:
    for step in reversed(path):
        value = [value] if step == 0 else {step: value}
    return value


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("under", [(), (0,), ("deeper", "still")])
def test_what_is_called_secret_is_hidden(name: str, under: tuple[Any, ...]) -> None:
    if name == "auth" and under:
        return  # `auth: {mode}` says how, not with what
    assert HUSH not in json.dumps(redaction.redact_secrets(put((*PLUGIN, name, *under), HUSH)))


@pytest.mark.parametrize(
    "path",
    [
        ("secrets", "providers", "vault", "value"),
        ("secrets", "anything"),
        ("secrets", "list", 0),
        ("env", "vars", "PLAIN"),
        ("agents", "defaults", "runtimeEnv", "PLAIN"),
        ("agents", "list", 0, "runtimeEnv", "PLAIN"),
        ("models", "providers", "x", "headers", "X-Plain"),
        ("models", "providers", "x", "apiKey", 0),
        ("mcp", "servers", "x", "env", "PLAIN"),
        ("channels", "irc", "nickserv", "pass"),
        ("channels", "telegram", "accounts", "a", "webhookSecret"),
        ("cron", "webhookToken"),
        ("gateway", "auth", "token"),
        (*PLUGIN, "auth", "pass"),
        (*PLUGIN, "basicAuth", "value"),
        (*PLUGIN, "smtp", "pass"),
        (*PLUGIN, "keys", 0, "value"),
    ],
)
@pytest.mark.parametrize("value", [HUSH, 4711])
def test_what_stands_at_a_secret_place_is_hidden(path: tuple[Any, ...], value: Any) -> None:
    if value == 4711 and ("keys" in path):
        return  # how many keys there are is no secret
    assert str(value) not in json.dumps(redaction.redact_secrets(put(path, value)))


@pytest.mark.parametrize(
    "arguments",
    [
        ["--api-keys", HUSH], ["--creds", HUSH], [f"--pw={HUSH}"], ["--pin", HUSH], ["--tokens", HUSH],
        [f"--tokens={HUSH}"], [f"--api-keys={HUSH}"], ["--jwt", HUSH], [f"--otp={HUSH}"], ["--cookies", HUSH],
        ["--dsn", HUSH], ["--credentials", HUSH], ["--passphrase", HUSH], ["-u", f"root:{HUSH}"], [f"creds={HUSH}"],
        [f"https://hooks.slack.com/services/T000/B000/{HUSH}"], [f"https://discord.com/api/webhooks/12/{HUSH}"],
        [f"https://x.webhook.office.com/webhookb2/{HUSH}"],
    ],
)  # fmt: skip
def test_secret_arguments_are_hidden(arguments: list[str]) -> None:
    config = {"mcp": {"servers": {"m": {"command": "/bin/true", "args": arguments}}}}
    assert HUSH not in json.dumps(redaction.redact_secrets(config))
    assert HUSH not in redaction.redact_text(json.dumps(config), config)


def test_a_webhook_that_is_its_own_secret_is_hidden_wherever_it_stands() -> None:
    config = put((*PLUGIN, "webhook"), f"https://hooks.slack.com/services/T000/B000/{HUSH}")
    assert HUSH not in json.dumps(redaction.redact_secrets(config))


def test_a_comment_that_names_a_secret_shortly_is_not_shown() -> None:
    for word in ("pass", "pwd", "pin", "creds", "jwt"):
        assert HUSH not in redaction.redact_text(f"{{ // {word} {HUSH}\n }}", {})


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("agents", "defaults", "limits", "tokens"), 4096),
        (("models", "providers", "x", "models", 0, "maxTokens"), 4096),
        ((*PLUGIN, "maxTokens"), "4096"),
        ((*PLUGIN, "max_output_tokens"), "4096"),
        ((*PLUGIN, "bypass"), "loopback"),
        ((*PLUGIN, "keyboard"), "de"),
        ((*PLUGIN, "pattern"), "a*"),
        ((*PLUGIN, "compass"), "north"),
        ((*PLUGIN, "spin"), "left"),
        ((*PLUGIN, "author"), "Ann"),
        ((*PLUGIN, "auth", "user"), "ann"),
        (("gateway", "auth", "mode"), "token"),
        (("session", "mainKey"), "main"),
        (("session", "identityLinks", "pat", 0), "telegram:1"),
        (("mcp", "servers", "tokens", "command"), "npx"),
        (("channels", "telegram", "tokenFile"), "/run/token"),
        (("channels", "matrix", "accounts", "a", "passwordFile"), "/run/pass"),
        (("tools", "deny", 0), "message_pin"),
        (("mcp", "servers", "m", "args"), ["--max-tokens", "4096"]),
        (("mcp", "servers", "m", "args"), ["max_tokens=4096", "--tokens=4096"]),
        (("mcp", "servers", "m", "args"), ["--no-cookies", "plain"]),
        (("cron", "webhookToken"), "${HOOK_TOKEN}"),
    ],
)
def test_what_is_no_secret_is_shown(path: tuple[Any, ...], value: Any) -> None:
    config = put(path, value)
    assert redaction.redact_secrets(config) == config


def test_where_a_key_is_kept_is_shown() -> None:
    config = put(("models", "providers", "x", "apiKey"), {"source": "env", "id": "A_KEY"})
    assert redaction.redact_secrets(config) == config
