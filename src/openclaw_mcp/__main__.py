"""`python -m openclaw_mcp`: the same as the command `openclaw`."""

import sys

from .cli import main

if __name__ == "__main__":
    sys.exit(main())
