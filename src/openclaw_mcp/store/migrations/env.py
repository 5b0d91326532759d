"""Run by Alembic: migrate over the connection and inside the transaction `store.migrate` hands in."""

from alembic import context

from openclaw_mcp.store.tables import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
with context.begin_transaction():
    context.run_migrations()
