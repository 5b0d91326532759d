"""What an agent did to others while it ran, as its side-effects file tells: words for whoever reads or writes one."""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

from msgspec import Struct


class Sent(Struct, frozen=True, kw_only=True):
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


class Effects(Struct, frozen=True, kw_only=True):
    """A whole run's. `unsure` are messages of which nobody knows whether they went out."""

    sent: tuple[Sent, ...] = ()
    unsure: tuple[Sent, ...] = ()
    cron_added: tuple[CronAdded, ...] = ()
    skipped: int = 0
    """Lines that could not be used."""

    @property
    def texts(self) -> tuple[str, ...]:
        return tuple(sent.text for sent in self.sent)

    @property
    def media_urls(self) -> tuple[str, ...]:
        return tuple(sent.media_url for sent in self.sent if sent.media_url)


def completed(noted: Effects, known: Effects) -> Effects:
    """What a program noted, and what is known beyond that. A message it was unsure of and that is known is sure."""
    unheard = _beyond(known.sent, noted.sent, _which)
    open = (*noted.unsure, *_beyond(known.unsure, (*noted.unsure, *noted.sent), _words))
    return Effects(
        sent=(*noted.sent, *unheard),
        unsure=_beyond(open, unheard, _words),
        cron_added=(*noted.cron_added, *_beyond(known.cron_added, noted.cron_added, lambda added: added.job_id)),
        skipped=noted.skipped,
    )


One = TypeVar("One")


def _beyond(some: Iterable[One], others: Iterable[One], which: Callable[[One], Hashable]) -> tuple[One, ...]:
    """Of `some` those that have no match of their own among `others`."""
    there = Counter(map(which, others))
    left: list[One] = []
    for one in some:
        if there[which(one)] > 0:
            there[which(one)] -= 1
        else:
            left.append(one)
    return tuple(left)


def _which(sent: Sent) -> Hashable:
    return sent.tool, sent.to, sent.text


def _words(sent: Sent) -> Hashable:
    """One that was not answered knows its conversation only as the agent wrote it."""
    return sent.tool, sent.text
