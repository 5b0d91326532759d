"""The workshop: agents that answer, and the runs in which they do."""
