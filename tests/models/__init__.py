"""Model runtimes, driven by a scripted model on loopback."""
