"""What is done with one message that arrived: judged, executed as a command, or submitted to an agent."""

import asyncio
import hashlib
import logging
import secrets
from collections.abc import Callable
from typing import Final

import msgspec
from msgspec import Struct

from ...core.agents import AgentRoster
from ...core.channel import InboundMessage
from ...core.chat_commands import (
    CommandReply,
    CommandRunner,
    CommandSender,
    literal_text,
    parse_command,
    refuse_unknown,
)
from ...core.config.config import Config
from ...core.mail import Inbox, InboxEntry
from ...core.model import Grant
from ...core.owner import is_owner
from ...core.ports import RunExecutor
from ...core.rpc import RpcError
from ...core.sessions import NewSession, RunOptions, RunRequest
from .accounts import ChannelAccounts
from .attachments import fetch_attachments
from .inbound_rules import check_access, queue_mode, session_for
from .message_sender import MessageSender
from .question_notices import NO_QUESTIONS, QuestionNotices
from .replying import PendingReply
from .sender_approvals import SenderApprovals
from .session_routes import SessionRoutes

logger = logging.getLogger(__name__)

QUEUE_RETRY_DELAY: Final = 0.5  # seconds before a session whose queue is full is tried again
MAX_RUN_ID_LENGTH: Final = 200
OWNER_ONLY_REPLY: Final = "This conversation is shared with the owner, who alone may stop it or begin a new one."


def run_id_for(channel: str, account: str, message_id: str) -> str:
    """The run that answers a message: the same id however often the message arrives."""
    id = f"{channel}:{account}:{message_id}"
    return id if len(id) <= MAX_RUN_ID_LENGTH else f"{channel}:{hashlib.sha256(id.encode()).hexdigest()}"


class InboundHandler(Struct, frozen=True, kw_only=True):
    """Handles one message at a time; order and retries are `inbox.InboundProcessor`'s."""

    inbox: Inbox
    runner: RunExecutor
    accounts: ChannelAccounts
    approvals: SenderApprovals
    routes: SessionRoutes
    sender: MessageSender
    config: Callable[[], Config]
    roster: Callable[[], AgentRoster]
    run_command: CommandRunner
    questions: QuestionNotices | None = None

    async def handle(self, entry: InboxEntry) -> PendingReply | None:
        """The reply that has to follow; None when nothing remains to be done. May be repeated after a failure."""
        message, address = entry.message, entry.message.address
        if entry.status == "asked":
            return _pending_reply(entry, entry.run_id or "", entry.session or "")
        rules = self.accounts.rules_for(address)
        if rules is None:
            logger.info("inbox: message %d dropped (channel %s is no longer configured)", entry.id, address.channel)
            return None
        owners = self.config().commands.owner_allow_from
        owner = is_owner(message.sender, owners, channel=address.channel, vouched=message.vouched)
        verdict = check_access(message, rules, owner=owner, approved=self.approvals.approved_for(address))
        if verdict.outcome == "in":
            return await self._answer(entry, owner=owner)
        if verdict.outcome == "pair":
            await self._send_pairing_code(message)
        if verdict.outcome != "listen":
            logger.info("inbox: message %d from %s not accepted (%s)", entry.id, address.channel, verdict.reason)
        return None

    async def _send_pairing_code(self, message: InboundMessage) -> None:
        request = await self.approvals.request(message)
        if request is not None:
            text = (
                f"You are not approved yet. Your pairing code is {request.code}. The owner approves you with\n"
                f"openclaw channels pairing approve {request.channel} {request.code}"
            )
            key = f"pairing:{request.channel}:{request.account}:{request.code}"
            run_id = run_id_for(request.channel, request.account, message.id)
            await self.sender.send_notice(message.address, text, key=key, run_id=run_id)

    async def _answer(self, entry: InboxEntry, *, owner: bool) -> PendingReply | None:
        """Execute a command; submit any other text, and what follows `/new`, to the agent."""
        message, address = entry.message, entry.message.address
        run_id = run_id_for(address.channel, address.account, message.id)
        session = session_for(message, self.config(), self.roster(), owner=owner)
        # Whether another person than the owner writes in the owner's own session.
        shared = not owner and message.chat == "direct" and ":direct:" not in session.key
        reply, text = await self._run_command(message, session.key, shared=shared, owner=owner)
        if reply is not None:
            await self.sender.send_notice(address, reply.text, key=f"command:{run_id}", run_id=run_id)
            if not reply.done or not text:
                return None
        if not text.strip() and not message.attachments and not message.files:
            return None
        if message.chat != "direct" or shared:  # the agent must know who writes
            sender = message.sender
            text = f"{sender.name or sender.username or sender.id or 'somebody'}: {text}"
        request = await self._build_request(message, session, text, run_id, owner=owner)
        run_id = await self._submit(request)
        await self.routes.save(session.key, message.address)
        await self.inbox.link_run(entry.id, run_id=run_id, session=session.key)
        return _pending_reply(entry, run_id, session.key)

    async def _run_command(
        self, message: InboundMessage, session: str, *, shared: bool, owner: bool
    ) -> tuple[CommandReply | None, str]:
        """The reply to a command, None without one; and the text that is left for the agent."""
        unknown = refuse_unknown(message.text)
        if unknown is not None and (message.chat == "direct" or message.mentioned):  # a group's may be another bot's
            return CommandReply(unknown, done=False), ""
        command = parse_command(message.text)
        if command is None:
            return None, literal_text(message.text)
        if command.name == "/approve":
            questions = self.questions
            text = NO_QUESTIONS if questions is None else questions.answer(command.argument, message, owner=owner)
            return CommandReply(text), ""
        sender = _command_sender(message, owner=owner, shared=shared)
        return await self.run_command(command, session, sender), command.rest

    async def _build_request(
        self, message: InboundMessage, session: NewSession, text: str, run_id: str, *, owner: bool
    ) -> RunRequest:
        sender = message.sender.name or message.sender.id
        options = RunOptions(sender=sender, grant=message_grant(message, owner=owner), answers_in_conversation=True)
        files = await fetch_attachments(self.accounts.find_channel(message.address), message.files)
        return RunRequest(
            run_id=run_id, session=session, message=text, attachments=(*message.attachments, *files),
            mode=queue_mode(self.config()), options=options,
        )  # fmt: skip

    async def _submit(self, request: RunRequest) -> str:
        """Submit it once; returns the run's id. While the session's queue is full, the conversation waits."""
        session, run_id = request.session.key, request.run_id
        while True:
            try:
                admission = await self.runner.submit(request)
            except RpcError as exc:
                if not exc.retryable:
                    raise
                await asyncio.sleep(QUEUE_RETRY_DELAY)
                continue
            if admission.run.session_key == session:
                return request.run_id
            # A run of another session has the id: the message gets another one.
            request = msgspec.structs.replace(request, run_id=f"{run_id[:MAX_RUN_ID_LENGTH]}:{secrets.token_hex(8)}")


def _command_sender(message: InboundMessage, *, owner: bool, shared: bool) -> CommandSender:
    """In the main session, which others may share, only the owner stops or begins a conversation."""
    address = message.address
    return CommandSender(
        name=message.sender.id or "", channel=address.channel, account=address.account, may_stop=not shared,
        may_reset=not shared, may_choose_model=owner, refusal=OWNER_ONLY_REPLY,
    )  # fmt: skip


def _pending_reply(entry: InboxEntry, run_id: str, session: str) -> PendingReply:
    return PendingReply(entry_id=entry.id, message=entry.message, run_id=run_id, session=session)


def message_grant(message: InboundMessage, *, owner: bool) -> Grant:
    """For whom and where a run answers a message."""
    address = message.address
    return Grant(
        channel=address.channel, account=address.account, to=address.to, thread=address.thread, space=message.space,
        group=None if message.chat == "direct" else address.to, sender=message.sender, owner=owner,
    )  # fmt: skip
