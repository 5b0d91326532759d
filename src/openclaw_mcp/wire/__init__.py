"""Bytes to values and back. No asyncio, no clock, no I/O."""
