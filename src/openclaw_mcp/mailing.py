"""The caretaker of mail: puts the mailroom together from store, runs and config, and has it follow the config."""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from msgspec import Struct

from .channels.actions import Actions
from .channels.local.room import LocalRoom
from .channels.mailroom import Books, Mailroom
from .channels.media import Media
from .channels.methods import MailMethods
from .channels.stations import Maker
from .channels.tool import MessageTool
from .config.room import ConfigRoom
from .core.model import Json
from .core.roster import Roster
from .core.rpc import Publish, Room
from .memory import Memory
from .store.local import LocalConversations
from .store.mail import Acquaintances, Arrivals, Letters

MEDIA: Final = "media"
"""The folder of the state directory, and of the temporary one, whose files may be sent."""


class Mail(Struct, frozen=True, kw_only=True):
    mailroom: Mailroom
    tool: MessageTool
    """`message`, for the desk."""
    rooms: tuple[Room, ...]


@asynccontextmanager
async def mailing(
    memory: Memory, publish: Publish, *, config: ConfigRoom, roster: Callable[[], Roster], folder: Path,
    kinds: Mapping[str, Maker] | None = None,
) -> AsyncIterator[Mail]:  # fmt: skip
    """Take up what waits, start every channel; on leaving, stop them, and leave on disk what is not done.

    `kinds` are channels besides `local`, by name.
    """
    local = LocalRoom(LocalConversations(memory.store), publish)

    def current() -> Json:
        return config.current.config

    books = Books(
        outbox=Letters(memory.store),
        inbox=Arrivals(memory.store),
        people=Acquaintances(memory.store),
        sessions=memory.sessions,
    )
    mailroom = Mailroom(
        books, memory.runs, kinds={"local": local.make, **(kinds or {})}, folder=folder / "channels", config=current,
        roster=roster, reset=memory.reset,
    )  # fmt: skip
    actions = Actions(mailroom, Media(lambda: _roots(folder, roster())))
    changed = asyncio.Event()

    async def follow() -> None:
        while True:
            await changed.wait()
            changed.clear()
            await mailroom.apply()

    async with mailroom:
        quiet = config.changed.listen(lambda _: changed.set())
        following = asyncio.get_running_loop().create_task(follow())
        try:
            yield Mail(
                mailroom=mailroom,
                tool=MessageTool(mailroom, actions),
                rooms=(MailMethods(mailroom, actions), local),
            )
        finally:
            quiet()
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)


def _roots(folder: Path, roster: Roster) -> Sequence[Path]:
    """Agents' workspaces, and a folder of ours for files made to be sent. Never the state directory itself."""
    workspaces = [Path(card.workspace).expanduser() for card in roster.agents if card.workspace]
    return [*workspaces, folder / MEDIA, Path(tempfile.gettempdir()) / "openclaw"]
