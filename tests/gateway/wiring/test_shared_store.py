"""The gateway with its memory, as a program: completions, restart in place, config, damage at the start."""

import json
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ...running import OPENCLAW, read_line
from .gateways import serving
from .test_gateway import WAIT, Served, environment


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("state")) as gateway:
        yield gateway


def ask(served: Served, method: str, params: Any = None, *words: str) -> Any:
    result = served.call(method, json.dumps(params or {}), *words)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def post(served: Served, body: Any, *, path: str = "/v1/chat/completions", **headers: str) -> tuple[int, bytes]:
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    authorized = {"authorization": f"Bearer {served.token}", "content-type": "application/json", **names}
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(served.http + path, data=data, headers=authorized)
    try:
        with urllib.request.urlopen(request, timeout=WAIT) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, refused.read()


def user_message(content: Any) -> Any:
    return {"model": "openclaw", "messages": [{"role": "user", "content": content}]}


def hello(text: str, **more: Any) -> Any:
    return {"model": "openclaw", "messages": [{"role": "user", "content": text}], **more}


def test_a_completion_is_an_answer_of_the_agent(served: Served) -> None:
    status, body = post(served, hello("!say hi there"))
    answer = json.loads(body)
    assert status == 200
    assert answer["object"] == "chat.completion"
    assert answer["choices"][0]["message"] == {"role": "assistant", "content": "hi there"}
    assert answer["usage"]["total_tokens"] > 0


def test_a_streamed_completion_adds_up(served: Served) -> None:
    status, body = post(served, hello("!say one two", stream=True, stream_options={"include_usage": True}))
    assert status == 200
    lines = [line.removeprefix(b"data: ") for line in body.split(b"\n\n") if line]
    assert lines[-1] == b"[DONE]"
    chunks = [json.loads(line) for line in lines[:-1]]
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant"}
    text = "".join(c["choices"][0]["delta"].get("content", "") for c in chunks if c["choices"])
    assert text == "one two"
    assert [c["choices"][0]["finish_reason"] for c in chunks if c["choices"]][-1] == "stop"
    assert chunks[-1]["usage"]["completion_tokens"] == 2


def test_a_named_session_remembers(served: Served) -> None:
    post(served, hello("!say one"), x_openclaw_session_key="agent:main:http")
    post(served, hello("!say two"), x_openclaw_session_key="agent:main:http")
    assert ask(served, "chat.history", {"sessionKey": "http"})["totalMessages"] == 4


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({"model": "gpt-4", "messages": [{"role": "user", "content": "x"}]}, 400, "Invalid `model`"),
        ({"model": "openclaw", "messages": []}, 400, "Missing user message"),
        (hello("!fail on purpose"), 500, "on purpose"),
        ([], 400, "JSON object"),
        ({**hello("x"), "stream": True, "stream_options": True}, 400, "`stream_options` must be an object"),
        (user_message([{"type": "text"}]), 400, "must have its `text`"),
        (user_message([{"type": "image_url", "image_url": 5}]), 400, "must be a data: URL"),
    ],
)
def test_refusals_of_completions(served: Served, body: Any, status: int, words: str) -> None:
    answered, body_text = post(served, body)
    assert answered == status
    assert words in json.loads(body_text)["error"]["message"]
    assert post(served, hello("x"), authorization="Bearer wrong")[0] == 401


def test_models_are_agents(served: Served) -> None:
    status, body = post(served, None, path="/v1/models")
    assert status == 200
    assert [model["id"] for model in json.loads(body)["data"]] == ["openclaw", "openclaw/default", "openclaw/main"]


def test_health_counts_sessions(served: Served) -> None:
    ask(served, "agent", {"message": "!say hi", "idempotencyKey": "h1", "sessionKey": "counted"}, "--final")
    assert ask(served, "sessions.list")["totalCount"] > 0
    assert ask(served, "agents.list")["defaultId"] == ask(served, "health")["defaultAgentId"]


def test_it_restarts_in_place_and_remembers(tmp_path: Path) -> None:
    with serving(tmp_path) as gateway:
        ask(gateway, "agent", {"message": "!say kept", "idempotencyKey": "r1", "sessionKey": "main"}, "--final")
        pid = ask(gateway, "status")["pid"]
        assert ask(gateway, "gateway.restart.request", {"reason": "test"})["status"] == "scheduled"
        assert read_line(gateway.child).startswith(b"state")  # the rest of what it said at its first start
        again = Served(gateway.child, tmp_path)  # it says so again once it answers again
        assert again.port == gateway.port
        assert ask(again, "status")["pid"] == pid
        history = ask(again, "chat.history", {"sessionKey": "main"})
        assert [message["role"] for message in history["messages"]] == ["user", "assistant"]


def test_agents_of_the_config_are_there_without_a_restart(tmp_path: Path) -> None:
    with serving(tmp_path) as gateway:
        config = ask(gateway, "config.get")
        assert not config["exists"]
        patch = {"raw": json.dumps({"agents": {"list": [{"id": "one"}, {"id": "two", "default": True}]}})}
        assert ask(gateway, "config.patch", patch)["sentinel"]["payload"]["stats"]["requiresRestart"] is False
        assert ask(gateway, "agents.list")["defaultId"] == "two"
        answer = ask(gateway, "agent", {"message": "!say hi", "idempotencyKey": "a1", "agentId": "one"}, "--final")
        assert answer["result"]["payloads"][0]["text"] == "hi"


@pytest.mark.parametrize(("name", "words"), [("openclaw.sqlite", "recover"), ("openclaw.json", "invalid config")])
def test_broken_state_stops_the_start_with_a_sentence(tmp_path: Path, name: str, words: str) -> None:
    (tmp_path / name).write_text("{ broken, surely no database")
    command = [OPENCLAW, "gateway", "--port", "0"]
    result = subprocess.run(
        command, env=environment(tmp_path), capture_output=True, text=True, timeout=WAIT, check=False
    )
    assert result.returncode == 1
    assert words in result.stderr
    assert "Traceback" not in result.stderr
    assert (tmp_path / name).read_text() == "{ broken, surely no database"


def test_a_runtime_nobody_knows_stops_the_start_with_those_there_are(tmp_path: Path) -> None:
    (tmp_path / "openclaw.json").write_text('{"agents": {"list": [{"id": "main", "runtime": "cluade"}]}}')
    command = [OPENCLAW, "gateway", "--port", "0"]
    result = subprocess.run(
        command, env=environment(tmp_path), capture_output=True, text=True, timeout=WAIT, check=False
    )
    assert result.returncode == 1
    assert "agents.list.0.runtime: must be one of demo, openai, anthropic, openclaw, claude, " in result.stderr


def test_a_token_nobody_set_is_no_token(tmp_path: Path) -> None:
    (tmp_path / "openclaw.json").write_text('{"gateway":{"auth":{"token":"${NO_SUCH_VARIABLE}"}}}')
    result = subprocess.run(
        [OPENCLAW, "gateway", "--port", "0"],
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=WAIT,
        check=False,
    )
    assert result.returncode == 1
    assert "NO_SUCH_VARIABLE is not set" in result.stderr
