"""The store, on SQLite or PostgreSQL: tables, one writer, repositories. What it acknowledges is on disk."""
