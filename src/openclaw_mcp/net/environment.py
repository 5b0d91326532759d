"""What programs that we start see of our own environment: enough to run, none of our secrets."""

from collections.abc import Mapping
from typing import Final

INHERITED_VARIABLES: Final = ("HOME", "LANG", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "TZ", "USER")


def minimal_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Who and where the user is, and how text looks; what else a program needs, its settings give it."""
    return {name: value for name, value in environ.items() if name in INHERITED_VARIABLES or name.startswith("LC_")}
