"""Tool sources by name, and every tool they offer now."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final
from weakref import ref

from ..core.model import ToolSpec
from ..core.ports import ToolSource
from ..core.signal import Signal
from .policy import APP_SOURCE_PREFIX
from .schema import ArgumentValidator, validator_cache, validator_for


class RegisteredTool:
    """One tool of one source. Its schema is compiled at the first call."""

    __slots__ = ("_validator", "source", "source_name", "spec")

    def __init__(self, source_name: str, source: ToolSource, spec: ToolSpec) -> None:
        self.source_name = source_name
        self.source = source
        self.spec = spec
        self._validator: ref[ArgumentValidator] | None = None

    @property
    def validator(self) -> ArgumentValidator:
        """Raises ToolUnavailable when the tool's schema can't be used."""
        validator = self._validator() if self._validator is not None else None
        if validator is None:
            validator = validator_for(self.spec.input_schema)
            self._validator = ref(validator)
        else:
            validator_cache.mark_recent(validator)
        return validator


RESERVED_SOURCE_PREFIXES: Final = ("mcp/", "node/")
"""Sources that the config or an approval added; their tools are called `<name>__<tool>`."""


class ToolRegistry:
    """Sources come and go; `changed` emits when one is added, removed, or changes its tools.

    Sources that apps lend are kept apart: only callers they are lent to look at them.
    """

    def __init__(self, sources: Mapping[str, ToolSource] | None = None) -> None:
        self.changed: Signal[None] = Signal()
        self.app_changed: Signal[str] = Signal()
        """Emits the name of an app that is added, removed, or changes its tools."""
        self._sources: dict[str, ToolSource] = {}
        self._apps: dict[str, ToolSource] = {}
        self._disconnects: dict[str, Callable[[], None]] = {}
        self._tools: dict[str, list[RegisteredTool]] | None = None
        self._app_tools: dict[str, Sequence[RegisteredTool]] = {}
        for name, source in (sources or {}).items():
            self.add(name, source)

    def add(self, name: str, source: ToolSource) -> None:
        if name in self._disconnects:
            raise ValueError(f"a tool source named {name!r} is already here")
        sources = self._apps if name.startswith(APP_SOURCE_PREFIX) else self._sources
        sources[name] = source
        self._disconnects[name] = source.changed.connect(lambda _: self._invalidate(name))
        self._invalidate(name)

    def remove(self, name: str) -> None:
        self._disconnects.pop(name)()
        del (self._apps if name.startswith(APP_SOURCE_PREFIX) else self._sources)[name]
        self._invalidate(name)

    def tools_by_name(self, apps: Iterable[str] = ()) -> Mapping[str, list[RegisteredTool]]:
        """Every tool by name, in the order of the sources and of their lists; of apps, only these."""
        if self._tools is None:
            self._tools = {}
            for name, source in self._sources.items():
                for spec in source.specs():
                    self._tools.setdefault(spec.name, []).append(RegisteredTool(name, source, spec))
        lent = [tool for app in apps if app in self._apps for tool in self._tools_of_app(app, self._tools)]
        if not lent:
            return self._tools
        by_name = dict(self._tools)
        for tool in lent:
            by_name[tool.spec.name] = [*by_name.get(tool.spec.name, ()), tool]
        return by_name

    def _tools_of_app(self, app: str, own_tools: Mapping[str, object]) -> Sequence[RegisteredTool]:
        """An app's tool gives way to one of our own of its name, and to the names a server or node of ours may yet
        offer: a server that sleeps has none so far."""
        lent = self._app_tools.get(app)
        if lent is None:
            reserved = tuple(
                f"{name.partition('/')[2]}__" for name in self._sources if name.startswith(RESERVED_SOURCE_PREFIXES)
            )
            source = self._apps[app]
            specs = [
                spec for spec in source.specs() if spec.name not in own_tools and not spec.name.startswith(reserved)
            ]
            lent = self._app_tools[app] = [RegisteredTool(app, source, spec) for spec in specs]
        return lent

    def _invalidate(self, name: str) -> None:
        if name.startswith(APP_SOURCE_PREFIX):
            self._app_tools.pop(name, None)
            self.app_changed.emit(name)
        else:
            self._tools = None
            self._app_tools.clear()
            self.changed.emit(None)
