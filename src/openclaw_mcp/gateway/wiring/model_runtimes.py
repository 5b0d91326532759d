"""The runtimes that call models, loaded by the first turn that needs one, and closed together; `secrets.reload`."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from ...core.agent import AgentEvent, Turn
from ...core.agents import AgentRoster
from ...core.config.config import Config
from ...core.ports import AgentRuntime
from ...core.rpc import ADMIN, RpcCall, RpcMethod
from ...net.gateway_client.address import is_local_gateway

if TYPE_CHECKING:
    # For the types alone: an idle gateway calls no models.
    from ...core.gateway_port import EventGateway
    from ..agents.models.model_clients import ModelClients

MODEL_APIS: Final = ("openai", "anthropic")
GATEWAY_RUNTIME: Final = "openclaw"


@asynccontextmanager
async def model_runtimes(
    folder: Path, config: Callable[[], Config], roster: Callable[[], AgentRoster]
) -> AsyncIterator["ModelRuntimes"]:
    """Entering costs nothing: what the runtimes need is made at the first turn."""
    runtimes = ModelRuntimes(folder, config, roster)
    try:
        yield runtimes
    finally:
        await runtimes.aclose()


class ModelRuntimes:
    """`openai`, `anthropic` and `openclaw`, made when one of them is first needed; they share their connections. An
    `RpcModule`."""

    def __init__(self, folder: Path, config: Callable[[], Config], roster: Callable[[], AgentRoster]) -> None:
        self._folder = folder
        self._config = config
        self._roster = roster
        self._loaded: dict[str, AgentRuntime] = {}
        self._clients: ModelClients | None = None
        self.by_name = {name: LazyRuntime(name, self.get) for name in (*MODEL_APIS, GATEWAY_RUNTIME)}
        self._stack = AsyncExitStack()

    def get(self, name: str) -> AgentRuntime:
        if not self._loaded:
            # Here for start-up and memory: none of this is needed before an agent calls a model.
            from ..agents.models.gateway_runtime import OpenClawRuntime
            from ..agents.models.model_clients import ModelClients
            from ..agents.models.runtime import ModelRuntime  # here for start-up, as above

            clients = self._clients = ModelClients()
            remote = OpenClawRuntime(self._dial, config=self._config, roster=self._roster)
            self._stack.push_async_callback(clients.aclose)
            self._stack.push_async_callback(remote.aclose)
            for api in MODEL_APIS:
                self._loaded[api] = ModelRuntime(api, clients, config=self._config, roster=self._roster)
            self._loaded[remote.id] = remote
        return self._loaded[name]

    async def aclose(self) -> None:
        await self._stack.aclose()

    def methods(self) -> Sequence[RpcMethod]:
        return (RpcMethod("secrets.reload", ADMIN, self._reload_secrets),)

    async def _reload_secrets(self, call: RpcCall) -> dict[str, bool | int]:
        """Have the keys of providers, which are kept once read, read again. A channel reads its own when it starts."""
        if self._clients is not None:
            self._clients.forget_keys()
        return {"ok": True, "warningCount": 0}

    def _dial(self, url: str, token: str | None) -> "AbstractAsyncContextManager[EventGateway]":
        # Here for start-up: only an agent of another gateway needs a WebSocket.
        from ...net.gateway_client.run_client import WebSocketGateway, make_gateway_client

        # Never with the token stored here: it is our own gateway's, and this is another one.
        return WebSocketGateway(url, token) if is_local_gateway(url) else make_gateway_client(url, token, self._folder)


class LazyRuntime(Struct, frozen=True):
    """An `AgentRuntime` that is loaded when it is first used."""

    id: str
    load: Callable[[str], AgentRuntime]
    """The runtime of that name, the same each time."""

    @property
    def media_types(self) -> tuple[str, ...]:
        return self.load(self.id).media_types

    def run(self, turn: Turn) -> AsyncIterator[AgentEvent]:
        return self.load(self.id).run(turn)
