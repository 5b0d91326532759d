"""Files that may be sent: the folders a caller may send from, and what is never sent."""

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from ...config.file import CONFIG_FILE, Snapshot
from ...config.locations import store_location
from ...core.agents import AgentProfile, AgentRoster
from ...net.file_access import WORKSPACES_FOLDER, FileAccess, sendable_folders
from ...net.state_dir import TOKEN_FILE
from ..channels.action_context import ActionContext

MEDIA_FOLDER: Final = "media"
"""The folder of the state directory whose files may be sent."""
TEMP_FOLDER: Final = "openclaw"
"""The same of the temporary directory."""


class FileRules(Struct, frozen=True, kw_only=True):
    """What a caller may send: an agent's run files of its own workspace, the owner and operators those of every agent;
    all of them those in the two folders made for it. Never the gateway's own files."""

    state: Path
    roster: Callable[[], AgentRoster]
    snapshot: Callable[[], Snapshot]
    token: str

    def access_for(self, context: ActionContext) -> FileAccess:
        agents = self.roster().agents
        every = [self._workspace_folder(agent) for agent in agents]
        own = [self._workspace_folder(agent) for agent in agents if agent.id == context.agent]
        if context.folder is not None:
            own.insert(0, Path(context.folder).expanduser())
        folders = own if context.bound and not context.owner else [*own, *every]
        return FileAccess(
            folders=sendable_folders(dict.fromkeys(folders), self.state),
            own_folders=(self.state / MEDIA_FOLDER, Path(tempfile.gettempdir()) / TEMP_FOLDER),
            secrets=(self.state, *self._secret_paths()),
            secret_texts=(self.token.encode(),) if self.token else (),
            allows_hidden=context.owner,
        )

    def _workspace_folder(self, agent: AgentProfile) -> Path:
        return Path(agent.workspace).expanduser() if agent.workspace else self.state / WORKSPACES_FOLDER / agent.id

    def _secret_paths(self) -> Iterator[Path]:
        """Secrets that need not be in the state directory, or are links there to another place."""
        snapshot = self.snapshot()
        yield self.state / CONFIG_FILE
        yield self.state / TOKEN_FILE
        store = store_location(self.state, snapshot.config)
        if "://" not in store:
            yield from (Path(f"{store}{end}") for end in ("", "-wal", "-shm"))
        yield from secret_files(snapshot.resolved)


def secret_files(config: Any) -> Iterator[Path]:
    """The files a config names to keep secrets in: every `…File`, and keys whose `source` is a file."""
    if isinstance(config, list):
        for value in config:
            yield from secret_files(value)
    if not isinstance(config, dict):
        return
    for name, value in config.items():
        from_file = name.endswith("File") or (name == "path" and config.get("source") == "file")
        if isinstance(value, str) and value and from_file:
            yield Path(value).expanduser()
        else:
            yield from secret_files(value)
