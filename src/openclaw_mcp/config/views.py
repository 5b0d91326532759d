"""What the config says about the store, the agents and the doors."""

import os
from pathlib import Path

from ..core.agents import AgentProfile, AgentRoster
from ..core.model import Json
from ..core.numbers import parse_whole_number
from ..core.providers import provider_apis, runtime_for
from ..net.gateway_client.address import DEFAULT_GATEWAY_PORT, gateway_url, is_local_gateway

DATABASE_FILE = "openclaw.sqlite"
"""The store's file in the state directory, unless the config names another place."""


def store_location(folder: Path, config: Json) -> str:
    """$OPENCLAW_STORE_URL, else the config's `store.url`, else SQLite in the state directory."""
    chosen = os.environ.get("OPENCLAW_STORE_URL") or config.get("store", {}).get("url")
    return chosen or str(folder / DATABASE_FILE)


def roster_from_config(config: Json) -> AgentRoster:
    """The agents the config names; one called `main`, which is the demo, when it names none."""
    agents = config.get("agents", {})
    cards = tuple(_agent_from_entry(entry, config) for entry in agents.get("list", [])) or (
        _agent_from_entry({"id": "main"}, config),
    )
    chosen = next((entry["id"] for entry in agents.get("list", []) if entry.get("default")), cards[0].id)
    return AgentRoster(agents=cards, default_id=chosen, main_key=config.get("session", {}).get("mainKey", "main"))


def gateway_endpoint(config: Json) -> tuple[str, str | None]:
    """Where clients find the gateway, and its token if the config has it. The environment wins over the config.

    The token of one gateway is never given to another.
    """
    gateway = config.get("gateway", {})
    far = gateway.get("remote", {}) if gateway.get("mode") == "remote" else {}
    number = parse_whole_number(os.environ.get("OPENCLAW_GATEWAY_PORT", ""))
    here = gateway_url(number if number is not None else gateway.get("port") or DEFAULT_GATEWAY_PORT)
    named = os.environ.get("OPENCLAW_GATEWAY_URL")
    if far.get("url") and named in (None, "", far["url"]):
        return str(far["url"]), far.get("token")
    return here, gateway.get("auth", {}).get("token") if is_local_gateway(here) else None


def offers_completions(config: Json) -> bool:
    """Whether `/v1/chat/completions` answers."""
    endpoints = config.get("gateway", {}).get("http", {}).get("endpoints", {})
    return bool(endpoints.get("chatCompletions", {}).get("enabled", True))


def media_settings(config: Json) -> Json:
    """How files that come with a message are read."""
    found: Json = config.get("tools", {}).get("media", {})
    return found


def _agent_from_entry(entry: Json, config: Json) -> AgentProfile:
    defaults = config.get("agents", {}).get("defaults", {})
    model = entry.get("model", defaults.get("model"))
    return AgentProfile(
        id=entry["id"],
        name=entry.get("name"),
        runtime=str(
            entry.get("runtime")
            or defaults.get("runtime")
            or runtime_for(model, provider_apis(config.get("models", {}).get("providers", {})))
        ),
        model=model.get("primary") if isinstance(model, dict) else model,
        workspace=entry.get("workspace", defaults.get("workspace")),
        settings={**defaults, **entry, "limits": {**defaults.get("limits", {}), **entry.get("limits", {})}},
    )
