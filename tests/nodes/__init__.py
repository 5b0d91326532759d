"""Nodes at our gateway."""
