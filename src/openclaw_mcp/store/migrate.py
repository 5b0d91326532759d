"""Bring a database's tables up to date. Alembic does it, and is loaded only when there is something to do."""

from importlib import import_module
from pathlib import Path
from typing import Final

from sqlalchemy import Connection, inspect, text

from ..core.errors import StoreDamaged

HEAD: Final = "0005"
"""The newest migration; a test compares it with the folder."""
MIGRATIONS_FOLDER: Final = Path(__file__).parent / "migrations"
MIGRATION_LOCK: Final = 7_300_519  # PostgreSQL's lock number for "tables are being changed"


def upgrade_schema(connection: Connection) -> None:
    """Run inside a write transaction, so that of several processes one migrates and the others find it done."""
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:number)"), {"number": MIGRATION_LOCK})
    version = _read_revision(connection)
    if version == HEAD:
        return
    if version is not None and version > HEAD:
        raise StoreDamaged(
            f"The database was written by a newer version of this program (tables {version}, ours {HEAD}); "
            "upgrade, or use another state directory."
        )
    if version is None and connection.dialect.name == "sqlite" and not inspect(connection).get_table_names():
        _create_schema(connection)
    else:
        run_migrations(connection)


def _create_schema(connection: Connection) -> None:
    """The tables of a new database, all at once."""
    from . import initial_schema  # here for start-up: a database is new once

    for statement in initial_schema.CREATE_STATEMENTS:
        connection.exec_driver_sql(statement)
    connection.execute(text("INSERT INTO alembic_version (version_num) VALUES (:now)"), {"now": HEAD})


def run_migrations(connection: Connection) -> None:
    """Walk through the migrations that are missing."""
    # Here for start-up: Alembic costs as much as the rest of the store, and is needed once per upgrade.
    command = import_module("alembic.command")
    config = import_module("alembic.config").Config()
    config.set_main_option("script_location", str(MIGRATIONS_FOLDER))
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


def _read_revision(connection: Connection) -> str | None:
    if not inspect(connection).has_table("alembic_version"):
        return None
    found = connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
    return None if found is None else str(found)
