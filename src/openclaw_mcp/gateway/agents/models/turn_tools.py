"""The tools within an agent's reach: offered under names its model takes, called as the agent, their ends told."""

import asyncio
import logging
from collections.abc import Sequence
from typing import Any, Final

import msgspec
from msgspec import UNSET

from ....core.agent import ToolOutcome, ToolUpdate, ToolUse, Turn
from ....core.errors import OpenClawError
from ....core.json_nesting import decode
from ....core.model import Audio, Block, Embedded, Image, Json, Link, Text, ToolCall, ToolResult, ToolSpec, said
from ....core.ports import LogLevel, Silence
from .event_stream import Tell
from .lru import Kept
from .messages import Call, Offer, Picture, Result, Words
from .tool_names import spelt

logger = logging.getLogger(__name__)

UPDATE_PACE: Final = 0.1  # seconds between two updates of one call; a chatty tool must not flood its readers
LONGEST_RESULT: Final = 400_000  # characters of one result a model is given, whatever its window
NO_SCHEMA: Final[Json] = {"type": "object", "properties": {}}


class Bench:
    """One turn's tools."""

    def __init__(self, turn: Turn, tell: Tell, *, at_once: int) -> None:
        self._turn = turn
        self._tell = tell
        self._turns = asyncio.Semaphore(at_once)
        self._menu = _menus(())

    async def offers(self) -> tuple[Offer, ...]:
        """What may be called now; it may have changed since the last answer."""
        if self._turn.tools is None:
            return ()
        self._menu = _menus(await self._turn.tools.list(self._turn.caller))
        return self._menu.offers

    def spelling(self, name: str) -> str:
        """How the model is told of a tool it called in an earlier turn, which may be gone by now."""
        return self._menu.spelling.get(name) or spelt([name])[name]

    async def use(self, calls: Sequence[Call], *, most: int) -> tuple[Result, ...]:
        """Every call made, at once as far as allowed; each result cut to `most` characters.

        Cancelling the wait cancels them all and waits for their ends.
        """
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._one(call, most)) for call in calls]
        return tuple(task.result() for task in tasks)

    async def _one(self, call: Call, most: int) -> Result:
        async with self._turns:
            name = self._menu.real.get(call.name, call.name)
            arguments = _read(call.arguments)
            self._tell(ToolUse(call.id, name, arguments or {}))
            result = await self._call(call, name, arguments)
            content = tuple(msgspec.to_builtins(block) for block in result.content)
            self._tell(ToolOutcome(call.id, name, content, result.failed))
            parts = tuple(_parts(result, min(most, LONGEST_RESULT)))
            return Result(id=call.id, name=call.name, parts=parts, failed=result.failed)

    async def _call(self, call: Call, name: str, arguments: Json | None) -> ToolResult:
        """Whatever keeps a tool from working is something the model can read."""
        if arguments is None:
            return said("the arguments are not a JSON object; send them again as one", failed=True)
        if self._turn.tools is None:
            return said(f"there is no tool {name}", failed=True)
        line = _Line(call.id, name, self._tell)
        try:
            return await self._turn.tools.call(
                ToolCall(caller=self._turn.caller, name=name, arguments=arguments, line=line)
            )
        except OpenClawError as exc:
            return said(str(exc), failed=True)
        except Exception:  # the boundary: a tool's bug must not end the conversation
            logger.exception("run %s: the tool %s broke", self._turn.run_id, name)
            return said(f"{name} failed: an internal error, see the gateway's log", failed=True)


class _Menu:
    """Tools under the names a model's API takes."""

    def __init__(self, specs: Sequence[ToolSpec]) -> None:
        self.spelling = spelt(spec.name for spec in specs)
        self.real = {wire: name for name, wire in self.spelling.items()}
        self.offers = tuple(
            Offer(self.spelling[spec.name], spec.description, _schema(spec.input_schema)) for spec in specs
        )


_menus = Kept[ToolSpec, _Menu](_Menu)


class _Line(Silence):
    """The way back from a tool to whoever watches the run. Nobody can be asked anything here."""

    def __init__(self, id: str, name: str, tell: Tell) -> None:
        self._id = id
        self._name = name
        self._tell = tell
        self._quiet_until = 0.0

    async def progress(self, value: float, *, total: float | None = None, message: str | None = None) -> None:
        self._update(message or (f"{value:g}" if total is None else f"{value:g} of {total:g}"))

    async def log(self, level: LogLevel, data: Any, *, logger: str | None = None) -> None:
        if level != "debug":
            self._update(data if isinstance(data, str) else msgspec.json.encode(data, enc_hook=str).decode())

    def _update(self, text: str) -> None:
        now = asyncio.get_running_loop().time()
        if now >= self._quiet_until:
            self._quiet_until = now + UPDATE_PACE
            self._tell(ToolUpdate(self._id, self._name, ({"type": "text", "text": text},)))


def _schema(schema: Json) -> Json:
    """As the tool gives it; the APIs insist on an object with properties."""
    return schema if "properties" in schema else {**NO_SCHEMA, **schema, "type": "object"}


def _read(arguments: str) -> Json | None:
    try:
        value = decode(arguments or "{}")
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _parts(result: ToolResult, most: int) -> "list[Words | Picture]":
    parts: list[Words | Picture] = []
    left = most
    for block in result.content:
        part = _part(block)
        if isinstance(part, Words):
            part = shortened(part, left)
            left = max(0, left - len(part.text))
        parts.append(part)
    if not result.content and result.structured is not UNSET:
        parts.append(shortened(Words(msgspec.json.encode(result.structured).decode()), most))
    return parts


def shortened(words: Words, most: int) -> Words:
    if len(words.text) <= most:
        return words
    return Words(f"{words.text[:most]}\n[cut here: {len(words.text) - most} more characters do not fit]")


def _part(block: Block) -> "Words | Picture":
    match block:
        case Text(text=text):
            return Words(text)
        case Image(data=data, mime_type=mime_type):
            return Picture(mime_type, data)
        case Embedded(resource=resource):
            if resource.blob is not None and (resource.mime_type or "").startswith("image/"):
                return Picture(resource.mime_type or "", resource.blob)
            return Words(resource.text if resource.text is not None else f"[a file: {resource.uri}]")
        case Link(uri=uri, name=name):
            return Words(f"[{name}: {uri}]")
        case Audio(mime_type=mime_type, data=data):
            return Words(f"[a sound, {mime_type}, {len(data)} bytes]")
