"""The built-in channel: conversations in the store, reachable over the gateway and from a terminal."""
