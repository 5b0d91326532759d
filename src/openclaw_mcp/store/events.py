"""System events: what an agent is to hear with its next prompt. A few per session, the oldest give way to new ones."""

from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy import Connection, Row, bindparam, delete, insert, select

from ..core.jobs import Queued
from .prepared_statements import Prepared
from .tables import system_events

MOST_WAITING: Final = 20  # per session, of the owner's and of others': a prompt has room for these, as in the reference
LONGEST: Final = 20_000  # characters of one; more belongs in a message
GUEST: Final = "guest:"
"""How the keys of events begin that no run of the owner may hear."""

_OF_SESSION = Prepared(
    select(system_events).where(system_events.c.session_key == bindparam("wanted")).order_by(system_events.c.id)
)

_KNOWN = Prepared(select(system_events.c.id).where(system_events.c.key == bindparam("wanted")))
_ADD = Prepared(insert(system_events))


def queue_all(connection: Connection, events: Sequence[Queued]) -> None:
    """Keep them in order, each once per key. Of more than may wait, only the newest are written at all."""
    by_session: dict[str, list[Queued]] = {}
    for event in events:
        by_session.setdefault(event.session, []).append(event)
    for session, told in by_session.items():
        _queue(connection, session, told)


def _queue(connection: Connection, session: str, events: Sequence[Queued]) -> None:
    waiting = _OF_SESSION.all(connection, {"wanted": session})
    last = {row.key.startswith(GUEST): row.text for row in waiting}
    rows: dict[str, dict[str, Any]] = {}
    for event in events:
        text = event.text.replace("\0", "")[:LONGEST]
        if text == last.get(not event.owner):
            continue  # said already and not heard yet
        key = event.key if event.owner else GUEST + event.key
        rows[key] = {"session_key": session, "key": key, "at": event.at, "text": text}
        last[not event.owner] = text
    fresh = [row for key, row in [*rows.items()][-MOST_WAITING:] if not _known(connection, key)]
    if not fresh:
        return
    _ADD.run_each(connection, fresh)
    surplus = [id for guests in (False, True) for id in _surplus(waiting, fresh, guests=guests)]
    if surplus:
        connection.execute(delete(system_events).where(system_events.c.id.in_(surplus)))


def _surplus(waiting: Sequence[Row[Any]], fresh: Sequence[dict[str, Any]], *, guests: bool) -> list[int]:
    """Those that give way. What guests say takes no room from what the owner left, nor the other way round."""
    old = [row.id for row in waiting if is_guests(row) is guests]
    new = sum(row["key"].startswith(GUEST) is guests for row in fresh)
    return old[: max(0, len(old) + new - MOST_WAITING)]


def is_guests(event: Row[Any]) -> bool:
    """Whether it was left by somebody who is not the owner."""
    return bool(event.key.startswith(GUEST))


def _known(connection: Connection, key: str) -> bool:
    return _KNOWN.first(connection, {"wanted": key}) is not None


def drained(connection: Connection, session_key: str, *, owner: bool, shared: bool) -> Sequence[Row[Any]]:
    """What waits for this session; from now on it does not. A run of the owner leaves what others said to later ones:
    words in its prompt would be carried out with the owner's rights. In a session the owner has in common with others
    (`shared`) the others' runs leave what was said for the owner; elsewhere whoever answers next is meant."""
    waiting = [
        row
        for row in _OF_SESSION.all(connection, {"wanted": session_key})
        if is_guests(row) is not owner or not (owner or shared)
    ]
    if waiting:
        connection.execute(delete(system_events).where(system_events.c.id.in_([row.id for row in waiting])))
    return waiting
