"""Questions about commands in the conversations they come from: asked there, ended there, answered by the owner."""

import asyncio
import logging
from collections.abc import Callable
from typing import Final, Self

import msgspec

from ...core.approvals import (
    CommandQuestion,
    ConversationAnswerer,
    OpenQuestions,
    QuestionEnd,
    QuestionOrigin,
    parse_decision_word,
)
from ...core.channel import ChannelError, ChatAddress, InboundMessage
from ...core.errors import StoreError
from ...core.rpc import RpcError
from ...core.sessions import now_ms
from ...net.tasks import Tasks
from .accounts import ChannelAccounts
from .message_sender import MessageSender

logger = logging.getLogger(__name__)

MAX_WAITING_NOTICES: Final = 1024  # twice as many as questions may be open; beyond, the store is stuck
MAX_LISTED: Final = 5  # questions in one list: each may be long
USAGE: Final = "Write /approve CODE once, /approve CODE always or /approve CODE deny; CODE is in the question."
NO_QUESTIONS: Final = "No question waits for an answer."
HIDDEN_CODE: Final = "(for the owner)"


class QuestionNotices:
    """`async with` it: while it lasts, questions are put into their conversations."""

    def __init__(self, questions: OpenQuestions, sender: MessageSender, accounts: ChannelAccounts) -> None:
        self._questions, self._sender, self._accounts = questions, sender, accounts
        self._tasks = Tasks("question notices")
        self._waiting: asyncio.Queue[tuple[ChatAddress, str, str]] = asyncio.Queue(MAX_WAITING_NOTICES)
        self._disconnects: list[Callable[[], None]] = []
        self._shown_on: dict[str, set[tuple[str, str]]] = {}
        """By the code of an open question: the accounts of channels that show it."""
        self._replying_in: ChatAddress | None = None
        """The conversation of the message that is being answered: its reply says how the question ended."""

    async def __aenter__(self) -> Self:
        self._tasks.loop(self._send_next, name="sender", on_failure="restart")
        self._disconnects = [
            self._questions.asked.connect(self._on_question),
            self._questions.ended.connect(self._on_end),
        ]
        return self

    async def __aexit__(self, *_exc: object) -> None:
        """What is open ends with the gateway: stored now, the notices are sent at the latest after the next start."""
        for disconnect in self._disconnects:
            disconnect()
        await self._tasks.aclose()
        for question in self._questions.pending():
            self._on_end(QuestionEnd(question=question, decision=None, reason="run-aborted"))
        while not self._waiting.empty():
            await self._send(*self._waiting.get_nowait())

    def is_reachable(self, origin: QuestionOrigin) -> bool:
        """Whether the owner is asked in the conversation of this origin."""
        address = origin.address
        return origin.for_owner and address is not None and self._accounts.find(address) is not None

    # ---- protection from agents ----------------------------------------------------------------------------------

    def hide_codes(self, text: str) -> str:
        """A text as an agent may read it: with the code of a question, it could write another question above that."""
        for question in self._questions.pending():
            text = text.replace(question.code, HIDDEN_CODE)
        return text

    def is_shown_on(self, address: ChatAddress) -> bool:
        """Whether an open question is on this account of a channel; a conversation may have several names there."""
        return any((address.channel, address.account) in places for places in self._shown_on.values())

    def _note_shown(self, question: CommandQuestion, address: ChatAddress) -> None:
        self._shown_on.setdefault(question.code, set()).add((address.channel, address.account))

    # ---- answers -------------------------------------------------------------------------------------------------

    def answer(self, arguments: str, message: InboundMessage, *, owner: bool) -> str:
        """The reply to `/approve` and what follows it."""
        if not arguments:
            return self._list(message) if owner else "Only the owner can answer questions."
        words = arguments.split()
        decision = parse_decision_word(words[-1])
        if len(words) != 2 or decision is None:
            return USAGE
        by = ConversationAnswerer(
            channel=message.address.channel,
            sender_id=message.sender.id or "",
            is_owner=owner and bool(message.sender.id),
        )
        asked = next((each for each in self._questions.pending() if owner and each.code == words[0].lower()), None)
        if asked is not None and (refusal := asked.refuse(decision)) is not None:
            return refusal
        self._replying_in = message.address
        try:
            return self._questions.answer(words[0], decision, by).describe()
        except RpcError as exc:
            return str(exc)
        finally:
            self._replying_in = None

    def _list(self, message: InboundMessage) -> str:
        """The open questions: all in a chat with the owner alone, else only those of this conversation."""
        listed = [
            question
            for question in self._questions.pending()
            if message.chat == "direct" or _is_in(question, message.address)
        ]
        if not listed:
            return NO_QUESTIONS
        for question in listed[:MAX_LISTED]:
            self._note_shown(question, message.address)
        texts = [question.describe(now_ms()) for question in listed[:MAX_LISTED]]
        left = len(listed) - len(texts)
        return "\n\n".join([*texts, *([f"And {left} more."] if left else [])])

    # ---- notices -------------------------------------------------------------------------------------------------

    def _on_question(self, question: CommandQuestion) -> None:
        if question.origin.address is not None:
            self._note_shown(question, question.origin.address)
        text = question.describe(now_ms()) if question.origin.for_owner else question.describe_wait()
        self._put(question, text, "asked")

    def _on_end(self, end: QuestionEnd) -> None:
        self._shown_on.pop(end.question.code, None)
        if self._replying_in is not None and _is_in(end.question, self._replying_in):
            return
        text = end.describe() if end.question.origin.for_owner else end.describe_for_others()
        self._put(end.question, text, "ended")

    def _put(self, question: CommandQuestion, text: str, event: str) -> None:
        address = question.origin.address
        if address is None:
            return
        try:
            self._waiting.put_nowait((address, text, f"question:{question.code}:{question.expires_at_ms}:{event}"))
        except asyncio.QueueFull:
            logger.warning("questions: notice of question %s dropped (too many wait)", question.code)

    async def _send_next(self) -> None:
        await self._send(*await self._waiting.get())

    async def _send(self, address: ChatAddress, text: str, key: str) -> None:
        account = self._accounts.find(address)
        if account is None:
            return  # the channel is no longer configured: others are asked
        if not account.allows("thread"):
            address = msgspec.structs.replace(address, thread=None)
        try:
            await self._sender.send_notice(address, text, key=key, is_reply=False)
        except (ChannelError, StoreError) as exc:
            logger.warning("questions: notice for a conversation on %s not sent (%s)", address.channel, exc)


def _is_in(question: CommandQuestion, address: ChatAddress) -> bool:
    return question.origin.address is not None and question.origin.address.conversation == address.conversation
