"""Exec approvals: reading shell text, rules, what a command would start, and running it."""
