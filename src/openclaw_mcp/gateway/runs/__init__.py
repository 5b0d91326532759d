"""Runs: turns of an agent, from admission to the stored end."""
