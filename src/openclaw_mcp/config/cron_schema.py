"""The config's `cron` and `messages`: every key the clock follows, and what the inbound path does."""

from typing import Final

from ..core.model import Json
from .schema_parts import boolean, integer, section, string, strings

DURATION: Final = r"^\s*(\d+(\.\d+)?\s*(ms|s|m|h|d|w)?\s*)+$"
ALERT: Final[Json] = section(
    "Telling somebody of jobs that keep failing",
    {
        "enabled": boolean("At all", True),
        "after": integer("Failures in a row", minimum=1, default=2),
        "cooldownMs": integer("Milliseconds between two of one job", default=3_600_000),
        "includeSkipped": boolean("Skipped runs count too", False),
        "mode": {"enum": ["announce", "webhook"], "title": "To a conversation, or to a URL"},
        "channel": string("Channel, or last", minLength=1),
        "to": string("Conversation, or URL", minLength=1),
        "accountId": string("Account of the channel", minLength=1),
    },
    reload="hot",
)
CRON: Final[Json] = section(
    "The clock",
    {
        "enabled": boolean("false: nothing fires; jobs can still be changed and run by hand", True),
        "maxConcurrentRuns": integer("Agents and commands at work at once", minimum=1, maximum=256, default=8),
        "skipMissedJobs": boolean("After downtime recurring jobs wait for their next time", False),
        "sessionRetention": {
            "title": "How long a run's own session is kept; a bare number is hours, false or 0h is for good",
            "oneOf": [string("Duration", pattern=DURATION), {"type": "boolean"}],
            "default": "24h",
        },
        "runLog": section(
            "The log of runs",
            {"keepLines": integer("Runs kept of each job", minimum=1, maximum=100_000, default=2000)},
            reload="hot",
        ),
        "webhookToken": string("Bearer token of webhooks", minLength=1),
        "webhookSsrfPolicy": section(
            "Where webhooks may go",
            {
                "allowedHostnames": strings("Hosts on this machine or its network that may be reached"),
                "blockedHostnames": strings("Hosts that may not be reached"),
                "dangerouslyAllowPrivateNetwork": boolean("Every host on this machine or its network", False),
            },
            reload="hot",
        ),
        "failureAlert": ALERT,
        "triggers": section(
            "Jobs that programs make due",
            {"enabled": boolean("Streams may be added and go", True)},
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
                "debounceMs": integer(
                    "Milliseconds to wait for the next; 0: each is answered", maximum=60_000, default=0
                ),
                "byChannel": {
                    "type": "object",
                    "title": "The same for one channel, by its name",
                    "additionalProperties": integer("Milliseconds", maximum=60_000),
                },
            },
        ),
    },
    allow_extra=True,
)
