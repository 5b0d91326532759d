"""A disk that is really full: refused in words, nothing acknowledged lost, and well again once there is room."""

import asyncio
import shlex
import subprocess
import uuid
from pathlib import Path

from openclaw_mcp.core.rpc import RpcError
from openclaw_mcp.net.gateway_client.client import GatewayClient
from openclaw_mcp.net.gateway_client.handshake import ClientInfo, ClientProfile, Credentials
from tests.programs import need_own
from tests.running import OPENCLAW, process, read_line

SIZE = "12m"
BALLAST = 4 << 20  # bytes that can be freed again
WORDS = "x" * 100_000
SCOPES = ("operator.read", "operator.write", "operator.admin")


async def send(gateway: GatewayClient, message: str) -> str:
    run = str(uuid.uuid4())
    await gateway.call("chat.send", {"sessionKey": f"s-{run}", "message": message, "idempotencyKey": run})
    return run


async def fill(gateway: GatewayClient) -> tuple[list[str], RpcError]:
    """What was acknowledged before the disk was full, and what was said then."""
    sent = []
    while True:
        try:
            sent.append(await send(gateway, WORDS))
        except RpcError as fault:
            return sent, fault


async def check(gateway: GatewayClient, runs: list[str]) -> None:
    for run in runs:
        page = await gateway.call("chat.history", {"sessionKey": f"s-{run}", "limit": 1000})
        assert [m for m in page["messages"] if m["role"] == "user"], run


def test_a_full_disk_is_said_and_nothing_acknowledged_is_lost(tmp_path: Path) -> None:
    own = need_own("mounts")
    disk = tmp_path / "disk"
    disk.mkdir()
    gateway_words = shlex.join([OPENCLAW, "gateway", "--port", "0", "--state-dir", str(disk)])
    mount = f"mount -t tmpfs -o size={SIZE} tmpfs {disk} && head -c {BALLAST} /dev/zero > {disk}/ballast"

    async def scenario(url: str, inside: Path) -> None:
        me = ClientInfo(id="cli", mode="cli", version="1", platform="linux")
        token = (inside / "gateway-token.txt").read_text().strip()
        profile = ClientProfile(client=me, scopes=SCOPES)
        async with GatewayClient(url, profile, credentials=Credentials(token=token), redial=False) as gateway:
            sent, fault = await fill(gateway)
            assert len(sent) > 5
            assert "no room" in str(fault) or "full" in str(fault), fault
            assert (await gateway.call("health"))["ok"] is True
            await check(gateway, sent)
            (inside / "ballast").unlink()
            late = await send(gateway, "after it was made room")
            ended = await gateway.call("agent.wait", {"runId": late, "timeoutMs": 30_000}, within=40)
            assert ended["status"] == "ok"
            await check(gateway, [*sent, late])

    # A small disk of its own, seen by this one process alone and gone with it.
    with process(*own, "sh", "-c", f"{mount} && exec {gateway_words}", stdout=subprocess.PIPE) as child:
        url = read_line(child).decode().split()[1]
        asyncio.run(scenario(url, Path(f"/proc/{child.pid}/root{disk}")))
