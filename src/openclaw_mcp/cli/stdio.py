"""The stdio servers' fast path: first replies at once, the real server loaded meanwhile."""

from __future__ import annotations

from importlib import import_module

from ..mcp.server import boot

TYPE_CHECKING = False  # `typing` is too heavy for the fast path
if TYPE_CHECKING:
    from collections.abc import Callable

    from ..mcp.server.boot import RunServer


def serve(surface: str, adapt: Callable[[boot.FirstReplies], boot.FirstReplies] | None = None) -> int:
    """Serve `surface` until end of input. `adapt` fits its first replies to this run."""
    # By name, so that this process imports the first replies of its own surface and no other's.
    replies: boot.FirstReplies = import_module(f"..mcp.first_replies.{surface}", __package__).FIRST_REPLIES
    if adapt is not None:
        replies = adapt(replies)

    def load() -> RunServer:
        # Here for start-up: by now the first answer is out.
        from .lazy_modules import postpone

        postpone()
        run: RunServer = import_module(f".{surface}", __package__).serve_stdio
        return run

    try:
        boot.serve(replies, load)
    except KeyboardInterrupt:
        return 130
    return 0
