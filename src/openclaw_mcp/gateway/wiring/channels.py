"""Builds the channels from store, runs and config, and has them follow the config."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from msgspec import Struct

from ...config.rpc_methods import ConfigService
from ...core.agents import AgentRoster
from ...core.approvals import OpenQuestions
from ...core.channel import LOCAL_CHANNEL, ChatAddress
from ...core.claw_methods import DenialCheck
from ...core.model import Caller
from ...core.rpc import Publish, RpcModule
from ...net.tasks import Tasks
from ...store.local_messages import SqlLocalMessageRepository
from ...store.messages import SqlInbox, SqlOutbox, SqlSenderApprovalRepository
from ..channels.accounts import ChannelFactory
from ..channels.action_context import ActionContexts
from ..channels.attachments import MediaLoader
from ..channels.inbound_rules import queue_mode
from ..channels.local.rpc_methods import LocalMethods
from ..channels.message_actions import MessageActions
from ..channels.message_tool import MessageTool
from ..channels.rpc_methods import ChannelMethods
from ..channels.service import ChannelRepositories, ChannelService
from .file_rules import FileRules
from .runs import StoreServices


class ChannelServices(Struct, frozen=True, kw_only=True):
    channels: ChannelService
    tool: MessageTool
    authorize_send: Callable[[Caller, ChatAddress], Awaitable[None]]
    """Raises ChannelError or ToolDenied unless the tool policy lets this caller send there."""
    rpc_modules: tuple[RpcModule, ...]


def build_channels(
    stores: StoreServices, publish: Publish, *, config: ConfigService, roster: Callable[[], AgentRoster], folder: Path,
    tool_refusal: DenialCheck, token: str = "", factories: Mapping[str, ChannelFactory] | None = None,
    questions: OpenQuestions | None = None,
) -> ChannelServices:  # fmt: skip
    """The channels, none of them started: `run_channels` does that.

    `tool_refusal` is the tool policy; `factories` are channels besides `local`, by name; no file that holds the `token`
    is ever sent.
    """
    local = LocalMethods(
        SqlLocalMessageRepository(stores.store), publish, queue_mode=lambda: queue_mode(config.current.config)
    )

    repositories = ChannelRepositories(
        outbox=SqlOutbox(stores.store),
        inbox=SqlInbox(stores.store),
        sender_approvals=SqlSenderApprovalRepository(stores.store),
        sessions=stores.sessions,
    )
    service = ChannelService(
        repositories,
        stores.runs,
        factories={LOCAL_CHANNEL: local.create_channel, **(factories or {})},
        folder=folder / "channels",
        config=lambda: config.current.config,
        roster=roster,
        run_command=stores.run_command,
        questions=questions,
    )
    files = FileRules(state=folder, roster=roster, snapshot=lambda: config.current, token=token)
    actions = MessageActions(
        accounts=service.accounts, sender=service.sender, media=MediaLoader(), config=lambda: config.current.config,
        file_access=files.access_for, tool_refusal=tool_refusal, questions=service.questions,
    )  # fmt: skip
    contexts = ActionContexts(service.accounts, service.routes)
    methods = ChannelMethods(
        actions=actions, contexts=contexts, accounts=service.accounts, runner=service.runner,
        approvals=service.approvals, outbox=service.outbox,
    )  # fmt: skip
    return ChannelServices(
        channels=service,
        tool=MessageTool(actions, contexts),
        authorize_send=methods.authorize_send,
        rpc_modules=(methods, local),
    )


@asynccontextmanager
async def run_channels(channels: ChannelService, config: ConfigService) -> AsyncIterator[None]:
    """Continue what waits and start every channel; on leaving, stop them, with all unfinished work on disk."""
    changed = asyncio.Event()

    async def follow() -> None:
        await changed.wait()
        changed.clear()
        try:
            await channels.runner.apply_config()
        except Exception:
            changed.set()  # not applied: the next round tries again
            raise

    async with channels, Tasks("channels") as tasks:
        tasks.loop(follow, name="config follower", on_failure="restart")
        disconnect = config.changed.connect(lambda _: changed.set())
        try:
            yield
        finally:
            disconnect()
