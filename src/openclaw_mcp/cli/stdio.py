"""The stdio servers' fast path: opening answers first, the real server loaded meanwhile."""

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING

from ..mcp import boot

if TYPE_CHECKING:
    from ..mcp.stdio import Opened


def serve(surface: str) -> int:
    """Serve `surface` until end of input."""
    # By name, so that this process imports its own surface's opening and no other's.
    opening: boot.Opening = import_module(f"..openings.{surface}", __package__).OPENING

    def load() -> Callable[["Opened"], None]:
        run: Callable[[Opened], None] = import_module(f".{surface}", __package__).serve_stdio
        return run

    boot.serve(opening, load)
    return 0
