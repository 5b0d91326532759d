"""Addresses that are secret themselves: their host is shown, what stands behind it comes back unchanged."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from openclaw_mcp.config import parsing, redaction
from openclaw_mcp.core.errors import BadRequest
from openclaw_mcp.core.rpc import RpcError
from tests.config.test_config import make_service
from tests.gateway.wiring.gateways import joined, world

MARK = redaction.REDACTED
HUSH = "hush7Xw9LmT4vB2kN8"

HIDDEN: list[tuple[str, Any, str]] = [
    ("mcp.servers.x.url", "https://mcp.zapier.com/api/mcp/s/hush/mcp", "https://mcp.zapier.com/"),
    ("mcp.servers.x.url", "https://server.smithery.ai/x?api_key=hush", "https://server.smithery.ai/"),
    ("mcp.servers.x.url", "https://h:8443/hush", "https://h:8443/"),
    ("mcp.servers.x.url", "http://[::1]:80/mcp?hush", "http://[::1]:80/"),
    ("mcp.servers.x.url", "https://h/mcp#hush", "https://h/"),
    ("mcp.servers.x.url", "https://me:hush@h/mcp", "https://h/"),
    ("mcp.servers.x.url", "https://h/s/${A}/" + HUSH, "https://h/"),
    ("channels.telegram.webhookUrl", "https://h/hush", "https://h/"),
    ("channels.telegram.accounts.a.webhookUrl", "https://h/hush", "https://h/"),
    ("cron.failureAlert.to", "https://h/hook/hush", "https://h/"),
    ("cron.failureAlert.to", "https://hooks.slack.com/services/T/B/hush", "https://hooks.slack.com/"),
    ("models.providers.x.baseUrl", f"https://h/{HUSH}/v1", "https://h/"),
    ("models.providers.x.baseUrl", f"https://h/v1?k={HUSH}", "https://h/"),
    ("channels.telegram.baseUrl", "https://h/bot123456:hush", "https://h/"),
    ("gateway.remote.url", "wss://h/?token=hush", "wss://h/"),
]
WHOLE: list[tuple[str, Any]] = [
    ("mcp.servers.x.url", "https://me:12/hush@h/x"),
    ("mcp.servers.x.url", "https://me:hush@h@i/x"),
    ("store.url", "postgresql://h/db?user=u&password=hush"),
    ("models.providers.x.oauth.access", "hush"),
    ("models.providers.x.oauth.refresh", "hush"),
    ("mcp.servers.x.oauth2.refresh", "hush"),
    ("mcp.servers.x.basicAuth.code", "hush"),
    ("models.providers.x.httpHeaders.team", "hush"),
    ("mcp.servers.x.environment.TEAM", "hush"),
]
PLAIN: list[tuple[str, Any]] = [
    ("mcp.servers.x.url", "https://mcp.example"),
    ("mcp.servers.x.url", "https://mcp.example/"),
    ("mcp.servers.x.url", "http://127.0.0.1:8931/mcp"),
    ("mcp.servers.x.url", "https://mcp.example/v1/sse"),
    ("mcp.servers.x.url", "https://mcp.example/s/${KEY}/mcp?k=${KEY}"),
    ("models.providers.x.baseUrl", "https://api.example/openai/deployments/gpt-4o?api-version=2024-06-01"),
    ("channels.matrix.homeserver", "https://matrix.org/base"),
    ("channels.telegram.webhookUrl", "https://me.example"),
    ("cron.failureAlert.to", "telegram:-100"),
    ("agents.defaults.systemPrompt", f"see https://docs.example/d/{HUSH}/edit"),
    ("mcp.servers.hook.command", "server"),
    ("meta.environment", "production"),
]


def config(place: str, value: Any) -> dict[str, Any]:
    nested: Any = value
    for step in reversed(place.split(".")):
        nested = {step: nested}
    return dict(nested)


def redact_value(place: str, value: Any, mark: str = MARK) -> Any:
    return parsing.value_at(redaction.redact_secrets(config(place, value), mark), tuple(place.split(".")))


@pytest.mark.parametrize(("place", "value", "host"), HIDDEN)
def test_behind_its_host_a_secret_address_is_hidden(place: str, value: str, host: str) -> None:
    assert redact_value(place, value) == host + MARK
    assert redact_value(place, value, redaction.MASK) == host + redaction.MASK


@pytest.mark.parametrize(("place", "value"), WHOLE)
def test_what_has_no_certain_host_or_is_no_address_is_hidden_whole(place: str, value: str) -> None:
    assert redact_value(place, value) == MARK


@pytest.mark.parametrize(("place", "value"), PLAIN)
def test_an_address_that_tells_nothing_stays_to_be_seen(place: str, value: str) -> None:
    assert redact_value(place, value) == value


@pytest.mark.parametrize(("place", "value"), [row[:2] for row in (*HIDDEN, *WHOLE)])
def test_it_is_kept_at_its_own_place_for_its_own_host(place: str, value: str) -> None:
    stored = config(place, value)
    raw = f"// kept\n{json.dumps(stored, indent=2)}"
    hidden = redaction.redact_text(raw, stored)
    assert "hush" not in hidden
    assert "// kept" in hidden
    assert parsing.parse(redaction.restore_text(hidden, stored)) == stored
    for mark in (redaction.redact_secrets(stored), config(place, MARK)):
        assert redaction.restore_secrets(mark, stored) == stored
    for other in (
        f"https://evil/{MARK}",
        f"{redact_value(place, value)}x",
        f"{redact_value(place, value)}{MARK}",
        f" {MARK}",
    ):
        with pytest.raises(BadRequest):
            redaction.restore_secrets(config(place, other), stored)
        with pytest.raises(BadRequest):
            redaction.restore_text(json.dumps(config(place, other)), stored)


@pytest.mark.parametrize("comment", [f"// https://h/{HUSH}", f"/* at https://h/a?b={HUSH} */"])
def test_a_comment_with_such_an_address_is_left_out(comment: str) -> None:
    raw = f"{{ {comment}\n ui: {{}} }}"
    assert HUSH not in redaction.redact_text(raw, parsing.parse(raw))


SERVERS = {"x": {"url": "https://mcp.zapier.com/api/mcp/s/hush/mcp", "headers": {"x-team": "hush"}}}


def test_every_way_to_write_keeps_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        whole = {"mcp": {"servers": SERVERS}, "cron": {"failureAlert": {"mode": "webhook", "to": "https://h/hush"}}}
        gateway, _ = make_service(tmp_path, json.dumps(whole))
        for method in ("config.set", "config.apply", "config.patch"):
            config = await gateway.call("config.get")
            assert "hush" not in json.dumps(config)
            assert config["config"]["mcp"]["servers"]["x"]["url"] == f"https://mcp.zapier.com/{MARK}"
            raw = json.dumps(config["parsed"]) if method == "config.patch" else config["raw"]
            await gateway.call(method, {"raw": raw, "baseHash": config["hash"]})
            assert json.loads((tmp_path / "openclaw.json").read_text()) == whole
            elsewhere = json.dumps({"mcp": {"servers": {"x": {"url": f"https://evil.example/{MARK}"}}}})
            with pytest.raises(RpcError, match="as it was shown"):
                await gateway.call(method, {"raw": elsewhere, "baseHash": (await gateway.call("config.get"))["hash"]})
        config = await gateway.call("config.get")
        moved = json.dumps({"mcp": {"servers": {"x": {"url": "https://evil.example/a"}}}})
        result = await gateway.call("config.patch", {"raw": moved, "baseHash": config["hash"]})
        assert result["droppedSecrets"] == ["mcp.servers.x.headers.x-team"]

    asyncio.run(scenario())


def test_who_may_only_read_sees_none_of_it(tmp_path: Path) -> None:
    args = ["--config", '{"apiKey": "hush"}', "--header", "X-Api-Auth: hush", "-e", "SLACK=hush"]
    servers = {**SERVERS, "y": {"command": "npx", "args": ["@scope/server", *args], "enabled": False}}
    telegram = {"enabled": False, "botToken": "1:hush", "webhookUrl": "https://h/hush"}
    with world(tmp_path, {"mcp": {"servers": servers}, "channels": {"telegram": telegram}}) as gateway:
        with joined(gateway.served, "operator.read") as reader:
            views = [
                reader.ask(method)
                for method in ("config.get", "cron.status", "sessions.list", "health", "status", "channels.status")
            ]
        assert "hush" not in json.dumps(views)
        redacted = views[0]["config"]["mcp"]["servers"]
        assert redacted["x"]["url"] == f"https://mcp.zapier.com/{MARK}"
        assert redacted["y"]["args"][:2] == ["@scope/server", "--config"]
