"""The caretaker of files that leave: which folders a caller may send from, and what never leaves."""

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
    """What whoever asks may send: an agent's run files of its own workspace, the owner and operators those of every
    agent; all of them those in the two folders made for it. Nothing of the gateway's own."""

    state: Path
    roster: Callable[[], AgentRoster]
    snapshot: Callable[[], Snapshot]
    token: str

    def access_for(self, context: ActionContext) -> FileAccess:
        cards = self.roster().agents
        every = [self._workspace_folder(card) for card in cards]
        own = [self._workspace_folder(card) for card in cards if card.id == context.agent]
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

    def _workspace_folder(self, card: AgentProfile) -> Path:
        return Path(card.workspace).expanduser() if card.workspace else self.state / WORKSPACES_FOLDER / card.id

    def _secret_paths(self) -> Iterator[Path]:
        """Secrets that need not lie in the state directory, or are links there to somewhere else."""
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
