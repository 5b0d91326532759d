"""The providers of models, their models and keys, as the config names them; the choice of one. Pure."""

import re
from collections.abc import Mapping
from typing import Final, Literal

from msgspec import Struct, convert

from ....core.config import models as config
from ....core.errors import BadRequest
from ....core.providers import BUILTIN_PROVIDERS, ModelApi, provider_api, split_model_name

KNOWN_PROVIDERS: Final[Mapping[str, tuple[str, str | None]]] = {
    "openai": ("https://api.openai.com/v1", "OPENAI_API_KEY"),
    "anthropic": ("https://api.anthropic.com", "ANTHROPIC_API_KEY"),
    "ollama": ("http://127.0.0.1:11434/v1", None),
}
"""Of the well-known providers: their address, and the environment variable their key is in."""

_UNRESOLVED = re.compile(r"\$\{?([A-Za-z_][A-Za-z0-9_]*)\}?")


class KeySource(Struct, frozen=True):
    """Where a key is. `value` itself, or its name in the environment, its file, its place in the keyring."""

    kind: Literal["value", "env", "file", "keyring"]
    where: str
    entry: str = ""
    """In a JSON file, the pointer to the key; in a keyring, the account."""


class TokenCost(Struct, frozen=True, rename="camel"):
    """Dollars for a million tokens."""

    input: float = 0.0
    output: float = 0.0
    cache_read: float = 0.0
    cache_write: float = 0.0


class ModelInfo(Struct, frozen=True, kw_only=True):
    id: str
    name: str | None = None
    """Its name for people."""
    window: int = config.ModelEntry(id="").context_window
    max_output: int | None = None
    accepts_images: bool = True
    """Whether it takes images."""
    supports_reasoning: bool = False
    cost: TokenCost | None = None


class ModelProvider(Struct, frozen=True, kw_only=True):
    name: str
    api: ModelApi
    base_url: str
    keys: tuple[KeySource, ...] = ()
    headers: tuple[tuple[str, str], ...] = ()
    models: tuple[ModelInfo, ...] = ()
    idle_limit: float = config.ProviderEntry().timeout_seconds

    def find_model(self, id: str) -> ModelInfo:
        return next((model for model in self.models if model.id == id), ModelInfo(id=id))


class ModelChoice(Struct, frozen=True):
    """A model of a provider."""

    provider: ModelProvider
    model: ModelInfo

    @property
    def name(self) -> str:
        return f"{self.provider.name}/{self.model.id}"


def read_providers(models: config.ModelsConfig) -> dict[str, ModelProvider]:
    """Every provider by name: the well-known ones, overlaid by `models.providers`."""
    return {
        name: _read_provider(name, models.providers.get(name, config.ProviderEntry()))
        for name in (*BUILTIN_PROVIDERS, *models.providers)
    }


def _read_provider(name: str, entry: config.ProviderEntry) -> ModelProvider:
    base, variable = KNOWN_PROVIDERS.get(name, ("", None))
    written = entry.api_key if isinstance(entry.api_key, tuple) else (entry.api_key,)
    keys = tuple(_read_key(one) for one in written if one)
    return ModelProvider(
        name=name,
        api=provider_api(name, entry.api),
        base_url=(entry.base_url or base).rstrip("/"),
        keys=keys or ((KeySource("env", variable),) if variable is not None else ()),
        headers=tuple(sorted(entry.headers.items())),
        models=tuple(map(_read_model, entry.models)),
        idle_limit=entry.timeout_seconds,
    )


def _read_key(written: config.ApiKey) -> KeySource:
    match written:
        case config.EnvironmentKey():
            return KeySource("env", written.id)
        case config.FileKey():
            return KeySource("file", written.path, written.id)
        case config.KeyringKey():
            return KeySource("keyring", written.service, written.id)
    unset = _UNRESOLVED.fullmatch(written)  # a variable the environment has was replaced when the config was read
    return KeySource("env", unset[1]) if unset else KeySource("value", written)


def _read_model(entry: config.ModelEntry) -> ModelInfo:
    cost = {name: float(entry.cost.get(name) or 0) for name in ("input", "output", "cacheRead", "cacheWrite")}
    return ModelInfo(
        id=entry.id,
        name=entry.name,
        window=entry.context_window,
        max_output=entry.max_tokens,
        accepts_images="image" in entry.input,
        supports_reasoning=entry.reasoning,
        cost=convert(cost, TokenCost) if entry.cost else None,
    )


def choose_model(
    model_name: str, providers: Mapping[str, ModelProvider], *, namesake: str | None = None
) -> ModelChoice:
    """Raises BadRequest that says what to set."""
    name, model = split_model_name(model_name, providers, namesake=namesake)
    if not name:
        raise BadRequest(f'the model "{model_name}" names no provider; write it as provider/model')
    if name not in providers:
        raise BadRequest(
            f'the model "{model_name}" is of a provider that is not configured; '
            f"add models.providers.{name} to the config"
        )
    provider = providers[name]
    if not provider.base_url:
        raise BadRequest(f"models.providers.{name}.baseUrl is not set; give the address of its API")
    if not model:
        raise BadRequest(f'the model "{model_name}" has no name after the provider; write it as provider/model')
    return ModelChoice(provider, provider.find_model(model))
