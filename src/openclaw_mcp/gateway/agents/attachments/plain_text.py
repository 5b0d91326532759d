"""Text files: at most as long as an agent can use."""

from typing import Final

MAX_TEXT: Final = 200_000  # characters of one file that reach the agent: about 50,000 tokens


def truncate_text(text: str, most: int = MAX_TEXT) -> str:
    """`text`; if it was cut, with a note of how much is missing."""
    if len(text) <= most:
        return text
    return f"{text[:most]}\n[… {len(text) - most} more characters were left out]"
