"""System events: what an agent is to hear with its next prompt. A few per session, the oldest give way."""

from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy import Connection, Row, bindparam, delete, insert, select

from ..core.jobs import Queued
from .tables import system_events

MOST_WAITING: Final = 20  # per session, as the reference has it: a prompt has room for these, not for a week's worth
LONGEST: Final = 20_000  # characters of one; more belongs in a message

_OF_SESSION = (
    select(system_events).where(system_events.c.session_key == bindparam("wanted")).order_by(system_events.c.id)
)


def queue(connection: Connection, event: Queued) -> None:
    """Keep it, once per key."""
    known = select(system_events.c.id).where(system_events.c.key == event.key)
    if connection.execute(known).first() is not None:
        return
    waiting = connection.execute(_OF_SESSION, {"wanted": event.session}).all()
    if waiting and waiting[-1].text == event.text:
        return  # said already and not heard yet
    values = {"session_key": event.session, "key": event.key, "at": event.at}
    connection.execute(insert(system_events).values(**values, text=event.text.replace("\0", "")[:LONGEST]))
    surplus = [row.id for row in waiting[: len(waiting) + 1 - MOST_WAITING]]
    if len(waiting) + 1 > MOST_WAITING:
        connection.execute(delete(system_events).where(system_events.c.id.in_(surplus)))


def drained(connection: Connection, session_key: str) -> Sequence[Row[Any]]:
    """What waits for this session; from now on it does not."""
    waiting = connection.execute(_OF_SESSION, {"wanted": session_key}).all()
    if waiting:
        connection.execute(delete(system_events).where(system_events.c.id.in_([row.id for row in waiting])))
    return waiting
