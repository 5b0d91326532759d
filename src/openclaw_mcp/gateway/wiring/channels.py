"""The caretaker of mail: puts the mailroom together from store, runs and config, and has it follow the config."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from msgspec import Struct

from ...config.rpc_methods import ConfigService
from ...core.agents import AgentRoster
from ...core.channel import ChatAddress
from ...core.claw_methods import DenialCheck
from ...core.model import Caller
from ...core.rpc import Publish, RpcModule
from ...store.local_messages import SqlLocalMessageRepository
from ...store.messages import SqlInbox, SqlOutbox, SqlSenderApprovalRepository
from ..channels.account_runner import ChannelFactory
from ..channels.local.rpc_methods import LocalMethods
from ..channels.message_actions import MessageActions
from ..channels.message_tool import MessageTool
from ..channels.outgoing_files import MediaLoader
from ..channels.rpc_methods import ChannelMethods
from ..channels.service import ChannelRepositories, ChannelService
from .file_rules import FileRules
from .runs import StoreServices


class ChannelServices(Struct, frozen=True, kw_only=True):
    channels: ChannelService
    tool: MessageTool
    """`message`, for the desk."""
    authorize_send: Callable[[Caller, ChatAddress], Awaitable[None]]
    """Raises ChannelError or ToolDenied unless whoever the rules about tools bind may have words sent there."""
    rpc_modules: tuple[RpcModule, ...]


@asynccontextmanager
async def open_channels(
    stores: StoreServices, publish: Publish, *, config: ConfigService, roster: Callable[[], AgentRoster], folder: Path,
    tool_refusal: DenialCheck, token: str = "", factories: Mapping[str, ChannelFactory] | None = None,
) -> AsyncIterator[ChannelServices]:  # fmt: skip
    """Take up what waits, start every channel; on leaving, stop them, and leave on disk what is not done.

    `judge` says which tools somebody may use; `kinds` are channels besides `local`, by name; no file that holds the
    `token` is ever sent.
    """
    local = LocalMethods(SqlLocalMessageRepository(stores.store), publish)

    books = ChannelRepositories(
        outbox=SqlOutbox(stores.store),
        inbox=SqlInbox(stores.store),
        sender_approvals=SqlSenderApprovalRepository(stores.store),
        sessions=stores.sessions,
    )
    mailroom = ChannelService(
        books,
        stores.runs,
        factories={"local": local.create_channel, **(factories or {})},
        folder=folder / "channels",
        config=lambda: config.current.config,
        roster=roster,
        reset_session=stores.reset_session,
    )
    files = FileRules(state=folder, roster=roster, snapshot=lambda: config.current, token=token)
    actions = MessageActions(mailroom, MediaLoader(), file_access=files.access_for, tool_refusal=tool_refusal)
    changed = asyncio.Event()

    async def follow() -> None:
        while True:
            await changed.wait()
            changed.clear()
            await mailroom.apply_config()

    async with mailroom:
        quiet = config.changed.connect(lambda _: changed.set())
        following = asyncio.get_running_loop().create_task(follow())
        try:
            methods = ChannelMethods(mailroom, actions)
            yield ChannelServices(
                channels=mailroom,
                tool=MessageTool(mailroom, actions),
                authorize_send=methods.authorize_send,
                rpc_modules=(methods, local),
            )
        finally:
            quiet()
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
