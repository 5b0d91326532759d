"""`order_openclaw` before a real OpenClaw gateway, behind which stands the scripted model."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from ..cli.test_reports import report
from ..gateway.agents.models.fake import FakeModel, Request, Step, say
from ..order.test_media_types import item
from ..order.test_server import server
from ..pictures import pictures, png
from ..running import StdioServer
from . import real
from .test_real_models import CARD

PATIENCE = 120.0  # seconds; the first turn of a real gateway is slow


@pytest.fixture(scope="module")
def model() -> Iterator[FakeModel]:
    def answer(request: Request) -> Step:
        shows = "Show me" in json.dumps(request.body)
        return say("Look:\nMEDIA:./pic.png" if shows else "Hello from afar.")

    with FakeModel(answer) as fake:
        yield fake


@pytest.fixture(scope="module")
def theirs(model: FakeModel, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    card = {**CARD, "contextWindow": 128000, "maxTokens": 8192, "input": ["text", "image"]}
    entry = {"baseUrl": f"{model.url}/v1", "apiKey": "k", "api": "openai-completions", "models": [card]}
    models = {"mode": "merge", "providers": {"fake": entry}}
    agents = {"defaults": {"model": {"primary": "fake/m-1"}}}
    with real.gateway(tmp_path_factory.mktemp("real") / "home", models=models, agents=agents) as url:
        yield url


def order(one: StdioServer, message: str, **more: object) -> str:
    params = {"name": "order_openclaw", "arguments": {"message": message, **more}}
    one.send({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
    result = one.receive(PATIENCE)["result"]
    assert result["isError"] is False, result
    return str(result["content"][0]["text"])


def conversations(model: FakeModel) -> list[Request]:
    return [request for request in model.requests if "messages" in request.body]


def test_an_order_is_carried_out_there(theirs: str, model: FakeModel, tmp_path: Path) -> None:
    with server(tmp_path, OPENCLAW_GATEWAY_URL=theirs, OPENCLAW_GATEWAY_TOKEN=real.TOKEN) as one:
        assert order(one, "Say hello", sessionKey="greeting") == "Hello from afar."
    assert any("Say hello" in json.dumps(request.body) for request in conversations(model))
    assert not (tmp_path / "openclaw.sqlite").exists()


def test_a_conversation_goes_on_there_and_no_other_hears_of_it(theirs: str, model: FakeModel, tmp_path: Path) -> None:
    for message, more in (
        ("my colour is mauve", {"sessionKey": "colours"}),
        ("which colour?", {"sessionKey": "colours"}),
        ("anything?", {}),
    ):
        with server(tmp_path, OPENCLAW_GATEWAY_URL=theirs, OPENCLAW_GATEWAY_TOKEN=real.TOKEN) as one:
            order(one, message, **more)
    bodies = [json.dumps(request.body) for request in conversations(model)]
    assert any("mauve" in body and "which colour?" in body for body in bodies)
    assert not any("mauve" in body and "anything?" in body for body in bodies)


def test_a_picture_sent_in_reaches_the_model_behind_it(theirs: str, model: FakeModel, tmp_path: Path) -> None:
    picture = png(300)
    with server(tmp_path, OPENCLAW_GATEWAY_URL=theirs, OPENCLAW_GATEWAY_TOKEN=real.TOKEN) as one:
        order(one, "What is this picture?", images=[item(picture, "image/png")])

    (matching,) = [request for request in conversations(model) if "What is this picture?" in json.dumps(request.body)]
    assert pictures(matching.body) == [picture]


def test_a_picture_shown_there_is_named(theirs: str, tmp_path: Path) -> None:
    """It tells its clients where a picture is, never what is in it."""
    with server(tmp_path, OPENCLAW_GATEWAY_URL=theirs, OPENCLAW_GATEWAY_TOKEN=real.TOKEN) as one:
        params = {"name": "order_openclaw", "arguments": {"message": "Show me a picture"}}
        one.send({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
        text, note = one.receive(PATIENCE)["result"]["content"]
    assert text["text"] == "Look:"
    assert note["text"] == "Left out of this answer: pic.png (the gateway did not send it)."


def test_two_servers_at_once_share_one_conversation_there(theirs: str, model: FakeModel, tmp_path: Path) -> None:
    there = {"OPENCLAW_GATEWAY_URL": theirs, "OPENCLAW_GATEWAY_TOKEN": real.TOKEN}
    with server(tmp_path / "a", **there) as one, server(tmp_path / "b", **there) as two:
        order(one, "I am the opener", sessionKey="both")
        for name, each in (("first", one), ("second", two)):
            arguments = {"message": f"I am the {name}", "sessionKey": "both"}
            params = {"name": "order_openclaw", "arguments": arguments}
            each.send({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
        for each in (one, two):
            result = each.receive(PATIENCE)["result"]
            assert (result["isError"], result["content"][0]["text"]) == (False, "Hello from afar.")
    bodies = [json.dumps(request.body) for request in conversations(model)]
    assert any("I am the first" in body and "I am the second" in body for body in bodies)


def test_doctor_and_sessions_know_a_real_openclaw(theirs: str, model: FakeModel, tmp_path: Path) -> None:
    there = {"OPENCLAW_GATEWAY_URL": theirs, "OPENCLAW_GATEWAY_TOKEN": real.TOKEN}
    with server(tmp_path, **there) as one:
        order(one, "Say hello", sessionKey="listed")
    _, answer = report(tmp_path, "doctor", **there)
    (found,) = [found for found in answer["findings"] if found["area"] == "gateway"]
    assert (found["state"], "a real OpenClaw gateway (2026.9.6)" in found["says"]) == ("fine", True)
    status, listed = report(tmp_path, "sessions", **there)
    assert status == 0
    assert any("listed" in row["key"] for row in listed["sessions"])
