"""What an agent made, as it comes back: every kind of block, whatever fits, and a note for what does not."""

import base64
import sys
from pathlib import Path
from typing import Any

import pytest

from openclaw_mcp.core.model import Json
from tests.gateway.agents.models.fake import FakeModel, Step, call, say
from tests.order.test_server import text_of
from tests.order.test_whole import PLACES, config, ordering
from tests.running import ROOT

MEGABYTE = 1 << 20
PDF = "application/pdf"
WAIT = 120.0  # seconds; tens of megabytes go through three processes
PAINTER: Json = {"command": sys.executable, "args": ["-m", "tests.order.painter"], "cwd": str(ROOT)}


def painted(place: str, folder: Path, *steps: tuple[str, list[int]]) -> Any:
    """The result of an order whose agent paints things of these kinds and sizes, then says it has."""
    script: list[Step] = [call("painter__paint", kind=kind, sizes=sizes) for kind, sizes in steps]
    with (
        FakeModel(*script, say("done")) as model,
        ordering(place, folder / "state", config(model, mcp={"servers": {"painter": PAINTER}})) as one,
    ):
        order = {"name": "order_openclaw", "arguments": {"message": "paint"}}
        one.send({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": order})
        return one.receive(WAIT)["result"]


def sizes(result: Any) -> list[int]:
    blocks = [block for block in result["content"] if block["type"] == "resource"]
    return [len(base64.b64decode(block["resource"]["blob"])) for block in blocks]


def note(result: Any) -> str:
    last = result["content"][-1]
    assert last["type"] == "text"
    return str(last["text"])


@pytest.mark.parametrize("place", PLACES)
def test_pictures_sounds_and_files_come_back_as_blocks_of_their_kind(tmp_path: Path, place: str) -> None:
    result = painted(place, tmp_path, ("image/png", [5]), ("audio/mpeg", [6, 7]), ("application/pdf", [8]))

    text, image, *sounds, document = result["content"]
    assert text == {"type": "text", "text": "done"}
    assert image == {"type": "image", "data": base64.b64encode(b"\1" * 5).decode(), "mimeType": "image/png"}
    assert [(sound["type"], sound["mimeType"]) for sound in sounds] == [("audio", "audio/mpeg")] * 2
    blob = base64.b64encode(b"\1" * 8).decode()
    assert document["type"] == "resource"
    assert document["resource"] == {"uri": "attachment://1.pdf", "mimeType": "application/pdf", "blob": blob}


def test_an_item_of_twenty_megabytes_comes_back_and_one_byte_more_is_named(tmp_path: Path) -> None:
    result = painted("embedded", tmp_path, (PDF, [20 * MEGABYTE, 20 * MEGABYTE + 1]))

    assert text_of(result) == "done"
    assert sizes(result) == [20 * MEGABYTE]
    assert note(result) == "Left out of this answer: 2.pdf (20.0 MB; one item may have 20 MB)."


@pytest.mark.parametrize("place", PLACES)
def test_an_answer_has_fifty_megabytes_and_names_what_is_beyond(tmp_path: Path, place: str) -> None:
    each = 17 * MEGABYTE
    result = painted(place, tmp_path, *((PDF, [1, each + number]) for number in range(3)))

    assert sizes(result) == [1, each, each + 1]
    assert note(result) == "Left out of this answer: 2.pdf (17.0 MB; one answer may have 50 MB)."


def test_what_a_gateway_can_not_send_in_one_message_is_named(tmp_path: Path) -> None:
    result = painted("gateway", tmp_path, (PDF, [9 * MEGABYTE] * 3))

    assert text_of(result) == "done"
    assert sizes(result) == [9 * MEGABYTE] * 2
    assert note(result) == "Left out of this answer: 3.pdf of 9.0 MB (the gateway did not send it)."
