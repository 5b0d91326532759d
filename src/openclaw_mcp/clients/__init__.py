"""Other people's MCP clients: where their settings lie, what an entry looks like there, how ours goes in and out."""
