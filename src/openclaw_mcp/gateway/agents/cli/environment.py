"""The environment that a CLI inherits, and the secrets in it."""

import os
import re
from collections.abc import Mapping
from typing import Final

_NOT_INHERITED: Final = re.compile(
    # Ours; variables that make a shell run more; variables that tell a CLI that it runs inside another of its kind.
    r"OPENCLAW_|REMOTECLAW_|BASH_ENV$|ENV$|SHELLOPTS$|BASHOPTS$|PS4$|BASH_FUNC_|LD_|PYTHON|VIRTUAL_ENV|"
    r"CLAUDECODE$|CLAUDE_CODE_ENTRYPOINT$|CLAUDE_CODE_SSE_PORT$|CODEX_SANDBOX|CODEX_THREAD_ID$|OPENCODE$|GEMINI_CLI$"
)
_SECRET: Final = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL|AUTH|CONFIG_CONTENT", re.IGNORECASE)
SHORTEST_SECRET: Final = 8  # characters; masking a shorter word would garble what it is part of


def base_environment() -> dict[str, str]:
    """Our own environment, without the variables that are for us alone."""
    kept = {name: value for name, value in os.environ.items() if not _NOT_INHERITED.match(name)}
    entries = kept.get("PATH", os.defpath).split(os.pathsep)
    return kept | {"PATH": os.pathsep.join(entry for entry in entries if entry.startswith(os.sep))}


def find_secrets(env: Mapping[str, str]) -> list[str]:
    """Values that no error may repeat, the longest first."""
    found = {value for name, value in env.items() if _SECRET.search(name) and len(value) >= SHORTEST_SECRET}
    return sorted(found, key=len, reverse=True)
