"""Connections nobody uses are closed; one that is used, or is being answered, is not."""

import asyncio

import pytest

from openclaw_mcp.web import listen

REQUEST = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
IDLE = 0.2
WAIT = 20.0


async def _hello(scope: object, receive: object, send: object) -> None:
    assert callable(send)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"hi"})


def test_a_connection_is_closed_once_it_has_been_idle_long_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listen, "KEEP_ALIVE", IDLE)

    async def visit() -> None:
        loop = asyncio.get_running_loop()
        listener = listen.bind("127.0.0.1", 0)
        async with asyncio.timeout(WAIT), listen.serving(_hello, listener):
            reader, writer = await asyncio.open_connection(*listener.getsockname())
            asked = loop.time()
            for _ in range(4):  # each within the idle time of the one before, all together beyond it
                asked = loop.time()
                writer.write(REQUEST)
                assert (await reader.readuntil(b"hi")).startswith(b"HTTP/1.1 200")
                await asyncio.sleep(IDLE / 2)
            assert await reader.read() == b"", "the server has closed it"
            assert loop.time() - asked >= IDLE
            writer.close()

    asyncio.run(visit())


def test_an_answer_may_take_longer_than_a_connection_may_be_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listen, "KEEP_ALIVE", IDLE)
    takes = iter((0, 3 * IDLE))

    async def app(scope: object, receive: object, send: object) -> None:
        await asyncio.sleep(next(takes))
        await _hello(scope, receive, send)

    async def visit() -> None:
        listener = listen.bind("127.0.0.1", 0)
        async with asyncio.timeout(WAIT), listen.serving(app, listener):
            reader, writer = await asyncio.open_connection(*listener.getsockname())
            for _ in range(2):
                writer.write(REQUEST)
                assert (await reader.readuntil(b"hi")).startswith(b"HTTP/1.1 200")
            writer.close()

    asyncio.run(visit())
