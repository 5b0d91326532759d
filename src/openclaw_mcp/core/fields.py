"""Types of fields that many wires share."""

from typing import Annotated

from msgspec import Meta

NonEmptyStr = Annotated[str, Meta(min_length=1)]
