"""Matrix: one account on a homeserver, over the client-server API; encrypted rooms with the `matrix` extra."""

from .channel import MatrixChannel
from .settings import MatrixSettings

__all__ = ["MatrixChannel", "MatrixSettings"]
