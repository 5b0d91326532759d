"""SQLAlchemy Core on SQLite, or PostgreSQL by URL: tables, one writer, repositories. What it acknowledges is on disk."""
