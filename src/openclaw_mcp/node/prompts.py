"""Prompts of the node: requests that a person can pick in a client, written for the commands that can work here."""

from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct

from ..core.errors import PromptArguments, PromptNotFound
from ..core.model import Caller, Prompt, PromptArgument, PromptCall, PromptMessage, PromptSpec, Text
from ..core.signal import Signal
from .registry import CapabilityRegistry

MAX_ARGUMENT: Final = 10_000  # characters of one argument; a request is written by a person


class _NodePrompt(Struct, frozen=True, kw_only=True):
    spec: PromptSpec
    needs: str | None = None
    """The command without which the prompt can't be followed."""
    text: str
    """With `{name}` for each argument."""
    defaults: Mapping[str, str] = {}


def _prompt(
    name: str, title: str, description: str, text: str, *, needs: str | None = None, **arguments: tuple[str, str | None]
) -> _NodePrompt:
    """`arguments`: each with its description and its default; None where the caller must give it."""
    given = [
        PromptArgument(name=key, required=default is None, description=about)
        for key, (about, default) in arguments.items()
    ]
    return _NodePrompt(
        spec=PromptSpec(name=name, title=title, description=description, arguments=given or None),
        needs=needs,
        text=text,
        defaults={key: default for key, (_, default) in arguments.items() if default is not None},
    )


CAPABILITIES: Final = "machine_capabilities"

_PROMPTS: Final = (
    _prompt(
        CAPABILITIES,
        "What can this machine do?",
        "Which commands work on this machine, and what the others need.",
        "These are the commands of this machine:\n\n{commands}\n\n"
        "Tell me in plain words what you can do here, and what I would have to install or switch on for the rest.",
    ),
    _prompt(
        "look_at_screen",
        "Look at my screen",
        "Takes a picture of the screen and answers a question about it.",
        "Take a picture of my screen with screen.snapshot, look at it, and answer: {question}",
        needs="screen.snapshot",
        question=("What to look for.", "what is on it, and is anything waiting for me?"),
    ),
    _prompt(
        "show_on_canvas",
        "Show me something",
        "Shows a page, a chart or a form in a window on this machine.",
        "Show me this on the canvas of this machine: {what}\n\n"
        "Use canvas.present, and canvas.a2ui.push or an HTML page of your own; look at the result with canvas.snapshot "
        "before you say that it is done.",
        needs="canvas.present",
        what=("What to show.", None),
    ),
    _prompt(
        "run_on_machine",
        "Do something on this machine",
        "Carries out a task with commands, as few and as harmless as possible.",
        "Do this on this machine: {task}\n\n"
        "Check first with system.which that the programs are there. Run one command at a time with system.run, as a "
        "list of arguments; prefer commands that only read. If a command is refused, tell me the reason and what I can "
        "do about it instead of trying another way around.",
        needs="system.run",
        task=("What to do.", None),
    ),
)
_PROMPTS_BY_NAME: Final = {prompt.spec.name: prompt for prompt in _PROMPTS}


class NodePrompts:
    """A `PromptProvider`. A prompt is listed while the command it needs is available."""

    def __init__(self, capabilities: CapabilityRegistry) -> None:
        self._capabilities = capabilities

    @property
    def changed(self) -> Signal[None]:
        return self._capabilities.changed

    async def list(self, caller: Caller) -> Sequence[PromptSpec]:
        self._capabilities.refresh()
        return [
            prompt.spec for prompt in _PROMPTS if prompt.needs is None or self._capabilities.is_available(prompt.needs)
        ]

    async def get(self, call: PromptCall) -> Prompt:
        prompt = _PROMPTS_BY_NAME.get(call.name)
        if prompt is None:
            raise PromptNotFound(f"Unknown prompt: {call.name[:100]}")
        if prompt.needs is not None:
            self._capabilities.require(prompt.needs)  # raises with the reason
        values = {**prompt.defaults, **_check_arguments(prompt.spec, call.arguments)}
        if prompt.spec.name == CAPABILITIES:
            values["commands"] = self._describe_commands()
        message = PromptMessage("user", Text(prompt.text.format_map(values)))
        return Prompt((message,), prompt.spec.description)

    def _describe_commands(self) -> str:
        lines = []
        for status in self._capabilities.statuses():
            missing = status.missing
            state = "works" if missing is None else f"does not work: {missing.reason} {missing.remedy}"
            lines.append(f"- {status.name} ({status.description}) {state}")
        return "\n".join(lines)


def _check_arguments(spec: PromptSpec, given: Mapping[str, str]) -> dict[str, str]:
    """The arguments that the prompt knows. Raises PromptArguments for one that is missing or too long."""
    found: dict[str, str] = {}
    for argument in spec.arguments or ():
        value = given.get(argument.name, "").strip()
        if not value and argument.required:
            raise PromptArguments(f"the prompt {spec.name} needs the argument {argument.name}")
        if len(value) > MAX_ARGUMENT:
            raise PromptArguments(f"the argument {argument.name} may have {MAX_ARGUMENT} characters")
        if value:
            found[argument.name] = value
    return found
