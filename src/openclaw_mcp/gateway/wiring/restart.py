"""`gateway.restart.*`: the gateway starts again in the same process, with the config as it is then."""

import asyncio
import logging
import os
import time
from collections.abc import Callable, Sequence
from typing import Final

from ...config.file import Snapshot
from ...config.rpc_methods import ConfigUpdate
from ...core.config.keys import LISTENER_PATHS
from ...core.model import Json
from ...core.rpc import ADMIN, READ, RpcCall, RpcError, RpcMethod
from ...core.sessions import RunEnded, RunEvent

logger = logging.getLogger(__name__)

RESTART_DELAY: Final = 0.5  # seconds: the answer to the request must reach its caller first
RESTART_TIMEOUT: Final = 30.0  # seconds a restart waits for runs to end
RESTART_COOLDOWN: Final = 30.0  # seconds between two restarts: a loop of them would be worse than a late one


class InPlaceRestart:
    """An `RpcModule`."""

    def __init__(
        self, config: Callable[[], Snapshot], is_idle: Callable[[], bool], *, is_restart: bool = False
    ) -> None:
        self._config = config
        self._is_idle = is_idle
        self._requested = asyncio.Event()
        self._run_ended = asyncio.Event()
        self._not_before = time.monotonic() + (RESTART_COOLDOWN if is_restart else 0.0)

    def methods(self) -> Sequence[RpcMethod]:
        return (
            RpcMethod("gateway.restart.preflight", READ, self._preflight),
            RpcMethod("gateway.restart.request", ADMIN, self._request),
        )

    def on_run_event(self, event: RunEvent) -> None:
        if isinstance(event, RunEnded):
            self._run_ended.set()

    def on_config_change(self, change: ConfigUpdate) -> None:
        if LISTENER_PATHS.issuperset(change.paths):
            return  # a restart would not apply it
        mode = change.after.config.gateway.reload.mode
        if change.reload == "restart" and mode in ("hybrid", "restart") and self._is_allowed():
            self._requested.set()

    def _is_allowed(self) -> bool:
        return self._config().config.commands.restart

    async def wait_until_due(self) -> None:
        """Return once a restart was requested and no run is at work, or RESTART_TIMEOUT is over."""
        await self._requested.wait()
        await asyncio.sleep(max(RESTART_DELAY, self._not_before - time.monotonic()))
        try:
            async with asyncio.timeout(RESTART_TIMEOUT):
                while not self._is_idle():
                    self._run_ended.clear()
                    await self._run_ended.wait()
        except TimeoutError:
            logger.warning("restart: runs still at work after %g s, restarting all the same", RESTART_TIMEOUT)

    async def _preflight(self, call: RpcCall) -> Json:
        if self._is_idle():
            return {"safe": True, "counts": {"runs": 0}, "blockers": [], "summary": "no run is at work"}
        blocker = {"kind": "runs", "message": "runs are at work; a restart waits for them"}
        return {"safe": False, "counts": {"runs": 1}, "blockers": [blocker], "summary": "runs are at work"}

    async def _request(self, call: RpcCall) -> Json:
        if not self._is_allowed():
            raise RpcError("restarts are switched off in the config (commands.restart)", kind="FORBIDDEN")
        preflight = await self._preflight(call)
        self._requested.set()
        reason = call.params.get("reason")
        how = {"ok": True, "pid": os.getpid(), "signal": None, "mode": "emit", "delayMs": int(RESTART_DELAY * 1000)}
        how["reason"] = reason if isinstance(reason, str) else "gateway.restart.safe"
        return {"ok": True, "status": "scheduled", "preflight": preflight, "restart": how}
