"""order_openclaw: hand a whole task to the agent, with pictures and files, and get one answer back."""
