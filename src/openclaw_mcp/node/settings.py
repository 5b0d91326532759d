"""What the person at this machine has switched on. A JSON file they may edit while the node runs."""

from msgspec import Struct
