"""The clock: jobs, when they are due, what came of them."""
