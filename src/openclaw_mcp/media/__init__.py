"""The reading room: files that come with a message, made into words an agent can read."""
