"""A run at another gateway: what that gateway sends is kept within bounds."""

import asyncio
from collections.abc import Callable
from typing import Any

from openclaw_mcp.net.gateway_client import remote_run


class Flooding:
    """Sends many events of a run before any of them is read, and its end."""

    def __init__(self, event: dict[str, Any]) -> None:
        self._event = event
        self._tell: Callable[[str, Any], None] = lambda event, payload: None

    def subscribe(self, handler: Callable[[str, Any], None]) -> Callable[[], None]:
        self._tell = handler
        return lambda: None

    async def call(self, method: str, params: dict[str, Any], *, within: float) -> Any:
        run = {"runId": params["idempotencyKey"]}
        for _ in range(remote_run.MOST_QUEUED_IN_ALL + 500):
            self._tell("agent", {**run, **self._event})
        self._tell("chat", {**run, "state": "final", "message": {"content": "done"}})
        return {}


def test_a_flood_of_events_is_bounded_and_the_end_still_comes() -> None:
    async def count(event: dict[str, Any]) -> int:
        params = {"sessionKey": "agent:main:main", "message": "hi"}
        run = remote_run.follow_remote_run(
            Flooding(event), params, streams={"tool", "assistant"}, timeout=1, stop_timeout=1
        )
        events = [each async for each in run]
        assert events[-1].is_end
        return len(events)

    tool = {"stream": "tool", "data": {"phase": "update", "partialResult": {}}}
    assert asyncio.run(count(tool)) == remote_run.MOST_QUEUED_IN_ALL + 1
    text = {"stream": "assistant", "data": {"delta": "x"}}
    assert asyncio.run(count(text)) == remote_run.MOST_QUEUED_EVENTS + 1
