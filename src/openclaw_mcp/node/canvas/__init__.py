"""The canvas: a Chromium page an agent may show, script and photograph."""
