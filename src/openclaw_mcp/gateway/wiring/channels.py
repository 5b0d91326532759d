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
from ...core.model import Caller, Json
from ...core.rpc import Publish, RpcModule
from ...net.tasks import Tasks
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


def build_channels(
    stores: StoreServices, publish: Publish, *, config: ConfigService, roster: Callable[[], AgentRoster], folder: Path,
    tool_refusal: DenialCheck, token: str = "", factories: Mapping[str, ChannelFactory] | None = None,
) -> ChannelServices:  # fmt: skip
    """The channels, none of them started: `run_channels` does that.

    `judge` says which tools somebody may use; `kinds` are channels besides `local`, by name; no file that holds the
    `token` is ever sent.
    """
    local = LocalMethods(SqlLocalMessageRepository(stores.store), publish)

    def current() -> Json:
        return config.current.config

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
        config=current,
        roster=roster,
        reset_session=stores.reset_session,
    )
    files = FileRules(state=folder, roster=roster, config=current, token=token)
    actions = MessageActions(mailroom, MediaLoader(), file_access=files.access_for, tool_refusal=tool_refusal)
    methods = ChannelMethods(mailroom, actions)
    return ChannelServices(
        channels=mailroom,
        tool=MessageTool(mailroom, actions),
        authorize_send=methods.authorize_send,
        rpc_modules=(methods, local),
    )


@asynccontextmanager
async def run_channels(channels: ChannelService, config: ConfigService) -> AsyncIterator[None]:
    """Take up what waits, start every channel; on leaving, stop them, and leave on disk what is not done."""
    changed = asyncio.Event()

    async def follow() -> None:
        await changed.wait()
        changed.clear()
        await channels.apply_config()

    async with channels, Tasks("channels") as tasks:
        disconnect = config.changed.connect(lambda _: changed.set())
        tasks.loop(follow, name="config change", on_failure="restart")
        try:
            yield
        finally:
            disconnect()
