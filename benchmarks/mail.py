"""Does the mailroom keep up? A thousand inbound messages a second into `local` for a minute: none lost, order kept.

    python -P benchmarks/mail.py [--rate 1000] [--seconds 60] [--answered 20]

A real gateway in a process of its own, messages over WebSocket. Each is acknowledged when it is in its conversation
and in the inbox, on disk. The conversations are groups and nothing is said to the agent: every message is stored,
de-duplicated, judged and closed, and gets no answer. The second part says `--answered` messages a second to the demo
agent, which answers each; then every answer must be there, once and in order. (-P: a neighbour here is called http.)
"""

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from openclaw_mcp.core.rpc import ADMIN, READ, WRITE
from openclaw_mcp.net.gateway_client.client import GatewayClient
from openclaw_mcp.net.gateway_client.handshake import ClientInfo, ClientProfile, Credentials

CONNECTIONS = 4
CONVERSATIONS = 40
SETTLE = 120.0  # seconds for the last answers
TOKEN = "benchmark"
ME = ClientInfo(id="gateway-client", version="1", platform="linux", mode="backend")


@asynccontextmanager
async def gateway(folder: Path) -> AsyncIterator[tuple[str, int]]:
    openclaw = str(Path(sys.executable).with_name("openclaw"))
    environment = os.environ | {"OPENCLAW_STATE_DIR": str(folder), "OPENCLAW_GATEWAY_TOKEN": TOKEN}
    config = '{"channels":{"local":{"groups":{"*":{}}}},"messages":{"queue":{"mode":"followup"}}}'
    (folder / "openclaw.json").write_text(config)
    child = subprocess.Popen(  # noqa: ASYNC220  (once, before anything is measured)
        [openclaw, "gateway", "--port", "0"], env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        assert child.stdout is not None
        yield (await asyncio.to_thread(child.stdout.readline)).split()[1], child.pid
    finally:
        child.terminate()
        child.wait(30)


def processor(pid: int) -> float:
    """Seconds of processor time a process has used: what a message costs, however busy the machine."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def client(url: str) -> GatewayClient:
    profile = ClientProfile(client=ME, scopes=(READ, WRITE, ADMIN))
    return GatewayClient(url, profile, credentials=Credentials(token=TOKEN), redial=False)


async def pour(url: str, rate: float, seconds: float, names: list[str]) -> list[float]:
    """Offer messages at the rate, whatever the answers do; how long each waited for its acknowledgement."""
    waits: list[float] = []
    tasks: set[asyncio.Task[None]] = set()
    counts = dict.fromkeys(names, 0)

    async def one(link: GatewayClient, name: str, number: int, due: float) -> None:
        await link.call("local.send", {"conversation": name, "text": f"{name} {number}"})
        waits.append(time.perf_counter() - due)

    async with client(url) as a, client(url) as b, client(url) as c, client(url) as d:
        links = (a, b, c, d)
        start = time.perf_counter()
        for index in range(int(rate * seconds)):
            due = start + index / rate
            late = due - time.perf_counter()
            if late > 0.001:
                await asyncio.sleep(late)
            name = names[index % len(names)]
            # A conversation keeps to one connection: that is what its order means.
            task = asyncio.create_task(one(links[hash(name) % CONNECTIONS], name, counts[name], due))
            counts[name] += 1
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        await asyncio.gather(*tasks)
    return waits


async def texts(link: GatewayClient, name: str) -> list[Any]:
    found: list[Any] = []
    before: dict[str, Any] = {}
    while True:
        page = (await link.call("local.read", {"conversation": name, "limit": 500, **before}))["messages"]
        if not page:
            return found
        found = page + found
        before = {"before": page[0]["id"]}


def quantiles(waits: list[float]) -> str:
    ordered = sorted(waits)
    at = [ordered[min(len(ordered) - 1, int(len(ordered) * share))] * 1000 for share in (0.5, 0.99)]
    return f"acknowledged after {at[0]:.1f} ms (median), {at[1]:.1f} ms (p99), {ordered[-1] * 1000:.0f} ms at most"


async def unanswered(url: str, pid: int, rate: float, seconds: float) -> bool:
    used = processor(pid)
    names = [f"#room{number}" for number in range(CONVERSATIONS)]
    start = time.perf_counter()
    waits = await pour(url, rate, seconds, names)
    took, used = time.perf_counter() - start, processor(pid) - used
    total, lost, disorder = int(rate * seconds), 0, 0
    async with client(url) as link:
        for name in names:
            numbers = [int(message["text"].rsplit(" ", 1)[1]) for message in await texts(link, name)]
            lost += (total + CONVERSATIONS - 1 - names.index(name)) // CONVERSATIONS - len(set(numbers))
            disorder += numbers != sorted(set(numbers))
    print(
        f"{total} messages in {took:.1f} s ({total / took:.0f} a second), {len(waits)} acknowledged, {quantiles(waits)}"
    )
    print(f"lost {lost}, conversations out of order or with doubles {disorder}")
    print(f"processor time of the gateway: {used / total * 1e6:.0f} µs a message")
    return lost == 0 and disorder == 0 and len(waits) == total and took < seconds * 1.1


async def answered(url: str, rate: float, seconds: float) -> bool:
    names = [f"chat{number}" for number in range(CONVERSATIONS)]
    total = int(rate * seconds)
    waits = await pour(url, rate, seconds, names)
    start = time.perf_counter()
    async with client(url) as link:
        while True:
            pages = [await texts(link, name) for name in names]
            answers = sum(message["fromMe"] for page in pages for message in page)
            if answers >= total or time.perf_counter() - start > SETTLE:
                break
            await asyncio.sleep(0.5)
    settled = time.perf_counter() - start
    disorder = 0
    for page in pages:
        numbers = [int(m["text"].rsplit(" ", 1)[1]) for m in page if m["fromMe"]]
        disorder += numbers != sorted(set(numbers))
    print(
        f"answered: {total} at {rate:g} a second, {answers} answers, the last {settled:.1f} s after; {quantiles(waits)}"
    )
    print(f"lost {total - answers}, conversations out of order or with doubles {disorder}")
    return answers == total and disorder == 0


async def main(options: argparse.Namespace) -> int:
    with tempfile.TemporaryDirectory(prefix="mail-") as folder:
        async with gateway(Path(folder)) as (url, pid):
            good = await unanswered(url, pid, options.rate, options.seconds)
            if options.answered:
                good &= await answered(url, options.answered, min(options.seconds, 20.0))
    print("kept up" if good else "did NOT keep up")
    print(f"load average {statistics.fmean(os.getloadavg()):.1f} on {os.cpu_count()} processors")
    return 0 if good else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rate", type=float, default=1000.0)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--answered", type=float, default=20.0, help="messages a second to the demo agent; 0: none")
    sys.exit(asyncio.run(main(parser.parse_args())))
