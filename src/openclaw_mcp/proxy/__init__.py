"""The app-tool proxy: tools that live inside somebody's app, served over MCP."""
