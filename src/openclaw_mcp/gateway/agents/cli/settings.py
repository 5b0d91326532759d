"""How an agent's CLI is run, as the config says."""

import os
import re
from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct

from ....core.errors import BadRequest
from ....core.model import Json
from .process import CliTimeouts

_NOT_INHERITED: Final = re.compile(
    # Ours; what makes a shell run more; what tells a CLI that it runs inside another of its kind.
    r"OPENCLAW_|REMOTECLAW_|BASH_ENV$|ENV$|SHELLOPTS$|BASHOPTS$|PS4$|BASH_FUNC_|LD_|PYTHON|VIRTUAL_ENV|"
    r"CLAUDECODE$|CLAUDE_CODE_ENTRYPOINT$|CLAUDE_CODE_SSE_PORT$|CODEX_SANDBOX|CODEX_THREAD_ID$|OPENCODE$|GEMINI_CLI$"
)
_SECRET: Final = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL|AUTH|CONFIG_CONTENT", re.IGNORECASE)
SHORTEST_SECRET: Final = 8  # characters; masking a shorter word would garble what it is part of


class CliSettings(Struct, frozen=True, kw_only=True):
    command: str | None = None
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = {}
    strict: bool = True
    timeouts: CliTimeouts = CliTimeouts()


def parse_cli_settings(config: Json) -> CliSettings:
    """Raises BadRequest for what the config's schema would have refused."""
    args, env = config.get("runtimeArgs") or (), config.get("runtimeEnv") or {}
    if not isinstance(args, list | tuple) or not isinstance(env, dict):
        raise BadRequest("runtimeArgs must be a list of texts and runtimeEnv an object of texts; correct the config")
    usual = CliTimeouts()
    return CliSettings(
        command=config.get("runtimeCommand") or None,
        args=tuple(map(str, args)),
        env={str(name): str(value) for name, value in env.items()},
        strict=config.get("runtimeStrict") is not False,
        timeouts=CliTimeouts(
            startup=_seconds(config.get("runtimeStartupSeconds"), usual.startup),
            idle=_seconds(config.get("runtimeIdleSeconds"), usual.idle),
        ),
    )


def _seconds(value: Any, default: float) -> float:
    return float(value) if isinstance(value, int | float) and value > 0 else default


def base_environment() -> dict[str, str]:
    """Our own environment, without what is ours alone."""
    kept = {name: value for name, value in os.environ.items() if not _NOT_INHERITED.match(name)}
    entries = kept.get("PATH", os.defpath).split(os.pathsep)
    return kept | {"PATH": os.pathsep.join(entry for entry in entries if entry.startswith(os.sep))}


def find_secrets(env: Mapping[str, str]) -> list[str]:
    """Values no error may repeat, the longest first."""
    found = {value for name, value in env.items() if _SECRET.search(name) and len(value) >= SHORTEST_SECRET}
    return sorted(found, key=len, reverse=True)
