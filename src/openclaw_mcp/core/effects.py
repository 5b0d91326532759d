"""What an agent did to others while it ran, as its side-effects file tells: words for whoever reads or writes one."""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

from msgspec import Struct


class SentMessage(Struct, frozen=True, kw_only=True):
    """A message that went out. `to` None: the record does not say where."""

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
    """A whole run's. `unsure` are messages of which nobody knows whether they went out."""

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
    """What a program noted, and what is known beyond that. A message it was unsure of and that is known is sure."""
    unheard = _without_matches(known.sent, recorded.sent, _message_key)
    open = (*recorded.unsure, *_without_matches(known.unsure, (*recorded.unsure, *recorded.sent), _text_key))
    return RunEffects(
        sent=(*recorded.sent, *unheard),
        unsure=_without_matches(open, unheard, _text_key),
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
    """Of `some` those that have no match of their own among `others`."""
    there = Counter(map(key, others))
    left: list[Item] = []
    for one in items:
        if there[key(one)] > 0:
            there[key(one)] -= 1
        else:
            left.append(one)
    return tuple(left)


def _message_key(sent: SentMessage) -> Hashable:
    return sent.tool, sent.to, sent.text


def _text_key(sent: SentMessage) -> Hashable:
    """One that was not answered knows its conversation only as the agent wrote it."""
    return sent.tool, sent.text
