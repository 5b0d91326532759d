"""Whole numbers from outside. Pure."""

from typing import Final

MAX_INT64: Final = 2**63 - 1  # what the database and the wires hold
MAX_DIGITS: Final = len(str(MAX_INT64))
MAX_COUNT: Final = 2**40  # more than is ever counted, and sums of it stay far below MAX_INT64


def parse_whole_number(text: str, *, maximum: int = MAX_INT64) -> int | None:
    """The number from 0 to `most` that the text is, in ASCII digits; None for any other text, however long it is."""
    # `isdecimal` alone takes the digits of every script, and `int` raises ValueError for more than 4,300 of them.
    if len(text) > MAX_DIGITS or not (text.isascii() and text.isdecimal()):
        return None
    number = int(text)
    return number if number <= maximum else None


def read_count(value: object) -> int:
    """A count as another program reports it, made whole and kept between 0 and `MAX_COUNT`; 0 for what is no number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        return 0
    return int(min(value, MAX_COUNT))
