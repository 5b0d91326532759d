"""openclaw-mcp: agents, machines and apps reachable through MCP."""

__version__ = "0.1.0"
