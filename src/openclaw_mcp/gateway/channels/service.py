"""The channels as a whole: accounts, the way out and the way in, each built from those before it.

    accounts  what is configured, and its channels          routes   session → conversation
    outbox    stores and sends, through accounts            sender   checks and splits for the outbox
    replies   waits for a run, then uses the sender         handler  judges one message, submits it to an agent
    inbound   stores what arrives, then handler and replies runner   starts the channels, which deliver to inbound
    questions asks the owner, through the sender; the handler passes it answers

No part calls one built after it: the outbox learns from `accounts.available` that a channel is back, and only `runner`,
the last, starts anything that produces messages. The outbox, not a separate queue, stores what is sent: the bound on
waiting messages and whether a new one may pass the backlog are decided by the object that also empties the queue.
A message out is on disk before it is sent and counts as ended once its transcript has it (`on_sent` is awaited); a
message in is on disk before its channel acknowledges it. So a process killed at any moment loses nothing.
"""

from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Self

from msgspec import Struct

from ...core.agents import AgentRoster
from ...core.approvals import OpenQuestions, QuestionOrigin
from ...core.channel import ChatAddress, OutboundMessage, PostResult
from ...core.chat_commands import CommandRunner
from ...core.config.config import Config
from ...core.mail import Inbox, Outbox, SenderApprovalRepository
from ...core.ports import RunExecutor
from ...core.repositories import SessionRepository
from ...core.sessions import Run
from .account_runner import AccountRunner
from .accounts import ChannelAccounts, ChannelFactory
from .inbound_handler import InboundHandler
from .inbox import InboundProcessor
from .message_sender import MessageSender
from .outbox import OutboxSender
from .question_notices import QuestionNotices
from .replying import ReplySender
from .sender_approvals import SenderApprovals
from .session_routes import SessionRoutes, TranscriptMirror


class ChannelRepositories(Struct, frozen=True, kw_only=True):
    outbox: Outbox
    inbox: Inbox
    sender_approvals: SenderApprovalRepository
    sessions: SessionRepository


class ChannelService:
    """A `core.channel.MessageDelivery`, and the parts it consists of. `async with` it."""

    def __init__(
        self,
        repositories: ChannelRepositories,
        executor: RunExecutor,
        *,
        factories: Mapping[str, ChannelFactory],
        folder: Path,
        config: Callable[[], Config],
        roster: Callable[[], AgentRoster],
        run_command: CommandRunner,
        questions: OpenQuestions | None = None,
    ) -> None:
        outbox, inbox, sessions = repositories.outbox, repositories.inbox, repositories.sessions
        self.accounts = ChannelAccounts(factories, folder, config)
        self.routes = SessionRoutes(sessions)
        mirror = TranscriptMirror(sessions, self.routes, self.accounts)
        self.outbox = OutboxSender(outbox, self.accounts, on_sent=mirror.write)
        self.sender = MessageSender(self.outbox, self.accounts)
        self.approvals = SenderApprovals(repositories.sender_approvals)
        self._replies = ReplySender(
            outbox=outbox, sessions=sessions, runner=executor, accounts=self.accounts, sender=self.sender,
            config=config,
        )  # fmt: skip
        self.questions = None if questions is None else QuestionNotices(questions, self.sender, self.accounts)
        handler = InboundHandler(
            inbox=inbox, runner=executor, accounts=self.accounts, approvals=self.approvals, routes=self.routes,
            sender=self.sender, config=config, roster=roster, run_command=run_command, questions=self.questions,
        )  # fmt: skip
        self.inbound = InboundProcessor(inbox, handler, self._replies, config=config)
        self.runner = AccountRunner(self.accounts, self.inbound.receive)
        self._running = AsyncExitStack()

    async def __aenter__(self) -> Self:
        """Leaving is in the reverse order: channels stop first, so that nothing arrives while the rest is stored."""
        await self.approvals.load()
        self.accounts.load()  # before anything is read back: it is judged by the accounts' rules
        async with AsyncExitStack() as stack:
            for part in (self.outbox, self.questions, self.inbound, self.runner):
                if part is not None:
                    await stack.enter_async_context(part)
            self._running = stack.pop_all()
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self._running.aclose()

    async def post(
        self, address: ChatAddress, message: OutboundMessage, *, key: str, wait: float = 0.0, session: str | None = None
    ) -> PostResult:
        return await self.sender.send(address, message, key=key, wait=wait, session=session, origin="post")

    async def find_address(self, session: str) -> ChatAddress | None:
        return await self.routes.find_address(session)

    def reaches_owner(self, origin: QuestionOrigin) -> bool:
        """Whether the owner is asked about a command in the conversation that it comes from."""
        return self.questions is not None and self.questions.is_reachable(origin)

    async def has_run_message(self, run: Run, address: ChatAddress) -> bool:
        return await self._replies.has_run_message(run, address)
