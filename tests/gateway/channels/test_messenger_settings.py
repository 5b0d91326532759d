"""The settings of Matrix and Telegram in openclaw.json: checked by name, not in the way of `channels.defaults`."""

from openclaw_mcp.config.redaction import redact_secrets
from openclaw_mcp.config.schema import ConfigSchema
from openclaw_mcp.gateway.channels.settings import read_accounts


def test_a_misspelt_setting_is_named() -> None:
    config = {
        "channels": {"matrix": {"homserver": "https://matrix.org"}, "telegram": {"accounts": {"a": {"token": "x"}}}}
    }
    found = [issue["message"] for issue in ConfigSchema().find_issues(config)]
    assert found == ['Unrecognized key: "homserver"', 'Unrecognized key: "token"']


def test_what_all_channels_share_is_not_hidden_by_what_holds_when_nothing_is_set() -> None:
    config = {"channels": {"defaults": {"requireMention": False, "dmPolicy": "open"}, "matrix": {"userId": "@b:x.y"}}}
    filled = ConfigSchema().fill_defaults(config)
    (account,) = [one for one in read_accounts(filled["channels"]) if one.channel == "matrix"]
    assert (account.rules.require_mention, account.rules.dm_policy) == (False, "open")
    assert account.settings["userId"] == "@b:x.y"


def test_secrets_are_hidden_where_the_config_is_shown() -> None:
    channels = {
        "matrix": {"accessToken": "s1", "password": "s2"},
        "telegram": {"botToken": "s3", "webhookSecret": "s4"},
    }
    redacted = str(redact_secrets({"channels": channels}))
    assert not any(secret in redacted for secret in ("s1", "s2", "s3", "s4"))
