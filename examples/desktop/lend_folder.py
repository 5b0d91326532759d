"""Lend one folder of this computer to an agent: it may look for files there, and fetch one."""

# ruff: noqa: T201  an example prints

import argparse
import asyncio
import mimetypes
import sys
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any

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
        """Find files in the lent folder and below.

        Args:
            name: a pattern for the file's name, like *.png
            newest_first: otherwise in the order of their paths
        """
        found = [path for path in islice(root.rglob(name), MOST_LOOKED_AT) if path.is_file() and not path.is_symlink()]
        found.sort(key=lambda path: -path.stat().st_mtime if newest_first else str(path))
        return [
            {
                "path": str(path.relative_to(root)),
                "bytes": path.stat().st_size,
                "changed": datetime.fromtimestamp(path.stat().st_mtime, UTC).isoformat(timespec="seconds"),
            }
            for path in found[:MOST_FOUND]
        ]

    @app.tool(annotations={"readOnlyHint": True})
    def fetch_file(path: str) -> Text | Image | Embedded:
        """Fetch one file of the lent folder: a picture as a picture, text as text, anything else as bytes.

        Args:
            path: as `find_files` shows it
        """
        file = (root / path).resolve()
        if not file.is_relative_to(root) or not file.is_file():
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
            return Embedded(Contents(uri=file.as_uri(), mime_type=kind, blob=data))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--url", help="where the proxy is (default OPENCLAW_PROXY_SERVER_URL)")
    asked = parser.parse_args()

    def say(session: Session) -> None:
        print(f"lending {asked.folder} at {session.mcp_url}", flush=True)

    app = AppTools(asked.url, device="desktop", on_session=say)
    lend(app, asked.folder)
    try:
        asyncio.run(app.run_forever())
    except KeyboardInterrupt:
        print("taken back")
    except (ProxyRefused, SessionDeleted) as exc:
        sys.exit(str(exc))


if __name__ == "__main__":
    main()
