"""The gateway's WebSocket RPC server: handshake, devices, pairing, grants, methods, events."""
