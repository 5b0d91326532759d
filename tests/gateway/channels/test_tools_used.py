"""The tools a message action is judged as: what it is called, what it carries, its target."""

import pytest

from openclaw_mcp.core.channel import ChatAddress
from openclaw_mcp.core.message_request import parse_action, tools_for_action
from openclaw_mcp.core.model import Json

HOME = ChatAddress(channel="twin", account="default", to="ann", thread="7")
OTHER_THREAD = ChatAddress(channel="twin", account="default", to="ann", thread="8")
NO_THREAD = ChatAddress(channel="twin", account="default", to="ann")
AWAY = ChatAddress(channel="twin", account="default", to="bob")
SAME_NAME = ChatAddress(channel="twin", account="second", to="ann", thread="7")

ROWS: list[tuple[str, Json, list[ChatAddress], list[str]]] = [
    ("send", {"message": "x"}, [HOME], ["message_send"]),
    ("send", {"message": "x"}, [NO_THREAD], ["message_send"]),
    ("send", {"message": "x"}, [OTHER_THREAD], ["message_send", "message_thread_reply"]),
    ("reply", {"message": "x"}, [HOME], ["message_reply"]),
    ("reply", {"message": "x"}, [AWAY], ["message_reply", "message_send"]),
    ("reply", {"message": "x"}, [SAME_NAME], ["message_reply", "message_thread_reply", "message_send"]),
    ("reply", {"card": {}}, [AWAY], ["message_reply", "message_send"]),
    ("send", {"caption": "x", "mediaUrls": ["a"], "effect": "1", "replyToId": 3}, [HOME],
     ["message_send", "message_send_attachment", "message_send_with_effect", "message_reply"]),
    ("send", {"message": "x", "media": " ", "effectId": "", "replyTo": None}, [HOME], ["message_send"]),
    ("sendAttachment", {"file": "a"}, [AWAY], ["message_send_attachment"]),
    ("sendAttachment", {"file": "a", "caption": "x"}, [AWAY], ["message_send_attachment", "message_send"]),
    ("broadcast", {"targets": ["a", "b"], "message": "x"}, [HOME], ["message_broadcast"]),
    ("broadcast", {"targets": ["a", "b"], "message": "x"}, [HOME, AWAY], ["message_broadcast", "message_send"]),
    ("broadcast", {"targets": ["a"], "message": "x"}, [], ["message_broadcast"]),
    ("poll", {"question": "?", "options": ["a", "b"]}, [HOME], ["message_poll"]),
    ("poll", {"question": "?", "options": ["a", "b"]}, [OTHER_THREAD], ["message_poll", "message_thread_reply"]),
    ("poll", {"question": "?", "options": ["a", "b"]}, [AWAY], ["message_poll", "message_send"]),
    ("edit", {"messageId": "1", "message": "x", "media": "a"}, [AWAY], ["message_edit"]),
    ("unsend", {"messageId": "1"}, [OTHER_THREAD], ["message_delete"]),
    ("unpin", {"messageId": "1"}, [AWAY], ["message_pin"]),
    ("readMessages", {"threadId": "8"}, [OTHER_THREAD], ["message_read"]),
]  # fmt: skip


@pytest.mark.parametrize(("action", "params", "addresses", "tools"), ROWS)
def test_an_action_is_judged_as_every_tool_whose_work_it_does(
    action: str, params: Json, addresses: list[ChatAddress], tools: list[str]
) -> None:
    used = tools_for_action(parse_action(action, params), addresses, (HOME,))
    assert list(dict.fromkeys(used)) == tools


def test_who_is_in_no_conversation_is_nowhere_at_home() -> None:
    assert tools_for_action(parse_action("reply", {"message": "x"}), [HOME], ()) == [
        "message_reply", "message_thread_reply", "message_send",
    ]  # fmt: skip
