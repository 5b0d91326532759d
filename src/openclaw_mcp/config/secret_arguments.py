"""Secrets among a program's arguments: behind an option, glued to it, in a variable, or known by their shape. Pure."""

import re
from collections.abc import Sequence
from typing import Final

MOST_VARIABLES: Final = 64  # words looked back over for the program that sets them; more are taken for variables
SHORTEST: Final = 4  # characters of a secret glued to an option; fewer are a handful of flags

KNOWN_SHAPES: Final = (
    r"(?<![A-Za-z0-9])("
    r"(sk|pk|rk)-[A-Za-z0-9_-]{8,}|(sk|pk|rk)_(live|test)_\w{8,}|gh[pousr]_\w{8,}|github_pat_\w{8,}|glpat-[\w-]{8,}|"
    r"xox[abeoprs]-[\w-]{8,}|xapp-[\w-]{8,}|(AKIA|ASIA)[A-Z0-9]{12,}|AIza[\w-]{20,}|ya29\.[\w-]{8,}|npm_\w{16,}|hf_\w{16,}|"
    r"hooks\.slack\.com/(services|workflows|triggers)/\w|discord(app)?\.com/api/webhooks/\d|webhook\.office\.com/\w|"
    r"pypi-[\w-]{16,}|shpat_\w{8,}|dop_v1_\w{8,}|SG\.[\w-]{8,}\.[\w-]{8,}|ocg_[\w-]{8,}|"
    r"eyJ[\w-]{6,}\.[\w-]{6,}\.[\w-]*|eyJ[\w+/-]{16,}=*|\d{8,10}:[A-Za-z0-9_-]{30,})"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY"
)
"""Tokens whose makers gave them a beginning of their own, signed ones, and JSON in base64."""

_KEY: Final = "kK"
_MAYBE: Final = "pPtTsSaAwW"
"""Options that stand for a password, token or secret with some programs, and for a port or a title with others."""
_USER: Final = "uU"
_GLUED: Final = re.compile(rf"-([{_KEY}{_MAYBE}{_USER}])=?(.+)", re.DOTALL)
_PLAIN: Final = re.compile(
    r"[\d.,:-]+|(true|false|none|auto|yes|no|on|off)|[./~@{$\0].*|\w+://.*|.*\.\w{1,4}", re.DOTALL
)
"""Numbers, ports, switches, paths, addresses, names of packages and files."""
_WORDS: Final = frozenset(
    """
    access addr address agent agents allow allowed ansi api app append args ascii async audit auto keepalive keep keys
    kind kinds package packages parallel parse path paths perf pid pipe plain platform plugin plugins policy poll pool
    port ports preset pretty prefix print private process prod production profile progress project projects prompt
    protocol proxy public publish pull push python quiet safe sandbox save scale schema scope script scripts secure
    select serve server servers service services session sessions settings shared shell short show silent simple single
    size skip slow socket sort source space split sse stack staging start state static stats status stdin stdio stdout
    step stop store stream strict string style submit subset suffix summary sync system table tag tags target targets
    task tasks team template temp term test tests text theme thread threads time timeout timestamp title tool tools
    trace track transport tree trust trusted tty type types watch web width window windows wait warn warnings with
    workdir worker workers workspace write
    """.split()  # noqa: SIM905  a hundred words are read as words
)
"""Options some programs write with one dash, and words that are the values of others."""

_HEADER: Final = re.compile(r"-H|(?i:(?!--?no-)--?(\w[\w-]*-)?headers?)")
_GLUED_HEADER: Final = re.compile(r"(-H(?=.*:)|(?i:--?(\w[\w-]*-)?headers?=))(.+)", re.DOTALL)
_PLAIN_HEADER: Final = re.compile(r"[\"']?([\w-]+\s*:\s*)?((bearer|basic|token)\s+)?\0[\"']?", re.IGNORECASE)
_VARIABLE: Final = re.compile(r"((-e|--env=)?[A-Za-z_]\w*=)(.+)", re.DOTALL)
_SETTERS: Final = frozenset({"env", "cross-env"})
"""Programs whose first arguments are variables."""
_SETTER_VALUES: Final = frozenset({"-u", "-C", "-S", "--unset", "--chdir", "--split-string"})


def is_secret_argument(word: str, before: str | None) -> bool:
    """Whether an argument is a secret or holds one, by itself or because of the one before it.

    `\0` stands for a reference to the environment.
    """
    header = _GLUED_HEADER.fullmatch(word)
    if header is not None or (before is not None and _HEADER.fullmatch(before)):
        return _PLAIN_HEADER.fullmatch(word if header is None else header[3]) is None
    glued = _GLUED.fullmatch(word)
    if glued is not None and _is_value(glued[1], glued[2], whole=word[1:]):
        return True
    behind = before is not None and len(before) == 2 and before[0] == "-" and not word.startswith("-")
    return behind and before is not None and _is_behind(before[1], word)


def variable_set(word: str, before: Sequence[str]) -> str | None:
    """The name and `=` of an argument that sets a variable for the program started, whose value nobody is shown; None:
    it sets none. `before`: the program and the arguments before it, `MOST_VARIABLES` at most; `\0` is a reference to
    the environment."""
    found = _VARIABLE.fullmatch(word)
    if found is None or not found[3].strip("\0\"'"):
        return None
    behind_option = bool(before) and before[-1] in ("-e", "--env")
    return found[1] if found[2] or behind_option or _is_setters(before) else None


def _is_setters(before: Sequence[str]) -> bool:
    """Whether what follows is still an argument of `env` itself."""
    for place in range(len(before) - 1, -1, -1):
        word = before[place]
        if word.rpartition("/")[2] in _SETTERS:
            return True
        if not (word.startswith("-") or _VARIABLE.fullmatch(word)) and before[place - 1] not in _SETTER_VALUES:
            return False
    return len(before) >= MOST_VARIABLES


def _is_value(option: str, value: str, *, whole: str) -> bool:
    if option in _USER:
        return _PLAIN.fullmatch(value) is None and re.fullmatch(r"[^:/%\s]*[:%][^/\0][^\0]*", value) is not None
    first = re.split(r"[-_=:]", whole)[0]
    if (
        len(value) < SHORTEST
        or _PLAIN.fullmatch(value)
        or not _WORDS.isdisjoint((first, value))
        or "=" in value.rstrip("=")
    ):
        return False
    return "\0" not in value


def _is_behind(option: str, value: str) -> bool:
    if option in _USER or option in _KEY:
        return _is_value(option, value, whole=value)
    return option in _MAYBE and _is_value(option, value, whole=value) and _is_mixed(value)


def _is_mixed(value: str) -> bool:
    """Whether it is written as no word is: capitals, digits or signs among the letters."""
    kinds = (r"[a-z]", r"[A-Z]", r"\d", r"[^\w.:/@-]")
    return len(value) >= 6 and sum(re.search(kind, value) is not None for kind in kinds) > 1 and " " not in value
