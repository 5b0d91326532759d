"""What a text says that holds a secret: parameters, headers, addresses with a password. Pure."""

import re
from typing import Final

from .secret_arguments import KNOWN_SHAPES
from .secret_names import SHORT_WORD, WORD

_WORD: Final = f"({WORD}|credentials)"
COUNTS: Final = (
    r"(max|min|most|total|context|input|output|prompt|completion|budget|reserve|num|n)[-_]([\w-]*[-_])?tokens"
)
SECRET_FLAG: Final = re.compile(
    rf"(?!--?{COUNTS})--?[\w-]*{_WORD}s?|(?!--?no-)--?([\w-]*[-_])?({SHORT_WORD}s?|auth)", re.IGNORECASE
)
"""An argument that says: the next one is secret."""
LONGEST_PASSWORD: Final = 256  # characters, when it holds a slash; unbounded, a long text would be searched for minutes
SECRET_TEXT: Final = re.compile(
    r"//(?!\0@|[^:/@\s]*:\0@)"  # an address with a user or a password before the host
    rf"([^/@\s]+|[^/@\s]*:[^@\s]{{1,{LONGEST_PASSWORD}}})@"
    rf"|{_WORD}[\"']?\s*=\s*[\"']?+[^&\s\0]"  # a parameter, an argument, a part of a data source's name
    rf"|(?<![a-z])({SHORT_WORD}s?|access_?code)=[\"']?+[^&\s\0]"
    rf"|(?<![a-z]){WORD}s=[\"']?+(?!\d+\b)[^&\s\0]"  # many; a number of them is a limit
    rf"|(^|\s)--?[\w-]*{_WORD}\s+[^\s\0]"  # a command line in one text
    rf"|(^|=|[\"'])[\w-]*({_WORD}|cookie|x-auth)\s*:\s*(?!(bearer|basic)\s+\0)[^\s\0]"  # a header
    r"|\bbearer\s+[^\s\0]"
    rf"|{KNOWN_SHAPES}",
    re.IGNORECASE,
)
"""A text with a secret in it, `\0` standing for each `${NAME}`."""
IN_JSON: Final = re.compile(rf"""["'][\w-]*({_WORD}|{SHORT_WORD}|auth)s?\\*["']\s*:\s*[^\s\0]""", re.IGNORECASE)
"""A secret among the JSON of a command line."""
TELLING: Final = re.compile(rf"""{_WORD}|auth|\b{SHORT_WORD}s?\b|"|[:,\[]\s*'""", re.IGNORECASE)
"""In a comment: a secret's name, or a text, as where settings are commented out."""
