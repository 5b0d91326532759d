"""Which models may answer for an agent, each under the provider that really answers. Pure.

Rules about tools may go by provider. So whoever asks a model and whoever judges a call find the provider here.
"""

from collections.abc import Collection, Mapping
from typing import Any, Final, Literal

from .model import Json

Api = Literal["openai", "anthropic", "openclaw"]

APIS: Final[Mapping[str, Api]] = {
    "openai": "openai",
    "openai-completions": "openai",
    "openai-responses": "openai",  # whoever serves it serves chat completions beside it
    "ollama": "openai",
    "anthropic": "anthropic",
    "anthropic-messages": "anthropic",
    "openclaw": "openclaw",
}
WELL_KNOWN: Final[Mapping[str, Api]] = {"openai": "openai", "anthropic": "anthropic", "ollama": "openai"}
"""Providers that need no entry, and their API."""
MODEL_RUNTIMES: Final = ("openai", "anthropic")
"""Whose agents work with a model of `models.providers`; a name without a provider is of the runtime's namesake."""
OF_ONE_PROVIDER: Final[Mapping[str, str]] = {"claude": "anthropic", "codex": "openai", "gemini": "google"}
"""CLIs whose models are all of one provider, whatever their names."""
OF_ANY_PROVIDER: Final = "opencode"
"""The CLI whose models are named as `provider/model`; where none is named it chooses one itself."""
ANY: Final = "*"
"""Stands for: it may be any model of any provider."""


def api_of(name: str, written: object) -> Api:
    """The API of a provider whose entry has this for `api`."""
    return APIS.get(str(written or WELL_KNOWN.get(name, "openai")), "openai")


def apis_of(providers: Mapping[str, Any]) -> dict[str, Api]:
    """Every provider there is with its API: the well-known ones and those of `models.providers`."""
    return {name: api_of(name, _part(providers, name).get("api")) for name in (*WELL_KNOWN, *providers)}


def split(word: str, providers: Collection[str], *, namesake: str | None = None) -> tuple[str, str]:
    """A model's name as provider and model. Without a provider: the runtime's namesake, or the only one set up."""
    provider, slash, model = word.partition("/")
    if slash and provider in providers:
        return provider, model
    if namesake is not None and not slash:
        return namesake, word
    own = [name for name in providers if name not in WELL_KNOWN]
    if not slash and len(own) == 1:
        return own[0], word
    return (provider, model) if slash else ("", word)


def wished(model: Any) -> tuple[str | None, tuple[str, ...]]:
    """An agent's `model`: its first choice, and the others in order."""
    if isinstance(model, dict):
        return model.get("primary"), tuple(model.get("fallbacks") or ())
    return model, ()


def runtime_for(model: Any, apis: Mapping[str, Api]) -> str:
    """The runtime of an agent that names none: that of its model's provider; without a model, the demo."""
    first, _ = wished(model)
    return apis.get(split(first, apis)[0], "openai") if first else "demo"


def asked_model(settings: Json) -> str | None:
    """The model that a run, or else its session, asks for, with the provider given beside it."""
    model, provider = settings.get("model"), settings.get("provider")
    if not isinstance(model, str) or not model:
        return None
    return f"{provider}/{model}" if isinstance(provider, str) and provider and "/" not in model else model


def may_answer(runtime: str, model: Any, providers: Collection[str], asked: str | None = None) -> tuple[str, ...]:
    """Every model that may answer, in order, as `provider/model`; a CLI's own choice is `provider/`, or `ANY`.

    `model` is the agent's, `asked` the run's own in its stead. A fallback may answer too.
    """
    first, others = wished(model)
    first = asked or first or ""
    own = OF_ONE_PROVIDER.get(runtime)
    if own is not None:
        return (f"{own}/{first.removeprefix(f'{own}/')}",)
    if runtime == OF_ANY_PROVIDER:
        return (first or ANY,)
    if not first:
        return ()
    asks = runtime in MODEL_RUNTIMES
    words = (first, *others) if asks else (first,)
    named = (split(word, providers, namesake=runtime if asks else None) for word in words)
    return tuple(dict.fromkeys("/".join(part for part in name if part) for name in named))


def named_model(word: str) -> str | None:
    """What `may_answer` says of a CLI, as the CLI is told; None: it chooses itself."""
    return None if word == ANY or word.endswith("/") else word


def has_provider_rules(config: Json) -> bool:
    """Whether any rules about tools go by who answers: then a change of the model is a change of the rules."""
    agents = _part(config, "agents")
    listed = agents.get("list")
    holders = [config, _part(agents, "defaults"), *_part(agents, "entries").values()]
    holders += listed if isinstance(listed, list) else []
    return any(_part(_part(holder, "tools"), "byProvider") for holder in holders)


def _part(whole: Any, name: str) -> Json:
    found = whole.get(name) if isinstance(whole, dict) else None
    return found if isinstance(found, dict) else {}
