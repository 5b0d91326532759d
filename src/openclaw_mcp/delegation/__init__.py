"""Handing work on: sub-agents, messages from session to session, what a session may see of others, and the tools."""
