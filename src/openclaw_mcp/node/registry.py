"""Every capability of this machine: which commands are available right now, and calls of them."""

from collections.abc import Callable, Sequence

from msgspec import Struct

from ..core.errors import ToolNotFound, ToolUnavailable
from ..core.model import ToolCall, ToolResult, ToolSpec
from ..core.signal import Signal
from .capability import Capability, Danger, NodeCommand, UnavailableReason

OffReason = Callable[[str, str], UnavailableReason | None]
"""Category and command to None when its setting is on, else the reason and how to switch it on."""


class CommandStatus(Struct, frozen=True, kw_only=True):
    """A command, and why it is not available, if so."""

    category: str
    name: str
    description: str
    danger: Danger
    missing: UnavailableReason | None


class CapabilityRegistry:
    """A `ToolSource` of the commands that can work here and are switched on. `changed`: that set is another."""

    def __init__(self, *, off_reason: OffReason = lambda _category, _command: None) -> None:
        self.changed: Signal[None] = Signal()
        self._off_reason = off_reason
        self._capabilities: dict[str, Capability] = {}
        self._commands: dict[str, tuple[Capability, NodeCommand]] = {}
        self._available_specs: tuple[ToolSpec, ...] = ()
        self._available_names: frozenset[str] = frozenset()

    def add(self, capability: Capability) -> None:
        """Add a capability; its commands are listed at once."""
        if capability.name in self._capabilities:
            raise ValueError(f"a capability named {capability.name!r} is already here")
        for command in capability.commands():
            if command.spec.name in self._commands:
                raise ValueError(f"a command named {command.spec.name!r} is already here")
        self._capabilities[capability.name] = capability
        for command in capability.commands():
            self._commands[command.spec.name] = (capability, command)
        self.refresh()

    def refresh(self) -> None:
        """Check again which commands can work; emit `changed` if that is another set."""
        available = tuple(
            command.spec for name, (_, command) in self._commands.items() if self.unavailable_reason(name) is None
        )
        if available != self._available_specs:
            self._available_specs = available
            self._available_names = frozenset(spec.name for spec in available)
            self.changed.emit(None)

    def specs(self) -> Sequence[ToolSpec]:
        return self._available_specs

    def all_specs(self) -> Sequence[ToolSpec]:
        """All of them, whether or not they can work here."""
        return tuple(command.spec for _, command in self._commands.values())

    def unavailable_reason(self, name: str) -> UnavailableReason | None:
        """Why a command is not available; None when it is."""
        capability, _ = self._commands[name]
        return self._off_reason(capability.name, name) or capability.unavailable_reason(name)

    def statuses(self) -> Sequence[CommandStatus]:
        """Every command, available or not, in the order they were added."""
        return [
            CommandStatus(
                category=capability.name,
                name=name,
                description=command.spec.description,
                danger=command.danger,
                missing=self.unavailable_reason(name),
            )
            for name, (capability, command) in self._commands.items()
        ]

    def require(self, name: str) -> NodeCommand:
        """The command, if it can be used right now. Raises ToolNotFound, or ToolUnavailable with the remedy."""
        found = self._commands.get(name)
        if found is None:
            raise ToolNotFound(f"Unknown tool: {name}")
        missing = self.unavailable_reason(name)
        if missing is not None:
            raise ToolUnavailable(f"{name} is not available: {missing.reason} {missing.remedy}")
        return found[1]

    def is_available(self, name: str) -> bool:
        """Whether it was available at the last check."""
        return name in self._available_names

    def has_command(self, name: str) -> bool:
        """Whether there is a command of this name, available or not."""
        return name in self._commands

    async def call(self, call: ToolCall) -> ToolResult:
        return await self.require(call.name).run(call)

    async def aclose(self) -> None:
        for capability in self._capabilities.values():
            await capability.aclose()
