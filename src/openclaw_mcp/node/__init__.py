"""The hands: what this machine can do for a caller. Each capability once, whatever the wire."""
