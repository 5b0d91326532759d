"""Agents behind a model API: OpenAI-compatible, Anthropic, or another gateway."""
