"""Whose work a message action does: by what it sends and where to, whatever it is called. Pure."""

from collections.abc import Collection, Iterable
from typing import Final

from ...core.channel import ChatAddress
from ...core.claw_methods import TOOLS_BY_ACTION
from ...core.message_request import ActionRequest

SEND_ACTIONS: Final = ("send", "reply", "thread-reply", "sendAttachment", "sendWithEffect")
_WRITE_ACTIONS: Final = frozenset({*SEND_ACTIONS, "broadcast", "poll"})


def tools_for_action(
    request: ActionRequest, addresses: Iterable[ChatAddress], own_addresses: Collection[ChatAddress]
) -> list[str]:
    """The tools an action at these addresses is judged as, first the one it is called by; see `tools_to_reach`."""
    called = TOOLS_BY_ACTION["message"][request.action]
    if request.action not in _WRITE_ACTIONS:
        return [called]
    carried = {
        "message_send_attachment": request.media,
        "message_send_with_effect": request.effect,
        "message_reply": request.reply_to,
    }
    says = bool(request.text.strip() or request.question or request.extra)
    reached = tools_for_addresses(addresses, own_addresses, has_text=says)
    return [called, *(tool for tool, there in carried.items() if there), *reached]


def tools_for_addresses(
    addresses: Iterable[ChatAddress], own_addresses: Collection[ChatAddress], *, has_text: bool = True
) -> list[str]:
    """The tools that writing at these addresses is the work of, wherever it is not at home.

    `own`: the conversations, and the threads in them, that whoever asks is in. `says`: not just a file.
    """
    places, homes = set(addresses), {conversation_key(address) for address in own_addresses}
    tools = []
    if any(place.thread and place not in own_addresses for place in places):
        tools.append("message_thread_reply")
    if has_text and any(conversation_key(place) not in homes for place in places):
        tools.append("message_send")
    return tools


def conversation_key(address: ChatAddress) -> tuple[str, str, str]:
    """Whichever of its threads is meant."""
    return address.channel, address.account, address.to
