"""Modules that asyncio and msgspec import and a stdio server's first answers do not use: loaded when first used.

`ssl` with its library, `inspect` and `traceback` with everything they read source by are a quarter of the time to the
first call. The standard library's `LazyLoader` does not help: it loads a module that is imported a second time.
"""

import sys
from importlib.machinery import ModuleSpec, PathFinder
from threading import RLock

TYPE_CHECKING = False  # `typing` is not needed before the first call
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.abc import Loader
    from types import ModuleType

LAZY_MODULES = frozenset({"ssl", "asyncio.sslproto", "inspect", "traceback", "linecache", "msgspec.inspect"})


class _LazyLoader:
    """Leaves a module empty until an attribute is asked for that it does not have."""

    def __init__(self, loader: "Loader") -> None:
        self._loader = loader
        self._lock = RLock()
        self._is_loading = False

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: "ModuleType") -> None:
        def load(attribute: str) -> object:
            with self._lock:  # another thread waits for the whole module
                if "__getattr__" in vars(module) and not self._is_loading:
                    self._is_loading = True
                    self._loader.exec_module(module)
                    del vars(module)["__getattr__"]
            try:
                return vars(module)[attribute]
            except KeyError:
                raise AttributeError(f"module {module.__name__!r} has no attribute {attribute!r}") from None

        vars(module)["__getattr__"] = load


class _LazyFinder:
    @staticmethod
    def find_spec(name: str, path: "Sequence[str] | None" = None, target: object = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path) if name in LAZY_MODULES else None
        if spec is not None and spec.loader is not None:
            spec.loader = _LazyLoader(spec.loader)  # type: ignore[assignment]  # it has what the import system asks for
        return spec


def postpone() -> None:
    """To be called before asyncio and msgspec are imported; modules that are loaded already stay as they are."""
    sys.meta_path.insert(0, _LazyFinder)
    if not {"msgspec", "typing_extensions"} & sys.modules.keys():
        # From Python 3.11 on, msgspec finds the same in `typing`; the other one takes as long to load as msgspec does.
        sys.modules["typing_extensions"] = None  # type: ignore[assignment]  # so the import system marks absent ones
        try:
            import msgspec  # noqa: F401  here for start-up, see above
        finally:
            del sys.modules["typing_extensions"]
