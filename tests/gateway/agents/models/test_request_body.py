"""A request's body: what is sent piece by piece is what would be sent whole."""

import base64
import json

import pytest

from openclaw_mcp.gateway.agents.models.anthropic import AnthropicCodec
from openclaw_mcp.gateway.agents.models.messages import (
    ImagePart,
    MessagePart,
    ModelCodec,
    ModelMessage,
    ModelRequest,
    TextPart,
    ToolCallPart,
    ToolResultPart,
)
from openclaw_mcp.gateway.agents.models.openai import OpenAICodec
from openclaw_mcp.gateway.agents.models.request_body import CHUNK_SIZE, RequestBody
from openclaw_mcp.gateway.agents.models.settings import ModelChoice, ModelInfo, ModelProvider

CODECS: dict[str, ModelCodec] = {"openai": OpenAICodec(), "anthropic": AnthropicCodec()}
SIZES = (1, 2, 3, CHUNK_SIZE - 1, CHUNK_SIZE, CHUNK_SIZE + 1, 3 * CHUNK_SIZE + 2)


def model_request(*parts: MessagePart) -> ModelRequest:
    provider = ModelProvider(name="p", api="openai", base_url="http://127.0.0.1")
    call = ModelMessage("assistant", (ToolCallPart("c1", "draw", "{}"),))
    return ModelRequest(
        choice=ModelChoice(provider, ModelInfo(id="m")),
        system="be kind",
        messages=(call, ModelMessage("user", parts)),
        tools=(),
    )


def sent(codec: ModelCodec, ask: ModelRequest) -> bytes:
    body = RequestBody(codec.encode_body(ask), ask.messages)
    whole = b"".join(body)
    assert len(whole) == body.size
    assert b"".join(body) == whole
    return whole


@pytest.mark.parametrize("name", CODECS)
def test_bytes_are_sent_as_their_base64_would_be(name: str) -> None:
    data = [bytes([number]) * size for number, size in enumerate(SIZES)]

    def parts(*, raw: bool) -> tuple[MessagePart, ...]:
        first, *others = [ImagePart("image/png", one if raw else base64.b64encode(one).decode()) for one in data]
        return (
            ToolResultPart(id="c1", name="draw", parts=(TextPart("drawn"), first)),
            *others,
            TextPart("what is it?"),
            others[0],
        )

    assert sent(CODECS[name], model_request(*parts(raw=True))) == sent(CODECS[name], model_request(*parts(raw=False)))


@pytest.mark.parametrize("name", CODECS)
def test_a_body_without_pictures_is_as_it_was_written(name: str) -> None:
    ask = model_request(TextPart("0123456789abcdef-12345-"))

    assert sent(CODECS[name], ask) == CODECS[name].encode_body(ask)
    assert json.loads(sent(CODECS[name], ask))["model"] == "m"
