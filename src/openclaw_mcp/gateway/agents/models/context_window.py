"""A model's window: how much of a conversation fits, and what is left out when it does not. Pure."""

from collections.abc import Sequence
from typing import Final

import msgspec

from .lru import Kept
from .messages import Call, Offer, Part, Picture, Result, Said, Thought, Words
from .turn_tools import shortened

TOKENS_A_CHARACTER: Final = 0.3  # until a provider has counted: English has fewer, code and other scripts more
LEAST_RATE, MOST_RATE = 0.2, 1.2  # what a count may change it to; beyond, something else was counted
A_PICTURE: Final = 1600  # tokens, about what a large one costs
A_PART: Final = 8  # tokens around each part
ANSWER_SHARE: Final = 0.25  # of the window, kept for the answer, when the model's own limit is larger or unknown
SPARE: Final = 0.05  # of the window: estimates err
KEPT_SHARE: Final = 0.6  # of what fits is kept when something must go, so that the next turns fit as well
RESULT_SHARE: Final = 0.3  # of the window, for one result of a tool
OLD_RESULT: Final = 400  # characters left of an older result when the present turn alone is too much


class Gauge:
    """Estimates tokens; learns from what providers count."""

    def __init__(self) -> None:
        self.rate = TOKENS_A_CHARACTER

    def size(self, said: Said) -> int:
        parts = said.parts
        return self._part(parts[0]) if len(parts) == 1 else sum(map(self._part, parts))

    def overhead(self, system: str, offers: Sequence[Offer]) -> int:
        return int((len(system) + _letters(offers)) * self.rate)

    def whole(self, talk: Sequence[Said]) -> int:
        return sum(map(self.size, talk))

    def learn(self, estimated: int, counted: int) -> None:
        """From an answer's own count of what it was asked."""
        if estimated > 1000 and counted > 0:  # a short one is mostly frame
            self.rate = min(MOST_RATE, max(LEAST_RATE, self.rate * counted / estimated))

    def _part(self, part: Part) -> int:
        match part:
            case Words(text=text) | Thought(text=text):
                return int(len(text) * self.rate) + A_PART
            case Picture():
                return A_PICTURE
            case Call(arguments=arguments, name=name):
                return int((len(arguments) + len(name)) * self.rate) + A_PART
            case Result(parts=parts):
                return sum(map(self._part, parts)) + A_PART


def room(window: int, most_output: int | None) -> int:
    """Tokens a request may take of a window."""
    answer = min(most_output or window, int(window * ANSWER_SHARE))
    return window - answer - int(window * SPARE)


def most_of_result(window: int) -> int:
    """Characters of one result."""
    return int(window * RESULT_SHARE / TOKENS_A_CHARACTER)


def fitted(talk: Sequence[Said], before: int, space: int, gauge: Gauge) -> tuple[list[Said], int] | None:
    """The conversation within `space` tokens, and how many of the first `before` messages were left out.

    Earlier turns go first, whole, the oldest first; then older results of the present turn are cut short. None: even
    so it does not fit.
    """
    sizes = [gauge.size(said) for said in talk]
    total = sum(sizes)
    if total <= space:
        return list(talk), 0
    present = sum(sizes[before:])
    goal = max(int(space * KEPT_SHARE), present)
    first = 0
    while first < before and (total > goal or not _begins(talk[first])):
        total -= sizes[first]
        first += 1
    kept = list(talk[first:])
    if total <= space:
        return kept, first
    return _short_results(kept, space, gauge, dropped=first)


def _short_results(talk: list[Said], space: int, gauge: Gauge, *, dropped: int) -> tuple[list[Said], int] | None:
    total = sum(map(gauge.size, talk))
    for place, said in enumerate(talk[:-1]):
        if total <= space:
            break
        shorter = Said(said.role, tuple(_shorter(part) for part in said.parts))
        total -= gauge.size(said) - gauge.size(shorter)
        talk[place] = shorter
    return (talk, dropped) if total <= space else None


def _shorter(part: Part) -> Part:
    if not isinstance(part, Result):
        return part
    parts = tuple(
        Words("[an image, left out to stay within the model's window]")
        if isinstance(p, Picture)
        else shortened(p, OLD_RESULT)
        for p in part.parts
    )
    return msgspec.structs.replace(part, parts=parts)


def _begins(said: Said) -> bool:
    """Whether a conversation may begin here: a turn's own first message, no result without its call."""
    return said.role == "user" and not any(isinstance(part, Result) for part in said.parts)


_letters = Kept[Offer, int](
    lambda offers: sum(len(o.name) + len(o.description) + len(msgspec.json.encode(o.schema)) for o in offers)
)
