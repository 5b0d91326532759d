"""What is served over HTTP beside MCP, and the one way an app gets onto a port."""
