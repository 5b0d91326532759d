"""Asking a person, wherever one is. Nobody there means no."""

import asyncio
import secrets
from collections.abc import Callable, Sequence
from typing import Final, Literal, Protocol

from msgspec import Struct

from ..core.errors import ToolDenied
from ..core.model import ToolCall, form
from ..core.visible_text import visible, visible_command, visible_line

Answer = Literal["once", "always", "deny"]
LONGEST_SHOWN: Final = 16 << 10  # characters; what is too long to read can't be approved


class Question(Struct, frozen=True, kw_only=True):
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


class Asker(Protocol):
    """One way to reach a person."""

    def present(self) -> bool:
        """Whether somebody may be there. Cheap."""

    async def ask(self, question: Question) -> Answer | None:
        """Their answer; None when nobody could be reached after all. Cancelled when another way answered first."""


class Asking:
    """Asks in the calling client if that can ask its user, else everywhere else at once; the first answer counts."""

    def __init__(
        self, askers: Sequence[Asker] = (), *, seconds: Callable[[], float], in_client: Callable[[], bool]
    ) -> None:
        self._askers = list(askers)
        self._seconds = seconds
        self._in_client = in_client

    def add(self, asker: Asker) -> None:
        self._askers.append(asker)

    async def ask(self, call: ToolCall, question: Question, *, how_to_allow: str) -> Answer:
        """Raises ToolDenied when nobody is there, nobody answers in time, or the question can't be shown."""
        if len(question.detail) > LONGEST_SHOWN:
            raise ToolDenied("Denied: it is too long to show to a person; make it shorter.")
        if self._in_client() and call.line.can_ask("elicitation", "form"):
            said = await _ask_client(call, question)
            if said == "deny":
                raise ToolDenied(f"Denied: {question.why}, and the client said no. {how_to_allow}")
            if said is not None:
                return said
        present = [asker for asker in self._askers if asker.present()]
        if not present:
            raise ToolDenied(f"Denied: {question.why}, and nobody is there to ask. {how_to_allow}")
        answer = await _first_answer(present, question, self._seconds())
        if answer is None:
            raise ToolDenied(f"Denied: {question.why}, and nobody answered. {how_to_allow}")
        return answer


async def _ask_client(call: ToolCall, question: Question) -> Answer | None:
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
    said = (await call.line.ask({key: form(message, schema, binding=question.binding)})).get(key, {})
    content = said.get("content")
    if said.get("action") == "cancel":
        return None
    allowed = said.get("action") == "accept" and type(content) is dict and content.get("allow") is True
    return "once" if allowed else "deny"


async def _first_answer(askers: Sequence[Asker], question: Question, seconds: float) -> Answer | None:
    waiting = {asyncio.ensure_future(asker.ask(question)) for asker in askers}
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


def question(
    kind: Literal["exec", "consent"],
    *,
    title: str,
    detail: str,
    why: str,
    asker: str,
    always: bool,
    lasting: str = "",
    binding: str = "",
) -> Question:
    """A question as a person may see it: nothing in it hides, and what stands beside our own words is one line."""
    shown = visible_command if kind == "exec" else visible
    return Question(
        id=secrets.token_hex(16),
        kind=kind,
        title=visible_line(title),
        detail=shown(detail),
        why=visible_line(shown(why)),
        asker=visible_line(asker),
        always=always,
        lasting=visible_line(shown(lasting)),
        binding=binding,
    )
