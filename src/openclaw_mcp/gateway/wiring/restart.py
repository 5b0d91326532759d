"""`gateway.restart.*`: the same process begins anew, with the config as it is then."""

import asyncio
import logging
import os
import time
from collections.abc import Callable, Sequence
from typing import Final

from ...config.file import Snapshot
from ...config.rpc_methods import Change
from ...core.model import Json
from ...core.ports import Runner
from ...core.rpc import ADMIN, READ, Fault, Method, RpcCall
from ...core.sessions import RunNews, RunOver

logger = logging.getLogger(__name__)

RESTART_DELAY: Final = 0.5  # seconds: the answer to the request must reach its caller first
RESTART_PATIENCE: Final = 30.0  # seconds a restart waits for runs to end
RESTART_COOLDOWN: Final = 30.0  # seconds between two restarts: a loop of them would be worse than a late one


class Restart:
    """`gateway.restart.*`: the same process begins anew, with the config as it is then."""

    def __init__(
        self, runner: Runner, config: Callable[[], Snapshot], idle: Callable[[], bool], *, again: bool = False
    ) -> None:
        self._config = config
        self._idle = idle
        self._asked = asyncio.Event()
        self._quiet = asyncio.Event()
        self._not_before = time.monotonic() + (RESTART_COOLDOWN if again else 0.0)
        runner.news.listen(self._heard)

    def methods(self) -> Sequence[Method]:
        return (
            Method("gateway.restart.preflight", READ, self._preflight),
            Method("gateway.restart.request", ADMIN, self._request),
        )

    def _heard(self, news: RunNews) -> None:
        if isinstance(news, RunOver):
            self._quiet.set()

    def config_changed(self, change: Change) -> None:
        mode = change.after.config.get("gateway", {}).get("reload", {}).get("mode", "hybrid")
        if change.reload == "restart" and mode in ("hybrid", "restart") and self._allowed():
            self._asked.set()

    def _allowed(self) -> bool:
        return bool(self._config().config.get("commands", {}).get("restart", True))

    async def due(self) -> None:
        """Return when it is time."""
        await self._asked.wait()
        await asyncio.sleep(max(RESTART_DELAY, self._not_before - time.monotonic()))
        try:
            async with asyncio.timeout(RESTART_PATIENCE):
                while not self._idle():
                    self._quiet.clear()
                    await self._quiet.wait()
        except TimeoutError:
            logger.warning("runs still go after %g s; restarting all the same", RESTART_PATIENCE)

    async def _preflight(self, call: RpcCall) -> Json:
        blockers = [] if self._idle() else [{"kind": "runs", "message": "runs are going; a restart waits for them"}]
        summary = "nothing is going" if self._idle() else "runs are going"
        return {"safe": self._idle(), "counts": {"runs": len(blockers)}, "blockers": blockers, "summary": summary}

    async def _request(self, call: RpcCall) -> Json:
        if not self._allowed():
            raise Fault("restarts are switched off in the config (commands.restart)", kind="FORBIDDEN")
        preflight = await self._preflight(call)
        self._asked.set()
        reason = call.params.get("reason")
        how = {"ok": True, "pid": os.getpid(), "signal": None, "mode": "emit", "delayMs": int(RESTART_DELAY * 1000)}
        how["reason"] = reason if isinstance(reason, str) else "gateway.restart.safe"
        return {"ok": True, "status": "scheduled", "preflight": preflight, "restart": how}
