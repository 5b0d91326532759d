"""MCP of both eras in front of any Toolbox, over stdio and HTTP."""
