"""The text of a PDF. Read in a child process: a file made to eat memory or time takes the child with it, not us."""

import asyncio
import contextlib
import os
import signal
import sys
from typing import Final

MAX_PAGES: Final = 100
WAIT: Final = 30.0  # seconds a file may take
MEMORY: Final = 1 << 30  # bytes the child may have
MAX_OUTPUT: Final = 4 << 20  # bytes of text taken from it


class UnreadableFile(Exception):
    """The text is one clause: why."""


async def extract_text(data: bytes) -> str:
    """The words of its first pages, page by page. Raises Unreadable."""
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-I", __file__,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
        start_new_session=True,
    )  # fmt: skip
    try:
        async with asyncio.timeout(WAIT):
            out, _ = await child.communicate(data)
    except TimeoutError:
        raise UnreadableFile(f"reading it took longer than {WAIT:g} s") from None
    finally:
        if child.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            await child.wait()
    if child.returncode == ENCRYPTED:
        raise UnreadableFile("it is locked with a password")
    if child.returncode != 0:
        raise UnreadableFile("it is damaged, or too much to read")
    return out[:MAX_OUTPUT].decode(errors="replace")


ENCRYPTED: Final = 3


def _run_child() -> int:
    """In the child alone: PDF on standard input, text on standard output."""
    # Here for start-up: the parent needs neither.
    import io

    import pypdf

    if sys.platform != "win32":
        import resource  # here for start-up, as above

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    reader = pypdf.PdfReader(io.BytesIO(sys.stdin.buffer.read()))
    if reader.is_encrypted and not reader.decrypt(""):
        return ENCRYPTED
    pages, written = len(reader.pages), 0
    for number, page in enumerate(reader.pages[:MAX_PAGES], 1):
        words = f"[page {number} of {pages}]\n{page.extract_text().strip()}\n"
        written += sys.stdout.buffer.write(words.encode(errors="replace"))
        if written > MAX_OUTPUT:
            break
    if pages > MAX_PAGES:
        sys.stdout.buffer.write(f"[{pages - MAX_PAGES} more pages were left out]\n".encode())
    return 0


if __name__ == "__main__":
    sys.exit(_run_child())
