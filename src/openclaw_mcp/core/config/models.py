"""`models` of openclaw.json: providers, their keys and their models."""

from typing import Annotated, Literal

from ..model import Json
from .keys import ADDRESS, HISTORY, LIMIT, SECRET, UNKNOWN, Section, key


class EnvironmentKey(Section, frozen=True, tag_field="source", tag="env"):
    """In the environment."""

    is_open = True
    id: Annotated[str, key("The variable", min_length=1)]


class FileKey(Section, frozen=True, tag_field="source", tag="file"):
    """In a file only its owner may read."""

    path: Annotated[str, key("The file", min_length=1)]
    id: Annotated[str, key("In a JSON file, a pointer such as /providers/openai/apiKey")] = ""


class KeyringKey(Section, frozen=True, tag_field="source", tag="keyring"):
    """In the system's keyring."""

    id: Annotated[str, key("The account it is stored under", min_length=1)]
    service: Annotated[str, key("The service it is stored under")] = "openclaw-mcp"


WrittenKey = Annotated[str, key("The key, or ${A_VARIABLE} of the environment", min_length=1)]
ApiKey = WrittenKey | EnvironmentKey | FileKey | KeyringKey
_OneOfKeys = Annotated[ApiKey, key("A key: the text itself, ${A_VARIABLE}, or where it is")]


class ModelEntry(Section, frozen=True):
    """One model."""

    is_open = True
    id: Annotated[str, key("Its name at the provider", ADDRESS, min_length=1)]
    name: Annotated[str | None, key("Its name for people", LIMIT)] = None
    context_window: Annotated[int, key("Tokens it can hold", LIMIT, ge=1000)] = 128_000
    max_tokens: Annotated[int, key("Tokens it may answer with", LIMIT, ge=1)] | None = None
    input: Annotated[tuple[str, ...], key("What it takes: text, image", LIMIT)] = ()
    reasoning: Annotated[bool, key("Whether it can be asked to think harder", LIMIT)] = False
    cost: Annotated[Json, key("Dollars for a million tokens: input, output, cacheRead, cacheWrite", HISTORY)] = {}


class ProviderEntry(Section, frozen=True):
    """One provider of models."""

    is_open = True
    api: Annotated[
        Literal[
            "openai", "openai-completions", "openai-responses", "ollama", "anthropic", "anthropic-messages", "openclaw"
        ]
        | None,
        key("Its protocol; openclaw is another gateway, whose agents are its models", ADDRESS),
    ] = None
    base_url: Annotated[
        str, key("Its address, such as http://127.0.0.1:8000/v1; of a gateway, ws://host:port", ADDRESS, min_length=1)
    ] = ""
    api_key: Annotated[
        ApiKey | Annotated[tuple[_OneOfKeys, ...], key("Keys", min_length=1, max_length=64)] | None,
        key("Its key, or several to take in turns", SECRET),
    ] = None
    headers: Annotated[dict[str, str], key("Further headers", SECRET)] = {}
    timeout_seconds: Annotated[float, key("Seconds without any output", LIMIT, whole_seconds=True)] = 120
    models: Annotated[tuple[ModelEntry, ...], key("Its models, where more is known of them", UNKNOWN)] = ()


class ModelsConfig(Section, frozen=True):
    """Models."""

    mode: Annotated[Literal["merge", "replace"] | None, key("With the built-in list", ADDRESS, unused=True)] = None
    providers: Annotated[
        dict[str, Annotated[ProviderEntry, key(agents=UNKNOWN)]],
        key("Providers by name; openai, anthropic and ollama are known without an entry"),
    ] = {}
