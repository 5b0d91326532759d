"""Our entries in MCP clients' settings: what is written, where, and how it is taken out again."""
