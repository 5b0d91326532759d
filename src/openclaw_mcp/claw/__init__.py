"""The 29 tools for CLI agents: adapters over gateway methods, served by `remoteclaw-mcp-server`."""
