"""One question put to a model until it is answered: keys in turn, waits between tries, other models after it."""

import asyncio
import logging
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from ....core.providers import ModelApi
from .anthropic import AnthropicCodec
from .api_keys import KeyRing
from .errors import TRANSIENT_KINDS, ContextOverflow, ModelError
from .http import ModelHttpClient
from .messages import AnswerDelta, ModelAnswer, ModelCodec, ModelRequest
from .openai import OpenAICodec
from .settings import KeySource, ModelChoice, ModelProvider

logger = logging.getLogger(__name__)

FIRST_WAIT: Final = 0.25  # seconds before the first new try; doubles with each
MAX_WAIT: Final = 8.0
LONGEST_RETRY_AFTER: Final = 60.0  # seconds; a provider that asks for a longer wait is given up on
MAX_SHRINKS: Final = 3  # times a conversation is made smaller because the provider refuses it
CODECS: Final[Mapping[ModelApi, ModelCodec]] = {"openai": OpenAICodec(), "anthropic": AnthropicCodec()}


class ModelClients:
    """What all turns share: connections, and which keys were refused. Open as long as the runtimes are."""

    def __init__(self) -> None:
        self.http = ModelHttpClient()
        self._key_rings: dict[ModelProvider, KeyRing] = {}

    def key_ring(self, provider: ModelProvider) -> KeyRing:
        if provider not in self._key_rings:
            # A changed entry is another provider; the old one's keys are forgotten with it.
            self._key_rings = {known: ring for known, ring in self._key_rings.items() if known.name != provider.name}
            self._key_rings[provider] = KeyRing(provider)
        return self._key_rings[provider]

    def forget_keys(self) -> None:
        """Each key is read again, from where the config has it, by the next turn that needs it."""
        self._key_rings.clear()

    async def aclose(self) -> None:
        await self.http.aclose()


class StreamHandler(NamedTuple):
    """The handlers of an answer while it comes."""

    on_start: Callable[[ModelChoice], None]
    """A model is asked; the text of an earlier attempt is void."""
    on_delta: Callable[[AnswerDelta], None]


class ModelFailover:
    """A turn's questions. Once another model had to answer, it answers the rest of the turn."""

    def __init__(self, clients: ModelClients, choices: Sequence[ModelChoice], *, retries: int) -> None:
        self._clients = clients
        self._choices = list(choices)
        self._retries = retries

    @property
    def current(self) -> ModelChoice:
        """The model asked next."""
        return self._choices[0]

    async def ask(self, prepare: Callable[[ModelChoice, int], ModelRequest], handler: StreamHandler) -> ModelAnswer:
        """The answer. `prepare` makes the question for a model, smaller the higher its second argument.

        Raises the ModelError of the first model when no model answers: that is the one to be put right.
        """
        first: ModelError | None = None
        while True:
            try:
                return await self._ask_model(self.current, prepare, handler)
            except ModelError as trouble:
                logger.warning("%s: %s (%s)", self.current.name, trouble, trouble.kind)
                first = first or trouble
                if len(self._choices) == 1 or trouble.kind in ("bad_request", "limit"):
                    raise first from None
                self._choices.pop(0)

    async def _ask_model(
        self, choice: ModelChoice, prepare: Callable[[ModelChoice, int], ModelRequest], handler: StreamHandler
    ) -> ModelAnswer:
        ring = self._clients.key_ring(choice.provider)
        keys = ring.sort_sources()
        tries = shrinks = 0
        while True:
            try:
                ask = prepare(choice, shrinks)
                key = await ring.read(keys[0])
                handler.on_start(choice)
                return await self._clients.http.ask(CODECS[choice.provider.api], ask, key, handler.on_delta)
            except ModelError as trouble:
                if _is_too_long(trouble) and shrinks < MAX_SHRINKS:
                    shrinks += 1
                elif _rotate_key(ring, keys, trouble):
                    pass
                elif (
                    tries < self._retries
                    and (wait := _retry_delay(trouble, tries, is_last_model=len(self._choices) == 1)) is not None
                ):
                    tries += 1
                    await asyncio.sleep(wait)
                    keys = ring.sort_sources()
                else:
                    raise


def _is_too_long(error: ModelError) -> bool:
    return error.kind == "context_length" and not isinstance(error, ContextOverflow)


def _rotate_key(key_ring: KeyRing, keys: list[KeySource | None], error: ModelError) -> bool:
    """Put the next key first, if it is the key that is at fault and there is another."""
    if error.kind == "auth":
        key_ring.reject(keys[0])
    elif error.kind == "rate_limit":
        key_ring.cool_down(keys[0], error.retry_after)
    else:
        return False
    if len(keys) == 1:
        return False
    keys.pop(0)
    return True


def _retry_delay(error: ModelError, tries: int, *, is_last_model: bool) -> float | None:
    """Seconds until another try makes sense; None when it does not, or when another model would answer sooner."""
    if error.kind != "rate_limit" and error.kind not in TRANSIENT_KINDS:
        return None
    if error.retry_after is not None:
        return error.retry_after if error.retry_after <= (LONGEST_RETRY_AFTER if is_last_model else MAX_WAIT) else None
    return float(min(MAX_WAIT, FIRST_WAIT * 2**tries) * random.uniform(0.75, 1.25))  # noqa: S311 - spreads load, guards nothing
