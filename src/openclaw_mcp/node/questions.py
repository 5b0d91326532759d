"""Asking a person, wherever one can be reached. If none can, the answer is no."""

import asyncio
import contextlib
import secrets
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Literal, Protocol

from msgspec import Struct
from msgspec.structs import replace

from ..core.errors import ToolDenied
from ..core.model import ToolCall, form_request
from ..core.visible_text import escape_command, escape_line, escape_unsafe
from ..net.tasks import Tasks
from .invocations import invocation_id

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
    invocation: str = ""
    """The gateway's invocation that it is about, if it is about one."""


class UserPrompter(Protocol):
    """One way to reach a person."""

    @property
    def keeps_questions(self) -> bool:
        """Whether `ask` may be called while no person is there: a person who comes later is shown the question."""

    def is_available(self) -> bool:
        """Whether a person may be reached this way. Cheap."""

    async def ask(self, question: UserQuestion) -> PromptAnswer | None:
        """The answer; None when no person could be reached after all. Cancelled when another way answered first."""


async def _wait_for_nothing() -> None:
    return


class PromptRouter:
    """Asks in the calling client if that can ask its user, else everywhere else at once; the first answer counts."""

    def __init__(
        self,
        prompters: Sequence[UserPrompter] = (),
        *,
        seconds: Callable[[], float],
        ask_in_client: Callable[[], bool],
        wait_for_person: Callable[[], Awaitable[None]] = _wait_for_nothing,
    ) -> None:
        """`wait_for_person` is awaited when no person can be reached: a moment, while one may be about to come."""
        self._prompters, self._seconds, self._ask_in_client = prompters, seconds, ask_in_client
        self._wait_for_person = wait_for_person

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
        if not self._is_person_there():
            await self._wait_for_person()
        if not self._is_person_there():
            raise ToolDenied(f"Denied: {question.why}, and no person is there to ask. {how_to_allow}")
        question = replace(question, invocation=invocation_id(call))
        answer = await _first_answer(self._prompters, question, self._seconds())
        if answer is None:
            raise ToolDenied(f"Denied: {question.why}, and no person answered. {how_to_allow}")
        return answer

    def _is_person_there(self) -> bool:
        return any(prompter.is_available() for prompter in self._prompters)


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
    """The first answer of any of them; None when the time is up, or each could reach no person or failed.

    One that keeps questions is asked from the start and again when its last person has left: while another may still
    answer, a person who comes there later can too.
    """
    async with Tasks("approval question") as tasks:

        def start(prompter: UserPrompter) -> "asyncio.Task[PromptAnswer | None]":
            return tasks.spawn(prompter.ask(question), name=type(prompter).__name__)

        asked = [prompter for prompter in prompters if prompter.keeps_questions or prompter.is_available()]
        waiting = {start(prompter): prompter for prompter in asked}
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while any(prompter.is_available() for prompter in waiting.values()):
                    done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                    for task in done:
                        prompter = waiting.pop(task)
                        # One that failed, which is logged, must not take the others' answer away.
                        if task.exception() is not None:
                            continue
                        if (answer := task.result()) is not None:
                            return answer
                        if prompter.keeps_questions and not prompter.is_available():
                            waiting[start(prompter)] = prompter
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
