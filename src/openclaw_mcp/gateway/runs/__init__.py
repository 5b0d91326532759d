"""Runs: one turn of an agent after another, from admission to the committed end."""
