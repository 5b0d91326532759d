"""The caretaker of mail: puts the mailroom together from store, runs and config, and has it follow the config."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from msgspec import Struct

from ...config.rpc_methods import ConfigRoom
from ...core.agents import Roster
from ...core.channel import Address
from ...core.claw_methods import Judge
from ...core.model import Caller, Json
from ...core.rpc import Publish, Room
from ...store.local_messages import LocalConversations
from ...store.messages import Acquaintances, Arrivals, Letters
from ..channels.account_runner import Maker
from ..channels.local.rpc_methods import LocalRoom
from ..channels.message_actions import Actions
from ..channels.message_tool import MessageTool
from ..channels.outgoing_files import Media
from ..channels.rpc_methods import MailMethods
from ..channels.service import Books, Mailroom
from .file_rules import FileRules
from .runs import Memory


class Mail(Struct, frozen=True, kw_only=True):
    mailroom: Mailroom
    tool: MessageTool
    """`message`, for the desk."""
    check_sending: Callable[[Caller, Address], Awaitable[None]]
    """Raises ChannelError or ToolDenied unless whoever the rules about tools bind may have words sent there."""
    rooms: tuple[Room, ...]


@asynccontextmanager
async def mailing(
    memory: Memory, publish: Publish, *, config: ConfigRoom, roster: Callable[[], Roster], folder: Path,
    judge: Judge, token: str = "", kinds: Mapping[str, Maker] | None = None,
) -> AsyncIterator[Mail]:  # fmt: skip
    """Take up what waits, start every channel; on leaving, stop them, and leave on disk what is not done.

    `judge` says which tools somebody may use; `kinds` are channels besides `local`, by name; no file that holds the
    `token` is ever sent.
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
    files = FileRules(state=folder, roster=roster, config=current, token=token)
    actions = Actions(mailroom, Media(), files=files.access, judge=judge)
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
            methods = MailMethods(mailroom, actions)
            yield Mail(
                mailroom=mailroom,
                tool=MessageTool(mailroom, actions),
                check_sending=methods.check_sending,
                rooms=(methods, local),
            )
        finally:
            quiet()
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
