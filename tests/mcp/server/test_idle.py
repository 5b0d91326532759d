"""Connections nobody uses are closed; one that is used, or is being answered, is not."""

import asyncio

import pytest

from openclaw_mcp.net import listen

REQUEST = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
IDLE = 0.2
WAIT = 20.0


async def _hello(scope: object, receive: object, send: object) -> None:
    assert callable(send)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"hi"})


class Moved(asyncio.SelectorEventLoop):
    """A loop whose clock a test moves on."""

    ahead = 0.0

    def time(self) -> float:
        return super().time() + self.ahead


def test_a_connection_is_closed_once_it_has_been_idle_long_enough() -> None:
    async def visit() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, Moved)
        listener = listen.bind("127.0.0.1", 0)
        async with asyncio.timeout(WAIT + 10 * listen.KEEP_ALIVE), listen.serve_in_background(_hello, listener):
            reader, writer = await asyncio.open_connection(*listener.getsockname())
            for _ in range(4):  # each within the idle time of the one before, all together beyond it
                loop.ahead += listen.KEEP_ALIVE * 0.6
                writer.write(REQUEST)
                assert (await reader.readuntil(b"hi")).startswith(b"HTTP/1.1 200")
            loop.ahead += listen.KEEP_ALIVE * 1.1
            assert await reader.read() == b"", "the server has closed it"
            writer.close()

    with asyncio.Runner(loop_factory=Moved) as runner:
        runner.run(visit())


def test_an_answer_may_take_longer_than_a_connection_may_be_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listen, "KEEP_ALIVE", IDLE)
    takes = iter((0, 3 * IDLE))

    async def app(scope: object, receive: object, send: object) -> None:
        await asyncio.sleep(next(takes))
        await _hello(scope, receive, send)

    async def visit() -> None:
        listener = listen.bind("127.0.0.1", 0)
        async with asyncio.timeout(WAIT), listen.serve_in_background(app, listener):
            reader, writer = await asyncio.open_connection(*listener.getsockname())
            for _ in range(2):
                writer.write(REQUEST)
                assert (await reader.readuntil(b"hi")).startswith(b"HTTP/1.1 200")
            writer.close()

    asyncio.run(visit())
