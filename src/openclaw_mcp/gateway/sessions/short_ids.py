"""Sessions by the short id that is in the address of a page: the beginning of the UUID at the end of their key."""

import re
from collections.abc import Sequence
from typing import Annotated, Final

from msgspec import Meta

from ...core.model import Json
from ...core.repositories import SessionRepository
from ...core.sessions import Session, SessionQuery

MAX_CANDIDATES: Final = 10  # sessions that one short id may mean; a page shows them to choose from
MAX_SEARCHED: Final = 100  # sessions looked at for one short id
SEARCHED_DIGITS: Final = 8  # the part of a UUID before its first dash
MAX_SLUG_LENGTH: Final = 48

ShortId = Annotated[str, Meta(pattern="^[0-9a-fA-F]{8,32}$")]

_KEY_UUID: Final = re.compile(r"(?:^|[:-])([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})$", re.IGNORECASE)
_NOT_IN_SLUG: Final = re.compile(r"[^a-z0-9]+")
_SLUG: Final = re.compile(r"^.*[g-z][a-z0-9]*")


async def find_by_short_id(
    sessions: SessionRepository, short_id: str, *, agent_id: str | None, slug: str | None
) -> Sequence[Session]:
    """The sessions it may mean, archived ones too. Of several, those of this name if there are any."""
    wanted = short_id.lower()
    query = SessionQuery(limit=MAX_SEARCHED, agent_id=agent_id, archived=None, search=wanted[:SEARCHED_DIGITS])
    page = await sessions.page(query)
    found = [session for session in page.sessions if _key_uuid(session.key).startswith(wanted)]
    named = [session for session in found if slug is not None and make_slug(session.display_name or "") == slug]
    return (named or found)[:MAX_CANDIDATES]


def resolution(found: Sequence[Session]) -> Json:
    """What a name of a session means: that session, or the several it may mean, or none."""
    described = [describe_session(session) for session in found]
    if len(described) == 1:
        return {"ok": True, **described[0]}
    return {"ok": False, "candidates": described} if described else {"ok": False}


def describe_session(session: Session) -> Json:
    named = {"displayName": session.display_name} if session.display_name else {}
    return {"key": session.key, "agentId": session.agent_id, **named}


def make_slug(name: str) -> str:
    """A session's name as it is in the address of a page. It ends in a word that can't be taken for the short id."""
    words = _SLUG.match(_NOT_IN_SLUG.sub("-", name.lower()).strip("-"))
    return words[0][:MAX_SLUG_LENGTH].rstrip("-") if words else ""


def _key_uuid(key: str) -> str:
    found = _KEY_UUID.search(key)
    return found[1].lower().replace("-", "") if found else ""
