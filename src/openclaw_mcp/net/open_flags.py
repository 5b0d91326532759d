"""Flags for `os.open` that not every platform has; 0 where one is missing."""

import os
from typing import Final

NO_LINK: Final[int] = getattr(os, "O_NOFOLLOW", 0)
"""Refuse a link in the last place of the path."""
NO_WAIT: Final[int] = getattr(os, "O_NONBLOCK", 0)
"""Do not wait for the other end of a pipe."""
NOT_INHERITED: Final[int] = getattr(os, "O_CLOEXEC", 0)
"""Keep the descriptor out of programs we start."""
