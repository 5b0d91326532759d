"""What the config says of models: providers, their models and keys, an agent's choices and limits. Pure."""

import re
from collections.abc import Mapping
from typing import Any, Final, Literal

from msgspec import Struct

from ....core.errors import BadRequest
from ....core.model import Json
from ....core.providers import BUILTIN_PROVIDERS, ModelApi, provider_api, split_model_name

KNOWN_PROVIDERS: Final[Mapping[str, tuple[str, str | None]]] = {
    "openai": ("https://api.openai.com/v1", "OPENAI_API_KEY"),
    "anthropic": ("https://api.anthropic.com", "ANTHROPIC_API_KEY"),
    "ollama": ("http://127.0.0.1:11434/v1", None),
}
"""Of the well-known providers: their address, and the environment variable their key is in."""

KEYRING_SERVICE: Final = "openclaw-mcp"  # the service keys are kept under, there as elsewhere in the house
DEFAULT_WINDOW: Final = 128_000  # tokens, of a model the config says nothing about; what most hosted ones have at least
IDLE_LIMIT: Final = 120.0  # seconds a model may say nothing at all; long thinkers send pings or thoughts meanwhile
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
    window: int = DEFAULT_WINDOW
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
    idle_limit: float = IDLE_LIMIT

    def find_model(self, id: str) -> ModelInfo:
        return next((card for card in self.models if card.id == id), ModelInfo(id=id))


class ModelChoice(Struct, frozen=True):
    """A model of a provider."""

    provider: ModelProvider
    model: ModelInfo

    @property
    def name(self) -> str:
        return f"{self.provider.name}/{self.model.id}"


class ModelRunLimits(Struct, frozen=True, kw_only=True):
    """What one run may use, each a key of `agents.defaults.limits` and of an agent's own `limits`.

    The time it may take is the run's own matter: `timeoutSeconds`, whatever the runtime.
    """

    model_calls: int = 50
    """A model that needs more steps than this is most likely going in circles."""
    tool_calls: int = 200
    parallel_tools: int = 8
    """Tool calls of one answer that go at once; the others wait."""
    tokens: int = 4_000_000
    """Read and written together, as the provider counts them."""
    retries: int = 3
    """Times one request is tried again while the trouble may pass."""


def read_providers(config: Json) -> dict[str, ModelProvider]:
    """Every provider by name: the well-known ones, overlaid by `models.providers`."""
    given: Mapping[str, Any] = config.get("models", {}).get("providers", {})
    return {name: _parse_provider(name, given.get(name) or {}) for name in (*BUILTIN_PROVIDERS, *given)}


def _parse_provider(name: str, config: Json) -> ModelProvider:
    base, variable = KNOWN_PROVIDERS.get(name, ("", None))
    written = config.get("apiKey")
    sources = tuple(_parse_key(one) for one in (written if isinstance(written, list) else [written]) if one)
    if not sources and variable is not None:
        sources = (KeySource("env", variable),)
    return ModelProvider(
        name=name,
        api=provider_api(name, config.get("api")),
        base_url=str(config.get("baseUrl") or base).rstrip("/"),
        keys=sources,
        headers=tuple(sorted((str(k), str(v)) for k, v in (config.get("headers") or {}).items())),
        models=tuple(_parse_model(one) for one in config.get("models") or ()),
        idle_limit=float(config.get("timeoutSeconds") or IDLE_LIMIT),
    )


def _parse_key(config: Any) -> KeySource:
    if isinstance(config, str):
        unset = _UNRESOLVED.fullmatch(config)  # the config replaces what the environment has
        return KeySource("env", unset[1]) if unset else KeySource("value", config)
    match config.get("source"):
        case "env":
            return KeySource("env", str(config.get("id", "")))
        case "file":
            return KeySource("file", str(config.get("path", "")), str(config.get("id", "")))
        case _:
            return KeySource("keyring", str(config.get("service") or KEYRING_SERVICE), str(config.get("id", "")))


def _parse_model(config: Json) -> ModelInfo:
    cost = config.get("cost")
    names = {"input": "input", "output": "output", "cache_read": "cacheRead", "cache_write": "cacheWrite"}
    return ModelInfo(
        id=str(config["id"]),
        window=int(config.get("contextWindow") or DEFAULT_WINDOW),
        max_output=config.get("maxTokens"),
        accepts_images="image" in (config.get("input") or ["text"]),
        supports_reasoning=bool(config.get("reasoning")),
        cost=TokenCost(**{ours: float(cost.get(theirs) or 0) for ours, theirs in names.items()}) if cost else None,
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
            f'the model "{model_name}" is of a provider nobody set up; add models.providers.{name} to the config'
        )
    provider = providers[name]
    if not provider.base_url:
        raise BadRequest(f"models.providers.{name}.baseUrl is not set; give the address of its API")
    if not model:
        raise BadRequest(f'the model "{model_name}" has no name after the provider; write it as provider/model')
    return ModelChoice(provider, provider.find_model(model))


def parse_limits(settings: Json) -> ModelRunLimits:
    given = settings.get("limits") or {}
    return ModelRunLimits(
        **{ours: given[theirs] for ours, theirs in LIMIT_KEYS.items() if given.get(theirs) is not None}
    )


LIMIT_KEYS: Final = {
    "model_calls": "modelCalls", "tool_calls": "toolCalls", "parallel_tools": "parallelTools", "tokens": "tokens",
    "retries": "retries",
}  # fmt: skip
