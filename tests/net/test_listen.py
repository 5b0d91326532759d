"""A server beside other work: its failure ends that work, whenever it comes."""

import asyncio
from typing import Any

import pytest

from openclaw_mcp.net import listen


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
