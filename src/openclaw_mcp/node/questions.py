"""Asking a person, wherever one is. Nobody there means no."""

import asyncio
import secrets
from collections.abc import Callable, Sequence
from typing import Final, Literal, Protocol

from msgspec import Struct

from ..core.errors import ToolDenied
from ..core.model import ToolCall, form_request
from ..core.visible_text import escape_command, escape_line, escape_unsafe

PromptAnswer = Literal["once", "always", "deny"]
LONGEST_DETAIL: Final = 16 << 10  # characters; what is too long to read can't be approved


class UserQuestion(Struct, frozen=True, kw_only=True):
    """What a person is asked. All its text is safe to show: `question` makes it."""

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
    """A digest of what the answer holds for beside these words, such as the files of a command."""


class UserPrompter(Protocol):
    """One way to reach a person."""

    def is_available(self) -> bool:
        """Whether somebody may be there. Cheap."""

    async def ask(self, question: UserQuestion) -> PromptAnswer | None:
        """Their answer; None when nobody could be reached after all. Cancelled when another way answered first."""


class PromptRouter:
    """Asks in the calling client if that can ask its user, else everywhere else at once; the first answer counts."""

    def __init__(
        self, prompters: Sequence[UserPrompter] = (), *, seconds: Callable[[], float], ask_in_client: Callable[[], bool]
    ) -> None:
        self._prompters = list(prompters)
        self._seconds = seconds
        self._ask_in_client = ask_in_client

    def add_prompter(self, prompter: UserPrompter) -> None:
        self._prompters.append(prompter)

    async def ask(self, call: ToolCall, question: UserQuestion, *, how_to_allow: str) -> PromptAnswer:
        """Raises ToolDenied when nobody is there, nobody answers in time, or the question can't be shown."""
        if len(question.detail) > LONGEST_DETAIL:
            raise ToolDenied("Denied: it is too long to show to a person; make it shorter.")
        if self._ask_in_client() and call.context.can_ask("elicitation", "form"):
            said = await _ask_client(call, question)
            if said == "deny":
                raise ToolDenied(f"Denied: {question.why}, and the client said no. {how_to_allow}")
            if said is not None:
                return said
        present = [asker for asker in self._prompters if asker.is_available()]
        if not present:
            raise ToolDenied(f"Denied: {question.why}, and nobody is there to ask. {how_to_allow}")
        answer = await _first_answer(present, question, self._seconds())
        if answer is None:
            raise ToolDenied(f"Denied: {question.why}, and nobody answered. {how_to_allow}")
        return answer


async def _ask_client(call: ToolCall, question: UserQuestion) -> PromptAnswer | None:
    """Once or not at all: the client that wants something may not change the rules about it. None: it made no choice,
    as one does that has nobody to ask."""
    # Our own words first: what follows them may hold lines that read like ours.
    message = f"{question.title}\n({question.why})\n\n{question.detail}"
    schema = {
        "type": "object",
        "properties": {"allow": {"type": "boolean", "title": "Allow this once", "default": False}},
        "required": ["allow"],
    }
    key = f"approve-{question.kind}"
    said = (await call.context.ask({key: form_request(message, schema, binding=question.binding)})).get(key, {})
    content = said.get("content")
    if said.get("action") == "cancel":
        return None
    allowed = said.get("action") == "accept" and type(content) is dict and content.get("allow") is True
    return "once" if allowed else "deny"


async def _first_answer(
    prompters: Sequence[UserPrompter], question: UserQuestion, seconds: float
) -> PromptAnswer | None:
    waiting = {asyncio.ensure_future(asker.ask(question)) for asker in prompters}
    try:
        async with asyncio.timeout(seconds):
            while waiting:
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    answer = task.result()
                    if answer is not None:
                        return answer
    except TimeoutError:
        pass
    finally:
        for task in waiting:
            task.cancel()
        if waiting:
            await asyncio.wait(waiting)
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
    """A question as a person may see it: nothing in it hides, and what stands beside our own words is one line."""
    shown = escape_command if kind == "exec" else escape_unsafe
    return UserQuestion(
        id=secrets.token_hex(16),
        kind=kind,
        title=escape_line(title),
        detail=shown(detail),
        why=escape_line(shown(why)),
        asker=escape_line(asker),
        always=always,
        lasting=escape_line(shown(lasting)),
        binding=binding,
    )
