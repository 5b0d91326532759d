"""`models.list`, `models.authStatus`: the models that agents may use, and whether there is a key for each."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, Literal
from urllib.parse import urlsplit

from msgspec import Struct

from ....core.agents import AgentProfile, AgentRoster
from ....core.clock import now_ms
from ....core.config.config import Config
from ....core.fields import NonEmptyStr
from ....core.providers import CLI_PROVIDERS, MODEL_RUNTIMES, model_choices, split_model_name
from ....core.rpc import READ, RpcCall, RpcMethod, make_method
from ....net.peers import is_loopback
from .settings import ModelInfo, ModelProvider, read_providers

DEMO_PROVIDER: Final = "demo"
DEMO_MODEL: Final = "demo-echo"
DEFAULT_TAG: Final = "default"


class ThinkingLevel(Struct, frozen=True):
    id: str = "off"
    label: str = "off"


class ModelRow(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A model as clients list it."""

    id: str
    name: str
    provider: str
    tags: tuple[str, ...] = ()
    context_window: int | None = None
    local: bool = False
    input: tuple[str, ...] = ()
    reasoning: bool | None = None
    thinking_levels: tuple[ThinkingLevel, ...] | None = None
    thinking_default: str | None = None
    available: bool | None = None
    unavailable_reason: Literal["missing-auth"] | None = None
    manual_selection_allowed: bool | None = None


class ModelList(Struct, frozen=True):
    models: tuple[ModelRow, ...]


class ApiKeyPlace(Struct, frozen=True, rename="camel", omit_defaults=True):
    source: Literal["config", "env"]
    env_var: str | None = None


class ProviderAuth(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Whether a provider has its key. `static`: it does, or needs none."""

    provider: str
    auth_provider: str
    display_name: str
    status: Literal["static", "missing"]
    profiles: tuple[str, ...] | None = None
    api_key: ApiKeyPlace | None = None


class AuthStatus(Struct, frozen=True, rename="camel"):
    ts: int
    providers: tuple[ProviderAuth, ...]
    provider_capabilities: tuple[str, ...] = ()
    """Ways to sign in to a provider from a page: there are none, keys are in the config."""


class _ModelListParams(Struct, frozen=True, kw_only=True, rename="camel"):
    """`agent_id` and `provider` choose rows; the others ask for what is always, or never, part of the answer."""

    agent_id: NonEmptyStr | None = None
    provider: NonEmptyStr | None = None
    session_key: NonEmptyStr | None = None
    auth_profile_id: NonEmptyStr | None = None
    include_details: bool = False
    include_provider_capabilities: bool = False
    include_default_models: bool = False
    prepared_only: bool = False
    refresh: bool = False
    view: Literal["default", "configured", "provider-config", "all"] = "default"


class _AuthStatusParams(Struct, frozen=True, kw_only=True, rename="camel"):
    refresh: bool = False
    agent_id: str | None = None


class ModelMethods(Struct, frozen=True, kw_only=True):
    """An `RpcModule`."""

    config: Callable[[], Config]
    roster: Callable[[], AgentRoster]

    def methods(self) -> Sequence[RpcMethod]:
        return (
            make_method("models.list", READ, _ModelListParams, self._list),
            make_method("models.authStatus", READ, _AuthStatusParams, self._auth_status),
        )

    def list_models(self, agent_id: str | None = None) -> tuple[ModelRow, ...]:
        """The models of the config and those of this agent, the default agent unless named; its own choices first.

        Raises RpcError for an agent that is not configured.
        """
        roster = self.roster()
        agent = roster.get_agent(agent_id or roster.default_id)
        providers = read_providers(self.config().models)
        rows: dict[tuple[str, str], ModelRow] = {}
        for provider, model, tags in (*_agent_models(agent, providers), *_configured_models(providers)):
            rows.setdefault((provider, model.id), _make_row(provider, model, providers.get(provider), tags))
        return tuple(rows.values())

    async def _list(self, call: RpcCall, asked: _ModelListParams) -> ModelList:
        rows = self.list_models(asked.agent_id)
        return ModelList(tuple(row for row in rows if asked.provider in (None, row.provider)))

    async def _auth_status(self, call: RpcCall, asked: _AuthStatusParams) -> AuthStatus:
        providers = read_providers(self.config().models)
        used = dict.fromkeys(row.provider for row in self.list_models(asked.agent_id or None))
        return AuthStatus(now_ms(), tuple(_provider_auth(providers[name]) for name in used if name in providers))


def _agent_models(
    agent: AgentProfile, providers: Mapping[str, ModelProvider]
) -> Iterator[tuple[str, ModelInfo, tuple[str, ...]]]:
    """The models an agent is set to use: provider, model, and the model's place among them."""
    first, others = model_choices(agent.settings.model)
    if agent.runtime == DEMO_PROVIDER:
        first, others = f"{DEMO_PROVIDER}/{DEMO_MODEL}", ()
    namesake = agent.runtime if agent.runtime in MODEL_RUNTIMES else CLI_PROVIDERS.get(agent.runtime)
    for place, name in enumerate((first, *others)):
        provider, model = split_model_name(name, providers, namesake=namesake) if name else ("", "")
        if provider and model:  # a CLI without a model uses one of its own choice, which only it knows
            known = providers[provider].find_model(model) if provider in providers else ModelInfo(id=model)
            yield provider, known, (DEFAULT_TAG if place == 0 else f"fallback#{place}",)


def _configured_models(providers: Mapping[str, ModelProvider]) -> Iterator[tuple[str, ModelInfo, tuple[str, ...]]]:
    for provider in providers.values():
        for model in provider.models:
            yield provider.name, model, ()


def _make_row(name: str, model: ModelInfo, provider: ModelProvider | None, tags: tuple[str, ...]) -> ModelRow:
    has_key = provider is None or _find_key(provider) is not None
    host = urlsplit(provider.base_url).hostname if provider is not None else None
    return ModelRow(
        id=model.id,
        name=model.name or model.id,
        provider=name,
        tags=tags,
        context_window=model.window,
        local=provider is None or is_loopback(host or ""),
        input=("text", "image") if model.accepts_images else ("text",),
        reasoning=model.supports_reasoning,
        thinking_levels=(ThinkingLevel(),),
        thinking_default="off",
        available=has_key,
        unavailable_reason=None if has_key else "missing-auth",
        manual_selection_allowed=True,
    )


def _find_key(provider: ModelProvider) -> ApiKeyPlace | Literal["none needed"] | None:
    """Where the first key is; None when a key is needed and there is none. Files and keyrings are not opened."""
    if not provider.keys:
        return "none needed"
    for key in provider.keys:
        if key.kind != "env":
            return ApiKeyPlace("config")
        if os.environ.get(key.where, "").strip():
            return ApiKeyPlace("env", key.where)
    return None


def _provider_auth(provider: ModelProvider) -> ProviderAuth:
    key = _find_key(provider)
    return ProviderAuth(
        provider=provider.name,
        auth_provider=provider.name,
        display_name=provider.name,
        status="missing" if key is None else "static",
        profiles=(),
        api_key=key if isinstance(key, ApiKeyPlace) else None,
    )
