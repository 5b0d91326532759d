"""Files that come with a message, turned into text an agent can read."""
