"""The config file, `openclaw.json` in the state directory: read whole, changed under a lock, replaced at once."""

import contextlib
import fcntl
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..core.errors import OpenClawError

Json = dict[str, Any]


class BadConfig(OpenClawError):
    """The file can't be used as it is; it is left alone."""

    code = "bad_settings"


def path(state_dir: str | None = None) -> Path:
    """A flag wins over the environment, the environment over the home directory."""
    folder = state_dir or os.environ.get("OPENCLAW_STATE_DIR") or "~/.openclaw-mcp"
    return Path(folder).expanduser() / "openclaw.json"


def read(file: Path) -> Json:
    """What the file holds; an empty config when there is no file. Raises BadConfig."""
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as exc:
        raise BadConfig(f"{file} can't be read: {type(exc).__name__}") from exc
    except ValueError as exc:
        raise BadConfig(f"{file} is not plain JSON ({exc}); correct it by hand first") from exc
    if type(value) is not dict:
        raise BadConfig(f"{file} must hold a JSON object")
    return value


@contextlib.contextmanager
def changing(file: Path) -> Iterator[Json]:
    """The config, to be changed in place; written when the block ends well. Whatever else is in it stays as it is."""
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (file.parent / "openclaw.json.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        config = read(file)
        yield config
        _replace(file, json.dumps(config, indent=2, ensure_ascii=False) + "\n")


def _replace(file: Path, text: str) -> None:
    """All or nothing, also when the power goes; only its owner may read it, for it may hold secrets."""
    target = file.resolve()  # a config kept elsewhere through a link stays there
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=".openclaw.json.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as new:
            new.write(text)
            new.flush()
            os.fsync(new.fileno())
        Path(name).replace(target)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    folder = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
