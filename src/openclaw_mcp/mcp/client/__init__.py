"""Other people's MCP servers as tool sources."""
