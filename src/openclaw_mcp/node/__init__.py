"""This machine as a node: its capabilities, consents and exec approvals, over MCP and over a gateway."""
