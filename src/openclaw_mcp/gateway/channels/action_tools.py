"""Whose work a message action does: by what it sends and where to, whatever it is called. Pure."""

from collections.abc import Collection, Iterable
from typing import Final

from ...core.channel import Address
from ...core.claw_methods import FAMILY_ACTIONS
from .action_params import Wanted

SENDS: Final = ("send", "reply", "thread-reply", "sendAttachment", "sendWithEffect")
_WRITES: Final = frozenset({*SENDS, "broadcast", "poll"})


def tools_used(wanted: Wanted, addresses: Iterable[Address], own: Collection[Address]) -> list[str]:
    """The tools an action at these addresses is judged as, first the one it is called by; see `tools_to_reach`."""
    called = FAMILY_ACTIONS["message"][wanted.action]
    if wanted.action not in _WRITES:
        return [called]
    carried = {
        "message_send_attachment": wanted.media,
        "message_send_with_effect": wanted.effect,
        "message_reply": wanted.reply_to,
    }
    says = bool(wanted.text.strip() or wanted.question or wanted.extra)
    reached = tools_to_reach(addresses, own, says=says)
    return [called, *(tool for tool, there in carried.items() if there), *reached]


def tools_to_reach(addresses: Iterable[Address], own: Collection[Address], *, says: bool = True) -> list[str]:
    """The tools that writing at these addresses is the work of, wherever it is not at home.

    `own`: the conversations, and the threads in them, that whoever asks is in. `says`: not just a file.
    """
    places, homes = set(addresses), {conversation(address) for address in own}
    tools = []
    if any(place.thread and place not in own for place in places):
        tools.append("message_thread_reply")
    if says and any(conversation(place) not in homes for place in places):
        tools.append("message_send")
    return tools


def conversation(address: Address) -> tuple[str, str, str]:
    """Whichever of its threads is meant."""
    return address.channel, address.account, address.to
