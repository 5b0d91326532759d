"""The answer to a bad order, through the official clients: one sentence, and nothing of it is kept."""

import asyncio
import contextlib
import json
import sqlite3
import subprocess
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client

from openclaw_mcp.core.model import Json
from tests.conformance.everything import PNG
from tests.gateway.agents.models.fake import FakeModel, say
from tests.gateway.wiring.gateways import serving
from tests.order.test_media_types import item
from tests.order.test_server import settings
from tests.order.test_whole import PLACES, config
from tests.programs import need_node, need_npm
from tests.running import OPENCLAW, ROOT

WAIT = 120.0  # seconds
SCRIPT = ROOT / "tests" / "mcp" / "sdk_clients" / "typescript" / "orders.mjs"
GOOD = item(PNG, "image/png")
GIF = b"GIF89a" + bytes(16)
BAD: dict[str, tuple[Json, str]] = {
    "no message": ({"message": None}, 'message: the value is not of type "string"'),
    "an empty message": ({"message": ""}, "`message` is empty; say what the agent is to do"),
    "blanks": ({"message": " \n\t"}, "`message` is empty; say what the agent is to do"),
    "a NUL": ({"message": "a\0b"}, "`message` holds a NUL character; remove it"),
    "a key in lines": ({"sessionKey": "a\nb"}, "`sessionKey` must be 1 to 512 printable characters"),
    "wrong base64": ({"images": [{**GOOD, "data": "not base64!"}]}, "images[0]: `data` is not base64; send"),
    "an address": (
        {"images": [{**GOOD, "data": "https://example.org/a.png"}]},
        "images[0]: `data` is not base64; send",
    ),
    "no data": ({"images": [{**GOOD, "data": ""}]}, "images[0]: `data` is empty; send the file's bytes in base64"),
    "another type": ({"images": [item(GIF, "image/png")]}, "images[0]: the data is not image/png; send it under"),
    "a type nobody takes": (
        {"images": [item(GIF, "image/bmp")]},
        "images[0]: 'image/bmp' is not supported; use one of",
    ),
    "the wrong list": ({"files": [GOOD]}, "files[0]: image/png belongs into `images`; send it there"),
    "no text": (
        {"files": [item(b"a\0b", "text/plain")]},
        "files[0]: the data is not text/plain in UTF-8, UTF-16 with a byte order mark, or Latin-1; send it under",
    ),
    "no JSON": ({"files": [item(b"{", "application/json")]}, "files[0]: the data is not application/json; send it"),
    "eleven images": ({"images": [GOOD] * 11}, "at most 10 images can go with one order, and this one has 11"),
    "six files": ({"files": [item(b"x", "text/plain")] * 6}, "at most 5 files can go with one order"),
    "sixteen megabytes": (
        {"files": [item(b"%PDF-1.7" + bytes(16 << 20), "application/pdf")]},
        "files[0]: larger than 15 MB; send less of it",
    ),
    "a good picture and a bad one": ({"images": [GOOD, {**GOOD, "data": "!"}]}, "images[1]: `data` is not base64"),
}
HALF: dict[str, Json] = {
    "half a character in the message": {"message": "a \ud800 b"},
    "half a character in a name": {"files": [item(b"x", "text/plain", filename="\udc00.txt")]},
}


def bad(arguments: Json) -> Json:
    return {"message": "look", "sessionKey": "bad", **arguments}


def list_state(folder: Path) -> tuple[list[str], list[str]]:
    """Every file, and all that is in the store."""
    with contextlib.closing(sqlite3.connect(folder / "openclaw.sqlite")) as store:
        rows = list(store.iterdump())
    return sorted(str(path) for path in folder.rglob("*") if "sqlite" not in path.name), rows


def is_one_sentence(outcome: Any, says: str) -> bool:
    (block,) = outcome["content"]
    text = str(block["text"])
    return outcome["isError"] is True and text.startswith("Error: ") and says in text and "\n" not in text


@contextlib.asynccontextmanager
async def official(env: dict[str, str]) -> Any:
    parameters = StdioServerParameters(command=OPENCLAW, args=["mcp-server"], env=env)
    async with asyncio.timeout(WAIT), Client(stdio_client(parameters)) as client:
        yield client


@pytest.mark.parametrize("place", PLACES)
def test_a_bad_order_gets_one_sentence_and_nothing_is_kept(tmp_path: Path, place: str) -> None:
    state = tmp_path / "state"
    state.mkdir()

    async def scenario(env: dict[str, str]) -> None:
        async with official(env) as client:
            assert not (await client.call_tool("order_openclaw", {"message": "a good one first"})).is_error
            before = list_state(state)
            for name, (arguments, says) in BAD.items():
                result = await client.call_tool("order_openclaw", bad(arguments))
                outcome = result.model_dump(mode="json", by_alias=True)
                assert is_one_sentence(outcome, says), (name, outcome)
            assert list_state(state) == before

    with FakeModel(say("ok")) as model:
        (state / "openclaw.json").write_text(json.dumps(config(model, mcp={})))
        if place == "embedded":
            asyncio.run(scenario(settings(state)))
        else:
            with serving(state) as served:
                there = {"OPENCLAW_GATEWAY_URL": served.ws, "OPENCLAW_GATEWAY_TOKEN": served.token}
                asyncio.run(scenario(settings(tmp_path / "client", **there)))
        assert len(model.requests) == 1


def test_the_typescript_client_is_reported_the_same_and_of_half_a_character(tmp_path: Path) -> None:
    """Only JavaScript can send half of a surrogate pair."""
    orders = [{"message": "a good one first"}, *(bad(order) for order, _ in BAD.values()), *map(bad, HALF.values())]
    file, sdk = tmp_path / "orders.json", need_npm("@modelcontextprotocol/sdk")
    file.write_text(json.dumps(orders))
    result = subprocess.run(
        [need_node(), str(SCRIPT), str(sdk), str(file), OPENCLAW, "mcp-server"],
        env=settings(tmp_path), capture_output=True, text=True, timeout=WAIT, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    good, *outcomes = json.loads(result.stdout)

    assert not good.get("isError")
    for (name, (_, says)), outcome in zip(BAD.items(), outcomes, strict=False):
        assert is_one_sentence(outcome, says), (name, outcome)
    for outcome in outcomes[len(BAD) :]:
        assert "half a character" in outcome["error"]
        assert "\n" not in outcome["error"]
    with contextlib.closing(sqlite3.connect(tmp_path / "openclaw.sqlite")) as store:
        assert not any(":bad" in key for (key,) in store.execute("SELECT key FROM sessions"))
        assert store.execute("SELECT count(*) FROM blobs").fetchone() == (0,)
