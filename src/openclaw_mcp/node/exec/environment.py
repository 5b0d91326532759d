"""The environment of a command: variables a caller may set, and variables it inherits."""

import os
import re
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Final

from ..path_following import is_per_process_path
from .shell_reader import word_set

_BLOCKED: Final = word_set(
    """
    PATH PATHEXT COMSPEC PSMODULEPATH NODE_OPTIONS NODE_PATH PYTHONPATH PYTHONSTARTUP PYTHONUSERBASE PYTHONHOME
    PYTHONINSPECT RUBYOPT RUBYLIB PERL5OPT PERL5LIB PERL5DB PERLIO BASH_ENV ENV CDPATH PROMPT_COMMAND ZDOTDIR IFS
    PS1 PS2 PS4 SHELLOPTS BASHOPTS GLOBIGNORE HOME SHELL EDITOR VISUAL PAGER MANPAGER LESSOPEN LESSCLOSE BROWSER TMPDIR
    DOTNET_STARTUP_HOOKS DOTNET_ADDITIONAL_DEPS JAVA_TOOL_OPTIONS _JAVA_OPTIONS JDK_JAVA_OPTIONS CLASSPATH GCONV_PATH
    LOCPATH NLSPATH TERMINFO TERMCAP HOSTALIASES RES_OPTIONS MALLOC_TRACE LUA_INIT AWKPATH
    """
)
_BLOCKED_PREFIXES: Final = (
    "LD_", "DYLD_", "GIT_", "BASH_FUNC_", "OPENCLAW_", "REMOTECLAW_", "SSH_", "GTK_", "QT_", "GLIBC_",
)  # fmt: skip
_SECRET_WORDS: Final = frozenset({"TOKEN", "SECRET", "PASSWORD", "PASSWD", "CREDENTIAL", "CREDENTIALS"})
_SECRET_PAIRS: Final = frozenset(
    {("API", "KEY"), ("ACCESS", "KEY"), ("PRIVATE", "KEY"), ("CLIENT", "SECRET"), ("CONNECTION", "STRING")}
)
_INHERITED: Final = word_set(
    """
    HOME USER LOGNAME SHELL TMPDIR TZ TERM COLORTERM NO_COLOR LANG LANGUAGE LC_ALL LC_CTYPE LC_NUMERIC LC_TIME
    LC_COLLATE
    LC_MONETARY LC_MESSAGES LC_PAPER LC_NAME LC_ADDRESS LC_TELEPHONE LC_MEASUREMENT LC_IDENTIFICATION
    DISPLAY WAYLAND_DISPLAY XAUTHORITY DBUS_SESSION_BUS_ADDRESS SSH_AUTH_SOCK XDG_RUNTIME_DIR XDG_SESSION_TYPE
    XDG_CURRENT_DESKTOP XDG_CONFIG_HOME XDG_CONFIG_DIRS XDG_DATA_HOME XDG_DATA_DIRS XDG_CACHE_HOME XDG_STATE_HOME
    PULSE_SERVER PIPEWIRE_RUNTIME_DIR PIPEWIRE_REMOTE SSL_CERT_FILE SSL_CERT_DIR __CF_USER_TEXT_ENCODING
    """
)
"""The user, the home, the locale, the desktop: none of it a secret."""
_PROXIES: Final = frozenset({"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "FTP_PROXY", "NO_PROXY"})
_WINDOWS: Final = word_set(
    """
    SYSTEMROOT SYSTEMDRIVE WINDIR COMSPEC PATHEXT TEMP TMP USERPROFILE USERNAME USERDOMAIN HOMEDRIVE HOMEPATH APPDATA
    LOCALAPPDATA PROGRAMDATA PROGRAMFILES PROGRAMFILES(X86) PROGRAMW6432 COMMONPROGRAMFILES COMPUTERNAME OS
    NUMBER_OF_PROCESSORS PROCESSOR_ARCHITECTURE
    """
)
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def find_blocked_names(variables: Mapping[str, str]) -> list[str]:
    """The names a caller may not set, sorted."""
    return sorted(name for name in variables if _is_blocked(name))


def _is_blocked(name: str) -> bool:
    upper = name.upper()
    if not _NAME.fullmatch(name) or upper in _BLOCKED or upper.startswith(_BLOCKED_PREFIXES) or "CONNSTR" in upper:
        return True
    parts = re.split(r"[_\-.]", upper)
    return not _SECRET_WORDS.isdisjoint(parts) or any(pair in _SECRET_PAIRS for pair in pairwise(parts))


def clean_path(environ: Mapping[str, str] = os.environ) -> str:
    """Our PATH without the entries that mean the current folder, or another one to each process."""
    entries = environ.get("PATH", os.defpath).split(os.pathsep)
    return os.pathsep.join(
        entry
        for entry in entries
        if (entry[:1] == os.sep or Path(entry).is_absolute()) and not is_per_process_path(entry)
    )


def child_environment(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The variables a command gets from us: the short list, as far as it is set here, and a safe PATH."""
    kept = {name: value for name, value in environ.items() if _is_inherited(name, value)}
    kept["PATH"] = clean_path(environ)
    return kept


def browser_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables of a browser that shows strangers' pages: as a command's, without access to the user's SSH keys."""
    return {name: value for name, value in child_environment(environ).items() if name != "SSH_AUTH_SOCK"}


def _is_inherited(name: str, value: str) -> bool:
    if name.upper() in _PROXIES:
        return "@" not in value  # a password may be before it
    return name in _INHERITED or (os.name == "nt" and name.upper() in _WINDOWS)
