"""What a client sends for a session is in its transcript when it was sent where the session is, or by an admin."""

from pathlib import Path
from typing import Any

import pytest

from openclaw_mcp.core.channel import DeliveryReceipt
from openclaw_mcp.core.model import Caller, Json
from openclaw_mcp.core.rpc import READ, WRITE

from .gateways import OPERATOR, Twin, open_channels, within

WRITER = Caller(kind="operator", name="writer", scopes=frozenset({READ, WRITE}))
KEY = "agent:main:twin:direct:ann"
SENDS: list[tuple[str, Json]] = [
    ("send", {"channel": "twin", "message": "mirrored", "idempotencyKey": "k"}),
    ("message.action", {"action": "send", "params": {"message": "mirrored"}, "idempotencyKey": "k"}),
    ("message:send", {"message": "mirrored"}),
    ("poll", {"channel": "twin", "question": "mirrored", "options": ["a", "b"], "idempotencyKey": "k"}),
]


class Voting(Twin):
    async def send_poll(self, *_args: Any, **_more: Any) -> Any:
        return DeliveryReceipt(message_id="p1", at=1)


def message_params(params: Json, to: str) -> Json:
    if "params" in params:
        return {**params, "params": {**params["params"], "to": f"twin:{to}"}, "sessionKey": KEY}
    return {**params, "to": f"twin:{to}" if "channel" not in params else to, "sessionKey": KEY}


@pytest.mark.parametrize(("method", "params"), SENDS)
@pytest.mark.parametrize(
    ("who", "to", "expected"),
    [(WRITER, "ann", True), (WRITER, "x", False), (OPERATOR, "ann", True), (OPERATOR, "x", True)],
)
def test_words_for_a_session_stand_in_it_when_they_were_sent_where_it_is(
    tmp_path: Path, method: str, params: Json, who: Any, to: str, expected: bool
) -> None:
    async def scenario() -> None:
        twin = Voting(can=("send", "poll"))
        async with open_channels(tmp_path, twin=twin) as here:
            assert twin.hear is not None
            await twin.hear(twin.build_message("!say hi", id="1"))
            await twin.has(1)
            await here.call(method, who, **message_params(params, to))
            page = await here.memory.sessions.history(KEY, limit=10)
            contents = [message.body["content"] for message in page.messages]
            assert ([{"type": "text", "text": "mirrored"}] in contents) is (
                expected and not (method == "poll" and to == "x")
            )

    within(scenario())
