"""Text files: any common encoding, at most as long as an agent can use."""

from typing import Final

MAX_TEXT: Final = 200_000  # characters of one file that reach the agent: about 50,000 tokens


def decode_text(data: bytes) -> str:
    """Text of any common encoding; what can't be read is marked, never an error."""
    for mark, encoding in ((b"\xef\xbb\xbf", "utf-8-sig"), (b"\xff\xfe", "utf-16"), (b"\xfe\xff", "utf-16")):
        if data.startswith(mark):
            return data.decode(encoding, errors="replace")
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data.decode("cp1252", errors="replace")


def truncate_text(text: str, most: int = MAX_TEXT) -> str:
    """`text`; if it was cut, with a note of how much is missing."""
    if len(text) <= most:
        return text
    return f"{text[:most]}\n[… {len(text) - most} more characters were left out]"
