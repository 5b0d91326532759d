"""CLI agents: scripted stand-ins here, the real ones in tests/interop."""
