"""One question put to a model until it is answered: keys in turn, waits between tries, other models after it."""

import asyncio
import logging
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from ....core.providers import Api
from .anthropic import Anthropic
from .api_keys import KeyRing
from .errors import PASSING, ModelTrouble, TooMuch
from .http import Wire
from .messages import Answer, Ask, Codec, Heard
from .openai import OpenAI
from .settings import Choice, KeySource, Provider

logger = logging.getLogger(__name__)

FIRST_WAIT: Final = 0.25  # seconds before the first new try; doubles with each
LONGEST_WAIT: Final = 8.0
LONGEST_ASKED: Final = 60.0  # seconds; a provider that asks for a longer wait is given up on
MOST_SHRINKS: Final = 3  # times a conversation is made smaller because the provider says so
CODECS: Final[Mapping[Api, Codec]] = {"openai": OpenAI(), "anthropic": Anthropic()}


class Shop:
    """What every turn shares: the wire and the keys' standing. Lives as long as the runtimes do."""

    def __init__(self) -> None:
        self.wire = Wire()
        self._rings: dict[Provider, KeyRing] = {}

    def ring(self, provider: Provider) -> KeyRing:
        if provider not in self._rings:
            # A changed entry is another provider; the old one's keys are forgotten with it.
            self._rings = {known: ring for known, ring in self._rings.items() if known.name != provider.name}
            self._rings[provider] = KeyRing(provider)
        return self._rings[provider]

    async def aclose(self) -> None:
        await self.wire.aclose()


class Ear(NamedTuple):
    """Whoever listens while an answer comes."""

    begin: Callable[[Choice], None]
    """A model is asked; whatever an earlier try said is void."""
    hear: Callable[[Heard], None]


class Asking:
    """A turn's questions. Once another model had to answer, it answers the rest of the turn."""

    def __init__(self, shop: Shop, choices: Sequence[Choice], *, retries: int) -> None:
        self._shop = shop
        self._choices = list(choices)
        self._retries = retries

    @property
    def choice(self) -> Choice:
        """The model asked next."""
        return self._choices[0]

    async def ask(self, prepare: Callable[[Choice, int], Ask], ear: Ear) -> Answer:
        """The answer. `prepare` makes the question for a model, smaller the higher its second argument.

        Raises the ModelTrouble of the first model when no model answers: that is the one to be put right.
        """
        first: ModelTrouble | None = None
        while True:
            try:
                return await self._one(self.choice, prepare, ear)
            except ModelTrouble as trouble:
                logger.warning("%s: %s (%s)", self.choice.name, trouble, trouble.kind)
                first = first or trouble
                if len(self._choices) == 1 or trouble.kind in ("bad_request", "limit"):
                    raise first from None
                self._choices.pop(0)

    async def _one(self, choice: Choice, prepare: Callable[[Choice, int], Ask], ear: Ear) -> Answer:
        ring = self._shop.ring(choice.provider)
        keys = ring.order()
        tries = shrinks = 0
        while True:
            try:
                ask = prepare(choice, shrinks)
                key = await ring.read(keys[0])
                ear.begin(choice)
                return await self._shop.wire.ask(CODECS[choice.provider.api], ask, key, ear.hear)
            except ModelTrouble as trouble:
                if _too_long(trouble) and shrinks < MOST_SHRINKS:
                    shrinks += 1
                elif _turn_key(ring, keys, trouble):
                    pass
                elif (
                    tries < self._retries and (wait := _wait(trouble, tries, alone=len(self._choices) == 1)) is not None
                ):
                    tries += 1
                    await asyncio.sleep(wait)
                    keys = ring.order()
                else:
                    raise


def _too_long(trouble: ModelTrouble) -> bool:
    return trouble.kind == "context_length" and not isinstance(trouble, TooMuch)


def _turn_key(ring: KeyRing, keys: list[KeySource | None], trouble: ModelTrouble) -> bool:
    """Put the next key first, if it is the key that is at fault and there is another."""
    if trouble.kind == "auth":
        ring.refuse(keys[0])
    elif trouble.kind == "rate_limit":
        ring.rest(keys[0], trouble.retry_after)
    else:
        return False
    if len(keys) == 1:
        return False
    keys.pop(0)
    return True


def _wait(trouble: ModelTrouble, tries: int, *, alone: bool) -> float | None:
    """Seconds until another try makes sense; None when it does not, or when another model would answer sooner."""
    if trouble.kind != "rate_limit" and trouble.kind not in PASSING:
        return None
    if trouble.retry_after is not None:
        return trouble.retry_after if trouble.retry_after <= (LONGEST_ASKED if alone else LONGEST_WAIT) else None
    return float(min(LONGEST_WAIT, FIRST_WAIT * 2**tries) * random.uniform(0.75, 1.25))  # noqa: S311 - spreads load, guards nothing
