"""Codecs: JSON-RPC, MCP of both eras, gateway frames, server-sent events. No I/O, no clock."""
