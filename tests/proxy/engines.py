"""Each test runs on every engine: sessions in memory, and sessions in a real Redis."""

import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from openclaw_mcp.proxy.settings import Settings

from .world import Proxy, proxy

Start = Callable[..., AbstractAsyncContextManager[Proxy]]


@pytest.fixture(params=["memory"])
def proxies(request: pytest.FixtureRequest) -> Start:
    """Starts a proxy with the settings given."""

    @contextlib.asynccontextmanager
    async def start(**settings: Any) -> AsyncIterator[Proxy]:
        async with proxy(Settings(**{"audit": "off", **settings})) as running:
            yield running

    return start
