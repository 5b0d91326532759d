"""The menu: sources by name, and every tool they offer right now."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final
from weakref import ref

from ..core.model import ToolSpec
from ..core.ports import ToolSource
from ..core.signal import Bell
from .policy import APPS
from .schema import Form, form_of, kept


class Offer:
    """One tool of one source. Its form is compiled when somebody first orders it."""

    __slots__ = ("_form", "name", "source", "spec")

    def __init__(self, name: str, source: ToolSource, spec: ToolSpec) -> None:
        self.name = name
        self.source = source
        self.spec = spec
        self._form: ref[Form] | None = None

    @property
    def form(self) -> Form:
        """Raises ToolUnavailable when the tool's schema can't be used."""
        form = self._form() if self._form is not None else None
        if form is None:
            form = form_of(self.spec.input_schema)
            self._form = ref(form)
        else:
            kept.use(form)
        return form


OWN_GUESTS: Final = ("mcp/", "node/")
"""Sources the config or an approval put here; their tools are called `<name>__<tool>`."""


class Registry:
    """Sources come and go; `changed` rings at each coming, going, and change within a source of ours.

    What apps lend is kept apart: it is looked at for those alone it is lent to, and costs nobody else anything.
    """

    def __init__(self, sources: Mapping[str, ToolSource] | None = None) -> None:
        self.changed: Bell[None] = Bell()
        self.app_changed: Bell[str] = Bell()
        """Rings with the name of an app that comes, goes or changes its tools."""
        self._sources: dict[str, ToolSource] = {}
        self._apps: dict[str, ToolSource] = {}
        self._deaf: dict[str, Callable[[], None]] = {}
        self._offers: dict[str, list[Offer]] | None = None
        self._lent: dict[str, Sequence[Offer]] = {}
        for name, source in (sources or {}).items():
            self.add(name, source)

    def add(self, name: str, source: ToolSource) -> None:
        if name in self._deaf:
            raise ValueError(f"a tool source named {name!r} is already here")
        sources = self._apps if name.startswith(APPS) else self._sources
        sources[name] = source
        self._deaf[name] = source.changed.listen(lambda _: self._renew(name))
        self._renew(name)

    def remove(self, name: str) -> None:
        self._deaf.pop(name)()
        del (self._apps if name.startswith(APPS) else self._sources)[name]
        self._renew(name)

    @contextmanager
    def lend(self, name: str, source: ToolSource) -> Iterator[None]:
        """Put a source on the menu until the block ends, however it ends."""
        self.add(name, source)
        try:
            yield
        finally:
            self.remove(name)

    def offers(self, apps: Iterable[str] = ()) -> Mapping[str, list[Offer]]:
        """Every offer by tool name, in the order sources came and list their tools; of apps, what these lend."""
        if self._offers is None:
            self._offers = {}
            for name, source in self._sources.items():
                for spec in source.specs():
                    self._offers.setdefault(spec.name, []).append(Offer(name, source, spec))
        lent = [offer for app in apps if app in self._apps for offer in self._lent_by(app, self._offers)]
        if not lent:
            return self._offers
        offers = dict(self._offers)
        for offer in lent:
            offers[offer.spec.name] = [*offers.get(offer.spec.name, ()), offer]
        return offers

    def _lent_by(self, app: str, ours: Mapping[str, object]) -> Sequence[Offer]:
        """An app's tool gives way to one of our own of its name, and to the names a server or node of ours may yet
        offer: a server that sleeps has none so far."""
        lent = self._lent.get(app)
        if lent is None:
            reserved = tuple(f"{name.partition('/')[2]}__" for name in self._sources if name.startswith(OWN_GUESTS))
            source = self._apps[app]
            specs = [spec for spec in source.specs() if spec.name not in ours and not spec.name.startswith(reserved)]
            lent = self._lent[app] = [Offer(app, source, spec) for spec in specs]
        return lent

    def _renew(self, name: str) -> None:
        if name.startswith(APPS):
            self._lent.pop(name, None)
            self.app_changed.ring(name)
        else:
            self._offers = None
            self._lent.clear()
            self.changed.ring(None)
