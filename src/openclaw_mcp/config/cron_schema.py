"""The config's `cron` and `messages`: every key the clock follows, and what the inbound path does."""

from typing import Final

from ..core.model import Json
from .schema_parts import flag, number, section, text, texts

DURATION: Final = r"^\s*(\d+(\.\d+)?\s*(ms|s|m|h|d|w)?\s*)+$"
ALERT: Final[Json] = section(
    "Telling somebody of jobs that keep failing",
    {
        "enabled": flag("At all", True),
        "after": number("Failures in a row", least=1, default=2),
        "cooldownMs": number("Milliseconds between two of one job", default=3_600_000),
        "includeSkipped": flag("Skipped runs count too", False),
        "mode": {"enum": ["announce", "webhook"], "title": "To a conversation, or to a URL"},
        "channel": text("Channel, or last", minLength=1),
        "to": text("Conversation, or URL", minLength=1),
        "accountId": text("Account of the channel", minLength=1),
    },
    reload="hot",
)
CRON: Final[Json] = section(
    "The clock",
    {
        "enabled": flag("false: nothing fires; jobs can still be changed and run by hand", True),
        "maxConcurrentRuns": number("Agents and commands at work at once", least=1, most=256, default=8),
        "skipMissedJobs": flag("After downtime recurring jobs wait for their next time", False),
        "sessionRetention": {
            "title": "How long a run's own session is kept; a bare number is hours, false or 0h is for good",
            "oneOf": [text("Duration", pattern=DURATION), {"type": "boolean"}],
            "default": "24h",
        },
        "runLog": section(
            "The log of runs",
            {"keepLines": number("Runs kept of each job", least=1, most=100_000, default=2000)},
            reload="hot",
        ),
        "webhookToken": text("Bearer token of webhooks", minLength=1),
        "webhookSsrfPolicy": section(
            "Where webhooks may go",
            {
                "allowedHostnames": texts("Hosts on this machine or its network that may be reached"),
                "blockedHostnames": texts("Hosts that may not be reached"),
                "dangerouslyAllowPrivateNetwork": flag("Every host on this machine or its network", False),
            },
            reload="hot",
        ),
        "failureAlert": ALERT,
        "triggers": section(
            "Jobs that programs make due",
            {"enabled": flag("Streams may be added and go", True)},
            reload="hot",
        ),
    },
    reload="hot",
)
MESSAGES: Final[Json] = section(
    "How messages are treated",
    {
        "inbound": section(
            "Messages that come quickly one after the other",
            {
                "debounceMs": number("Milliseconds to wait for the next; 0: each is answered", most=60_000, default=0),
                "byChannel": {
                    "type": "object",
                    "title": "The same for one channel, by its name",
                    "additionalProperties": number("Milliseconds", most=60_000),
                },
            },
        ),
    },
    open=True,
)
