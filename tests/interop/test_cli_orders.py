"""Claude Code, Gemini CLI, Codex and OpenCode order an agent, whose model is another scripted one: pictures both ways,
one conversation in two of them, and the answer to a bad order."""

import contextlib
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from openclaw_mcp.core.model import Json

from ..conformance.everything import PNG as DRAWN
from ..gateway.agents.models.fake import FakeModel, call, say
from ..gateway.wiring.test_gateway import serving
from ..order.test_media_types import item
from ..order.test_server import settings
from ..order.test_whole import DRAW, config, user_texts
from ..pictures import pictures, png
from ..running import OPENCLAW, process, read_line
from .cli_clients import ClientOutput, Server, ask
from .clis import CLIS

START_WAIT = 60.0  # seconds; the machine may be busy
SENT = png(300)
API = {"claude": "anthropic"}
"""What the ordered agent's own model speaks; for the others OpenAI's."""


def make_state(folder: Path, config: Json) -> Path:
    folder.mkdir()
    (folder / "openclaw.json").write_text(json.dumps(config))
    return folder


def over_stdio(state: Path) -> Server:
    """A server started by its client, with the agent in its own process."""
    words = ("OPENCLAW_STATE_DIR", "OPENCLAW_GATEWAY_PORT", "PATH")
    return Server(command=(OPENCLAW, "mcp-server"), env={word: settings(state)[word] for word in words})


@contextlib.contextmanager
def over_http(state: Path) -> Iterator[Server]:
    """A server behind the token of the gateway that has the agent."""
    with serving(state) as gateway:
        there = {"OPENCLAW_GATEWAY_URL": gateway.ws, "OPENCLAW_GATEWAY_TOKEN": gateway.token}
        env = settings(state.parent / "client", **there)
        with process(OPENCLAW, "mcp-server", "--http", "--port", "0", env=env, stdout=subprocess.PIPE) as child:
            yield Server(url=read_line(child, START_WAIT).decode().split()[-1], token=gateway.token)


def place(way: str, state: Path) -> contextlib.AbstractContextManager[Server]:
    return contextlib.nullcontext(over_stdio(state)) if way == "stdio" else over_http(state)


def order(cli: str, folder: Path, server: Server, message: str, **more: Any) -> ClientOutput:
    arguments = json.dumps({"message": message, **more})
    return ask(cli, folder, server, f"[[call order_openclaw {arguments}]] [[say It says {{result}}]]")


@pytest.mark.parametrize("way", ["stdio", "http"])
@pytest.mark.parametrize("cli", CLIS)
def test_a_picture_goes_in_and_another_comes_back(tmp_path: Path, cli: str, way: str) -> None:
    with FakeModel(call(DRAW), say("A grey line; here is mine.")) as model:
        state = make_state(tmp_path / "state", config(model, API.get(cli, "openai")))
        with place(way, state) as server:
            answer = order(cli, tmp_path, server, "What is this?", images=[item(SENT, "image/png")])

    assert answer.declared == {"order_openclaw"}, answer.ended
    assert [outcome.failed for outcome in answer.outcomes] == [False], answer.ended
    assert "A grey line; here is mine." in answer.text
    assert [pictures(request.body) for request in model.requests] == [[SENT], [SENT, DRAWN]]
    assert pictures(answer.requests[-1]) == [DRAWN]


def test_a_conversation_begun_in_one_goes_on_in_the_next(tmp_path: Path) -> None:
    with FakeModel(lambda request: say(f"turn {len(user_texts(request))}")) as model:
        server = over_stdio(make_state(tmp_path / "state", config(model, mcp={})))
        for number, cli in enumerate(CLIS, 1):
            answer = order(cli, tmp_path / cli, server, f"said in {cli}", sessionKey="shared")
            assert f"turn {number}" in answer.text, answer.ended
        alone = order("codex", tmp_path / "alone", server, "who spoke?")

    assert "turn 1" in alone.text, alone.ended
    assert user_texts(model.requests[-2]) == [f"said in {cli}" for cli in CLIS]
    assert user_texts(model.requests[-1]) == ["who spoke?"]


@pytest.mark.parametrize("cli", CLIS)
def test_a_bad_order_is_told_to_its_model_in_one_sentence(tmp_path: Path, cli: str) -> None:
    with FakeModel(say("never")) as model:
        server = over_stdio(make_state(tmp_path / "state", config(model, mcp={})))
        gif = item(b"GIF89a" + bytes(16), "image/png")
        answer = order(cli, tmp_path, server, "What is this?", images=[gif])

    assert model.requests == []
    assert "images[0]: the data is not image/png" in answer.text, answer.ended
