"""Secrets among a program's arguments: behind an option, glued to it, in a variable, or known by their shape. Pure."""

import re
from collections.abc import Sequence
from typing import Final

LOOKBACK_LIMIT: Final = (
    64  # arguments searched backwards for the program; behind more, an assignment counts as a variable
)
SHORTEST_SECRET: Final = 4  # characters of a secret glued to an option; fewer are a handful of flags

TOKEN_PATTERNS: Final = (
    r"(?<![A-Za-z0-9])("
    r"(sk|pk|rk)-[A-Za-z0-9_-]{8,}|(sk|pk|rk)_(live|test)_\w{8,}|gh[pousr]_\w{8,}|github_pat_\w{8,}|glpat-[\w-]{8,}|"
    r"xox[abeoprs]-[\w-]{8,}|xapp-[\w-]{8,}|(AKIA|ASIA)[A-Z0-9]{12,}|AIza[\w-]{20,}|ya29\.[\w-]{8,}|npm_\w{16,}|hf_\w{16,}|"
    r"hooks\.slack\.com/(services|workflows|triggers)/\w|discord(app)?\.com/api/webhooks/\d|webhook\.office\.com/\w|"
    r"pypi-[\w-]{16,}|shpat_\w{8,}|dop_v1_\w{8,}|SG\.[\w-]{8,}\.[\w-]{8,}|ocg_[\w-]{8,}|"
    r"eyJ[\w-]{6,}\.[\w-]{6,}\.[\w-]*|eyJ[\w+/-]{16,}=*|\d{8,10}:[A-Za-z0-9_-]{30,})"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY"
)
"""Tokens whose makers gave them a beginning of their own, signed ones, and JSON in base64."""

_KEY_OPTIONS: Final = "kK"
_AMBIGUOUS_OPTIONS: Final = "pPtTsSaAwW"
"""Options that take a password, token or secret in some programs, and a port or a title in others."""
_USER_OPTIONS: Final = "uU"
_OPTION_WITH_VALUE: Final = re.compile(rf"-([{_KEY_OPTIONS}{_AMBIGUOUS_OPTIONS}{_USER_OPTIONS}])=?(.+)", re.DOTALL)
_PLAIN_VALUE: Final = re.compile(
    r"[\d.,:-]+|(true|false|none|auto|yes|no|on|off)|[./~@{$\0].*|\w+://.*|.*\.\w{1,4}", re.DOTALL
)
"""Numbers, ports, switches, paths, addresses, names of packages and files."""
_COMMON_WORDS: Final = frozenset(
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

_HEADER_OPTION: Final = re.compile(r"-H|(?i:(?!--?no-)--?(\w[\w-]*-)?headers?)")
_HEADER_WITH_VALUE: Final = re.compile(r"(-H(?=.*:)|(?i:--?(\w[\w-]*-)?headers?=))(.+)", re.DOTALL)
_HARMLESS_HEADER: Final = re.compile(r"[\"']?([\w-]+\s*:\s*)?((bearer|basic|token)\s+)?\0[\"']?", re.IGNORECASE)
_ASSIGNMENT: Final = re.compile(r"((-e|--env=)?[A-Za-z_]\w*=)(.+)", re.DOTALL)
_ENV_PROGRAMS: Final = frozenset({"env", "cross-env"})
"""Programs whose first arguments are variables."""
_ENV_VALUE_OPTIONS: Final = frozenset({"-u", "-C", "-S", "--unset", "--chdir", "--split-string"})


def is_secret_argument(argument: str, previous: str | None) -> bool:
    """Whether an argument is a secret or holds one, by itself or because of the one before it.

    `\0` is a reference to the environment.
    """
    header = _HEADER_WITH_VALUE.fullmatch(argument)
    if header is not None or (previous is not None and _HEADER_OPTION.fullmatch(previous)):
        return _HARMLESS_HEADER.fullmatch(argument if header is None else header[3]) is None
    glued = _OPTION_WITH_VALUE.fullmatch(argument)
    if glued is not None and _is_secret_value(glued[1], glued[2], whole=argument[1:]):
        return True
    behind = previous is not None and len(previous) == 2 and previous[0] == "-" and not argument.startswith("-")
    return behind and previous is not None and _is_secret_operand(previous[1], argument)


def variable_prefix(argument: str, preceding: Sequence[str]) -> str | None:
    """The name and `=` of an argument that sets a variable for the started program, whose value is hidden; None: it
    sets none. `preceding`: the program and the arguments before it, `LOOKBACK_LIMIT` at most; `\0` is a reference to
    the environment."""
    found = _ASSIGNMENT.fullmatch(argument)
    if found is None or not found[3].strip("\0\"'"):
        return None
    behind_option = bool(preceding) and preceding[-1] in ("-e", "--env")
    return found[1] if found[2] or behind_option or _is_env_argument(preceding) else None


def _is_env_argument(preceding: Sequence[str]) -> bool:
    """Whether what follows is still an argument of `env` itself."""
    for place in range(len(preceding) - 1, -1, -1):
        word = preceding[place]
        if word.rpartition("/")[2] in _ENV_PROGRAMS:
            return True
        if not (word.startswith("-") or _ASSIGNMENT.fullmatch(word)) and preceding[place - 1] not in _ENV_VALUE_OPTIONS:
            return False
    return len(preceding) >= LOOKBACK_LIMIT


def _is_secret_value(option: str, value: str, *, whole: str) -> bool:
    if option in _USER_OPTIONS:
        return _PLAIN_VALUE.fullmatch(value) is None and re.fullmatch(r"[^:/%\s]*[:%][^/\0][^\0]*", value) is not None
    first = re.split(r"[-_=:]", whole)[0]
    if (
        len(value) < SHORTEST_SECRET
        or _PLAIN_VALUE.fullmatch(value)
        or not _COMMON_WORDS.isdisjoint((first, value))
        or "=" in value.rstrip("=")
    ):
        return False
    return "\0" not in value


def _is_secret_operand(option: str, value: str) -> bool:
    if option in _USER_OPTIONS or option in _KEY_OPTIONS:
        return _is_secret_value(option, value, whole=value)
    return option in _AMBIGUOUS_OPTIONS and _is_secret_value(option, value, whole=value) and _is_mixed(value)


def _is_mixed(value: str) -> bool:
    """Whether it is written as no word is: capitals, digits or signs among the letters."""
    kinds = (r"[a-z]", r"[A-Z]", r"\d", r"[^\w.:/@-]")
    return len(value) >= 6 and sum(re.search(kind, value) is not None for kind in kinds) > 1 and " " not in value
