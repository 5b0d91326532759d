"""Confined runs, for people other than the owner: what their CLI gets of this machine, and where its sessions are kept.

Such a run has the tools of the gateway and none of the CLI's own. Of what its user or a project set up for the CLI it
loads only the login and the choice of a model; it works in an empty folder.
"""

import contextlib
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import pyjson5

from ....core.errors import BadRequest
from ....core.model import Json
from ....net.files import make_private_folder
from ....net.open_flags import NO_LINK, NO_WAIT
from .dialect import CliAdapter

LONGEST_INSTRUCTIONS: Final = 32 << 10  # bytes of a workspace's instructions that a confined run gets
CONFINED_FOLDER: Final = "confined"  # the folder in the state directory for what outlives confined runs, by agent
PROXY_VARIABLES: Final = r"(HTTPS?|ALL|NO)_PROXY|NODE_EXTRA_CA_CERTS|SSL_CERT_(FILE|DIR)"
"""Variables without which a model may be unreachable, as a part of a regular expression."""
_VARIABLE: Final = re.compile(r"""^\s*(?:export\s+)?(\w+)\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s#]*))""", re.MULTILINE)
CLOUD_LOGINS: Final = (".aws", ".azure", ".config/gcloud")
"""In a home folder: logins of cloud providers of models, which a CLI finds only by its home."""


def prepare_confined_folder(state_folder: Path, agent_id: str) -> Path:
    """The folder that outlives the agent's confined runs, with the empty `work` they run in."""
    folder = make_private_folder(state_folder / CONFINED_FOLDER) / agent_id
    (folder / "work").mkdir(parents=True, mode=0o700, exist_ok=True)
    return folder.resolve()


def filter_environment(env: Mapping[str, str], adapter: CliAdapter) -> dict[str, str]:
    """The environment without the CLI's own variables, except those it needs to reach its model."""
    return {
        name: value
        for name, value in env.items()
        if not adapter.variable_prefixes.match(name) or adapter.allowed_variables.fullmatch(name)
    }


def home_folder(env: Mapping[str, str]) -> Path:
    return Path(env.get("HOME") or "~").expanduser()


def create_bare_home(folder: Path, user_home: Path) -> Path:
    """A new home in `folder` that holds nothing of the real one but cloud logins."""
    home = folder / "home"
    home.mkdir(mode=0o700)
    for name in CLOUD_LOGINS:
        link_files(home, user_home, name)
    return home


def link_files(folder: Path, source_folder: Path, *names: str) -> None:
    """Link these names in `folder` to those that exist in `source_folder`; replace links that lead elsewhere."""
    for name in names:
        entry, target = folder / name, (source_folder / name).absolute()
        if entry.is_symlink() and entry.readlink() != target:
            entry.unlink(missing_ok=True)
        if target.exists():
            entry.parent.mkdir(parents=True, mode=0o700, exist_ok=True)
            with contextlib.suppress(FileExistsError):
                entry.symlink_to(target)


def move_back(folder: Path, target_folder: Path, names: Iterable[str]) -> None:
    """Move files that a CLI wrote in place of links, such as a refreshed login, to where the links led."""
    for name in names:
        entry, target = folder / name, (target_folder / name).resolve()
        if entry.is_symlink() or not entry.is_file():
            continue
        with contextlib.suppress(OSError):
            target.parent.mkdir(parents=True, mode=0o700, exist_ok=True)
            replace_with(target, entry)


def replace_with(target: Path, entry: Path) -> None:
    """Move `entry` over `target` in one step, also from another file system."""
    draft = target.with_name(f".{target.name}.{os.getpid()}")
    shutil.move(entry, draft)
    draft.replace(target)


def write_private_file(path: Path, data: bytes) -> Path:
    """A new file that only this user can read."""
    path.parent.mkdir(parents=True, mode=0o700, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
    return path


def read_env_file(*paths: Path) -> dict[str, str]:
    """The variables of the first of these files that can be read, one `NAME=value` a line."""
    for path in paths:
        with contextlib.suppress(OSError, UnicodeDecodeError):
            lines = _VARIABLE.finditer(path.read_text())
            return {line[1]: line[2] or line[3] or line[4] or "" for line in lines}
    return {}


def object_at(value: Any, name: str) -> Json:
    """The object of this name; empty when there is none."""
    inner = value.get(name) if isinstance(value, dict) else None
    return inner if isinstance(inner, dict) else {}


def pick_settings(settings: Any, names: Iterable[str]) -> Json:
    """Only the settings of these names. A dot leads into an object."""
    found: Json = {}
    for name in names:
        source, target = settings, found
        *path, last = name.split(".")
        for step in path:
            source = source.get(step) if isinstance(source, dict) else None
        if isinstance(source, dict) and last in source:
            for step in path:
                target = target.setdefault(step, {})
            target[last] = source[last]
    return found


def read_settings_file(path: Path, parse: Callable[[str], Any], format: str) -> Any:
    """The settings in a file; an empty object when there is no file. Raises BadRequest."""
    try:
        return parse(path.read_text())
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, ValueError, pyjson5.Json5Exception):
        raise BadRequest(f"{path} can't be read as {format}; correct it, then ask again") from None


def check_machine_settings(path: Path, settings: Json, names: Iterable[str]) -> None:
    """Raises BadRequest when a file for all users of the machine, which overrides ours, sets what would undo the
    confinement (`names`)."""
    found = [name for name in names if settings.get(name)]
    if found:
        raise BadRequest(
            f"{path} sets {', '.join(found)} for all users of this machine, which can't be kept out of a run for "
            "people other than the owner; remove it there, or use another runtime for this agent"
        )


def read_workspace_instructions(workspace: Path, name: str) -> str:
    """The workspace's own instructions; empty when there are none. A link out of the workspace is not followed."""
    try:
        path = (workspace / name).resolve(strict=True)
        if not path.is_relative_to(workspace.resolve()):
            return ""
        descriptor = os.open(path, os.O_RDONLY | NO_LINK | NO_WAIT)
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                return ""
            return file.read(LONGEST_INSTRUCTIONS).decode(errors="replace")
    except OSError:
        return ""
