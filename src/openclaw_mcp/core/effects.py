"""What an agent did to others while it ran, as its side-effects file records it."""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

from msgspec import Struct


class SentMessage(Struct, frozen=True, kw_only=True):
    """A message that was sent. `to` None: the record does not name the conversation."""

    tool: str
    provider: str = ""
    account: str | None = None
    to: str | None = None
    text: str = ""
    media_url: str | None = None
    thread: str | None = None
    ts: int = 0
    """Unix milliseconds."""


class CronAdded(Struct, frozen=True, kw_only=True):
    job_id: str | None = None
    ts: int = 0


class RunEffects(Struct, frozen=True, kw_only=True):
    """Those of a whole run. `unsure` are messages of which it is not known whether they were sent."""

    sent: tuple[SentMessage, ...] = ()
    unsure: tuple[SentMessage, ...] = ()
    cron_added: tuple[CronAdded, ...] = ()
    skipped: int = 0
    """Lines that could not be used."""

    @property
    def texts(self) -> tuple[str, ...]:
        return tuple(sent.text for sent in self.sent)

    @property
    def media_urls(self) -> tuple[str, ...]:
        return tuple(sent.media_url for sent in self.sent if sent.media_url)


def merge_effects(recorded: RunEffects, known: RunEffects) -> RunEffects:
    """What a program recorded, and what is known besides. A message it was unsure of and that is known is sure."""
    unrecorded = _without_matches(known.sent, recorded.sent, _message_key)
    unsure = (*recorded.unsure, *_without_matches(known.unsure, (*recorded.unsure, *recorded.sent), _text_key))
    return RunEffects(
        sent=(*recorded.sent, *unrecorded),
        unsure=_without_matches(unsure, unrecorded, _text_key),
        cron_added=(
            *recorded.cron_added,
            *_without_matches(known.cron_added, recorded.cron_added, lambda added: added.job_id),
        ),
        skipped=recorded.skipped,
    )


Item = TypeVar("Item")


def _without_matches(
    items: Iterable[Item], others: Iterable[Item], key: Callable[[Item], Hashable]
) -> tuple[Item, ...]:
    """The `items` that have no match of their own among `others`."""
    unmatched = Counter(map(key, others))
    left: list[Item] = []
    for one in items:
        if unmatched[key(one)] > 0:
            unmatched[key(one)] -= 1
        else:
            left.append(one)
    return tuple(left)


def _message_key(sent: SentMessage) -> Hashable:
    return sent.tool, sent.to, sent.text


def _text_key(sent: SentMessage) -> Hashable:
    """An unanswered message names its conversation as the agent wrote it, not as the gateway does."""
    return sent.tool, sent.text
