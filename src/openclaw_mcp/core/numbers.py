"""Whole numbers in text from outside. Pure."""

from typing import Final

LARGEST: Final = 2**63 - 1  # what the database and the wires hold
LONGEST: Final = len(str(LARGEST))


def whole(text: str, *, most: int = LARGEST) -> int | None:
    """The number from 0 to `most` that the text is, in ASCII digits; None for any other text, however long it is."""
    # `isdecimal` alone takes the digits of every script, and `int` raises ValueError for more than 4,300 of them.
    if len(text) > LONGEST or not (text.isascii() and text.isdecimal()):
        return None
    number = int(text)
    return number if number <= most else None
