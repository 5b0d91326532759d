"""A model's window: how much of a conversation fits, and what is left out when it does not. Pure."""

from collections.abc import Sequence
from typing import Final

import msgspec

from .lru import LruCache
from .messages import (
    ImagePart,
    MessagePart,
    ModelMessage,
    ModelTool,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultPart,
)
from .turn_tools import shorten_text

TOKENS_PER_CHARACTER: Final = 0.3  # until a provider has counted: English has fewer, code and other scripts more
LEAST_RATE, MOST_RATE = 0.2, 1.2  # what a count may change it to; beyond, something else was counted
IMAGE_TOKENS: Final = 1600  # tokens, about what a large one costs
PART_TOKENS: Final = 8  # tokens around each part
ANSWER_SHARE: Final = 0.25  # of the window, kept for the answer, when the model's own limit is larger or unknown
SPARE_SHARE: Final = 0.05  # of the window: estimates err
KEPT_SHARE: Final = 0.6  # of what fits is kept when something must go, so that the next turns fit as well
RESULT_SHARE: Final = 0.3  # of the window, for one result of a tool
OLD_RESULT_LENGTH: Final = 400  # characters left of an older result when the present turn alone is too much


class TokenEstimator:
    """Estimates tokens; learns from what providers count."""

    def __init__(self) -> None:
        self.rate = TOKENS_PER_CHARACTER

    def size(self, message: ModelMessage) -> int:
        parts = message.parts
        return self._part(parts[0]) if len(parts) == 1 else sum(map(self._part, parts))

    def overhead(self, system: str, tools: Sequence[ModelTool]) -> int:
        return int((len(system) + _tool_chars(tools)) * self.rate)

    def total(self, messages: Sequence[ModelMessage]) -> int:
        return sum(map(self.size, messages))

    def calibrate(self, estimated: int, counted: int) -> None:
        """From an answer's own count of what it was asked."""
        if estimated > 1000 and counted > 0:  # a short one is mostly frame
            self.rate = min(MOST_RATE, max(LEAST_RATE, self.rate * counted / estimated))

    def _part(self, part: MessagePart) -> int:
        match part:
            case TextPart(text=text) | ThinkingPart(text=text):
                return int(len(text) * self.rate) + PART_TOKENS
            case ImagePart():
                return IMAGE_TOKENS
            case ToolCallPart(arguments=arguments, name=name):
                return int((len(arguments) + len(name)) * self.rate) + PART_TOKENS
            case ToolResultPart(parts=parts):
                return sum(map(self._part, parts)) + PART_TOKENS


def request_budget(window: int, most_output: int | None) -> int:
    """Tokens a request may take of a window."""
    answer = min(most_output or window, int(window * ANSWER_SHARE))
    return window - answer - int(window * SPARE_SHARE)


def max_result_chars(window: int) -> int:
    """Characters of one result."""
    return int(window * RESULT_SHARE / TOKENS_PER_CHARACTER)


def fit_messages(
    messages: Sequence[ModelMessage], history_count: int, budget: int, estimator: TokenEstimator
) -> tuple[list[ModelMessage], int] | None:
    """The conversation within `budget` tokens, and how many of the first `history_count` messages were left out.

    Earlier turns go first, whole, the oldest first; then older results of the present turn are cut short. None: even
    so it does not fit.
    """
    sizes = [estimator.size(message) for message in messages]
    total = sum(sizes)
    if total <= budget:
        return list(messages), 0
    present = sum(sizes[history_count:])
    goal = max(int(budget * KEPT_SHARE), present)
    first = 0
    while first < history_count and (total > goal or not _can_start(messages[first])):
        total -= sizes[first]
        first += 1
    kept = list(messages[first:])
    if total <= budget:
        return kept, first
    return _shorten_results(kept, budget, estimator, dropped=first)


def _shorten_results(
    messages: list[ModelMessage], budget: int, estimator: TokenEstimator, *, dropped: int
) -> tuple[list[ModelMessage], int] | None:
    total = sum(map(estimator.size, messages))
    for place, message in enumerate(messages[:-1]):
        if total <= budget:
            break
        shorter = ModelMessage(message.role, tuple(_shorten_part(part) for part in message.parts))
        total -= estimator.size(message) - estimator.size(shorter)
        messages[place] = shorter
    return (messages, dropped) if total <= budget else None


def _shorten_part(part: MessagePart) -> MessagePart:
    if not isinstance(part, ToolResultPart):
        return part
    parts = tuple(
        TextPart("[an image, left out to stay within the model's window]")
        if isinstance(p, ImagePart)
        else shorten_text(p, OLD_RESULT_LENGTH)
        for p in part.parts
    )
    return msgspec.structs.replace(part, parts=parts)


def _can_start(message: ModelMessage) -> bool:
    """Whether a conversation may begin here: a turn's own first message, no result without its call."""
    return message.role == "user" and not any(isinstance(part, ToolResultPart) for part in message.parts)


_tool_chars = LruCache[ModelTool, int](
    lambda offers: sum(len(o.name) + len(o.description) + len(msgspec.json.encode(o.schema)) for o in offers)
)
