"""System events: what an agent is to hear with its next prompt. A few per session, the oldest give way."""

from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy import Connection, Row, bindparam, delete, insert, select

from ..core.jobs import Queued
from .prepared import Prepared
from .tables import system_events

MOST_WAITING: Final = 20  # per session, as the reference has it: a prompt has room for these, not for a week's worth
LONGEST: Final = 20_000  # characters of one; more belongs in a message

_OF_SESSION = Prepared(
    select(system_events).where(system_events.c.session_key == bindparam("wanted")).order_by(system_events.c.id)
)

_KNOWN = select(system_events.c.id).where(system_events.c.key == bindparam("wanted"))
_ADD = insert(system_events)


def queue(connection: Connection, event: Queued) -> None:
    """Keep it, once per key."""
    if connection.execute(_KNOWN, {"wanted": event.key}).first() is not None:
        return
    waiting = _OF_SESSION.all(connection, {"wanted": event.session})
    if waiting and waiting[-1].text == event.text:
        return  # said already and not heard yet
    text = event.text.replace("\0", "")[:LONGEST]
    connection.execute(_ADD, {"session_key": event.session, "key": event.key, "at": event.at, "text": text})
    surplus = [row.id for row in waiting[: len(waiting) + 1 - MOST_WAITING]]
    if len(waiting) + 1 > MOST_WAITING:
        connection.execute(delete(system_events).where(system_events.c.id.in_(surplus)))


def drained(connection: Connection, session_key: str) -> Sequence[Row[Any]]:
    """What waits for this session; from now on it does not."""
    waiting = _OF_SESSION.all(connection, {"wanted": session_key})
    if waiting:
        connection.execute(delete(system_events).where(system_events.c.id.in_([row.id for row in waiting])))
    return waiting
