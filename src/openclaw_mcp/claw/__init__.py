"""The 29 tools for CLI agents, as adapters over gateway RPC."""
