"""A conversation with a model in nobody's dialect: what was said, what is asked, what comes back."""

from collections.abc import Iterable, Sequence
from typing import Literal, Protocol

from msgspec import Struct

from ....core.agent import Usage
from ....core.model import Json
from .settings import Choice


class Words(Struct, frozen=True, tag="words"):
    text: str


class Picture(Struct, frozen=True, tag="picture"):
    mime_type: str
    data: str | bytes
    """Base64, or the bytes themselves."""


class Thought(Struct, frozen=True, tag="thought", kw_only=True):
    """What a model thought aloud. Only the model it came from may be given it back, as it was."""

    text: str
    origin: str
    signature: str | None = None
    sealed: str | None = None
    """In place of the text: thoughts the provider keeps to itself."""


class Call(Struct, frozen=True, tag="call"):
    id: str
    name: str
    """As the model's API knows the tool."""
    arguments: str
    """JSON text, as the model wrote it."""


class Result(Struct, frozen=True, tag="result", kw_only=True):
    id: str
    name: str
    parts: tuple[Words | Picture, ...]
    failed: bool = False


Part = Words | Picture | Thought | Call | Result


class Said(Struct, frozen=True):
    """One message. Results of tools are the user's."""

    role: Literal["user", "assistant"]
    parts: tuple[Part, ...]


class Offer(Struct, frozen=True):
    """A tool, under a name the model's API takes."""

    name: str
    description: str
    schema: Json


class Ask(Struct, frozen=True, kw_only=True):
    """One request to a model."""

    choice: Choice
    system: str
    talk: Sequence[Said]
    offers: Sequence[Offer] = ()
    thinking: str | None = None


class Heard(Struct, frozen=True):
    """A piece of the answer while it comes."""

    text: str
    thought: bool = False


Stop = Literal["stop", "tools", "length", "refusal", "pause"]


class Answer(Struct, frozen=True, kw_only=True):
    """The whole of it. `pause`: the model has more to say and asks to be asked again."""

    parts: tuple[Part, ...]
    stop: Stop
    usage: Usage

    @property
    def calls(self) -> tuple[Call, ...]:
        return tuple(part for part in self.parts if isinstance(part, Call))


class Reader(Protocol):
    """Takes in one answer, event by event."""

    def read(self, data: bytes) -> Iterable[Heard]:
        """Take in the data of one event. Raises ModelTrouble when it tells of an error."""

    def answer(self) -> Answer | None:
        """The answer once it is whole; None when the stream ended before it was."""


class Codec(Protocol):
    """A model API's dialect. Pure: no I/O."""

    def url(self, base: str) -> str: ...

    def headers(self, key: str | None) -> dict[str, str]: ...

    def body(self, ask: Ask) -> bytes:
        """JSON; pictures as `body.written` says."""

    def reader(self, ask: Ask) -> Reader: ...


def text_of(parts: Iterable[Part]) -> str:
    return "".join(part.text for part in parts if isinstance(part, Words))
