"""Nodes connected to the gateway: registry, calls, approvals, their tools."""
