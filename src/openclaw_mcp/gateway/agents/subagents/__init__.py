"""Sub-agents and messages between sessions: spawning, announcing results, who may see which session."""
