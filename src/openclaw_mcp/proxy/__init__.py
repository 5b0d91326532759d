"""The app-tool proxy: the tools of apps, served over MCP."""
