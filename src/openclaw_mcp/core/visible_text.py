"""Text made safe to show to a person who decides by it: nothing hidden, nothing moved, nothing that passes for ASCII.

What can't be seen, or is not what it seems, appears as `\\u{200b}`. Doing it twice changes nothing more. Pure.
"""

import re
import unicodedata
from itertools import groupby
from typing import Final

MAX_SPACES: Final = 16  # in a row; a longer run could push what follows out of sight
MAX_NEWLINES: Final = 2  # in a row
MAX_MARKS: Final = 2  # accents on one letter; more cover its neighbours

_HIDDEN_CATEGORIES: Final = frozenset({"Cc", "Cf", "Co", "Cn", "Cs", "Zl", "Zp", "Zs", "Me"})
"""Controls, formats, unassigned and private characters, every space but the plain one, marks that enclose a letter."""


def _code_points(ranges: str) -> frozenset[int]:
    found: set[int] = set()
    for part in ranges.split():
        first, _, last = part.partition("-")
        found.update(range(int(first, 16), int(last or first, 16) + 1))
    return frozenset(found)


_BLANK_CHARACTERS: Final = _code_points(
    "00AD 034F 061C 115F-1160 17B4-17B5 180B-180F 200B-200F 202A-202E 2060-206F 3164 FE00-FE0F FEFF FFA0 FFF0-FFF8"
    " 1BCA0-1BCA3 1D173-1D17A"  # Default_Ignorable_Code_Point, which unicodedata does not know; with the tags below
    " 2800 FFFC 16FE4 1D159"  # a braille pattern without dots, an object that is not there, a filler, an empty note
)
_TAG_CHARACTERS: Final = range(0xE0000, 0xE1000)
_OVERLAY_MARKS: Final = _code_points("0334-0338 20D2-20D3 20D8-20DA 20E5-20E6 20EA-20EB 1D165-1D166")
"""Marks drawn over their letter: a stroke makes one another."""
_PUNCTUATION_LOOKALIKES: Final = _code_points(
    "01C0 01C3 02BC 02D0 02D7 0589 05C0 05C3 05F3 06D4 0701-0704 2010-2012 201A 2024 2027 2032 2035 2039-203A 2041"
    " 2043-2044 2052 2053 2212 2215-2217 2219 2223 2236 2238 223C 22C5 2264-2265 29F5 29F8-29F9 2E31 2E33 30FB A60E"
    " A78C A789 FE52 FE68"
)
"""Looks like a hyphen, slash, backslash, colon, dot, quote, bar, semicolon or the like."""
_LOOKALIKE_ALPHABETS: Final = (
    "CYRILLIC", "GREEK", "ARMENIAN", "CHEROKEE", "COPTIC", "LISU", "GEORGIAN", "DESERET", "OSAGE", "GOTHIC", "WARANG",
)  # fmt: skip
_READABLE_ALPHABETS: Final = frozenset({
    "CYRILLIC", "GREEK", "ARMENIAN", "GEORGIAN", "CJK", "DEVANAGARI", "BENGALI", "GURMUKHI", "GUJARATI", "ORIYA",
    "TAMIL", "TELUGU", "KANNADA", "MALAYALAM", "SINHALA", "THAI", "LAO", "TIBETAN", "MYANMAR", "KHMER", "ETHIOPIC",
})  # fmt: skip
"""Those whose words stay as they are in a command. They read from left to right."""
_ALPHABET_GROUPS: Final = dict.fromkeys(("HIRAGANA", "KATAKANA", "HANGUL", "BOPOMOFO", "IDEOGRAPHIC"), "CJK")
_DISTINCT_LATIN: Final = _code_points(
    "00C6 00D0 00D8 00DE-00DF 00E6 00F0 00F8 00FE 0110-0111 0141-0142 014A-014B 0152-0153 1E9E"
)
"""Letters that are no plain one with an accent, and look like none."""
_ASCII_LOOKALIKES: Final = _code_points(
    " 0405-0406 0408 0410 0412 0415 0417 041A 041C-041E 0420-0423 0425 042C 0430 0435 043E"
    " 0440-0441 0443 0445 0455-0456 0458 0474-0475 04AE-04AF 04BB 04C0 04CF 0501 051A-051D"  # Cyrillic
    " 0391-0392 0395-0397 0399-039A 039C-039D 039F 03A1 03A4-03A5 03A7 03B1 03B3 03B9-03BA"
    " 03BD 03BF 03C1 03C3 03C5 03F2-03F3"  # Greek
    " 053C 054D 054F 0555 0566 0570 0578 057D 0581 0584-0585"  # Armenian
    " 1173 1175 119E 304F 3078 30CB 30CE 30D8 30E1 3147 3161 3163 318D 4E00 4E28 4E36 4E3F 4E42"
    " 4E8C 5341"  # strokes
    " 0B20 0D20 0E07 0E40 101D"  # of India and beyond
)
"""Letters with the shape of a plain letter or mark: a word of nothing else is no word to be trusted."""
_ORDINARY_MODIFIERS: Final = _code_points("0E46 0EC6 3005 309D-309E 30FC-30FE")
"""Modifier letters that ordinary words hold."""
_RTL_CLASSES: Final = frozenset({"R", "AL", "AN"})
_WORD: Final = re.compile(r"[^\W\d_]+")
_SPACES: Final = re.compile(rf" {{{MAX_SPACES + 1},}}")
_NEWLINES: Final = re.compile(rf"\n(?: *\n){{{MAX_NEWLINES},}}")
"""With nothing but spaces between them."""


def escape_unsafe(text: str) -> str:
    """`text` as a person may read it; lines stay lines."""
    if not text.isascii():
        text = _WORD.sub(_escape_lookalikes, text)
        text = _escape_extra_marks(text)
    text = "".join(char if char == "\n" or _is_plain(char) else _escape(char) for char in text)
    text = _SPACES.sub(lambda run: f" \\u{{20}}(x{len(run[0])}) ", text)
    return _NEWLINES.sub(lambda run: f"\n\\u{{a}}(x{run[0].count(chr(10))})\n", text)


def escape_line(text: str) -> str:
    """As `visible`, in one line: for text shown beside our own."""
    return escape_unsafe(text).replace("\n", _escape("\n"))


def escape_command(text: str) -> str:
    """As `visible`, for what a program is started with, where each character counts. Besides ASCII only words stay:
    Latin ones with accents, and those of one other alphabet that read from left to right and pass for no ASCII."""
    if not text.isascii():
        runs = ("".join(run) for _, run in groupby(text, key=_is_word_character))
        text = "".join(run if run.isascii() or _is_ordinary_word(run) else _escape_non_ascii(run) for run in runs)
    return escape_unsafe(text)


def escape_program(name: str) -> str:
    """A program's name or path, all of it in ASCII: a name in another alphabet may read the same."""
    return "".join(char if " " < char <= "~" else _escape(char) for char in name)


def _is_plain(char: str) -> bool:
    if " " <= char <= "~":
        return True
    code = ord(char)
    if (
        code in _BLANK_CHARACTERS
        or code in _TAG_CHARACTERS
        or code in _OVERLAY_MARKS
        or code in _PUNCTUATION_LOOKALIKES
    ):
        return False
    if unicodedata.category(char) in _HIDDEN_CATEGORIES:
        return False
    same = unicodedata.normalize("NFKC", char)
    return not (len(same) == 1 and same.isascii())  # a full-width or mathematical letter passes for a plain one


def _escape_extra_marks(text: str) -> str:
    """Each accent beyond the few a letter has, or without a letter below it, is escaped."""
    parts: list[str] = []
    room = 0
    for char in text:
        if unicodedata.category(char) in ("Mn", "Mc"):
            parts.append(char if room > 0 else _escape(char))
            room -= 1
        else:
            parts.append(char)
            room = MAX_MARKS if char.isalnum() else 0
    return "".join(parts)


def _escape_lookalikes(match: "re.Match[str]") -> str:
    """A word that mixes plain letters with those of an alphabet that has the same shapes: the others are escaped."""
    word = match[0]
    if word.isascii() or not any(char.isascii() and char.isalpha() for char in word):
        return word
    return "".join(_escape(char) if _is_lookalike(char) else char for char in word)


def _is_lookalike(char: str) -> bool:
    return not char.isascii() and unicodedata.name(char, "").startswith(_LOOKALIKE_ALPHABETS)


def _is_word_character(char: str) -> bool:
    return char.isalpha() or unicodedata.category(char).startswith("M")


def _is_ordinary_word(run: str) -> bool:
    """Whether a run of letters and their accents is a word of one alphabet."""
    letters = [char for char in run if char.isalpha()]
    alphabets = {_alphabet(char) for char in run} - {"COMBINING"}
    if len(alphabets) != 1 or not run[0].isalpha():
        return False
    if any(unicodedata.category(char) == "Lm" and ord(char) not in _ORDINARY_MODIFIERS for char in letters):
        return False
    if alphabets == {"LATIN"}:
        return all(_is_latin_letter(char) for char in letters)
    if not alphabets <= _READABLE_ALPHABETS or any(unicodedata.bidirectional(char) in _RTL_CLASSES for char in run):
        return False
    return any(ord(char) not in _ASCII_LOOKALIKES | _ORDINARY_MODIFIERS for char in letters)


def _alphabet(char: str) -> str:
    if char.isascii():
        return "LATIN"
    first = re.split("[ -]", unicodedata.name(char, ""), maxsplit=1)[0]
    return _ALPHABET_GROUPS.get(first, first)


def _is_latin_letter(char: str) -> bool:
    """Whether it is a plain letter, one with accents, or one that can't be taken for one."""
    return unicodedata.normalize("NFD", char)[0].isascii() or ord(char) in _DISTINCT_LATIN


def _escape_non_ascii(text: str) -> str:
    return "".join(char if char.isascii() else _escape(char) for char in text)


def _escape(char: str) -> str:
    return f"\\u{{{ord(char):x}}}"
