"""Servers that are addresses: both eras, sessions, streams, restarts."""

import asyncio
import contextlib
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from openclaw_mcp.core.errors import ToolError, ToolTimeout, ToolUnavailable
from openclaw_mcp.core.model import Json
from openclaw_mcp.mcp.client.server_pool import McpServerPool
from openclaw_mcp.protocol.mcp import NEWEST_HANDSHAKE
from tests.mcp.client.servers import Person, call, run, text
from tests.programs import need
from tests.running import OPENCLAW, everything_over_http, http_server

ERAS = ["handshake", "stateless"]


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with everything_over_http() as address:
        yield address


def entry(address: str, era: str = "auto", **more: object) -> dict[str, Json]:
    return {"all": {"url": address, "protocol": era, **more}}


@pytest.mark.parametrize("era", ["auto", *ERAS])
def test_tools_are_listed_and_called_in_either_era(address: str, era: str) -> None:
    async def scene() -> None:
        async with McpServerPool(entry(address, era)) as roster:
            server = roster.find("all")
            client = await server.start()

            assert client.version == (NEWEST_HANDSHAKE if era == "handshake" else "2026-07-28")
            assert text(await call(server, "greet", {"name": "Ada"})) == "Hello, Ada!"
            mixed = await call(server, "test_multiple_content_types")
            assert [type(block).__name__ for block in mixed.content] == ["Text", "Image", "Embedded"]
            failed = await call(server, "test_error_handling")
            assert failed.failed

    run(scene())


@pytest.mark.parametrize("era", ERAS)
def test_progress_and_questions_come_through(address: str, era: str) -> None:
    async def scene() -> None:
        async with McpServerPool(entry(address, era)) as roster:
            server = roster.find("all")
            await server.start()
            person = Person()

            await call(server, "test_tool_with_progress", line=person)
            answer = await call(server, "test_input_required_result_elicitation", line=person)

            assert person.steps == [0, 50, 100]
            assert "Ada" in text(answer)
            assert person.asked[0].params["message"] == "What is your name?"

    run(scene())


@pytest.mark.parametrize("era", ERAS)
def test_a_question_that_can_not_be_answered_fails_the_call_or_counts_as_cancelled(address: str, era: str) -> None:
    async def scene() -> None:
        async with McpServerPool(entry(address, era)) as roster:
            server = roster.find("all")
            await server.start()

            if era == "stateless":
                with pytest.raises(ToolError, match="elicitation"):
                    await call(server, "test_elicitation", {"message": "Well?"})
            else:
                assert "cancel" in text(await call(server, "test_elicitation", {"message": "Well?"}))

    run(scene())


@pytest.mark.parametrize("era", ERAS)
def test_a_cancelled_call_ends_at_the_server(address: str, era: str) -> None:
    async def scene() -> None:
        async with McpServerPool(entry(address, era)) as roster:
            server = roster.find("all")
            await server.start()

            async def running() -> str:
                return text(await call(server, "test_count_running"))

            waiting = asyncio.ensure_future(call(server, "test_wait_for_ever"))
            while await running() != "1":
                pass
            waiting.cancel()
            await asyncio.wait([waiting])

            while await running() != "0":
                pass

    run(scene())


@pytest.mark.parametrize("era", ERAS)
def test_a_call_without_an_answer_times_out(address: str, era: str) -> None:
    async def scene() -> None:
        async with McpServerPool(entry(address, era, requestTimeoutMs=200)) as roster:
            server = roster.find("all")
            await server.start()

            with pytest.raises(ToolTimeout):
                await call(server, "test_wait_for_ever")

    run(scene())


@pytest.mark.parametrize("era", ERAS)
def test_a_list_change_is_followed(address: str, era: str) -> None:
    async def scene() -> None:
        async with McpServerPool(entry(address, era)) as roster:
            server = roster.find("all")
            client = await server.start()
            received = asyncio.Event()
            client.changed.connect(lambda _: received.set())

            await call(server, "test_trigger_tool_change")

            await received.wait()

    run(scene())


def test_a_stream_that_hangs_up_is_taken_up_again(address: str) -> None:
    async def scene() -> None:
        async with McpServerPool(entry(address, "handshake")) as roster:
            server = roster.find("all")
            await server.start()

            assert "second connection" in text(await call(server, "test_reconnection"))

    run(scene())


@pytest.mark.parametrize("era", ERAS)
def test_fifty_calls_at_once(address: str, era: str) -> None:
    async def scene() -> None:
        async with McpServerPool(entry(address, era)) as roster:
            server = roster.find("all")
            await server.start()

            names = [f"guest {number}" for number in range(50)]
            results = await asyncio.gather(*(call(server, "greet", {"name": name}) for name in names))

            assert [text(result) for result in results] == [f"Hello, {name}!" for name in names]

    run(scene())


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def echo_at(port: int) -> contextlib.AbstractContextManager[str]:
    return http_server(OPENCLAW, "echo", "--http", "--port", str(port))


@pytest.mark.parametrize("era", ERAS)
def test_a_server_restarted_between_calls_is_found_again(era: str) -> None:
    async def scene() -> None:
        port = free_port()
        with echo_at(port) as address:
            roster = McpServerPool({"echo": {"url": address, "protocol": era}})
            server = roster.find("echo")
            await server.start()
            assert text(await call(server, "echo", {"text": "before"})) == "before"
        async with roster:
            with pytest.raises(ToolUnavailable, match="can't be reached"):
                await call(server, "echo", {"text": "while it is down"})
            with echo_at(port):
                assert text(await call(server, "echo", {"text": "after"})) == "after"

    run(scene())


def test_every_call_that_meets_a_forgotten_session_is_made_again() -> None:
    async def scene() -> None:
        port = free_port()
        with echo_at(port) as address:
            roster = McpServerPool({"echo": {"url": address, "protocol": "handshake"}})
            server = roster.find("echo")
            await server.start()
        async with roster:
            with echo_at(port):
                results = await asyncio.gather(*(call(server, "echo", {"text": str(number)}) for number in range(40)))

                assert [text(result) for result in results] == [str(number) for number in range(40)]

    run(scene())


def test_a_server_that_goes_away_in_mid_call_fails_it_at_once() -> None:
    async def scene() -> None:
        with everything_over_http() as address:
            roster = McpServerPool({"all": {"url": address, "protocol": "stateless"}})
            server = roster.find("all")
            await server.start()
            waiting = asyncio.ensure_future(call(server, "test_wait_for_ever"))
            while text(await call(server, "test_count_running")) != "1":
                pass
        async with roster:
            with pytest.raises(ToolUnavailable, match="broke the connection"):
                await waiting

    run(scene())


def test_an_address_without_a_server_is_reported_in_one_sentence() -> None:
    async def scene() -> None:
        async with McpServerPool({"echo": {"url": f"http://127.0.0.1:{free_port()}/mcp"}}) as roster:
            with pytest.raises(ToolUnavailable, match="echo can't be reached at its address"):
                await roster.find("echo").start()

    run(scene())


def answering(
    status: str, *more: str, body: bytes = b""
) -> contextlib.AbstractAsyncContextManager[tuple[str, list[bytes]]]:
    """An HTTP server with one answer for everything, and what it was sent."""

    @contextlib.asynccontextmanager
    async def serving():  # type: ignore[no-untyped-def]  # the outer function says what it yields
        received: list[bytes] = []

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            received.append(await reader.readuntil(b"\r\n\r\n"))
            length = re.search(rb"content-length: (\d+)", received[-1], re.IGNORECASE)
            await reader.readexactly(int(length[1]) if length else 0)
            lines = [f"HTTP/1.1 {status}", f"content-length: {len(body)}", "connection: close", *more]
            writer.write("\r\n".join([*lines, "", ""]).encode() + body)
            await writer.drain()
            writer.close()

        async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/mcp", received

    return serving()


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        ("401 Unauthorized", "does not accept our credential"),
        ("403 Forbidden", "does not accept our credential"),
        ("307 Temporary Redirect", "has moved"),
        ("404 Not Found", "check its `url`"),
        ("500 Oops", "check its `url`"),
        ("200 OK", "check its `url`"),
    ],
)
def test_a_status_that_is_no_answer_is_explained(status: str, reason: str) -> None:
    async def scene() -> None:
        async with answering(status, "location: http://127.0.0.1:9/") as (address, received):
            async with McpServerPool(
                {"web": {"url": address, "headers": {"Authorization": "Bearer ${WEB_TOKEN}"}}}, ENV
            ) as roster:
                with pytest.raises(ToolUnavailable, match=reason) as caught:
                    await roster.find("web").start()

            assert b"authorization: Bearer s3cret-token" in received[0].replace(b"Authorization", b"authorization")
            assert "s3cret" not in str(caught.value)

    run(scene())


ENV = {"WEB_TOKEN": "s3cret-token"}


def test_an_endless_answer_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("openclaw_mcp.mcp.client.http.MAX_ANSWER_BYTES", 1 << 20)

    async def scene() -> None:
        body = b'"' + b"x" * (2 << 20) + b'"'
        async with (
            answering("200 OK", "content-type: application/json", body=body) as (address, _),
            McpServerPool({"web": {"url": address}}) as roster,
        ):
            with pytest.raises(ToolError, match="longer than 1024 KiB"):
                await roster.find("web").start()

    run(scene())


TLS = """
import sys, uvicorn
from openclaw_mcp.cli.echo import server
from openclaw_mcp.mcp.server.http import McpHttp
from openclaw_mcp.net import listen

socket = listen.bind("127.0.0.1", 0)
options = dict(ssl_keyfile=sys.argv[1], ssl_certfile=sys.argv[2], lifespan="off", log_level="error")
print(f"https://127.0.0.1:{socket.getsockname()[1]}/mcp", flush=True)
uvicorn.Server(uvicorn.Config(McpHttp(server()), **options)).run([socket])
"""


def test_a_certificate_must_be_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    openssl = need("openssl", package="openssl")
    key, certificate = str(tmp_path / "key.pem"), str(tmp_path / "certificate.pem")
    words = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1"]
    more = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", certificate]
    subprocess.run([openssl, *words, *more], check=True, capture_output=True)

    async def scene(address: str) -> None:
        async with McpServerPool({"echo": {"url": address}}) as roster:
            with pytest.raises(ToolUnavailable, match="a certificate we do not trust"):
                await roster.find("echo").start()

        monkeypatch.setenv("SSL_CERT_FILE", certificate)
        async with McpServerPool({"echo": {"url": address}}) as roster:
            server = roster.find("echo")
            await server.start()
            assert text(await call(server, "echo", {"text": "sealed"})) == "sealed"

    with http_server(sys.executable, "-c", TLS, key, certificate) as address:
        run(scene(address))


def test_a_broken_news_stream_is_opened_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("openclaw_mcp.mcp.client.client.FIRST_PAUSE", 0.1)

    async def scene() -> None:
        port = free_port()
        with echo_at(port) as address:
            roster = McpServerPool({"echo": {"url": address, "protocol": "stateless"}})
            client = await roster.find("echo").start()
            renewed = asyncio.Event()
            client.changed.connect(lambda _: renewed.set())
        async with roster:
            with echo_at(port):
                await renewed.wait()

    run(scene())
