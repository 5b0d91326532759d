"""The menu: sources by name, and every tool they offer right now."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from ..core.bell import Bell
from ..core.model import ToolSpec
from ..core.ports import ToolSource
from .schema import Form


class Offer:
    """One tool of one source. Its form is compiled when somebody first orders it."""

    __slots__ = ("_form", "name", "source", "spec")

    def __init__(self, name: str, source: ToolSource, spec: ToolSpec) -> None:
        self.name = name
        self.source = source
        self.spec = spec
        self._form: Form | None = None

    @property
    def form(self) -> Form:
        if self._form is None:
            self._form = Form(self.spec.input_schema)
        return self._form


APPS: Final = "app/"
OWN_GUESTS: Final = ("mcp/", "node/")
"""Sources the config or an approval put here; their tools are called `<name>__<tool>`."""


class Registry:
    """Sources come and go; `changed` rings at each coming, going, and change within a source."""

    def __init__(self, sources: Mapping[str, ToolSource] | None = None) -> None:
        self.changed: Bell[None] = Bell()
        self._sources: dict[str, ToolSource] = {}
        self._deaf: dict[str, object] = {}
        self._offers: dict[str, list[Offer]] | None = None
        for name, source in (sources or {}).items():
            self.add(name, source)

    def add(self, name: str, source: ToolSource) -> None:
        if name in self._sources:
            raise ValueError(f"a tool source named {name!r} is already here")
        self._sources[name] = source
        self._deaf[name] = source.changed.listen(self._renew)
        self._renew(None)

    def remove(self, name: str) -> None:
        del self._sources[name]
        stop = self._deaf.pop(name)
        assert callable(stop)
        stop()
        self._renew(None)

    @contextmanager
    def lend(self, name: str, source: ToolSource) -> Iterator[None]:
        """Put a source on the menu until the block ends, however it ends."""
        self.add(name, source)
        try:
            yield
        finally:
            self.remove(name)

    def offers(self) -> Mapping[str, list[Offer]]:
        """Every offer by tool name, in the order sources came and list their tools."""
        if self._offers is None:
            self._offers = {}
            for name, source in self._sources.items():
                for spec in source.specs():
                    self._offers.setdefault(spec.name, []).append(Offer(name, source, spec))
            self._drop_competing_apps(self._offers)
        return self._offers

    def _drop_competing_apps(self, offers: dict[str, list[Offer]]) -> None:
        """An app's tool gives way to one of our own of its name, and to the names a server or node of ours may yet
        offer: a server that sleeps has none so far."""
        kept = tuple(f"{name.partition('/')[2]}__" for name in self._sources if name.startswith(OWN_GUESTS))
        for tool, found in list(offers.items()):
            apps = [offer for offer in found if offer.name.startswith(APPS)]
            if apps and (len(apps) < len(found) or tool.startswith(kept)):
                offers[tool] = [offer for offer in found if offer not in apps]
                if not offers[tool]:
                    del offers[tool]

    def _renew(self, _: None) -> None:
        self._offers = None
        self.changed.ring(None)
