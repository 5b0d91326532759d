"""The gateway: sessions, runs, agents, channels, cron and nodes behind one WebSocket and HTTP port."""
