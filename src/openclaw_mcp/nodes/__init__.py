"""The machine room: nodes that joined the gateway, their commands, and approvals."""
