"""The environment of a command that is run: what a caller may set, and what it inherits."""

import os
import re
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Final

from .shell import words

_BLOCKED: Final = words(
    """
    PATH PATHEXT COMSPEC PSMODULEPATH NODE_OPTIONS NODE_PATH PYTHONPATH PYTHONSTARTUP PYTHONUSERBASE PYTHONHOME
    PYTHONINSPECT RUBYOPT RUBYLIB PERL5OPT PERL5LIB PERL5DB PERLIO BASH_ENV ENV CDPATH PROMPT_COMMAND ZDOTDIR IFS
    PS1 PS2 PS4 SHELLOPTS BASHOPTS GLOBIGNORE HOME SHELL EDITOR VISUAL PAGER MANPAGER LESSOPEN LESSCLOSE BROWSER TMPDIR
    DOTNET_STARTUP_HOOKS DOTNET_ADDITIONAL_DEPS JAVA_TOOL_OPTIONS _JAVA_OPTIONS JDK_JAVA_OPTIONS CLASSPATH GCONV_PATH
    LOCPATH NLSPATH TERMINFO TERMCAP HOSTALIASES RES_OPTIONS MALLOC_TRACE LUA_INIT AWKPATH
    """
)
_BLOCKED_PREFIXES: Final = (
    "LD_",
    "DYLD_",
    "GIT_",
    "BASH_FUNC_",
    "OPENCLAW_",
    "REMOTECLAW_",
    "SSH_",
    "GTK_",
    "QT_",
    "GLIBC_",
)
_SECRET_WORDS: Final = frozenset({"TOKEN", "SECRET", "PASSWORD", "PASSWD", "CREDENTIAL", "CREDENTIALS"})
_SECRET_PAIRS: Final = frozenset(
    {("API", "KEY"), ("ACCESS", "KEY"), ("PRIVATE", "KEY"), ("CLIENT", "SECRET"), ("CONNECTION", "STRING")}
)
_NOT_INHERITED: Final = (
    "BASH_ENV",
    "ENV",
    "SHELLOPTS",
    "BASHOPTS",
    "PS4",
    "OPENCLAW_GATEWAY_TOKEN",
    "OPENCLAW_MCP_TOKEN",
)
_ODD: Final = re.compile(r"[\x00-\x20\x7f=]")


def blocked(names: Mapping[str, str]) -> list[str]:
    """The names a caller may not set, sorted."""
    return sorted(name for name in names if _is_blocked(name))


def _is_blocked(name: str) -> bool:
    upper = name.upper()
    if not name or _ODD.search(name) or upper in _BLOCKED or upper.startswith(_BLOCKED_PREFIXES) or "CONNSTR" in upper:
        return True
    parts = re.split(r"[_\-.]", upper)
    return not _SECRET_WORDS.isdisjoint(parts) or any(pair in _SECRET_PAIRS for pair in pairwise(parts))


def clean_path() -> str:
    """Our PATH without the entries that mean the current folder."""
    entries = os.environ.get("PATH", os.defpath).split(os.pathsep)
    return os.pathsep.join(entry for entry in entries if Path(entry).is_absolute())


def inherited() -> dict[str, str]:
    """What a command gets from us: our own environment without our secrets and without what makes a shell run more."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in _NOT_INHERITED and not name.startswith("BASH_FUNC_")
    }
    kept["PATH"] = clean_path()
    return kept
