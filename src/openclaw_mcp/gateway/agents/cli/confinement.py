"""A run for somebody who is not the owner: what of this machine its CLI is given, and where its sessions lie.

Such a run has the tools of the gateway and none of the CLI's own. It loads nothing that its user or a project set up
for the CLI but the login and which model to use; it works in a folder where there is nothing.
"""

import contextlib
import os
import re
import shutil
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from ....core.errors import BadRequest
from ....core.model import Json
from ....net.files import make_private_folder
from .dialect import CliAdapter

LONGEST_INSTRUCTIONS: Final = 32 << 10  # bytes of a workspace's instructions that somebody else's run is told
CONFINED_FOLDER: Final = "confined"  # the folder in the state directory for what outlives these runs, by agent
PROXY_VARIABLES: Final = r"(HTTPS?|ALL|NO)_PROXY|NODE_EXTRA_CA_CERTS|SSL_CERT_(FILE|DIR)"
"""Variables without which a model may be out of reach, as a part of an expression."""
_VARIABLE: Final = re.compile(r"""^\s*(?:export\s+)?(\w+)\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s#]*))""", re.MULTILINE)
CLOUD_LOGINS: Final = (".aws", ".azure", ".config/gcloud")
"""Below a home: logins of clouds that sell models, which a CLI finds by its home alone."""


def prepare_confined_folder(state_folder: Path, agent_id: str) -> Path:
    """A folder that outlives the agent's confined runs, with the empty one they work in."""
    folder = make_private_folder(state_folder / CONFINED_FOLDER) / agent_id
    (folder / "work").mkdir(parents=True, mode=0o700, exist_ok=True)
    return folder.resolve()


def filter_environment(env: Mapping[str, str], adapter: CliAdapter) -> dict[str, str]:
    """The environment without variables that are the CLI's own, except those it needs to reach its model."""
    return {
        name: value
        for name, value in env.items()
        if not adapter.variable_prefixes.match(name) or adapter.allowed_variables.fullmatch(name)
    }


def home_folder(env: Mapping[str, str]) -> Path:
    return Path(env.get("HOME") or "~").expanduser()


def create_bare_home(folder: Path, user_home: Path) -> Path:
    """A new home below the folder that has nothing of the real one but cloud logins."""
    home = folder / "home"
    home.mkdir(mode=0o700)
    for name in CLOUD_LOGINS:
        link_files(home, user_home, name)
    return home


def link_files(folder: Path, source_folder: Path, *names: str) -> None:
    """Links in a folder to what there is of these names in the real one; links that led elsewhere are gone."""
    for name in names:
        entry, target = folder / name, (source_folder / name).absolute()
        if entry.is_symlink() and entry.readlink() != target:
            entry.unlink(missing_ok=True)
        if target.exists():
            entry.parent.mkdir(parents=True, mode=0o700, exist_ok=True)
            with contextlib.suppress(FileExistsError):
                entry.symlink_to(target)


def move_back(folder: Path, target_folder: Path, names: Iterable[str]) -> None:
    """What a CLI made anew or put in place of a link, such as a refreshed login, goes where the link led."""
    for name in names:
        entry, target = folder / name, (target_folder / name).resolve()
        if entry.is_symlink() or not entry.is_file():
            continue
        with contextlib.suppress(OSError):
            target.parent.mkdir(parents=True, mode=0o700, exist_ok=True)
            draft = target.with_name(f".{target.name}.{os.getpid()}")
            shutil.move(entry, draft)
            draft.replace(target)


def write_private_file(path: Path, data: bytes) -> Path:
    """A new file for this user alone."""
    path.parent.mkdir(parents=True, mode=0o700, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
    return path


def read_env_file(*paths: Path) -> dict[str, str]:
    """What the first of these files that can be read sets, one `NAME=value` a line."""
    for path in paths:
        with contextlib.suppress(OSError, UnicodeDecodeError):
            lines = _VARIABLE.finditer(path.read_text())
            return {line[1]: line[2] or line[3] or line[4] or "" for line in lines}
    return {}


def pick_settings(settings: Any, names: Iterable[str]) -> Json:
    """Of a user's settings what these names say, and not a key more. A dot leads into an object."""
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


def check_machine_settings(path: Path, settings: Json, names: Iterable[str]) -> None:
    """Raises BadRequest where a file for all users of the machine, which has the last word, says what would undo the
    confinement (`names`)."""
    found = [name for name in names if settings.get(name)]
    if found:
        raise BadRequest(
            f"{path} sets {', '.join(found)} for all users of this machine, which can't be kept out of a run for "
            "somebody who is not the owner; have it taken out there, or use another runtime for this agent"
        )


def read_workspace_instructions(workspace: Path, name: str) -> str:
    """The workspace's own instructions; empty where there are none. What they point to outside is not read."""
    try:
        path = (workspace / name).resolve(strict=True)
        if not path.is_relative_to(workspace.resolve()):
            return ""
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                return ""
            return file.read(LONGEST_INSTRUCTIONS).decode(errors="replace")
    except OSError:
        return ""
