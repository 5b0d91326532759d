"""`logs.tail`: the end of this gateway's log file, and what was added since a cursor."""

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final, TypedDict

from msgspec import Meta, Struct

from ...core.rpc import READ, SAFE_INTEGER, RpcCall, RpcError, RpcMethod, make_method
from ...net.files import StateBroken, open_private

DEFAULT_LINES: Final = 500
DEFAULT_BYTES: Final = 250_000  # one answer's worth of text


class _TailParams(Struct, frozen=True, rename="camel"):
    cursor: Annotated[int, Meta(ge=0, le=SAFE_INTEGER)] | None = None
    limit: Annotated[int, Meta(ge=1, le=5000)] = DEFAULT_LINES
    max_bytes: Annotated[int, Meta(ge=1, le=1_000_000)] = DEFAULT_BYTES


class LogTail(TypedDict):
    file: str
    cursor: int
    size: int
    lines: list[str]
    truncated: bool
    reset: bool


class LogMethods(Struct, frozen=True):
    """An `RpcModule`."""

    path: Path

    def methods(self) -> Sequence[RpcMethod]:
        return (make_method("logs.tail", READ, _TailParams, self._tail),)

    async def _tail(self, call: RpcCall, wanted: _TailParams) -> LogTail:
        try:
            return await asyncio.to_thread(self._read, wanted)
        except FileNotFoundError:
            return LogTail(file=str(self.path), cursor=0, size=0, lines=[], truncated=False, reset=False)
        except StateBroken as exc:
            raise RpcError(str(exc), kind="UNAVAILABLE") from None
        except OSError as exc:
            raise RpcError(f"the log can't be read: {exc.strerror}", kind="UNAVAILABLE") from exc

    def _read(self, params: _TailParams) -> LogTail:
        with os.fdopen(open_private(self.path, os.O_RDONLY), "rb") as file:
            size = os.fstat(file.fileno()).st_size
            reset = params.cursor is not None and params.cursor > size
            begin = 0 if params.cursor is None or reset else params.cursor
            earliest = max(begin, size - params.max_bytes)
            file.seek(earliest)
            data = file.read(size - earliest)
        whole, newline, _ = data.rpartition(b"\n")
        end = earliest + len(whole) + len(newline)
        lines = whole.decode(errors="replace").split("\n") if whole else []
        truncated = earliest > begin
        if truncated and lines:
            lines = lines[1:]  # its beginning was cut off
        if len(lines) > params.limit:
            truncated, lines = True, lines[-params.limit :]
        return LogTail(file=str(self.path), cursor=end, size=size, lines=lines, truncated=truncated, reset=reset)
