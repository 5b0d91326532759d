"""What a stdio server leaves unloaded until its first call is answered, and that it is whole once it is used."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from openclaw_mcp.mcp.server import boot
from tests.gateway.agents.models.test_endpoints import certificate
from tests.running import ANSWER_WAIT

CALL = [
    {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": boot.HANDSHAKE_VERSIONS[-1]}},
    {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "echo", "arguments": {"text": "hi"}}},
]


def test_the_first_call_loads_neither_the_schema_library_nor_tls() -> None:
    lines = "".join(json.dumps(message) + "\n" for message in CALL)
    words = (sys.executable, "-X", "importtime", "-m", "openclaw_mcp", "echo")
    result = subprocess.run(words, input=lines, capture_output=True, text=True, timeout=ANSWER_WAIT, check=True)

    assert json.loads(result.stdout.splitlines()[1])["result"]["content"][0]["text"] == "hi"
    loaded = {line.rpartition("|")[2].strip() for line in result.stderr.splitlines() if line.startswith("import time:")}
    assert "msgspec" in loaded
    assert not loaded & {"_ssl", "jsonschema_rs"}


@pytest.mark.parametrize(
    "use",
    [
        "import ssl; assert ssl.create_default_context().verify_mode == ssl.CERT_REQUIRED",
        "import asyncio, ssl; assert asyncio.base_events.ssl is ssl; assert ssl.SSLWantReadError",
        "import asyncio; assert len(asyncio.sslproto.SSLAgainErrors) == 2",
        "import inspect; assert list(inspect.signature(lambda a: a).parameters) == ['a']",
        "from inspect import isawaitable; assert not isawaitable(1)",
        "import traceback; assert traceback.format_exception(ValueError('x'))[-1] == 'ValueError: x\\n'",
        "import msgspec; assert msgspec.inspect.type_info(int)",
        "import ssl; assert not hasattr(ssl, 'nothing_of_that_name')",
        "import typing_extensions; assert typing_extensions.Required",
    ],
)
def test_a_postponed_module_is_whole_when_it_is_used(use: str) -> None:
    code = (
        "import sys; from openclaw_mcp.cli.lazy_modules import postpone; postpone();"
        f"import asyncio, msgspec, logging; assert '_ssl' not in sys.modules; assert 'ast' not in sys.modules; {use}"
    )
    subprocess.run((sys.executable, "-c", code), timeout=ANSWER_WAIT, check=True)


def test_two_threads_that_use_a_postponed_module_at_once_both_find_it_whole() -> None:
    code = (
        "import sys, threading; from openclaw_mcp.cli.lazy_modules import postpone; postpone(); import ssl;"
        "begin = threading.Barrier(8); found = [];\n"
        "def use():\n    begin.wait(); found.append(ssl.create_default_context)\n"
        "threads = [threading.Thread(target=use) for _ in range(8)]\n"
        "for each in threads: each.start()\n"
        "for each in threads: each.join()\n"
        "assert len(found) == 8"
    )
    subprocess.run((sys.executable, "-c", code), timeout=ANSWER_WAIT, check=True)


TLS_ECHO = """
import sys
from openclaw_mcp.cli.lazy_modules import postpone
postpone()
import asyncio
assert "_ssl" not in sys.modules
import ssl

async def echo(reader, writer):
    writer.write(await reader.readline())
    writer.close()

async def main(folder):
    own = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    own.load_cert_chain(f"{folder}/cert.pem", f"{folder}/key.pem")
    async with await asyncio.start_server(echo, "127.0.0.1", 0, ssl=own) as server:
        port = server.sockets[0].getsockname()[1]
        trusting = ssl.create_default_context(cafile=f"{folder}/cert.pem")
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusting)
        writer.write(b"hello\\n")
        assert await reader.readline() == b"hello\\n"
        writer.close()

asyncio.run(main(sys.argv[1]))
"""


def test_asyncio_speaks_tls_although_it_was_imported_without(tmp_path: Path) -> None:
    certificate(tmp_path)
    subprocess.run((sys.executable, "-c", TLS_ECHO, str(tmp_path)), timeout=ANSWER_WAIT, check=True)
