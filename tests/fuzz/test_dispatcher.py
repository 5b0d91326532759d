"""Generated and mutated messages by the thousand, in a long run by the hundred thousand: no crash, no hang, no request
without its answer."""

import asyncio
import json
import os
import random
from typing import Any

import pytest

from openclaw_mcp.core.model import LOCAL_CALLER
from openclaw_mcp.mcp.server.exchange import Exchange, Peer
from openclaw_mcp.protocol import jsonrpc, mcp
from tests.conformance import everything
from tests.effort import often
from tests.fuzz.messages import Maker
from tests.running import echo_over_http, echo_over_stdio
from tests.web_client import send

SEED = int(os.environ.get("FUZZ_SEED", "20260728"))
IN_PROCESS = often(20_000, 200_000)
OVER_STDIO = often(10_000, 40_000)
OVER_HTTP = often(1_000, 3_000)
BATCH = 500
PIPE_WAIT = 120.0
MOST_STEPS = 200


def test_the_dispatcher_answers_everything_with_a_result_or_an_rpc_error() -> None:
    maker = Maker(random.Random(SEED))
    served = 0

    async def one(server: Any, line: bytes) -> None:
        nonlocal served
        message = jsonrpc.decode_message(line)
        if not isinstance(message, jsonrpc.JsonRpcRequest):
            return
        served += 1

        async def write(data: bytes) -> None:
            json.loads(data)

        peer = Peer(accepts_requests=False)
        try:
            envelope = mcp.stateless_envelope(message) if mcp.is_stateless(message) else peer.envelope(message)
            answer = server.answer(Exchange(message, envelope, LOCAL_CALLER, peer=peer, write=write))
            result = await asyncio.wait_for(answer, 5)
        except jsonrpc.JsonRpcError as exc:
            data = jsonrpc.encode_error(message.id, exc)
        except TimeoutError:
            assert message.method in ("subscriptions/listen", "tools/call"), message
            return
        else:
            data = jsonrpc.encode_result(message.id, result)
        assert json.loads(data)["id"] == message.id

    async def all_of_them() -> None:
        server = everything.server()
        for _ in range(IN_PROCESS):
            await one(server, maker.line(waits=False))
        await server.aclose()

    asyncio.run(all_of_them())
    assert served > IN_PROCESS // 20


def test_the_pipe_answers_every_request_id() -> None:
    maker = Maker(random.Random(SEED + 1))
    with echo_over_stdio() as server:
        for start in range(0, OVER_STDIO, BATCH):
            lines = [maker.line(waits=False).replace(b"\n", b" ") for _ in range(min(BATCH, OVER_STDIO - start))]
            mark = f"mark-{start}"
            server.write(
                b"\n".join(lines)
                + b"\n"
                + json.dumps({"jsonrpc": "2.0", "id": mark, "method": "ping"}).encode()
                + b"\n"
            )
            owed = [
                json.dumps(m.id) for m in map(jsonrpc.decode_message, lines) if isinstance(m, jsonrpc.JsonRpcRequest)
            ]
            answered: list[str] = []
            while True:
                message = server.receive(PIPE_WAIT)
                if message.get("id") == mark:
                    break
                answered.append(json.dumps(message.get("id")))
            for id in set(owed):
                assert answered.count(id) >= 1, f"{id} of batch {start} was never answered"
        assert server.hang_up() == 0
        assert server.child.stderr is not None
        assert b"Traceback" not in server.child.stderr.read()


def test_the_endpoint_answers_every_body() -> None:
    chance = random.Random(SEED + 2)
    maker = Maker(chance)
    with echo_over_http() as address:
        for _ in range(OVER_HTTP):
            headers = {}
            if chance.random() < 0.5:
                headers["MCP_Protocol_Version"] = chance.choice(["2026-07-28", "2025-06-18", "x", "2031-01-01"])
            if chance.random() < 0.5:
                headers["Mcp_Method"] = chance.choice(["tools/call", "tools/list", "server/discover", "x"])
            if chance.random() < 0.3:
                headers["Mcp_Name"] = chance.choice(["echo", "nobody", "=?base64?ZWNobw==?=", "=?base64?!?="])
            if chance.random() < 0.1:
                headers["MCP_Session_Id"] = chance.choice(["x", "0" * 32, "\x7f"])
            answer = send(address, "POST", maker.line(waits=False), **headers)
            assert answer.status in (200, 202, 400, 404), answer.body
        assert send(address, "POST", b'{"jsonrpc":"2.0","id":1,"method":"ping"}').json["result"] == {}


@pytest.mark.parametrize("data", [b"", b"\n" * 1000, b"\x00" * 1000, b"{" * 1000, b'"' * 999])
def test_noise_on_the_pipe_leaves_the_server_alive(data: bytes) -> None:
    with echo_over_stdio() as server:
        server.write(data + b'\n{"jsonrpc":"2.0","id":"alive","method":"ping"}\n')
        for _ in range(MOST_STEPS):
            if server.receive().get("id") == "alive":
                return
        raise AssertionError("no sign of life")
