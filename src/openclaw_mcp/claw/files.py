"""A file an agent wants to send: named to the gateway, which judges it and reads it.

Only with the gateway's own token is a file of the folder this server was started in read here: that may be another
machine than the gateway's. The rule is the same one (`net/file_access.py`).
"""

import asyncio
import base64
from pathlib import Path
from typing import Any, Final

from ..core.errors import ToolArguments
from ..core.model import Json
from ..net.file_access import FileOutside, FileRefused, SendableFile, read_file, url_scheme
from .tool_context import ClawContext

LONGEST_DATA_URL: Final = 200  # characters of a data: address that are shown
MAX_FILE_BYTES: Final = 18 * 1024 * 1024  # bytes; as base64 it just fits the largest frame a gateway takes


def is_web_address(file: str) -> bool:
    """Whether the gateway is to fetch it from the web, by its own rules."""
    return file.lower().startswith(("http://", "https://"))


async def file_parameters(context: ClawContext, file: str | None) -> Json:
    """The parameters that carry a file, or its location. Raises ToolArguments."""
    if file is None:
        return {}
    if is_web_address(file) or context.settings.has_grant:
        return {"media": file}
    try:
        return _inline_file(await asyncio.to_thread(read_file, file, context.file_access, max_bytes=MAX_FILE_BYTES))
    except FileOutside as exc:
        # The gateway has folders of its own and judges it; but by its own token, which is the owner's.
        if context.is_local and context.settings.owner is not False:
            return {"media": _absolute_path(file)}
        raise ToolArguments(str(exc)) from None
    except FileRefused as exc:
        raise ToolArguments(str(exc)) from None


def _absolute_path(file: str) -> str:
    """A relative path means what it means here, not where the gateway was started or its agents work."""
    relative = not url_scheme(file) and not file.startswith(("/", "~"))
    return str(Path.cwd() / file) if relative else file


def _inline_file(file: SendableFile) -> Json:
    import mimetypes  # here for start-up: most runs send no file, and it loads a good deal

    kind = mimetypes.guess_type(file.name)[0] or "application/octet-stream"
    buffer = f"data:{kind};base64,{base64.b64encode(file.data).decode()}"
    return {"buffer": buffer, "filename": file.name, "contentType": kind}


def strip_file_bytes(answer: Any) -> Any:
    """A gateway that repeats what it sent repeats files too; an agent has no use for their bytes."""
    if isinstance(answer, str):
        return f"{answer[:40]}…" if answer.startswith("data:") and len(answer) > LONGEST_DATA_URL else answer
    if isinstance(answer, dict):
        return {name: strip_file_bytes(value) for name, value in answer.items()}
    return [strip_file_bytes(value) for value in answer] if isinstance(answer, list) else answer
