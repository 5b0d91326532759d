"""What a provider reports in odd forms is made regular where it comes in, so that what is stored can be read again."""

import asyncio
import base64
from pathlib import Path
from typing import Any

import pytest

from openclaw_mcp.core.chat_messages import ChatMessage
from openclaw_mcp.core.lenient import read_struct

from .conversations import APIS
from .fake import FakeModel, Step
from .test_gateway import config_for, gateway, talking, text_of


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("usage", [(100.5, 10.25, 0), (True, True, False), (1e30, 2, 0), (-5, -1, -3)])
def test_a_run_with_odd_token_counts_can_be_read(tmp_path: Path, api: str, usage: Any) -> None:
    async def conversation() -> None:
        async with talking(served) as talker:
            run_id = await talker.send("hi")
            assert text_of(await talker.until(run_id, "final", "error")) == "hello"
            ended = await talker.client.call("agent.wait", {"runId": run_id, "timeoutMs": 1000})
            assert ended["status"] == "ok"
            again = {"sessionKey": "main", "message": "hi", "idempotencyKey": run_id}
            await talker.client.call("chat.send", again)  # sent again by a client that missed the answer
            listed = await talker.client.call("sessions.list", {})
            assert [session["key"] for session in listed["sessions"]] == ["agent:main:main"]

    with (
        FakeModel(Step(say="hello", usage=usage)) as model,
        gateway(tmp_path / "state", config_for(api, model)) as served,
    ):
        asyncio.run(conversation())


@pytest.mark.parametrize("name", [5, {"a": 1}, ["x"], True, None])
def test_a_file_of_another_gateway_has_a_text_for_a_name_or_none(name: object) -> None:
    block = {"type": "image", "data": base64.b64encode(b"x").decode(), "mimeType": "image/png", "fileName": name}

    assert [file.name for file in read_struct({"content": [block]}, ChatMessage).media] == [None]
