"""How a provider is reached: answers however HTTP frames them, kept connections, TLS, proxies."""

import asyncio
import base64
import datetime
import ipaddress
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from openclaw_mcp.core.agent import TurnCompleted
from openclaw_mcp.net.http_client import connection

from .conversations import Agent, failed, run

HOST = "models.example"
Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def chunk(text: str | None, stop: str | None = None) -> bytes:
    choice = {"index": 0, "delta": {} if text is None else {"content": text}, "finish_reason": stop}
    return b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n"


ANSWER = chunk("hi ") + chunk("there") + chunk(None, "stop") + b"data: [DONE]\n\n"
STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
MEASURED = STREAM + b"Content-Length: %d\r\n\r\n" % len(ANSWER) + ANSWER


@asynccontextmanager
async def served(scenario: Talk, tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    talks: set[asyncio.Task[None]] = set()

    async def own(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await scenario(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.transport.abort()

    def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(own(reader, writer))
        talks.add(task)
        task.add_done_callback(talks.discard)

    server = await asyncio.start_server(accepted, "127.0.0.1", 0, ssl=tls)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in list(talks):
            task.cancel()
        await asyncio.gather(*talks, return_exceptions=True)


async def request(reader: asyncio.StreamReader) -> tuple[str, bytes]:
    """Head and body."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    size = next(line for line in head.lower().split("\r\n") if line.startswith("content-length:"))
    return head, await reader.readexactly(int(size.partition(":")[2]))


def agent_at(url: str, *, retries: int = 0, **more: Any) -> Agent:
    config = {"models": {"providers": {"fake": {"api": "openai", "baseUrl": url, "apiKey": "k", **more}}}}
    return Agent("openai", config=config, settings={"limits": {"retries": retries}})


async def received(agent: Agent) -> str:
    end = await agent.ask()
    assert isinstance(end, TurnCompleted), end
    return end.text or ""


@pytest.mark.parametrize(
    "answer",
    [
        MEASURED,
        b"HTTP/1.1 100 Continue\r\n\r\n" + MEASURED,
        STREAM + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (len(ANSWER), ANSWER),
        STREAM + b"\r\n" + ANSWER,  # it ends with the connection
        b"HTTP/1.0 200 OK\r\n\r\n" + ANSWER,
    ],
    ids=["length", "continue first", "chunks", "until closed", "older"],
)
@pytest.mark.parametrize("at_a_time", [1 << 20, 7])
def test_an_answer_is_read_however_it_is_framed(answer: bytes, at_a_time: int) -> None:
    async def scenario(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request(reader)
        for begin in range(0, len(answer), at_a_time):
            writer.write(answer[begin : begin + at_a_time])
            await writer.drain()
            await asyncio.sleep(0)
        writer.close()
        await writer.wait_closed()

    async def work() -> None:
        async with served(scenario) as port:
            agent = agent_at(f"http://127.0.0.1:{port}/v1")
            assert await received(agent) == "hi there"
            await agent.clients.aclose()

    run(work())


def test_a_connection_serves_turn_after_turn_until_its_provider_closes_it() -> None:
    numbers: list[int] = []

    async def scenario(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number = max(numbers, default=0) + 1
        for _ in range(2):
            await request(reader)
            numbers.append(number)
            writer.write(MEASURED)
        await writer.drain()

    async def work() -> None:
        async with served(scenario) as port:
            agent = agent_at(f"http://127.0.0.1:{port}/v1", retries=1)
            for _ in range(3):
                await received(agent)
            await agent.clients.aclose()

    run(work())
    assert numbers == [1, 1, 2]


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"SSH-2.0-OpenSSH_9.2\r\n", "failed"),
        (b"", "failed"),
        (STREAM + b"Content-Length: 9999\r\n\r\n" + ANSWER[:20], "broke off in the middle"),
        (STREAM + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", "broke off in the middle"),
    ],
    ids=["not HTTP", "nothing", "cut short", "a broken chunk"],
)
def test_what_is_no_answer_is_said_to_be_none(answer: bytes, words: str) -> None:
    async def scenario(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request(reader)
        writer.write(answer)
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    async def work() -> str:
        async with served(scenario) as port:
            return (await failed(agent_at(f"http://127.0.0.1:{port}/v1"))).message

    assert words in run(work())


def test_a_head_without_end_is_not_read_for_ever() -> None:
    async def scenario(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request(reader)
        writer.write(STREAM + b"X: " + b"x" * (connection.MAX_HEAD_BYTES + 1))
        assert await reader.read() == b""  # until the other side leaves

    async def work() -> str:
        async with served(scenario) as port:
            return (await failed(agent_at(f"http://127.0.0.1:{port}/v1"))).message

    assert "failed" in run(work())


def test_a_header_on_two_lines_is_never_sent() -> None:
    async def scenario(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert await reader.read() == b""

    async def work() -> str:
        async with served(scenario) as port:
            url = f"http://127.0.0.1:{port}/v1"
            return (await failed(agent_at(url, headers={"x-team": "a\r\nx-admin: yes"}))).message

    assert "line break" in run(work())


# ---- TLS and proxies ---------------------------------------------------------------------------------------------


def certificate(folder: Path) -> tuple[ssl.SSLContext, Path]:
    """A server's side, and the file that makes clients trust it."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, HOST)])
    now = datetime.datetime.now(datetime.UTC)
    names = x509.SubjectAlternativeName([x509.DNSName(HOST), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    certificate = (
        x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
        .serial_number(x509.random_serial_number()).add_extension(names, critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .not_valid_before(now - datetime.timedelta(days=1)).not_valid_after(now + datetime.timedelta(days=1))
        .sign(key, hashes.SHA256())
    )  # fmt: skip
    pem, secret = folder / "cert.pem", folder / "key.pem"
    pem.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    secret.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )  # fmt: skip
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem, secret)
    return context, pem


async def answering(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while True:
        await request(reader)
        writer.write(MEASURED)


def test_tls_is_spoken_and_a_stranger_is_not_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tls, trusted = certificate(tmp_path)

    async def work() -> str:
        async with served(answering, tls) as port:
            url = f"https://127.0.0.1:{port}/v1"
            monkeypatch.delenv("SSL_CERT_FILE", raising=False)
            refusal = (await failed(agent_at(url))).message
            monkeypatch.setenv("SSL_CERT_FILE", str(trusted))
            agent = agent_at(url)
            assert [await received(agent), await received(agent)] == ["hi there"] * 2
            await agent.clients.aclose()
            return refusal

    assert "certificate is not trusted" in run(work())


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_the_proxy_of_the_environment_is_used(scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tls, trusted = certificate(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(trusted))
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    heads: list[str] = []

    async def work() -> None:
        async def proxy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            if scheme == "http":
                heads.append((await request(reader))[0])
                writer.write(MEASURED)
                await reader.read()
                return
            heads.append((await reader.readuntil(b"\r\n\r\n")).decode())
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            try:
                await asyncio.gather(pump(reader, far_writer), pump(far_reader, writer))
            finally:
                far_writer.transport.abort()

        async with served(answering, tls) as port, served(proxy) as through:
            monkeypatch.setenv(f"{scheme}_proxy", f"http://me:pass%20word@127.0.0.1:{through}")
            agent = agent_at(f"{scheme}://{HOST}/v1")
            assert await received(agent) == "hi there"
            await agent.clients.aclose()

    run(work())
    start = f"POST http://{HOST}/v1/chat/completions " if scheme == "http" else f"CONNECT {HOST}:443 "
    assert heads[0].startswith(start)
    credentials = base64.b64encode(b"me:pass word").decode()
    assert f"proxy-authorization: Basic {credentials}" in heads[0]
    assert ("authorization: Bearer k" in heads[0]) is (scheme == "http")  # through a tunnel it sees no key


def test_a_proxy_that_refuses_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    async def proxy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()

    async def work() -> str:
        async with served(proxy) as through:
            monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{through}")
            monkeypatch.delenv("no_proxy", raising=False)
            monkeypatch.delenv("NO_PROXY", raising=False)
            return (await failed(agent_at(f"https://{HOST}/v1"))).message

    assert "the proxy the environment names refuses the way there with HTTP 407" in run(work())


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()
    writer.close()


def test_a_place_with_two_addresses_is_reached_by_the_one_that_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        async with served(answering) as port:
            loop = asyncio.get_running_loop()
            real = loop.getaddrinfo

            async def both(host: str, port: int, **more: Any) -> Any:
                dead, alive = [await real(address, port, **more) for address in ("127.0.0.77", "127.0.0.1")]
                assert host == HOST
                return [*dead, *alive]

            monkeypatch.setattr(loop, "getaddrinfo", both)
            agent = agent_at(f"http://{HOST}:{port}/v1")
            assert await received(agent) == "hi there"
            await agent.clients.aclose()

    run(work())


def test_a_refusal_in_the_middle_of_a_large_request_is_read() -> None:
    async def scenario(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        body = b'{"error": {"message": "the house is full"}}'
        writer.write(b"HTTP/1.1 422 No\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        await writer.drain()
        while await reader.read(1 << 16):  # it goes on reading, so that no reset takes the answer with it
            pass

    async def work() -> str:
        async with served(scenario) as port:
            agent = agent_at(f"http://127.0.0.1:{port}/v1", models=[{"id": "m", "contextWindow": 10_000_000}])
            return (await failed(agent, "x" * 8_000_000)).message

    assert "the house is full" in run(work())


def test_a_provider_that_reads_slowly_is_waited_for() -> None:
    """A request larger than any buffer, taken a little at a time."""
    sizes: list[int] = []

    async def scenario(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        sizes.append(len((await request(reader))[1]))
        writer.write(MEASURED)
        await writer.drain()
        await reader.read()

    async def work() -> None:
        async with served(scenario) as port:
            agent = agent_at(f"http://127.0.0.1:{port}/v1", models=[{"id": "m", "contextWindow": 10_000_000}])
            end = await agent.ask("x" * 8_000_000)
            assert isinstance(end, TurnCompleted), end
            await agent.clients.aclose()

    run(work())
    assert sizes[0] > 8_000_000


@pytest.mark.parametrize(
    ("piece", "limit"),
    [
        (chunk("x" * 50_000), "2000000 characters"),
        (b'data: {"choices": [], "filling": "' + b"x" * 1_000_000 + b'"}\n\n', "134217728 bytes"),
    ],
    ids=["text", "anything else"],
)
def test_an_answer_without_an_end_is_given_up(piece: bytes, limit: str) -> None:
    """Each delta holds the whole text: without a bound, one such answer stops the gateway for every client."""
    sent = 0

    async def scenario(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await request(reader)
        writer.write(STREAM + b"\r\n")
        while sent < 200_000_000:
            writer.write(piece)
            await writer.drain()
            sent += len(piece)

    async def work() -> str:
        async with served(scenario) as port:
            agent = agent_at(f"http://127.0.0.1:{port}/v1", retries=3)
            return (await failed(agent)).message

    assert f"its answer is longer than {limit}" in run(work())
    assert sent < 200_000_000
