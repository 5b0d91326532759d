"""What the config says of models: providers, their models and keys, an agent's choices and limits. Pure."""

import re
from collections.abc import Mapping
from typing import Any, Final, Literal

from msgspec import Struct

from ....core.errors import BadRequest
from ....core.model import Json
from ....core.providers import WELL_KNOWN, Api, api_of, split

PLACES: Final[Mapping[str, tuple[str, str | None]]] = {
    "openai": ("https://api.openai.com/v1", "OPENAI_API_KEY"),
    "anthropic": ("https://api.anthropic.com", "ANTHROPIC_API_KEY"),
    "ollama": ("http://127.0.0.1:11434/v1", None),
}
"""Of the well-known providers: their address, and the environment variable their key is in."""

KEYRING: Final = "openclaw-mcp"  # the service keys are kept under, there as elsewhere in the house
WINDOW: Final = 128_000  # tokens, of a model the config says nothing about; what most hosted ones have at least
IDLE_LIMIT: Final = 120.0  # seconds a model may say nothing at all; long thinkers send pings or thoughts meanwhile
_UNRESOLVED = re.compile(r"\$\{?([A-Za-z_][A-Za-z0-9_]*)\}?")


class KeySource(Struct, frozen=True):
    """Where a key is. `value` itself, or its name in the environment, its file, its place in the keyring."""

    kind: Literal["value", "env", "file", "keyring"]
    where: str
    entry: str = ""
    """In a JSON file, the pointer to the key; in a keyring, the account."""


class Cost(Struct, frozen=True, rename="camel"):
    """Dollars for a million tokens."""

    input: float = 0.0
    output: float = 0.0
    cache_read: float = 0.0
    cache_write: float = 0.0


class ModelCard(Struct, frozen=True, kw_only=True):
    id: str
    window: int = WINDOW
    most_output: int | None = None
    sees: bool = True
    """Whether it takes images."""
    reasons: bool = False
    cost: Cost | None = None


class Provider(Struct, frozen=True, kw_only=True):
    name: str
    api: Api
    base_url: str
    keys: tuple[KeySource, ...] = ()
    headers: tuple[tuple[str, str], ...] = ()
    models: tuple[ModelCard, ...] = ()
    idle_limit: float = IDLE_LIMIT

    def card(self, id: str) -> ModelCard:
        return next((card for card in self.models if card.id == id), ModelCard(id=id))


class Choice(Struct, frozen=True):
    """A model of a provider."""

    provider: Provider
    card: ModelCard

    @property
    def name(self) -> str:
        return f"{self.provider.name}/{self.card.id}"


class Limits(Struct, frozen=True, kw_only=True):
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


def catalogue(config: Json) -> dict[str, Provider]:
    """Every provider by name: the well-known ones, overlaid by `models.providers`."""
    given: Mapping[str, Any] = config.get("models", {}).get("providers", {})
    return {name: _provider(name, given.get(name) or {}) for name in (*WELL_KNOWN, *given)}


def _provider(name: str, given: Json) -> Provider:
    base, variable = PLACES.get(name, ("", None))
    written = given.get("apiKey")
    sources = tuple(_key(one) for one in (written if isinstance(written, list) else [written]) if one)
    if not sources and variable is not None:
        sources = (KeySource("env", variable),)
    return Provider(
        name=name,
        api=api_of(name, given.get("api")),
        base_url=str(given.get("baseUrl") or base).rstrip("/"),
        keys=sources,
        headers=tuple(sorted((str(k), str(v)) for k, v in (given.get("headers") or {}).items())),
        models=tuple(_card(one) for one in given.get("models") or ()),
        idle_limit=float(given.get("timeoutSeconds") or IDLE_LIMIT),
    )


def _key(given: Any) -> KeySource:
    if isinstance(given, str):
        unset = _UNRESOLVED.fullmatch(given)  # the config replaces what the environment has
        return KeySource("env", unset[1]) if unset else KeySource("value", given)
    match given.get("source"):
        case "env":
            return KeySource("env", str(given.get("id", "")))
        case "file":
            return KeySource("file", str(given.get("path", "")), str(given.get("id", "")))
        case _:
            return KeySource("keyring", str(given.get("service") or KEYRING), str(given.get("id", "")))


def _card(given: Json) -> ModelCard:
    cost = given.get("cost")
    names = {"input": "input", "output": "output", "cache_read": "cacheRead", "cache_write": "cacheWrite"}
    return ModelCard(
        id=str(given["id"]),
        window=int(given.get("contextWindow") or WINDOW),
        most_output=given.get("maxTokens"),
        sees="image" in (given.get("input") or ["text"]),
        reasons=bool(given.get("reasoning")),
        cost=Cost(**{ours: float(cost.get(theirs) or 0) for ours, theirs in names.items()}) if cost else None,
    )


def choose(word: str, providers: Mapping[str, Provider], *, namesake: str | None = None) -> Choice:
    """Raises BadRequest that says what to set."""
    name, model = split(word, providers, namesake=namesake)
    if not name:
        raise BadRequest(f'the model "{word}" names no provider; write it as provider/model')
    if name not in providers:
        raise BadRequest(
            f'the model "{word}" is of a provider nobody set up; add models.providers.{name} to the config'
        )
    provider = providers[name]
    if not provider.base_url:
        raise BadRequest(f"models.providers.{name}.baseUrl is not set; give the address of its API")
    if not model:
        raise BadRequest(f'the model "{word}" has no name after the provider; write it as provider/model')
    return Choice(provider, provider.card(model))


def limits_of(settings: Json) -> Limits:
    given = settings.get("limits") or {}
    return Limits(**{ours: given[theirs] for ours, theirs in LIMIT_WORDS.items() if given.get(theirs) is not None})


LIMIT_WORDS: Final = {
    "model_calls": "modelCalls", "tool_calls": "toolCalls", "parallel_tools": "parallelTools", "tokens": "tokens",
    "retries": "retries",
}  # fmt: skip
