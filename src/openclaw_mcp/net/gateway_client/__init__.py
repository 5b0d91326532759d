"""The client side of the gateway protocol: connect, sign in, call methods, receive events."""
