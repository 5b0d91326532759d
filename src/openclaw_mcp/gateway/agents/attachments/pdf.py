"""The text of a PDF, read in a child process: a file made to use up memory or time ends the child, not us."""

import asyncio
import sys
from typing import Final

MAX_PAGES: Final = 100
WAIT: Final = 30.0  # seconds a file may take
MEMORY: Final = 1 << 30  # bytes the child may have
MAX_OUTPUT: Final = 4 << 20  # bytes of text taken from it


class UnreadableFile(Exception):
    """The text is one clause: why."""


async def extract_text(data: bytes) -> str:
    """The text of its first pages, page by page. Raises UnreadableFile."""
    # Here for start-up: the child, which is this file, needs neither and is no part of a package.
    from ....net.process_streams import KeptOutput
    from ....net.processes import start_process

    out = KeptOutput(head=MAX_OUTPUT)
    async with await start_process([sys.executable, "-I", __file__], stdin=data, stdout=out) as child:
        try:
            async with asyncio.timeout(WAIT):
                status = await child.wait_finished()
        except TimeoutError:
            raise UnreadableFile(f"reading it took longer than {WAIT:g} s") from None
    if status == ENCRYPTED:
        raise UnreadableFile("it is locked with a password")
    if status != 0:
        raise UnreadableFile("it is damaged, or too much to read")
    return out.data.decode(errors="replace")


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
        text = f"[page {number} of {pages}]\n{page.extract_text().strip()}\n"
        written += sys.stdout.buffer.write(text.encode(errors="replace"))
        if written > MAX_OUTPUT:
            break
    if pages > MAX_PAGES:
        sys.stdout.buffer.write(f"[{pages - MAX_PAGES} more pages were left out]\n".encode())
    return 0


if __name__ == "__main__":
    sys.exit(_run_child())
