"""Full-text search: SQLite's FTS5 or PostgreSQL's tsvector, behind one function."""

from collections.abc import Sequence
from typing import Final

from sqlalchemy import Connection, bindparam, text

from ..core.json_values import drop_none
from ..core.sessions import SearchHit

CANDIDATES: Final = 1000  # the newest matches, of which the best are shown: bounds what is joined and ranked
MAX_WORDS: Final = 32

_SQLITE = """
SELECT s.key, s.session_id, m.uid, m.role, m.at,
       snippet(message_words, 0, '', '', '…', 24) AS snippet, -bm25(message_words) AS score
FROM message_words JOIN messages m ON m.id = message_words.rowid JOIN sessions s ON s.id = m.session
WHERE message_words MATCH :query AND m.role IN ('user', 'assistant') AND m.epoch = s.epoch {filters}
ORDER BY message_words.rowid DESC LIMIT :candidates
"""
_POSTGRESQL = """
SELECT s.key, s.session_id, m.uid, m.role, m.at,
       ts_headline('simple', left(m.text, 20000), q, 'StartSel="", StopSel="", MaxWords=24, MinWords=8') AS snippet,
       ts_rank(m.words, q) AS score
FROM to_tsquery('simple', :query) q, messages m JOIN sessions s ON s.id = m.session
WHERE m.words @@ q AND m.role IN ('user', 'assistant') AND m.epoch = s.epoch {filters}
ORDER BY m.id DESC LIMIT :candidates
"""


def search_messages(
    connection: Connection, query_text: str, *, keys: Sequence[str] | None, agent_id: str | None, limit: int
) -> list[SearchHit]:
    """Messages that hold every word, the last one perhaps only its beginning; best first."""
    terms = _split_terms(query_text)
    if not terms:
        return []
    postgresql = connection.dialect.name == "postgresql"
    if postgresql:
        query = " & ".join(f"'{term}'" for term in terms) + ":*"
    else:
        query = " AND ".join(f'"{term}"' for term in terms) + "*"
    filters = "" if agent_id is None else " AND s.agent_id = :agent_id"
    filters += "" if keys is None else " AND s.key IN :keys"
    statement = text((_POSTGRESQL if postgresql else _SQLITE).format(filters=filters))
    if keys is not None:
        statement = statement.bindparams(bindparam("keys", expanding=True))
    values = {"candidates": CANDIDATES, "query": query, "agent_id": agent_id, "keys": keys}
    rows = connection.execute(statement, drop_none(values)).all()
    best = sorted(rows, key=lambda row: (-row.score, -row.at))[:limit]
    return [
        SearchHit(
            session_key=row.key, session_id=row.session_id, message_id=row.uid, role=row.role, timestamp=row.at,
            snippet=row.snippet, score=round(float(row.score), 6),
        )
        for row in best
    ]  # fmt: skip


def _split_terms(query_text: str) -> list[str]:
    """Letters and digits only: nothing a caller writes is read as a search operator."""
    plain = "".join(letter if letter.isalnum() else " " for letter in query_text)
    return plain.split()[:MAX_WORDS]
