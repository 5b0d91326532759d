"""Two real processes and a real Redis: what happens when one of the three goes."""

import asyncio
import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest

from openclaw_mcp.proxy.engine import limits
from openclaw_mcp.proxy.settings import ProxySettings

from ..running import OPENCLAW, READY_WAIT, process, read_line
from .engines import Redis, one_redis, redis
from .proxies import Proxy, proxy, soon, text_of

__all__ = ["one_redis", "redis"]


@contextlib.contextmanager
def instance(url: str, **environment: str) -> Iterator[tuple[Proxy, subprocess.Popen[bytes]]]:
    variables = {"OPENCLAW_PROXY_REDIS_URL": url, "OPENCLAW_PROXY_AUDIT": "off", **environment}
    with (
        mock.patch.dict(os.environ, variables),
        process(OPENCLAW, "proxy", "--port", "0", stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as child,
    ):
        yield Proxy(read_line(child, READY_WAIT).decode().split()[-1]), child


def test_an_instance_that_dies_takes_only_its_own_bridges_and_apps_come_back_elsewhere(redis: Redis) -> None:
    async def main() -> None:
        with instance(redis.url) as (doomed, child), instance(redis.url) as (other, _):
            lost, surviving = (await doomed.create())["mcpSessionId"], (await doomed.create())["mcpSessionId"]
            async with other.app(surviving) as witness:
                async with doomed.app(lost) as app:
                    calls = [asyncio.create_task(other.call(lost, "hold")) for _ in range(3)]
                    for _ in calls:
                        await app.holding()
                    spared = asyncio.create_task(other.call(surviving, "hold"))
                    held = await witness.holding()
                    start = time.monotonic()
                    os.kill(child.pid, signal.SIGKILL)
                    for call in calls:
                        assert "Bridge is not connected" in text_of(await soon(call))
                    assert time.monotonic() - start < 5
                assert "Bridge is not connected" in text_of(await other.call(lost))
                async with other.app(lost):
                    assert (await other.call(lost))["isError"] is False
                await witness.result(held, "untouched")
                assert text_of(await soon(spared)) == "untouched"

    asyncio.run(main())


def test_metrics_are_served_while_redis_is_away(redis: Redis) -> None:
    async def main() -> None:
        with instance(redis.url) as (at, _):
            assert b"openclaw_proxy_sessions 0" in (await at.send("GET", "/metrics")).body
            redis.stop()
            printed = await at.send("GET", "/metrics")
            redis.start()
            assert printed.status == 200
            assert b"openclaw_proxy_bridges 0" in printed.body

    asyncio.run(main())


DEEP = b"\x91" * 5000 + b"\xc0"  # lists within each other, as MessagePack writes them


@pytest.mark.parametrize(
    "data",
    [
        b"garbage",
        DEEP,
        b"\x96\xa4gone\xa1x\xa1y\xa0\x00" + DEEP,  # news with more behind it
        b"\x91\x98\xa4done\xa1x\x01\xa0\xa0\xc4\x00\x00" + DEEP,  # a note with more behind it
        b"\x91\x96\xa4done\xa1x\x01\xa0\xa0\xc4\x01[",  # an answer that is none
    ],
)
def test_a_message_in_redis_that_is_not_understood_is_skipped(redis: Redis, data: bytes) -> None:
    async def main() -> None:
        with instance(redis.url) as (near, _), instance(redis.url) as (far, _):
            id = (await near.create())["mcpSessionId"]
            async with near.app(id):
                assert (await far.call(id))["isError"] is False
                channels = redis.ask(b"PUBSUB CHANNELS openclaw:proxy:*\r\n").split(b"\r\n")[2::2]
                assert len(channels) == 3  # the news, and one for each instance
                for channel in channels:
                    words = b"*3\r\n$7\r\nPUBLISH\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n"
                    assert redis.ask(words % (len(channel), channel, len(data), data)).startswith(b":")
                for _ in range(3):
                    assert (await far.call(id))["isError"] is False

    asyncio.run(main())


def test_a_restart_of_redis_that_forgets_everything_costs_no_app_its_bridge(redis: Redis) -> None:
    async def main() -> None:
        with instance(redis.url) as (near, _), instance(redis.url) as (far, _):
            id = (await near.create())["mcpSessionId"]
            async with near.app(id) as app:
                assert (await far.call(id))["isError"] is False
                waiting = asyncio.create_task(far.call(id, "hold"))
                await app.holding()
                here = asyncio.create_task(near.call(id, "hold"))
                held = await app.holding()
                redis.stop()
                assert (await soon(waiting))["isError"] is True
                assert (await near.call(id))["isError"] is False
                assert (await near.send("POST", "/v1/chat/sessions", {})).status == 503
                redis.start()
                await app.result(held, "unharmed")
                assert text_of(await soon(here)) == "unharmed"
                await soon(answered(far, id))
                assert (await near.send("GET", f"/v1/chat/sessions/{id}")).json["connected"] is True

    asyncio.run(main())


async def answered(at: Proxy, id: str) -> None:
    """Wait until a call through `at` works again."""
    body: Any = {"jsonrpc": "2.0", "id": 1, "method": "tools/call"}
    body["params"] = {"name": "echo_text", "arguments": {"text": "x"}}
    while True:
        answer = await at.send("POST", f"/v1/mcp/{id}", body)
        if answer.status == 200 and not answer.json["result"]["isError"]:
            return
        await asyncio.sleep(0.1)


def test_a_second_bridge_at_another_instance_is_refused_while_the_first_answers(redis: Redis) -> None:
    async def main() -> None:
        settings = ProxySettings(audit="off", redis_url=redis.url)
        async with proxy(settings) as first, proxy(settings) as second:
            id = (await first.create())["mcpSessionId"]
            async with first.app(id) as app:
                assert (await second.refused(id))[0] == 4409
                app.freeze()
                async with second.app(id):
                    assert (await first.call(id))["isError"] is False
            async with first.app(id):
                assert (await second.call(id))["isError"] is False

    asyncio.run(main())


def test_a_rate_holds_for_all_instances_together(redis: Redis) -> None:
    async def main() -> None:
        settings = ProxySettings(audit="off", redis_url=redis.url, app_rate=limits.parse_rate("1/h:3"))
        async with proxy(settings) as first, proxy(settings) as second:
            statuses = [(await at.send("GET", "/v1/chat/sessions")).status for at in (first, second, first, second)]
            assert statuses == [200, 200, 200, 429]

    asyncio.run(main())


def test_a_session_deleted_at_one_instance_is_gone_at_all(redis: Redis) -> None:
    async def main() -> None:
        settings = ProxySettings(audit="off", redis_url=redis.url)
        async with proxy(settings) as first, proxy(settings) as second:
            id = (await first.create())["mcpSessionId"]
            async with second.app(id) as app:
                waiting = asyncio.create_task(first.call(id, "hold"))
                await app.holding()
                await first.send("DELETE", f"/v1/chat/sessions/{id}")
                assert "The session was unregistered" in text_of(await soon(waiting))
                await soon(app.socket.wait_closed())
                assert app.socket.close_code == 4410
            assert (await second.send("POST", f"/v1/mcp/{id}", {})).status == 404

    asyncio.run(main())


def test_a_missing_redis_is_reported_at_the_start() -> None:
    environment = {"OPENCLAW_PROXY_REDIS_URL": "redis://127.0.0.1:1/0"}
    with mock.patch.dict(os.environ, environment):
        result = subprocess.run(
            [OPENCLAW, "proxy", "--port", "0"], capture_output=True, timeout=READY_WAIT, check=False
        )
    assert result.returncode == 1
    assert b"no Redis answers" in result.stderr


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_without_tokens_only_this_machine_is_served(host: str) -> None:
    words = [OPENCLAW, "proxy", "--port", "0", "--host", host]
    result = subprocess.run(words, capture_output=True, timeout=READY_WAIT, check=False)
    assert result.returncode == 1
    assert b"OPENCLAW_PROXY_APP_TOKEN and OPENCLAW_PROXY_OPENCLAW_TOKEN" in result.stderr


def test_insecure_means_open() -> None:
    words = [OPENCLAW, "proxy", "--port", "0", "--host", "0.0.0.0", "--insecure"]
    with process(*words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        assert read_line(child, READY_WAIT).startswith(b"proxy: http://0.0.0.0:")
        assert child.stderr is not None
        assert b"open to everybody" in child.stderr.readline()


@pytest.mark.parametrize(
    ("settings", "words", "says"),
    [
        ({}, ("--host", "nohost.invalid", "--insecure"), "can't listen on nohost.invalid"),
        ({}, ("--host", "192.0.2.1", "--insecure"), "can't listen on 192.0.2.1"),
        ({"OPENCLAW_PROXY_REDIS_URL": "foo"}, (), "OPENCLAW_PROXY_REDIS_URL is no address of a Redis"),
        ({"OPENCLAW_PROXY_PUBLIC_URL": "proxy.example.com"}, (), "begin it with http:// or https://"),
        ({"OPENCLAW_PROXY_APP_TOKEN": "pässwörd"}, (), "OPENCLAW_PROXY_APP_TOKEN holds characters"),
    ],
)
def test_what_it_can_not_start_with_is_one_sentence(settings: Any, words: Any, says: str) -> None:
    command = [OPENCLAW, "proxy", "--port", "0", *words]
    with mock.patch.dict(os.environ, settings):
        printed = subprocess.run(command, capture_output=True, text=True, timeout=READY_WAIT, check=False)
    assert printed.returncode != 0
    assert says in printed.stderr
    assert "Traceback" not in printed.stderr


def test_the_token_of_an_app_is_never_logged() -> None:
    secret = "not-for-any-log"
    variables = {"OPENCLAW_PROXY_APP_TOKEN": secret, "OPENCLAW_PROXY_OPENCLAW_TOKEN": secret}

    async def main(at: Proxy) -> None:
        headers = {"Authorization": f"Bearer {secret}"}
        created = await at.send("POST", "/v1/chat/sessions", {"tools": []}, **headers)
        async with at.app(created.json["mcpSessionId"], additional_headers=headers):
            pass

    with (
        mock.patch.dict(os.environ, variables),
        process(OPENCLAW, "proxy", "-v", "--port", "0", stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child,
    ):
        asyncio.run(main(Proxy(read_line(child, READY_WAIT).decode().split()[-1])))
        child.terminate()
        assert child.stderr is not None
        assert secret.encode() not in child.stderr.read()
