"""A file an agent wants to send: read here, with the agent's own rights, never by the gateway."""

import asyncio
import base64
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from ..core.errors import ToolArguments
from ..core.model import Json

LONGEST_SHOWN: Final = 200  # characters of a data: address that are shown
LARGEST: Final = 18 * 1024 * 1024  # bytes; as base64 it just fits the largest frame a gateway takes


def is_address(file: str) -> bool:
    """Whether it is to be fetched from the web, which is the gateway's affair and under its rules."""
    return file.startswith(("http://", "https://"))


async def content(file: str) -> Json:
    """The parameters that carry a file of this machine. Raises ToolArguments."""
    path = Path(unquote(urlsplit(file).path) if file.startswith("file:") else file)
    data = await asyncio.to_thread(_read, path)
    import mimetypes  # here for start-up: most runs send no file, and it loads a good deal

    kind = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
    buffer = f"data:{kind};base64,{base64.b64encode(data).decode()}"
    return {"buffer": buffer, "filename": path.name, "contentType": kind}


def without_bytes(answer: Any) -> Any:
    """A gateway that repeats what it sent repeats files too; an agent has no use for their bytes."""
    if isinstance(answer, str):
        return f"{answer[:40]}…" if answer.startswith("data:") and len(answer) > LONGEST_SHOWN else answer
    if isinstance(answer, dict):
        return {name: without_bytes(value) for name, value in answer.items()}
    return [without_bytes(value) for value in answer] if isinstance(answer, list) else answer


def _read(path: Path) -> bytes:
    try:
        path = path.expanduser()
        if not path.is_file():
            raise ToolArguments(f"{path} is no file; give a path on this machine or an http(s) address")
        if path.stat().st_size > LARGEST:
            raise ToolArguments(f"{path} is larger than {LARGEST} bytes, the most one message carries")
        return path.read_bytes()
    except OSError as exc:
        raise ToolArguments(f"{path} can't be read: {exc.strerror}") from exc
