"""A server beside other work: its failure ends that work, whenever it comes."""

import asyncio
from typing import Any

import pytest

from openclaw_mcp.net import listen
from openclaw_mcp.net.http_protocol import BoundedHttp
from openclaw_mcp.net.tasks import Tasks


async def app(scope: Any, receive: Any, send: Any) -> None:
    raise AssertionError("no request is sent")


@pytest.mark.parametrize("ready", [False, True])
def test_a_server_that_fails_ends_the_block_it_serves(ready: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    async def serve(self: Any, sockets: Any = None) -> None:
        await asyncio.sleep(0)
        if ready:
            self._on_ready()
            await asyncio.sleep(0.01)
        raise OSError("the listener is gone")

    monkeypatch.setattr(listen._NoSignalServer, "serve", serve)

    async def main() -> None:
        listener = listen.bind("127.0.0.1", 0)
        try:
            async with asyncio.timeout(10), listen.serve_in_background(app, listener):
                await asyncio.Event().wait()
        finally:
            listener.close()

    with pytest.raises(OSError, match="the listener is gone"):
        asyncio.run(main())


def test_a_connection_that_is_accepted_while_the_server_stops_is_closed_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise AssertionError("no request is made")

    async def scenario() -> None:
        listener = listen.bind("127.0.0.1", 0)
        address, loop = listener.getsockname(), asyncio.get_running_loop()
        accept_later = asyncio.Event()
        made = BoundedHttp.connection_made

        def make_late(protocol: BoundedHttp, transport: Any) -> None:
            # As if the loop had come to it only after the server's connections were told to end.
            tasks.spawn(hold_back(protocol, transport), name="accept")

        async def hold_back(protocol: BoundedHttp, transport: Any) -> None:
            await accept_later.wait()
            made(protocol, transport)

        monkeypatch.setattr(BoundedHttp, "connection_made", make_late)
        async with Tasks("test") as tasks:
            async with listen.serve_in_background(app, listener):
                reader, writer = await asyncio.open_connection(*address)
                await asyncio.sleep(0)
                loop.call_later(0.3, accept_later.set)
            async with asyncio.timeout(10):
                assert await reader.read() == b""
            writer.close()

    asyncio.run(scenario())
