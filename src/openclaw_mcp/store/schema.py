"""Create the tables of a new database, and check that an existing one has the layout of `tables`."""

from typing import Final

from sqlalchemy import Connection, insert, inspect, select, text

from ..core.errors import StoreDamaged, StoreError
from .tables import create_statements, schema_revision

REVISION: Final = "0005"
"""The layout of `tables`. A change of it gets the next number, and a step in `prepare_schema` that alters the tables of
the number before."""
SCHEMA_LOCK: Final = 7_300_519  # PostgreSQL's lock number for "tables are being changed"


def prepare_schema(connection: Connection) -> None:
    """Run inside a write transaction, so that of several processes one creates the tables and the others find them."""
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:number)"), {"number": SCHEMA_LOCK})
    found = _read_revision(connection)
    if found is None:
        for statement in create_statements(connection.dialect):  # half the time of `metadata.create_all`
            connection.exec_driver_sql(statement)
        connection.execute(insert(schema_revision).values(version_num=REVISION))
    elif found > REVISION:
        raise StoreDamaged(
            f"The database was written by a newer version of this program (schema revision {found}, ours {REVISION}); "
            "upgrade, or use another state directory."
        )
    elif found < REVISION:
        raise StoreError(
            f"The database has the tables of a development version (schema revision {found}, ours {REVISION}); "
            "open it once with a development version that has schema revision 0005, or use another state directory."
        )


def _read_revision(connection: Connection) -> str | None:
    if not inspect(connection).has_table(schema_revision.name):
        return None
    found = connection.execute(select(schema_revision.c.version_num)).scalar()
    return None if found is None else str(found)
