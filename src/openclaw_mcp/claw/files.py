"""A file an agent wants to send: named to the gateway, which judges it and reads it.

Only with the gateway's own token is a file of the folder this server was started in read here: that may be another
machine than the gateway's. The rule is the same one (`core/file_access.py`).
"""

import asyncio
import base64
from pathlib import Path
from typing import Any, Final

from ..core.errors import ToolArguments
from ..core.model import Json
from ..net.file_access import FileOutside, FileRefused, FoundFile, read_file, scheme_of
from .tool_context import Seat

LONGEST_SHOWN: Final = 200  # characters of a data: address that are shown
LARGEST: Final = 18 * 1024 * 1024  # bytes; as base64 it just fits the largest frame a gateway takes


def is_address(file: str) -> bool:
    """Whether it is to be fetched from the web, which is the gateway's affair and under its rules."""
    return file.lower().startswith(("http://", "https://"))


async def carried(seat: Seat, file: str | None) -> Json:
    """The parameters that carry a file, or where it is. Raises ToolArguments."""
    if file is None:
        return {}
    if is_address(file) or seat.run.granted:
        return {"media": file}
    try:
        return _inlined(await asyncio.to_thread(read_file, file, seat.files, most=LARGEST))
    except FileOutside as exc:
        # The gateway has folders of its own and judges it; but by its own token, which is the owner's.
        if seat.near and seat.run.owner is not False:
            return {"media": _whole(file)}
        raise ToolArguments(str(exc)) from None
    except FileRefused as exc:
        raise ToolArguments(str(exc)) from None


def _whole(file: str) -> str:
    """A relative path means what it means here, not where the gateway was started or its agents work."""
    relative = not scheme_of(file) and not file.startswith(("/", "~"))
    return str(Path.cwd() / file) if relative else file


def _inlined(found: FoundFile) -> Json:
    import mimetypes  # here for start-up: most runs send no file, and it loads a good deal

    kind = mimetypes.guess_type(found.name)[0] or "application/octet-stream"
    buffer = f"data:{kind};base64,{base64.b64encode(found.data).decode()}"
    return {"buffer": buffer, "filename": found.name, "contentType": kind}


def without_bytes(answer: Any) -> Any:
    """A gateway that repeats what it sent repeats files too; an agent has no use for their bytes."""
    if isinstance(answer, str):
        return f"{answer[:40]}…" if answer.startswith("data:") and len(answer) > LONGEST_SHOWN else answer
    if isinstance(answer, dict):
        return {name: without_bytes(value) for name, value in answer.items()}
    return [without_bytes(value) for value in answer] if isinstance(answer, list) else answer
