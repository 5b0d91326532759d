"""Messaging channels: accounts, the inbox, the outbox, and message actions."""
