"""The caretaker of the models: the runtimes that need them, sharing one wire, closed together."""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

from ...core.agents import Roster
from ...core.model import Json
from ...core.ports import AgentRuntime
from ...net.gateway_client.address import on_this_machine
from ..agents.models.gateway_runtime import FarGateway, OpenClawRuntime
from ..agents.models.model_clients import Shop
from ..agents.models.runtime import ModelRuntime


@asynccontextmanager
async def model_runtimes(
    folder: Path, config: Callable[[], Json], roster: Callable[[], Roster]
) -> AsyncIterator[Mapping[str, AgentRuntime]]:
    """`openai`, `anthropic` and `openclaw`. Entering costs nothing: what they need is made at the first turn."""

    def dial(url: str, token: str | None) -> AbstractAsyncContextManager[FarGateway]:
        # Here for start-up: only an agent of another gateway needs a WebSocket.
        from ...net.gateway_client.run_client import Remote, dialled

        # Never with the token kept here: it is our own gateway's, and this is another one.
        return Remote(url, token) if on_this_machine(url) else dialled(url, token, folder)

    shop = Shop()
    far = OpenClawRuntime(dial, config=config, roster=roster)
    apis = {id: ModelRuntime(id, shop, config=config, roster=roster) for id in ("openai", "anthropic")}
    try:
        yield {**apis, far.id: far}
    finally:
        await far.aclose()
        await shop.aclose()
