"""The demo agent: built in, no model. It echoes, streams, and carries out lines that begin with `!`."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any, Final

import msgspec

from ...core import agent
from ...core.errors import ToolError
from ...core.model import ToolCall
from ...core.ports import NULL_CONTEXT

PROVIDER, MODEL = "demo", "demo-echo"
MAX_SLEEP: Final = 3600.0  # a scripted pause is for tests and demonstrations
GREETING: Final = "This is the demo agent (no model is configured). You said: "


class DemoAgent:
    """An `AgentRuntime`. Commands, one a line:

    `!say TEXT`, `!think TEXT`, `!block TEXT`, `!sleep SECONDS`, `!tool NAME {json}`, `!return` (sends the attachments
    back), `!fail REASON`. Any other line is echoed.
    """

    id = "demo"
    media_types: tuple[str, ...] = ("",)

    async def run(self, turn: agent.Turn) -> AsyncIterator[agent.AgentEvent]:
        yield agent.ModelSelected(PROVIDER, MODEL)
        commands = [line.strip() for line in turn.prompt.splitlines() if line.strip().startswith("!")]
        answer: list[str] = []
        if not commands:
            commands = [f"!say {GREETING}{turn.prompt}{_describe_attachments(turn)}"]
        for number, command in enumerate(commands, 1):
            name, _, rest = command.removeprefix("!").partition(" ")
            if name == "fail":
                yield agent.TurnFailed(message=rest or "the demo agent was asked to fail")
                return
            async for event in _run_command(turn, name, rest, number):
                if isinstance(event, agent.PartialAnswer):
                    answer.append(event.text)
                yield event
        text = "".join(answer)
        usage = agent.Usage(input=len(turn.prompt.split()), output=len(text.split()))
        yield usage
        yield agent.TurnCompleted(text=text, usage=usage)


def _describe_attachments(turn: agent.Turn) -> str:
    if not turn.attachments:
        return ""
    names = ", ".join(f"{a.name or a.kind} ({a.mime_type}, {len(a.data or b'')} bytes)" for a in turn.attachments)
    return f"\nAttached: {names}"


async def _run_command(turn: agent.Turn, name: str, rest: str, number: int) -> AsyncIterator[agent.AgentEvent]:
    match name:
        case "say":
            for word in _split_words(rest):
                yield agent.PartialAnswer(word)
                await asyncio.sleep(0)
        case "think":
            yield agent.ThinkingText(rest)
        case "block":
            yield agent.PartialAnswer(rest)
            yield agent.AnswerBlock(rest)
        case "sleep":
            await asyncio.sleep(_parse_seconds(rest))
        case "return":
            for attachment in turn.attachments:
                yield agent.MediaAttached(attachment)
        case "tool":
            async for event in _use_tool(turn, rest, number):
                yield event
        case _:
            yield agent.PartialAnswer(f"There is no demo command !{name}. ")


def _split_words(text: str) -> list[str]:
    """`text` in pieces of a word, so that it streams."""
    words = text.split(" ")
    return [word if index == 0 else f" {word}" for index, word in enumerate(words)]


def _parse_seconds(text: str) -> float:
    try:
        return min(max(float(text), 0.0), MAX_SLEEP)
    except ValueError:
        return 0.0


async def _use_tool(turn: agent.Turn, rest: str, number: int) -> AsyncIterator[agent.AgentEvent]:
    tool, _, written = rest.partition(" ")
    id = f"call_{number}"
    try:
        arguments = json.loads(written or "{}")
    except ValueError:
        arguments = None
    yield agent.ToolUse(id, tool, arguments if isinstance(arguments, dict) else {})
    content, failed = await _call_tool(turn, tool, arguments)
    yield agent.ToolOutcome(id, tool, content, failed)
    yield agent.PartialAnswer(" ".join(str(block.get("text", block["type"])) for block in content))


async def _call_tool(turn: agent.Turn, tool: str, arguments: Any) -> tuple[tuple[dict[str, Any], ...], bool]:
    if not isinstance(arguments, dict):
        return ({"type": "text", "text": "the arguments are no JSON object"},), True
    if turn.tools is None:
        return ({"type": "text", "text": f"Unknown tool: {tool}"},), True
    call = ToolCall(caller=turn.caller, name=tool, arguments=arguments, context=NULL_CONTEXT)
    try:
        result = await turn.tools.call(call)
    except ToolError as exc:
        return ({"type": "text", "text": str(exc)},), True
    return tuple(msgspec.to_builtins(block) for block in result.content), result.failed
