"""The mailroom: channels, who may write, the outbox."""
