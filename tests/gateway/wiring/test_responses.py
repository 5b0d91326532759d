"""`POST /v1/responses`: whole and streamed, conversations that go on, files, refusals."""

import base64
import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests import web_client
from tests.gateway.wiring.gateways import World, world

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
ON = {"gateway": {"http": {"endpoints": {"responses": {"enabled": True}}}}}


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with world(tmp_path_factory.mktemp("state"), ON) as served:
        yield served


def post(gateway: World, input: Any, **more: Any) -> web_client.Answer:
    body = {"model": "openclaw", "input": input, **more}
    return web_client.send(f"{gateway.served.http}/v1/responses", "POST", body, **gateway.bearer)


def user(*parts: Any) -> dict[str, Any]:
    return {"type": "message", "role": "user", "content": list(parts)}


def text(said: str) -> dict[str, str]:
    return {"type": "input_text", "text": said}


def output(answer: web_client.Answer) -> str:
    assert answer.status == 200, answer.body
    (item,) = answer.json["output"]
    (part,) = item["content"]
    assert (item["role"], item["status"], part["type"]) == ("assistant", "completed", "output_text")
    return str(part["text"])


def test_a_response_is_an_answer_of_the_agent(gateway: World) -> None:
    answer = post(gateway, "!say hi there")
    assert output(answer) == "hi there"
    body = answer.json
    assert (body["object"], body["status"], body["model"]) == ("response", "completed", "openclaw")
    assert body["id"].startswith("resp_")
    assert body["usage"]["total_tokens"] == body["usage"]["input_tokens"] + body["usage"]["output_tokens"] > 0
    assert output(post(gateway, [user(text("!say by its name"))], model="openclaw/main")) == "by its name"


def test_a_streamed_response_adds_up_event_by_event(gateway: World) -> None:
    answer = post(gateway, [{"role": "user", "content": "!say one two"}], stream=True)
    assert answer.headers["content-type"].startswith("text/event-stream")
    blocks = [block for block in answer.body.decode().split("\n\n") if block]
    assert blocks.pop() == "data: [DONE]"
    events = []
    for block in blocks:
        name, data = block.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    kinds = [event["type"].removeprefix("response.") for event in events]
    deltas = [event["delta"] for event in events if event["type"] == "response.output_text.delta"]
    assert [kind for kind in kinds if kind != "output_text.delta"] == [
        "created", "in_progress", "output_item.added", "content_part.added", "output_text.done", "content_part.done",
        "output_item.done", "completed",
    ]  # fmt: skip
    assert "".join(deltas) == "one two"
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert events[-1]["response"]["output"][0]["content"][0]["text"] == "one two"
    assert events[-1]["response"]["usage"]["output_tokens"] == 2


def test_a_conversation_goes_on_by_the_response_before_by_a_user_and_by_a_header(gateway: World) -> None:
    first = post(gateway, "!say one").json["id"]
    second = post(gateway, "!say two", previous_response_id=first)
    third = post(gateway, "!say three", previous_response_id=second.json["id"])
    assert output(third) == "three"
    keys = [row["key"] for row in gateway.ask("sessions.list")["sessions"] if ":openresponses:" in row["key"]]
    counts = [gateway.ask("chat.history", sessionKey=key)["totalMessages"] for key in keys]
    assert 6 in counts

    for _ in range(2):
        post(gateway, "!say hi", user="ann")
    assert gateway.ask("chat.history", sessionKey="agent:main:openresponses-user:ann")["totalMessages"] == 4
    headers = {**gateway.bearer, "x_openclaw_session_key": "agent:main:by-header"}
    body = {"model": "openclaw", "input": "!say hi"}
    web_client.send(f"{gateway.served.http}/v1/responses", "POST", body, **headers)
    assert gateway.ask("chat.history", sessionKey="agent:main:by-header")["totalMessages"] == 2


def test_pictures_and_files_go_with_the_message(gateway: World) -> None:
    picture = f"data:image/png;base64,{base64.b64encode(PNG).decode()}"
    note = base64.b64encode(b"remember the milk").decode()
    parts = [
        text("look"),
        {"type": "input_image", "image_url": picture},
        {"type": "input_file", "filename": "note.txt", "file_data": f"data:text/plain;base64,{note}"},
        {"type": "input_file", "source": {"type": "base64", "media_type": "text/plain", "data": note, "filename": "b"}},
    ]
    assert post(gateway, [user(*parts)], user="files").status == 200
    (message, *_) = gateway.ask("chat.history", sessionKey="agent:main:openresponses-user:files")["messages"]
    kept = [(one["mimeType"], one.get("fileName"), one["sizeBytes"]) for one in message["attachments"]]
    assert kept == [("image/png", None, len(PNG)), ("text/plain", "note.txt", 17), ("text/plain", "b", 17)]


REFUSED = [
    ({"model": "gpt-4"}, "Invalid `model`"),
    ({"input": []}, "Missing user message in `input`"),
    ({"input": 5}, "Missing user message in `input`"),
    ({"input": [user({"type": "input_text"})]}, "must have its `text`"),
    ({"input": [user({"type": "input_image", "image_url": "https://x.test/a.png"})]}, "are not fetched"),
    ({"input": [user(text("x"), {"type": "input_audio"})]}, "'input_audio' is not taken"),
    ({"tools": [{"type": "function", "name": "f"}]}, "`tools` are not taken here"),
    ({"previous_response_id": "resp_none"}, "there is no response 'resp_none'"),
]


@pytest.mark.parametrize(("body", "words"), REFUSED)
def test_refusals_say_what_to_change(gateway: World, body: Any, words: str) -> None:
    answer = post(gateway, **{"input": "x", **body})
    assert (answer.status, answer.json["error"]["type"]) == (400, "invalid_request_error")
    assert words in answer.json["error"]["message"]


def test_a_run_that_fails_is_a_failed_response(gateway: World) -> None:
    answer = post(gateway, "!fail on purpose")
    assert (answer.status, answer.json["status"]) == (500, "failed")
    assert "on purpose" in answer.json["error"]["message"]
    last = post(gateway, "!fail on purpose", stream=True).body.decode().split("\n\n")[-3]
    assert last.startswith("event: response.failed")


def test_it_needs_the_token_and_to_be_switched_on(gateway: World) -> None:
    address, body = f"{gateway.served.http}/v1/responses", {"model": "openclaw", "input": "!say hi"}
    assert web_client.send(address, "POST", body).status == 401
    assert web_client.send(address, "GET", **gateway.bearer).status == 405
    gateway.configure(gateway={})
    try:
        refused = web_client.send(address, "POST", body, **gateway.bearer)
        assert refused.status == 404
        assert "gateway.http.endpoints.responses.enabled" in refused.json["error"]["message"]
    finally:
        gateway.configure(**ON)
    assert web_client.send(address, "POST", body, **gateway.bearer).status == 200
