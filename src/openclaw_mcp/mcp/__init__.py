"""MCP of both eras: a server over any Toolbox, and a client for other people's servers."""
