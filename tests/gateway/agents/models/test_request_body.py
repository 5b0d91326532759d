"""A request's body: what is sent piece by piece is what would be sent whole."""

import base64
import json

import pytest

from openclaw_mcp.gateway.agents.models.anthropic import Anthropic
from openclaw_mcp.gateway.agents.models.messages import Ask, Call, Codec, Part, Picture, Result, Said, Words
from openclaw_mcp.gateway.agents.models.openai import OpenAI
from openclaw_mcp.gateway.agents.models.request_body import PIECE, Body
from openclaw_mcp.gateway.agents.models.settings import Choice, ModelCard, Provider

CODECS: dict[str, Codec] = {"openai": OpenAI(), "anthropic": Anthropic()}
SIZES = (1, 2, 3, PIECE - 1, PIECE, PIECE + 1, 3 * PIECE + 2)


def asked(*parts: Part) -> Ask:
    provider = Provider(name="p", api="openai", base_url="http://127.0.0.1")
    call = Said("assistant", (Call("c1", "draw", "{}"),))
    return Ask(
        choice=Choice(provider, ModelCard(id="m")), system="be kind", talk=(call, Said("user", parts)), offers=()
    )


def sent(codec: Codec, ask: Ask) -> bytes:
    body = Body(codec.body(ask), ask.talk)
    whole = b"".join(body)
    assert len(whole) == body.size
    assert b"".join(body) == whole
    return whole


@pytest.mark.parametrize("name", CODECS)
def test_bytes_are_sent_as_their_base64_would_be(name: str) -> None:
    data = [bytes([number]) * size for number, size in enumerate(SIZES)]

    def parts(*, raw: bool) -> tuple[Part, ...]:
        first, *others = [Picture("image/png", one if raw else base64.b64encode(one).decode()) for one in data]
        return (Result(id="c1", name="draw", parts=(Words("drawn"), first)), *others, Words("what is it?"), others[0])

    assert sent(CODECS[name], asked(*parts(raw=True))) == sent(CODECS[name], asked(*parts(raw=False)))


@pytest.mark.parametrize("name", CODECS)
def test_a_body_without_pictures_is_as_it_was_written(name: str) -> None:
    ask = asked(Words("0123456789abcdef-12345-"))

    assert sent(CODECS[name], ask) == CODECS[name].body(ask)
    assert json.loads(sent(CODECS[name], ask))["model"] == "m"
