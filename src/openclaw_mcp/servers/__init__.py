"""Other people's MCP servers, named in the config, as tool sources of ours."""
