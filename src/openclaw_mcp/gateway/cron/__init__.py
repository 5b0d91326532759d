"""Scheduled jobs: when they are due, running them, delivering what came of them."""
