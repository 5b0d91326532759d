"""Whole orders, from the client's pipe to the model and back: pictures, conversations, and nothing in between."""

import base64
import contextlib
import json
import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from openclaw_mcp.core.model import Json
from tests.conformance.everything import PNG as DRAWN
from tests.gateway.agents.models.conversations import provider
from tests.gateway.agents.models.fake import FakeModel, Request, Step, call, say
from tests.gateway.wiring.gateways import serving
from tests.order.test_media_types import item, zipped
from tests.order.test_server import order, server, text_of
from tests.pictures import pictures, png
from tests.running import ROOT, StdioServer

PLACES = ("gateway", "embedded")
ANSWER_WAIT = 60.0
DRAW = "draw__test_image_content"


def config(model: FakeModel, api: str = "openai", /, **more: Any) -> Json:
    card = {"id": "m-1", "input": ["text", "image"]}
    entry = {"command": sys.executable, "args": ["-m", "tests.mcp.server.everything_stdio"], "cwd": str(ROOT)}
    return {
        "models": {"providers": {"fake": provider(api, model, models=[card])}},
        "agents": {"defaults": {"model": "fake/m-1"}},
        "mcp": {"servers": {"draw": entry}},
        **more,
    }


@contextlib.contextmanager
def ordering(place: str, folder: Path, config: Json) -> Iterator[StdioServer]:
    """An order server before an agent with that config: in its own process, or behind a gateway."""
    folder.mkdir()
    (folder / "openclaw.json").write_text(json.dumps(config))
    if place == "embedded":
        with server(folder) as one:
            yield one
        return
    with serving(folder) as served:
        more = {"OPENCLAW_GATEWAY_URL": served.ws, "OPENCLAW_GATEWAY_TOKEN": served.token}
        with server(folder.parent / "client", **more) as one:
            yield one


@pytest.mark.parametrize("place", PLACES)
def test_a_picture_sent_in_is_the_picture_the_model_receives(tmp_path: Path, place: str) -> None:
    sent = [png(300), png(700)]
    with FakeModel(say("I see.")) as model, ordering(place, tmp_path / "state", config(model)) as one:
        images = [item(data, "image/png") for data in sent]
        assert text_of(order(one, "What is this?", images=images)) == "I see."

        assert pictures(model.requests[0].body) == sent


def test_more_than_a_gateway_takes_at_once_is_one_sentence_and_nothing_is_sent(tmp_path: Path) -> None:
    with FakeModel(say("never")) as model, ordering("gateway", tmp_path / "state", config(model, mcp={})) as one:
        images = [item(png(300) + bytes(14 << 20), "image/png")] * 2
        text = order(one, "What are these?", images=images)["content"][0]["text"]
        assert text.startswith("Error: the attachments are larger than the gateway takes in one message")
        assert text.endswith("send fewer or smaller ones")
        assert text_of(order(one, "And this?", id=2, images=[item(png(300), "image/png")])) == "never"

        assert len(model.requests) == 1


@pytest.mark.parametrize("place", PLACES)
def test_a_picture_the_agent_made_arrives_as_an_image_block(tmp_path: Path, place: str) -> None:
    with (
        FakeModel(call(DRAW), say("Here it is.")) as model,
        ordering(place, tmp_path / "state", config(model)) as one,
    ):
        result = order(one, "Draw something")

    assert text_of(result).endswith("Here it is.")
    (block,) = result["content"][1:]
    assert (block["type"], block["mimeType"]) == ("image", "image/png")
    assert base64.b64decode(block["data"]) == DRAWN


@pytest.mark.parametrize("place", PLACES)
def test_a_tool_the_rules_deny_is_not_offered_to_the_model(tmp_path: Path, place: str) -> None:
    rules = {"tools": {"deny": [DRAW]}}
    with FakeModel(say("no")) as model, ordering(place, tmp_path / "state", config(model, **rules)) as one:
        order(one, "Draw something")

        names = {tool["function"]["name"] for tool in model.requests[0].body.get("tools", ())}
    assert "draw__test_simple_text" in names
    assert DRAW not in names


def user_texts(request: Request) -> list[str]:
    """What people said in the conversation so far, as the model was sent it."""
    users = [message["content"] for message in request.body["messages"] if message["role"] == "user"]
    return [text if isinstance(text, str) else "".join(part.get("text", "") for part in text) for text in users]


def test_two_servers_that_order_at_once_share_one_conversation(tmp_path: Path) -> None:
    """Each turn sees all that were before it: none is lost, none comes between another's question and answer."""
    folder = tmp_path / "state"
    with FakeModel(lambda request: say(f"answer to {user_texts(request)[-1][-2:]}")) as model:
        folder.mkdir()
        (folder / "openclaw.json").write_text(json.dumps(config(model, mcp={})))
        with server(folder) as one, server(folder) as two:
            for number in range(4):
                for name, each in (("a", one), ("b", two)):
                    arguments = {"message": f"turn {name}{number}", "sessionKey": "shared"}
                    params = {"name": "order_openclaw", "arguments": arguments}
                    each.send({"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params})
            for name, each in (("a", one), ("b", two)):
                answers = [each.receive(ANSWER_WAIT) for _ in range(4)]
                texts = {answer["id"]: text_of(answer["result"]) for answer in answers}
                assert texts == {number: f"answer to {name}{number}" for number in range(4)}

        requests = [user_texts(request) for request in model.requests]
    assert sorted(map(len, requests)) == list(range(1, 9))
    longest = max(requests, key=len)
    assert all(longest[: len(turns)] == turns for turns in requests)
    assert sorted(longest) == sorted(f"turn {name}{number}" for name in "ab" for number in range(4))


@pytest.mark.parametrize("place", PLACES)
def test_nothing_leaks_between_orders_without_a_key(tmp_path: Path, place: str) -> None:
    with FakeModel(say("noted")) as model, ordering(place, tmp_path / "state", config(model, mcp={})) as one:
        order(one, "the secret is swordfish", id=1, images=[item(png(300), "image/png")])
        order(one, "what is the secret?", id=2)

        assert len(model.requests) == 2
        assert "swordfish" not in json.dumps(model.requests[1].body)
        assert pictures(model.requests[1].body) == []


def test_an_archive_reaches_the_model_by_its_name_alone_and_is_kept_whole(tmp_path: Path) -> None:
    bomb = zipped()
    with FakeModel(say("kept")) as model, ordering("embedded", tmp_path / "state", config(model, mcp={})) as one:
        order(one, "keep this", files=[item(bomb, "application/zip", filename="../../zeros.zip")])

        received = user_texts(model.requests[0])[-1]
    assert "zeros.zip" in received
    assert ".." not in received
    with contextlib.closing(sqlite3.connect(tmp_path / "state" / "openclaw.sqlite")) as store:
        assert [bytes(data) for (data,) in store.execute("SELECT data FROM blobs")] == [bomb]


def test_a_model_that_fails_is_an_error_in_one_sentence(tmp_path: Path) -> None:
    with (
        FakeModel(Step(status=400, error="no such model")) as model,
        ordering("embedded", tmp_path / "state", config(model, mcp={})) as one,
    ):
        result = order(one, "hello")

    assert result["isError"] is True
    assert result["content"][0]["text"].startswith("Error: ")
    assert "no such model" in result["content"][0]["text"]
