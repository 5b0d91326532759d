"""A real OpenClaw: where it is, how its gateway is started, how its command line is run.

`make interop` fetches it into `.tools/interop`; `OPENCLAW_REAL`, a folder of the npm package `openclaw`, names another
one. Without it the tests that need it are skipped; under CI they fail.
"""

import asyncio
import contextlib
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from openclaw_mcp.net import listen
from openclaw_mcp.net.gateway_client.client import CannotConnect, GatewayClient
from openclaw_mcp.net.gateway_client.handshake import ClientProfile, Credentials

from ..gateway.rpc.gateways import BACKEND, EVERY
from ..programs import need_node, need_npm
from ..running import process

TOKEN = "interop-token"
START_WAIT = 180.0  # seconds a cold real gateway may take on a busy machine
CLI_WAIT = 90.0


def program() -> tuple[str, str]:
    """Node.js and the package's entry point."""
    folder = os.environ.get("OPENCLAW_REAL") or need_npm("openclaw")
    return need_node(), str(Path(folder) / "openclaw.mjs")


def environment(home: Path, **more: str) -> dict[str, str]:
    clean = {key: value for key, value in os.environ.items() if not key.startswith("OPENCLAW_")}
    return clean | {"HOME": str(home), "OPENCLAW_STATE_DIR": str(home / "state"), "NO_COLOR": "1", **more}


@contextlib.contextmanager
def gateway(home: Path, *, nodes: Any = None, **more: object) -> Iterator[str]:
    """A real gateway on a free port, with `more` in its config; yields its address once it says hello. `nodes`: its
    config's `gateway.nodes`."""
    node, entry = program()
    with listen.bind("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
    (home / "state").mkdir(parents=True)
    auth = {"mode": "token", "token": TOKEN}
    config: Any = {"gateway": {"mode": "local", "bind": "loopback", "port": port, "auth": auth}, **more}
    if nodes is not None:
        config["gateway"]["nodes"] = nodes
    (home / "state" / "openclaw.json").write_text(json.dumps(config))
    log = (home / "gateway.log").open("wb")
    with log, process(node, entry, "gateway", "run", env=environment(home), stdout=log, stderr=log):
        url = f"ws://127.0.0.1:{port}"
        asyncio.run(_awake(url))
        yield url


def command_line(home: Path, url: str, token: str, *words: str) -> "subprocess.CompletedProcess[str]":
    """The real command line against a gateway."""
    node, entry = program()
    return subprocess.run(
        [node, entry, *words],
        env=environment(home, OPENCLAW_GATEWAY_URL=url, OPENCLAW_GATEWAY_TOKEN=token),
        capture_output=True,
        text=True,
        timeout=CLI_WAIT,
        check=False,
    )


def client(url: str, token: str = TOKEN, *, caps: tuple[str, ...] = ()) -> GatewayClient:
    profile = ClientProfile(client=BACKEND, scopes=EVERY, caps=caps)
    return GatewayClient(url, profile, credentials=Credentials(token=token), redial=False)


async def _awake(url: str) -> None:
    async with asyncio.timeout(START_WAIT):
        while True:
            try:
                async with client(url) as caller:
                    await caller.call("health")
                    return
            except CannotConnect:
                await asyncio.sleep(0.5)
