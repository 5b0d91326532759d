"""Shared machinery: processes, HTTP, WebSockets, background tasks, atomic files."""
