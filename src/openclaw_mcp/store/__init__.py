"""The memory: SQLAlchemy Core on SQLite, or PostgreSQL by URL. What it acknowledges is on disk."""
