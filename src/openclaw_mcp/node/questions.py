"""Asking a person, wherever one can be reached. If none can, the answer is no."""

import asyncio
import contextlib
import secrets
from collections.abc import Callable, Sequence
from typing import Final, Literal, Protocol

from msgspec import Struct

from ..core.errors import ToolDenied
from ..core.model import ToolCall, form_request
from ..core.visible_text import escape_command, escape_line, escape_unsafe
from ..net.tasks import Tasks

PromptAnswer = Literal["once", "always", "deny"]
LONGEST_DETAIL: Final = 16 << 10  # characters; what is too long to read can't be approved


class UserQuestion(Struct, frozen=True, kw_only=True):
    """What a person is asked. All its text is safe to show: `make_question` makes it so."""

    id: str
    kind: Literal["exec", "consent"]
    title: str
    detail: str
    """The command as it will run, or what the consent is for."""
    why: str
    asker: str
    always: bool
    """Whether the answer can be remembered."""
    lasting: str = ""
    """What *always* would mean, such as the folder it would hold in."""
    binding: str = ""
    """A digest of what the answer holds for beside this text, such as the files of a command."""


class UserPrompter(Protocol):
    """One way to reach a person."""

    def is_available(self) -> bool:
        """Whether a person may be reached this way. Cheap."""

    async def ask(self, question: UserQuestion) -> PromptAnswer | None:
        """The answer; None when no person could be reached after all. Cancelled when another way answered first."""


class PromptRouter:
    """Asks in the calling client if that can ask its user, else everywhere else at once; the first answer counts."""

    def __init__(
        self, prompters: Sequence[UserPrompter] = (), *, seconds: Callable[[], float], ask_in_client: Callable[[], bool]
    ) -> None:
        self._prompters, self._seconds, self._ask_in_client = prompters, seconds, ask_in_client

    async def ask(self, call: ToolCall, question: UserQuestion, *, how_to_allow: str) -> PromptAnswer:
        """Raises ToolDenied when no person is there or answers in time, or the question can't be shown."""
        if len(question.detail) > LONGEST_DETAIL:
            raise ToolDenied("Denied: it is too long to show to a person; make it shorter.")
        if self._ask_in_client() and call.context.can_ask("elicitation", "form"):
            chosen = await _ask_client(call, question)
            if chosen == "deny":
                raise ToolDenied(f"Denied: {question.why}, and the client said no. {how_to_allow}")
            if chosen is not None:
                return chosen
        available = [prompter for prompter in self._prompters if prompter.is_available()]
        if not available:
            raise ToolDenied(f"Denied: {question.why}, and no person is there to ask. {how_to_allow}")
        answer = await _first_answer(available, question, self._seconds())
        if answer is None:
            raise ToolDenied(f"Denied: {question.why}, and no person answered. {how_to_allow}")
        return answer


async def _ask_client(call: ToolCall, question: UserQuestion) -> PromptAnswer | None:
    """Once or not at all: the client that wants something may not change the rules about it. None: it made no choice,
    as a client does that has no person to ask."""
    # Our own text first: what follows it may hold lines that read like ours.
    message = f"{question.title}\n({question.why})\n\n{question.detail}"
    schema = {
        "type": "object",
        "properties": {"allow": {"type": "boolean", "title": "Allow this once", "default": False}},
        "required": ["allow"],
    }
    key = f"approve-{question.kind}"
    reply = (await call.context.ask({key: form_request(message, schema, binding=question.binding)})).get(key, {})
    content = reply.get("content")
    if reply.get("action") == "cancel":
        return None
    allowed = reply.get("action") == "accept" and type(content) is dict and content.get("allow") is True
    return "once" if allowed else "deny"


async def _first_answer(
    prompters: Sequence[UserPrompter], question: UserQuestion, seconds: float
) -> PromptAnswer | None:
    """The first answer of any of them; None when the time is up, or each could reach no person or failed."""
    async with Tasks("approval question") as tasks:
        waiting = {tasks.spawn(prompter.ask(question), name=type(prompter).__name__) for prompter in prompters}
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while waiting:
                    done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                    for task in done:
                        # One that failed, which is logged, must not take the others' answer away.
                        if task.exception() is None and (answer := task.result()) is not None:
                            return answer
    return None


def make_question(
    kind: Literal["exec", "consent"],
    *,
    title: str,
    detail: str,
    why: str,
    asker: str,
    always: bool,
    lasting: str = "",
    binding: str = "",
) -> UserQuestion:
    """A question as a person may see it: no character of it hides, and what is put beside our own text is one line."""
    escape = escape_command if kind == "exec" else escape_unsafe
    return UserQuestion(
        id=secrets.token_hex(16),
        kind=kind,
        title=escape_line(title),
        detail=escape(detail),
        why=escape_line(escape(why)),
        asker=escape_line(asker),
        always=always,
        lasting=escape_line(escape(lasting)),
        binding=binding,
    )
