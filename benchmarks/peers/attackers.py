"""Connections that never finish a request. Usage: attackers.py PORT FORM COUNT [PROCESSOR]

Says `ready`, ends with its input. On the processor named, so that what is measured is the server, not this machine.

Loopback only, and never for longer than half a minute.
"""

import asyncio
import contextlib
import os
import random
import sys

LONGEST = 30.0  # seconds
AGAIN = 0.25  # seconds, about, before a connection that was ended is opened again
DRIP = 0.2  # seconds between two bytes of the slow ones
FILL = b"a" * 65_536
GET = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n"
CHUNKED = b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n"
LENGTH = b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000000000\r\n\r\n"

FORMS: dict[str, tuple[bytes, bytes, float]] = {
    "endless header": (GET + b"X: ", FILL, 0),
    "many headers": (GET, b"X: y\r\n" * 10_000, 0),
    "half-sent headers": (GET + b"X: ", b"a", DRIP),
    "endless chunk extension": (CHUNKED + b"5;", FILL, 0),
    "endless trailer": (CHUNKED + b"1\r\na\r\n0\r\nX: ", FILL, 0),
    "slow body": (LENGTH, b"a", DRIP),
    "unwanted body": (LENGTH, FILL, 0),
    "unread answers": ((GET + b"\r\n") * 2000, b"", DRIP),
}
"""What is said first, what is said again and again, and the pause between two of those."""


async def attack(port: int, form: str, started: asyncio.Event) -> None:
    first, more, pause = FORMS[form]
    while True:
        with contextlib.suppress(OSError):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            if not more:
                writer.transport.pause_reading()  # type: ignore[attr-defined]
            ended = asyncio.ensure_future(reader.read(-1))
            with contextlib.suppress(OSError):
                writer.write(first)
                started.set()
                while not ended.done() and not writer.is_closing():
                    writer.write(more)
                    await writer.drain()
                    await asyncio.sleep(pause)
            ended.cancel()
            await asyncio.gather(ended, return_exceptions=True)
            writer.transport.abort()
        started.set()
        await asyncio.sleep(AGAIN * random.uniform(0.5, 1.5))


async def main(port: int, form: str, count: int) -> None:
    started = [asyncio.Event() for _ in range(count)]
    attacks = [asyncio.ensure_future(attack(port, form, each)) for each in started]
    await asyncio.gather(*(each.wait() for each in started))
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(LONGEST):
            await asyncio.to_thread(sys.stdin.read)
    for each in attacks:
        each.cancel()
    await asyncio.gather(*attacks, return_exceptions=True)


if __name__ == "__main__":
    if len(sys.argv) > 4:
        os.sched_setaffinity(0, {int(sys.argv[4])})
    asyncio.run(main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3])))
