"""The proxy as an ASGI app: the API for apps, their WebSockets, and MCP for clients."""
