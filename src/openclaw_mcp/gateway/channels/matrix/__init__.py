"""Matrix: one account on a homeserver, over the client-server API; encrypted rooms with the `matrix` extra."""

from .channel import Matrix
from .settings import MatrixSettings

__all__ = ["Matrix", "MatrixSettings"]
