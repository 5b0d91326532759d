"""Model runtimes: agents behind an API."""
