"""The part of our own environment that programs we start get: enough to run, none of our secrets."""

from collections.abc import Mapping
from typing import Final

INHERITED_VARIABLES: Final = ("HOME", "LANG", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "TZ", "USER")


def minimal_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The user, the home, the paths and the locale; a program's settings add what else it needs."""
    return {name: value for name, value in environ.items() if name in INHERITED_VARIABLES or name.startswith("LC_")}
