"""The intercom: handshake, device identity, pairing, the client that redials, the server that fans out."""
