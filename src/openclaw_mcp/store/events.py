"""System events: texts that an agent gets with its next prompt. A few per session; new ones replace the oldest."""

from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy import Connection, Row, bindparam, delete, insert, select

from ..core.jobs import QueuedEvent
from .prepared_statements import PreparedStatement
from .tables import system_events

MOST_QUEUED: Final = 20  # per session, of the owner's and of others': as many as the reference puts into a prompt
LONGEST_EVENT: Final = 20_000  # characters of one; more belongs in a message
GUEST_KEY_PREFIX: Final = "guest:"
"""Prefix of the keys of events that no run of the owner may get."""

_SELECT_BY_SESSION = PreparedStatement(
    select(system_events).where(system_events.c.session_key == bindparam("wanted")).order_by(system_events.c.id)
)

_SELECT_BY_KEY = PreparedStatement(select(system_events.c.id).where(system_events.c.key == bindparam("wanted")))
_INSERT_EVENT = PreparedStatement(insert(system_events))


def queue_events(connection: Connection, events: Sequence[QueuedEvent]) -> None:
    """Store them in order, each key once. Of more than `MOST_QUEUED`, only the newest are written."""
    by_session: dict[str, list[QueuedEvent]] = {}
    for event in events:
        by_session.setdefault(event.session, []).append(event)
    for session, added in by_session.items():
        _queue_for_session(connection, session, added)


def _queue_for_session(connection: Connection, session: str, events: Sequence[QueuedEvent]) -> None:
    waiting = _SELECT_BY_SESSION.all(connection, {"wanted": session})
    last = {row.key.startswith(GUEST_KEY_PREFIX): row.text for row in waiting}
    rows = {}
    for event in events:
        text = event.text.replace("\0", "")[:LONGEST_EVENT]
        if text == last.get(not event.owner):
            continue  # it waits already
        key = event.key if event.owner else GUEST_KEY_PREFIX + event.key
        rows[key] = {"session_key": session, "key": key, "at": event.at, "text": text}
        last[not event.owner] = text
    fresh = [key for key in [*rows][-MOST_QUEUED:] if not _is_queued(connection, key)]
    if not fresh:
        return
    _INSERT_EVENT.run_each(connection, [rows[key] for key in fresh])
    surplus = [id for guests in (False, True) for id in _find_surplus(waiting, fresh, guests=guests)]
    if surplus:
        connection.execute(delete(system_events).where(system_events.c.id.in_(surplus)))


def _find_surplus(waiting: Sequence[Row[Any]], fresh: Sequence[str], *, guests: bool) -> list[int]:
    """Those to be deleted. Events of others never displace those of the owner, nor the other way round."""
    old = [row.id for row in waiting if is_from_guest(row) is guests]
    new = sum(key.startswith(GUEST_KEY_PREFIX) is guests for key in fresh)
    return old[: max(0, len(old) + new - MOST_QUEUED)]


def is_from_guest(event: Row[Any]) -> bool:
    """Whether it comes from a person who is not the owner."""
    return bool(event.key.startswith(GUEST_KEY_PREFIX))


def _is_queued(connection: Connection, key: str) -> bool:
    return _SELECT_BY_KEY.first(connection, {"wanted": key}) is not None


def take_events(connection: Connection, session_key: str, *, is_owner: bool, multi_user: bool) -> Sequence[Row[Any]]:
    """Take the events of this session for a run's prompt. A run of the owner leaves those of others to later runs: text
    in its prompt would be acted on with the owner's rights. In a session that the owner shares with others
    (`multi_user`) the others' runs leave the owner's events; elsewhere the next run takes them."""
    waiting = [
        row
        for row in _SELECT_BY_SESSION.all(connection, {"wanted": session_key})
        if is_from_guest(row) is not is_owner or not (is_owner or multi_user)
    ]
    if waiting:
        connection.execute(delete(system_events).where(system_events.c.id.in_([row.id for row in waiting])))
    return waiting
