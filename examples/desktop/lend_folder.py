"""Lend one folder of this computer to an agent: it may look for files there, and fetch one."""

# ruff: noqa: T201  an example prints

import argparse
import asyncio
import mimetypes
import os
import stat
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from fnmatch import fnmatch
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import quote

from openclaw_mcp.apps.client import (
    AppTools,
    Contents,
    Embedded,
    Image,
    ProxyRefused,
    Session,
    SessionDeleted,
    Text,
    ToolError,
)

LARGEST_FILE = 8 << 20  # bytes; base64 makes it a third longer, and a proxy takes 16 MiB
MOST_FOUND = 200
MOST_LOOKED_AT = 100_000  # entries; a home folder must not keep a caller waiting


def lend(app: AppTools, folder: Path) -> None:
    """Add the two tools."""
    root = folder.resolve(strict=True)

    @app.tool(annotations={"readOnlyHint": True})
    def find_files(name: str = "*", newest_first: bool = True) -> list[dict[str, Any]]:
        """Find files in the lent folder and below. Those whose names are not UTF-8 are left out.

        Args:
            name: a pattern for the file's name, like *.png
            newest_first: otherwise in the order of their paths
        """
        if "/" in name or name == "..":
            raise ToolError(f"{name!r} is no pattern for a file's name; write one without / and .., like *.png")
        found = list(_files(root, name))
        found.sort(key=lambda file: -file[1].st_mtime if newest_first else file[0])
        return [
            {
                "path": path,
                "bytes": about.st_size,
                "changed": datetime.fromtimestamp(about.st_mtime, UTC).isoformat(timespec="seconds"),
            }
            for path, about in found[:MOST_FOUND]
        ]

    @app.tool(annotations={"readOnlyHint": True})
    def fetch_file(path: str) -> Text | Image | Embedded:
        """Fetch one file of the lent folder: a picture as a picture, text as text, anything else as bytes.

        Args:
            path: as `find_files` shows it
        """
        file = _inside(root, root / path)
        if file is None or not file.is_file():
            raise ToolError(f"there is no file {path!r} in the lent folder; find_files shows what there is")
        if file.stat().st_size > LARGEST_FILE:
            raise ToolError(f"{path!r} is larger than {LARGEST_FILE} bytes; ask for a smaller one")
        data = file.read_bytes()
        kind = mimetypes.guess_type(file.name)[0] or "application/octet-stream"
        if kind.startswith("image/"):
            return Image(data, kind)
        try:
            return Text(data.decode())
        except UnicodeDecodeError:
            # Not where the folder is: no caller needs to know.
            uri = f"lent:///{quote(os.fsencode(file.relative_to(root).as_posix()))}"
            return Embedded(Contents(uri=uri, mime_type=kind, blob=data))


def _files(root: Path, name: str) -> Iterator[tuple[str, os.stat_result]]:
    """The files of that name whose own path can be sent: no links, nothing outside, no name that is not UTF-8."""
    for path in islice(root.rglob("*"), MOST_LOOKED_AT):
        if not fnmatch(path.name, name) or _inside(root, path) is None:
            continue
        relative = str(path.relative_to(root))
        try:
            about = path.lstat()
            relative.encode()
        except (OSError, UnicodeEncodeError):  # gone meanwhile, not readable, or a name that can't be sent
            continue
        if stat.S_ISREG(about.st_mode):
            yield relative, about


def _inside(root: Path, path: Path) -> Path | None:
    """Where the path leads, if that is in the lent folder."""
    try:
        file = path.resolve()
    except (OSError, RuntimeError, ValueError):  # too long, a ring of links, a NUL
        return None
    return file if file.is_relative_to(root) else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--url", help="where the proxy is (default OPENCLAW_PROXY_SERVER_URL)")
    options = parser.parse_args()

    def say(session: Session) -> None:
        print(f"lending {options.folder} at {session.mcp_url}", flush=True)

    app = AppTools(options.url, device="desktop", on_session=say)
    lend(app, options.folder)
    try:
        asyncio.run(app.run_forever())
    except KeyboardInterrupt:
        print("taken back")
    except (ProxyRefused, SessionDeleted) as exc:
        sys.exit(str(exc))


if __name__ == "__main__":
    main()
