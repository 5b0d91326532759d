"""openclaw.json: the typed model, the file, its checked changes, and the gateway methods about it."""
