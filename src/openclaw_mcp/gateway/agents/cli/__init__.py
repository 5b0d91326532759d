"""Agents that are programs: Claude Code, Gemini CLI, Codex, OpenCode. Loaded when the first of them is asked for."""
