"""What an agent did to others while it ran, as its side-effects file tells: words for whoever reads or writes one."""

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
