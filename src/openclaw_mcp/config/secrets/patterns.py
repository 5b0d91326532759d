"""What a text says that holds a secret: parameters, headers, addresses with a password. Pure."""

import re
from typing import Final

from .arguments import TOKEN_PATTERNS
from .names import SECRET_WORD, SHORT_SECRET_WORD

_SECRET_WORD: Final = f"({SECRET_WORD}|credentials)"
TOKEN_COUNTS: Final = (
    r"(max|min|most|total|context|input|output|prompt|completion|budget|reserve|num|n)[-_]([\w-]*[-_])?tokens"
)
SECRET_OPTION: Final = re.compile(
    rf"(?!--?{TOKEN_COUNTS})--?[\w-]*{_SECRET_WORD}s?|(?!--?no-)--?([\w-]*[-_])?({SHORT_SECRET_WORD}s?|auth)",
    re.IGNORECASE,
)
"""An argument that says: the next one is secret."""
MAX_PASSWORD_LENGTH: Final = (
    256  # characters, when it holds a slash; unbounded, a long text would be searched for minutes
)
SECRET_TEXT: Final = re.compile(
    r"//(?!\0@|[^:/@\s]*:\0@)"  # an address with a user or a password before the host
    rf"([^/@\s]+|[^/@\s]*:[^@\s]{{1,{MAX_PASSWORD_LENGTH}}})@"
    rf"|{_SECRET_WORD}[\"']?\s*=\s*[\"']?+[^&\s\0]"  # a parameter, an argument, a part of a data source's name
    rf"|(?<![a-z])({SHORT_SECRET_WORD}s?|access_?code)=[\"']?+[^&\s\0]"
    rf"|(?<![a-z]){SECRET_WORD}s=[\"']?+(?!\d+\b)[^&\s\0]"  # many; a number of them is a limit
    rf"|(^|\s)--?[\w-]*{_SECRET_WORD}\s+[^\s\0]"  # a command line in one text
    rf"|(^|=|[\"'])[\w-]*({_SECRET_WORD}|cookie|x-auth)\s*:\s*(?!(bearer|basic)\s+\0)[^\s\0]"  # a header
    r"|\bbearer\s+[^\s\0]"
    rf"|{TOKEN_PATTERNS}",
    re.IGNORECASE,
)
"""A text with a secret in it, `\0` standing for each `${NAME}`."""
SECRET_IN_JSON: Final = re.compile(
    rf"""["'][\w-]*({_SECRET_WORD}|{SHORT_SECRET_WORD}|auth)s?\\*["']\s*:\s*[^\s\0]""", re.IGNORECASE
)
"""A secret among the JSON of a command line."""
SECRET_HINT: Final = re.compile(rf"""{_SECRET_WORD}|auth|\b{SHORT_SECRET_WORD}s?\b|"|[:,\[]\s*'""", re.IGNORECASE)
"""In a comment: a secret's name, or a text, as where settings are commented out."""
