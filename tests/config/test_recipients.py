"""A stored secret stays with the address it was given for."""

import asyncio
import copy
import json
from pathlib import Path
from typing import Any

import pytest

from openclaw_mcp.config import parsing, redaction
from openclaw_mcp.config.secrets.recipients import remove_paths
from openclaw_mcp.core.model import Json
from openclaw_mcp.core.rpc import RpcError

from .test_permission import PERSON, ConfigCaller

CONFIG: Json = {
    "gateway": {"auth": {"token": "gate"}, "remote": {"url": "wss://far.example", "token": "far-token"}},
    "models": {
        "providers": {
            "near": {"baseUrl": "https://near.example/v1", "apiKey": "k-near", "headers": {"X-Key": "h", "X-Org": "o"}},
            "several": {"baseUrl": "https://several.example", "apiKey": ["k-1", "k-2"]},
            "named": {"baseUrl": "https://named.example", "apiKey": "${NAMED_KEY}"},
            "filed": {"baseUrl": "https://filed.example", "apiKey": {"source": "file", "path": "/keys/filed"}},
            "openai": {"apiKey": "k-openai"},
        }
    },
    "mcp": {"servers": {"far": {"url": "https://mcp.example/a", "headers": {"Authorization": "Bearer mcp-token"},
                                "oauth": {"clientSecret": "oauth-secret"}},
                        "near": {"command": "x", "env": {"KEY": "env-key"}}}},
    "channels": {
        "telegram": {"botToken": "1:tg", "webhookUrl": "https://hook.example/x", "webhookSecret": "wh",
                     "tokenFile": "/t"},
        "matrix": {"homeserver": "https://home.example", "accessToken": "mx",
                   "accounts": {"a": {"password": "mx-a"},
                                "b": {"homeserver": "https://b.example", "accessToken": "b"}}},
    },
    "hooks": {"endpoint": "https://hooks.example", "token": "hook-token"},
}  # fmt: skip


def provider(name: str, **changed: Any) -> Json:
    return {"models": {"providers": {name: changed}}}


DROPPED: list[tuple[str, Json, list[str]]] = [
    ("another host", provider("near", baseUrl="https://evil.example/v1"),
     ["models.providers.near.apiKey", "models.providers.near.headers.X-Key", "models.providers.near.headers.X-Org"]),
    ("another scheme", provider("several", baseUrl="http://several.example"), ["models.providers.several.apiKey"]),
    ("another port", provider("several", baseUrl="https://several.example:444"), ["models.providers.several.apiKey"]),
    ("a host before the sign", provider("several", baseUrl="https://several.example@evil.example"),
     ["models.providers.several.apiKey"]),
    ("a host that only begins so", provider("several", baseUrl="https://several.example.evil.example"),
     ["models.providers.several.apiKey"]),
    ("no address one understands", provider("several", baseUrl="https://[evil"), ["models.providers.several.apiKey"]),
    ("no address", provider("several", baseUrl=None), ["models.providers.several.apiKey"]),
    ("a first address of a known one", provider("openai", baseUrl="https://evil.example"),
     ["models.providers.openai.apiKey"]),
    ("an address by another name", provider("openai", url="https://evil.example"), ["models.providers.openai.apiKey"]),
    ("a key in the environment", provider("named", baseUrl="https://evil.example"), ["models.providers.named.apiKey"]),
    ("a key in a file", provider("filed", baseUrl="https://evil.example"),
     ["models.providers.filed.apiKey.path", "models.providers.filed.apiKey.source"]),
    ("one header again", provider("near", baseUrl="https://evil.example", apiKey="new", headers={"X-Key": "new"}),
     ["models.providers.near.headers.X-Org"]),
    ("a server", {"mcp": {"servers": {"far": {"url": "https://evil.example/a"}}}},
     ["mcp.servers.far.headers.Authorization", "mcp.servers.far.oauth.clientSecret"]),
    ("a homeserver", {"channels": {"matrix": {"homeserver": "https://evil.example"}}},
     ["channels.matrix.accessToken", "channels.matrix.accounts.a.password"]),
    ("an account's homeserver", {"channels": {"matrix": {"accounts": {"b": {"homeserver": "https://evil.example"}}}}},
     ["channels.matrix.accounts.b.accessToken"]),
    ("the Bot API", {"channels": {"telegram": {"baseUrl": "https://evil.example"}}},
     ["channels.telegram.botToken", "channels.telegram.tokenFile", "channels.telegram.webhookSecret"]),
    ("a webhook", {"channels": {"telegram": {"webhookUrl": "https://evil.example"}}},
     ["channels.telegram.webhookSecret"]),
    ("another gateway", {"gateway": {"remote": {"url": "wss://evil.example"}}}, ["gateway.remote.token"]),
    ("a part without a declaration", {"hooks": {"endpoint": "https://evil.example"}}, ["hooks.token"]),
]  # fmt: skip


@pytest.mark.parametrize(("patch", "paths"), [row[1:] for row in DROPPED], ids=[row[0] for row in DROPPED])
def test_a_patch_of_an_address_drops_what_was_stored_for_the_one_before(
    tmp_path: Path, patch: Json, paths: list[str]
) -> None:
    async def scenario() -> None:
        service = ConfigCaller(tmp_path, CONFIG)
        result = await service.ask("config.patch", PERSON, raw=json.dumps(patch))
        assert result["droppedSecrets"] == sorted(paths)
        for path, value in parsing.walk_values(CONFIG):
            dropped = any(parsing.join_path(path).startswith(gone) for gone in paths)
            assert (
                parsing.value_at(service.stored, path) == (None if dropped else parsing.value_at(patch, path) or value)
                or path[-1] == "baseUrl"
            )

    asyncio.run(scenario())


STORED_SECRETS: list[tuple[str, Json]] = [
    ("another path", provider("near", baseUrl="https://near.example/v2")),
    ("the port that is meant anyway", provider("near", baseUrl="https://near.example:443/v1")),
    ("capitals", provider("near", baseUrl="https://NEAR.example/v1")),
    ("the same", provider("near", baseUrl="https://near.example/v1")),
    ("no address at all", provider("near", timeoutSeconds=5)),
    ("another provider's", provider("other", baseUrl="https://other.example", apiKey="k-other")),
    ("a homeserver of its own", {"channels": {"matrix": {"textChunkLimit": 5}}}),
    ("a new account that shares all", {"channels": {"matrix": {"accounts": {"c": {}}}}}),
]


ALERTS: list[tuple[str, Json, Json, bool]] = [
    ("another host", {"to": "https://good.example/a"}, {"to": "https://evil.example/a"}, True),
    ("another scheme", {"to": "https://good.example/a"}, {"to": "http://good.example/a"}, True),
    ("another port", {"to": "https://good.example/a"}, {"to": "https://good.example:444/a"}, True),
    ("the first address", {"mode": "webhook"}, {"to": "https://evil.example/a"}, True),
    ("no longer a chat", {"mode": "announce", "to": "123"}, {"mode": "webhook", "to": "https://evil.example"}, True),
    ("another path", {"to": "https://good.example/a"}, {"to": "https://good.example/b"}, False),
    ("another chat", {"mode": "announce", "to": "123"}, {"to": "456"}, False),
    ("another count", {"to": "https://good.example/a"}, {"after": 3}, False),
]


@pytest.mark.parametrize(("before", "patch", "dropped"), [row[1:] for row in ALERTS], ids=[row[0] for row in ALERTS])
def test_the_token_of_webhooks_does_not_follow_news_of_failures_elsewhere(
    tmp_path: Path, before: Json, patch: Json, dropped: bool
) -> None:
    async def scenario() -> None:
        service = ConfigCaller(
            tmp_path, {"cron": {"webhookToken": "HOOK", "failureAlert": {"mode": "webhook", **before}}}
        )
        result = await service.ask("config.patch", PERSON, raw=json.dumps({"cron": {"failureAlert": patch}}))
        assert result.get("droppedSecrets", []) == (["cron.webhookToken"] if dropped else [])
        assert parsing.value_at(service.stored, ("cron", "webhookToken")) == (None if dropped else "HOOK")

    asyncio.run(scenario())


@pytest.mark.parametrize("patch", [row[1] for row in STORED_SECRETS], ids=[row[0] for row in STORED_SECRETS])
def test_a_secret_stays_while_its_address_does(tmp_path: Path, patch: Json) -> None:
    async def scenario() -> None:
        service = ConfigCaller(tmp_path, CONFIG)
        assert "droppedSecrets" not in await service.ask("config.patch", PERSON, raw=json.dumps(patch))
        for path, value in parsing.walk_values(CONFIG):
            if redaction.is_secret(CONFIG, path):
                assert parsing.value_at(service.stored, path) == value

    asyncio.run(scenario())


def test_a_key_given_with_the_new_address_is_kept(tmp_path: Path) -> None:
    async def scenario() -> None:
        service = ConfigCaller(tmp_path, CONFIG)
        near = provider("near", baseUrl="https://new.example", apiKey="k-near", headers={"X-Key": "h", "X-Org": "o"})
        assert "droppedSecrets" not in await service.ask("config.patch", PERSON, raw=json.dumps(near))
        named = provider("named", baseUrl="https://new.example", apiKey="${NAMED_KEY}")
        assert "droppedSecrets" not in await service.ask("config.patch", PERSON, raw=json.dumps(named))
        assert service.stored["models"]["providers"]["near"]["apiKey"] == "k-near"
        assert service.stored["models"]["providers"]["named"]["apiKey"] == "${NAMED_KEY}"

    asyncio.run(scenario())


def moved(*path: str, to: str | None = "https://evil.example") -> Json:
    config = copy.deepcopy(CONFIG)
    holder = parsing.value_at(config, path[:-1])
    if to is None:
        del holder[path[-1]]
    else:
        holder[path[-1]] = to
    return config


RETURNED: list[tuple[str, Json]] = [
    ("a provider", moved("models", "providers", "near", "baseUrl")),
    ("a provider's first address", moved("models", "providers", "openai", "baseUrl")),
    ("a provider without its address", moved("models", "providers", "near", "baseUrl", to=None)),
    ("several keys", moved("models", "providers", "several", "baseUrl")),
    ("a server", moved("mcp", "servers", "far", "url")),
    ("a homeserver", moved("channels", "matrix", "homeserver")),
    ("an account's first homeserver", moved("channels", "matrix", "accounts", "a", "homeserver")),
    ("an account's homeserver", moved("channels", "matrix", "accounts", "b", "homeserver")),
    ("a webhook", moved("channels", "telegram", "webhookUrl")),
    ("another gateway", moved("gateway", "remote", "url")),
]


@pytest.mark.parametrize("method", ["config.set", "config.apply", "config.patch"])
@pytest.mark.parametrize("config", [row[1] for row in RETURNED], ids=[row[0] for row in RETURNED])
def test_a_hidden_secret_is_not_put_back_beside_another_address(tmp_path: Path, config: Json, method: str) -> None:
    async def scenario() -> None:
        service = ConfigCaller(tmp_path, CONFIG)
        redacted = redaction.redact_secrets(config)
        if method == "config.patch":
            redacted["models"]["providers"]["near"].setdefault("baseUrl", None)
        raw = json.dumps(redacted)
        with pytest.raises(RpcError, match=r"address"):
            await service.ask(method, PERSON, raw=raw)
        assert service.stored == CONFIG

    asyncio.run(scenario())


def test_a_redacted_config_comes_back_whole_when_no_address_changed(tmp_path: Path) -> None:
    async def scenario() -> None:
        service = ConfigCaller(tmp_path, CONFIG)
        config = await service.ask("config.get", PERSON)
        assert "k-near" not in config["raw"]
        await service.ask("config.set", PERSON, raw=config["raw"].replace("/v1", "/v2"))
        changed = copy.deepcopy(CONFIG)
        changed["models"]["providers"]["near"]["baseUrl"] = "https://near.example/v2"
        assert service.stored == changed

    asyncio.run(scenario())


INHERITED: list[tuple[str, Json]] = [
    ("an account with an address of its own", {"a": {"homeserver": "https://evil.example", "password": "new"}}),
    ("a new account with another address", {"new": {"homeserver": "https://evil.example"}}),
    ("an account that loses its own token", {"b": {"accessToken": None}}),
]


@pytest.mark.parametrize("accounts", [row[1] for row in INHERITED], ids=[row[0] for row in INHERITED])
def test_a_token_that_accounts_share_does_not_follow_one_of_them_elsewhere(tmp_path: Path, accounts: Json) -> None:
    async def scenario() -> None:
        service = ConfigCaller(tmp_path, CONFIG)
        patch = {"channels": {"matrix": {"accounts": accounts}}}
        with pytest.raises(RpcError, match=r"channels\.matrix\.accessToken to another address.*accessToken of its own"):
            await service.ask("config.patch", PERSON, raw=json.dumps(patch))
        assert service.stored == CONFIG

    asyncio.run(scenario())


def test_two_steps_lead_no_further_than_one(tmp_path: Path) -> None:
    async def scenario() -> None:
        service = ConfigCaller(tmp_path, CONFIG)
        for address in (None, "https://evil.example"):
            await service.ask("config.patch", PERSON, raw=json.dumps(provider("near", baseUrl=address)))
        assert "k-near" not in service.path.read_text()

    asyncio.run(scenario())


def test_a_person_who_edits_the_file_has_the_last_word(tmp_path: Path) -> None:
    async def scenario() -> None:
        service = ConfigCaller(tmp_path, CONFIG)
        edited = moved("models", "providers", "near", "baseUrl", to="https://mine.example")
        service.path.write_text(json.dumps(edited))
        await service.service.reload()
        assert service.service.current.config.models.providers["near"].api_key == "k-near"

    asyncio.run(scenario())


def test_a_secret_at_the_root_is_removed() -> None:
    assert remove_paths({"token": "x"}, [("token",)]) == {}
    assert remove_paths({"a": {"auth": {"token": "x"}}, "b": 1}, [("a", "auth", "token")]) == {"a": {}, "b": 1}
