"""Agent runtimes: models behind an API, CLI agents, the demo; and what they may use."""
