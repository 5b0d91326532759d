"""The caretaker of files that leave: which folders a caller may send from, and what never leaves."""

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from ...config.file import NAME
from ...config.views import database
from ...core.agents import AgentCard, Roster
from ...core.model import Json
from ...net.file_access import WORKSPACES, FileAccess, outside_secrets
from ...net.state_dir import TOKEN_FILE
from ..channels.message_actions import Context

MEDIA: Final = "media"
"""The folder of the state directory whose files may be sent."""
TEMPORARY: Final = "openclaw"
"""The same of the temporary directory."""


class FileRules(Struct, frozen=True, kw_only=True):
    """What whoever asks may send: an agent's run files of its own workspace, the owner and operators those of every
    agent; all of them those in the two folders made for it. Nothing of the gateway's own."""

    state: Path
    roster: Callable[[], Roster]
    config: Callable[[], Json]
    token: str

    def access(self, asker: Context) -> FileAccess:
        cards = self.roster().agents
        every = [self._workspace(card) for card in cards]
        own = [self._workspace(card) for card in cards if card.id == asker.agent]
        if asker.folder is not None:
            own.insert(0, Path(asker.folder).expanduser())
        folders = own if asker.bound and not asker.owner else [*own, *every]
        return FileAccess(
            folders=outside_secrets(dict.fromkeys(folders), self.state),
            own_folders=(self.state / MEDIA, Path(tempfile.gettempdir()) / TEMPORARY),
            secrets=(self.state, *self._secrets()),
            words=(self.token.encode(),) if self.token else (),
            hidden=asker.owner,
        )

    def _workspace(self, card: AgentCard) -> Path:
        return Path(card.workspace).expanduser() if card.workspace else self.state / WORKSPACES / card.id

    def _secrets(self) -> Iterator[Path]:
        """Secrets that need not lie in the state directory, or are links there to somewhere else."""
        config = self.config()
        yield self.state / NAME
        yield self.state / TOKEN_FILE
        store = database(self.state, config)
        if "://" not in store:
            yield from (Path(f"{store}{end}") for end in ("", "-wal", "-shm"))
        yield from secret_files(config)


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
