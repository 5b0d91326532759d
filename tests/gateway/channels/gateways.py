"""A channel service on a store of its own, and a channel that behaves as a test sets it."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from openclaw_mcp.config.roster import roster_from_config
from openclaw_mcp.core.channel import (
    Ability,
    ChannelAbilities,
    ChannelRefused,
    ChatAddress,
    DeliveryReceipt,
    InboundMessage,
    OnMessage,
    OutboundMessage,
)
from openclaw_mcp.core.config.config import read_config
from openclaw_mcp.core.model import Caller, Json, Sender
from openclaw_mcp.core.ports import AgentRuntime
from openclaw_mcp.core.rpc import ADMIN, READ, WRITE, RpcCall, RpcEvent, RpcMethod
from openclaw_mcp.gateway.channels.action_context import ActionContexts
from openclaw_mcp.gateway.channels.attachments import MediaLoader
from openclaw_mcp.gateway.channels.local.rpc_methods import LocalMethods
from openclaw_mcp.gateway.channels.message_actions import MessageActions
from openclaw_mcp.gateway.channels.message_tool import MessageTool
from openclaw_mcp.gateway.channels.rpc_methods import ChannelMethods
from openclaw_mcp.gateway.channels.service import ChannelRepositories, ChannelService
from openclaw_mcp.gateway.nodes.approval_queue import ExecApprovalQueue
from openclaw_mcp.gateway.nodes.conversation_questions import ConversationQuestions
from openclaw_mcp.gateway.wiring.runs import StoreServices, open_store_services
from openclaw_mcp.net.file_access import FileAccess
from openclaw_mcp.store.local_messages import SqlLocalMessageRepository
from openclaw_mcp.store.messages import SqlInbox, SqlOutbox, SqlSenderApprovalRepository
from openclaw_mcp.tools.dispatcher import ToolDispatcher
from openclaw_mcp.tools.policy import PolicyDecision
from openclaw_mcp.tools.registry import ToolRegistry

WAIT = 20.0
OPERATOR = Caller(kind="operator", name="test", scopes=frozenset({READ, WRITE, ADMIN}))


def within(work: Awaitable[None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(WAIT * 3):
            await work

    asyncio.run(bounded())


class Twin:
    """A `Channel` in memory. `script` is what happens at the next sends: an error to raise, or None to take it."""

    name = "twin"

    def __init__(self, account: str = "default", *, can: Sequence[Ability] = ("send",), limit: int = 1000) -> None:
        self.account = account
        self.abilities = ChannelAbilities(can=frozenset(can), text_limit=limit, markup="plain")
        self.script: list[Exception | None] = []
        self.taken: list[tuple[str, str]] = []
        self.keys: list[str] = []
        self.came = asyncio.Event()
        self.gate: asyncio.Event | None = None
        self.entered = asyncio.Event()
        self.runs: list[Exception] = []
        self.run_count = 0
        self.hear: OnMessage | None = None
        self.typed = 0
        self._ids = itertools.count(1)

    def normalize_target(self, target: str) -> str:
        name = target.strip().removeprefix("twin:").strip()
        if not name:
            raise ChannelRefused("a conversation has a name")
        return name

    async def run(self, on_message: OnMessage) -> None:
        self.hear = on_message
        self.run_count += 1
        if self.runs:
            raise self.runs.pop(0)
        await asyncio.get_running_loop().create_future()

    async def status(self) -> Json:
        return {"connected": True}

    async def send(self, address: ChatAddress, message: OutboundMessage, *, key: str) -> DeliveryReceipt:
        self.entered.set()
        if self.gate is not None:
            await self.gate.wait()
        self.keys.append(key)
        outcome = self.script.pop(0) if self.script else None
        if outcome is not None:
            raise outcome
        self.taken.append((address.to, message.text))
        self.came.set()
        return DeliveryReceipt(message_id=str(next(self._ids)), at=1)

    async def set_typing(self, address: ChatAddress, *, on: bool) -> None:
        self.typed += on

    async def has(self, count: int) -> list[tuple[str, str]]:
        """What was taken, once there are so many."""
        async with asyncio.timeout(WAIT):
            while len(self.taken) < count:
                self.came.clear()
                await self.came.wait()
        return self.taken

    def build_message(self, text: str, *, id: str, to: str = "ann", **more: Any) -> InboundMessage:
        values: dict[str, Any] = {"chat": "direct", "sender": Sender(id=to, name=to)} | more
        address = more.pop("address", None) or ChatAddress(channel=self.name, account=self.account, to=to)
        values.pop("address", None)
        return InboundMessage(id=id, address=address, text=text, at=1, **values)

    async def unused(self, *_args: Any, **_more: Any) -> Any:
        raise AssertionError("not declared, so never called")

    react = delete = edit = pin = read = send_poll = unused


class Link:
    id = "link"

    def __init__(self) -> None:
        self.topics: set[str] = set()

    def send_event(self, event: str, payload: Any) -> None:
        raise AssertionError(event)

    def subscriptions(self) -> set[str]:
        return self.topics

    async def acknowledge(self, payload: Any) -> None:
        raise AssertionError(payload)


class ChannelHarness:
    def __init__(
        self, memory: StoreServices, folder: Path, config: Json, twins: dict[str, Twin], registry: ToolRegistry
    ) -> None:
        self.memory = memory
        self.approvals = ExecApprovalQueue()
        self.config = config
        self.twins = twins
        self.events: list[RpcEvent] = []
        self.books = ChannelRepositories(
            outbox=SqlOutbox(memory.store),
            inbox=SqlInbox(memory.store),
            sender_approvals=SqlSenderApprovalRepository(memory.store),
            sessions=memory.sessions,
        )
        self.local = LocalMethods(
            SqlLocalMessageRepository(memory.store), self.events.append, queue_mode=lambda: "collect"
        )
        self.service = ChannelService(
            self.books,
            memory.runs,
            factories={"local": self.local.create_channel, "twin": self._make},
            folder=folder / "channels",
            config=lambda: read_config(self.config),
            roster=self._roster,
            run_command=memory.run_command,
            questions=ConversationQuestions(self.approvals),
        )
        service = self.service
        self.actions = MessageActions(
            accounts=service.accounts,
            sender=service.sender,
            media=MediaLoader(allow_private_network=True),
            config=lambda: read_config(self.config),
            file_access=lambda _: FileAccess(folders=(folder / "media",)),
            tool_refusal=lambda caller, tool: None,
        )
        contexts = ActionContexts(service.accounts, service.routes)
        methods = ChannelMethods(
            actions=self.actions,
            contexts=contexts,
            accounts=service.accounts,
            runner=service.runner,
            approvals=service.approvals,
            outbox=service.outbox,
        )
        self._methods: dict[str, RpcMethod] = {
            method.name: method for module in (methods, self.local) for method in module.methods()
        }
        registry.add("message", MessageTool(self.actions, contexts))

    def _roster(self) -> Any:

        return roster_from_config(read_config(self.config))

    def _make(self, account: str, settings: Json, folder: Path) -> Twin:
        return self.twins.setdefault(account, Twin(account))

    @property
    def twin(self) -> Twin:
        return self.twins["default"]

    def at(self, to: str, thread: str | None = None) -> ChatAddress:
        return ChatAddress(channel="twin", account="default", to=to, thread=thread)

    async def call(self, name: str, caller: Caller = OPERATOR, **params: Any) -> Any:
        method = self._methods[name]
        return await method.handle(RpcCall(method=name, params=params, caller=caller, peer=Link()))

    async def reads(self, conversation: str = "main") -> list[Json]:
        page: Json = await self.call("local.read", conversation=conversation)
        messages: list[Json] = page["messages"]
        return messages

    async def until(self, fits: Callable[[list[Json]], bool], conversation: str = "main") -> list[Json]:
        async with asyncio.timeout(WAIT):
            while not fits(found := await self.reads(conversation)):  # noqa: ASYNC110  (the store's state)
                await asyncio.sleep(0.01)
        return found


@asynccontextmanager
async def open_channels(
    folder: Path, *, config: Json | None = None, twin: Twin | None = None, agents: bool = True,
    runtime: AgentRuntime | None = None, asleep: bool = False,
) -> AsyncIterator[ChannelHarness]:  # fmt: skip
    """`agents`: whether agents may use the tool `message`. `runtime` answers instead of the demo.

    `asleep`: nothing of what is stored is processed; it is left for the next process, as by a crash.
    """
    registry = ToolRegistry()
    dispatcher = ToolDispatcher(
        registry, policy=lambda caller, source, spec: PolicyDecision(agents, "the test says so")
    )
    settings = config if config is not None else {"channels": {"twin": {"allowFrom": ["*"], "dmPolicy": "open"}}}
    twins = {"default": twin or Twin()}
    runtimes = {} if runtime is None else {"demo": runtime}
    async with open_store_services(
        str(folder / "openclaw.sqlite"), lambda event: None, tools=dispatcher, runtimes=runtimes
    ) as memory:
        harness = ChannelHarness(memory, folder, settings, twins, registry)
        if asleep:
            yield harness
            return
        async with harness.service:
            await asyncio.sleep(0)
            yield harness
