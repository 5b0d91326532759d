"""Which models may answer for an agent, each under the provider that really answers. Pure.

Rules about tools may go by provider. So the code that asks a model and the code that judges a call both find it here.
"""

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, Final, Literal

from .config.agents import ModelFallbacks, ModelSetting
from .model import Json

if TYPE_CHECKING:
    from .sessions import RunOptions

ModelApi = Literal["openai", "anthropic", "openclaw"]

API_BY_NAME: Final[Mapping[str, ModelApi]] = {
    "openai": "openai",
    "openai-completions": "openai",
    "openai-responses": "openai",  # a provider of it offers chat completions too
    "ollama": "openai",
    "anthropic": "anthropic",
    "anthropic-messages": "anthropic",
    "openclaw": "openclaw",
}
BUILTIN_PROVIDERS: Final[Mapping[str, ModelApi]] = {"openai": "openai", "anthropic": "anthropic", "ollama": "openai"}
"""Providers that need no entry, and their API."""
MODEL_RUNTIMES: Final = ("openai", "anthropic")
"""Whose agents work with a model of `models.providers`; a name without a provider is of the runtime's namesake."""
CLI_PROVIDERS: Final[Mapping[str, str]] = {"claude": "anthropic", "codex": "openai", "gemini": "google"}
"""CLIs whose models are all of one provider, under any name."""
MULTI_PROVIDER_CLI: Final = "opencode"
"""The CLI whose models are named as `provider/model`; where none is named it chooses one itself."""
ANY_MODEL: Final = "*"
"""Any model of any provider."""


def provider_api(provider: str, api: object) -> ModelApi:
    """The API of a provider whose entry has this for `api`."""
    return API_BY_NAME.get(str(api or BUILTIN_PROVIDERS.get(provider, "openai")), "openai")


def provider_apis(written: Mapping[str, object]) -> dict[str, ModelApi]:
    """Every provider there is with its API: the well-known ones, and those of `models.providers` with their `api`."""
    return {name: provider_api(name, written.get(name)) for name in (*BUILTIN_PROVIDERS, *written)}


def split_model_name(model_name: str, providers: Collection[str], *, namesake: str | None = None) -> tuple[str, str]:
    """A model's name as provider and model. Without a provider: the runtime's namesake, or the only one set up."""
    provider, slash, model = model_name.partition("/")
    if slash and provider in providers:
        return provider, model
    if namesake is not None and not slash:
        return namesake, model_name
    own = [name for name in providers if name not in BUILTIN_PROVIDERS]
    if not slash and len(own) == 1:
        return own[0], model_name
    return (provider, model) if slash else ("", model_name)


def model_choices(model: ModelSetting) -> tuple[str | None, tuple[str, ...]]:
    """An agent's `model`: its first choice, and the others in order."""
    return (model.primary, model.fallbacks) if isinstance(model, ModelFallbacks) else (model, ())


def uses_default_model(runtime: str | None, default_runtime: str | None) -> bool:
    """Whether an agent that names no model has that of `agents.defaults`. A CLI has its own default instead, unless
    the defaults name the same CLI: then their model is meant for it. `runtime` is the agent's own, if it names one."""
    is_cli = runtime in CLI_PROVIDERS or runtime == MULTI_PROVIDER_CLI
    return not is_cli or runtime == default_runtime


def runtime_for(model: ModelSetting, apis: Mapping[str, ModelApi]) -> str:
    """The runtime of an agent that names none: that of its model's provider; without a model, the demo."""
    first, _ = model_choices(model)
    return apis.get(split_model_name(first, apis)[0], "openai") if first else "demo"


def model_from_settings(settings: Json) -> str | None:
    """The model that a run, or else its session, asks for, with the provider named beside it."""
    model, provider = settings.get("model"), settings.get("provider")
    if not isinstance(model, str) or not model:
        return None
    return f"{provider}/{model}" if isinstance(provider, str) and provider and "/" not in model else model


def model_for_run(options: "RunOptions", entry: Json) -> str | None:
    """The model that a run asks for, or else the entry of its session."""
    own = {"model": options.model, "provider": options.provider}
    return model_from_settings({**entry, **{name: value for name, value in own.items() if value is not None}})


def candidate_models(
    runtime: str, model: ModelSetting, providers: Collection[str], override: str | None = None
) -> tuple[str, ...]:
    """Every model that may answer, in order, as `provider/model`; a CLI's own choice is `provider/`, or `ANY_MODEL`.

    `model` is the agent's, `override` the run's own instead of it. A fallback may answer too.
    """
    first, others = model_choices(model)
    first = override or first or ""
    own = CLI_PROVIDERS.get(runtime)
    if own is not None:
        return (f"{own}/{first.removeprefix(f'{own}/')}",)
    if runtime == MULTI_PROVIDER_CLI:
        return (first or ANY_MODEL,)
    if not first:
        return ()
    asks = runtime in MODEL_RUNTIMES
    names = (first, *others) if asks else (first,)
    parts = (split_model_name(name, providers, namesake=runtime if asks else None) for name in names)
    return tuple(dict.fromkeys("/".join(filter(None, name)) for name in parts))


def cli_model(name: str) -> str | None:
    """A name of `candidate_models` as the CLI takes it; None: the CLI chooses."""
    return None if name == ANY_MODEL or name.endswith("/") else name


def has_provider_rules(config: Json) -> bool:
    """Whether any rules about tools go by provider: then a change of the model is a change of the rules."""
    agents = _section(config, "agents")
    listed = agents.get("list")
    holders = [config, _section(agents, "defaults"), *_section(agents, "entries").values()]
    holders += listed if isinstance(listed, list) else []
    return any(_section(_section(holder, "tools"), "byProvider") for holder in holders)


def _section(config: Any, name: str) -> Json:
    found = config.get(name) if isinstance(config, dict) else None
    return found if isinstance(found, dict) else {}
