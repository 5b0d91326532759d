"""Notifications on the desktop, with buttons when they ask something. Linux over D-Bus, macOS without buttons."""

import asyncio
import contextlib
import html
import os
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from typing import TYPE_CHECKING, Any, Final, Literal

from ..core.errors import ToolUnavailable
from ..net.tasks import finish
from .capability import UnavailableReason
from .exec import process
from .exec.environment import child_environment
from .questions import PromptAnswer, UserQuestion

if TYPE_CHECKING:
    from dbus_fast.aio import MessageBus

ANSWER_WAIT: Final = 5.0  # seconds a notification daemon may take to answer a call
MAX_BODY_LENGTH: Final = 2000  # characters; a notification is no page
NOTIFICATIONS_NAME: Final = "org.freedesktop.Notifications"
NOTIFICATIONS_PATH: Final = "/org/freedesktop/Notifications"
CLOSED_BY_PERSON: Final = 2

Urgency = Literal["low", "normal", "critical"]
_URGENCIES: Final = {"low": 0, "normal": 1, "critical": 2}


class DesktopNotifier:
    """The notification daemon of this session, if there is one. A `UserPrompter`."""

    def __init__(
        self, *, ask_on_desktop: Callable[[], bool] = lambda: True, environ: Mapping[str, str] = os.environ
    ) -> None:
        self._ask_on_desktop, self._environ = ask_on_desktop, environ

    def unavailable_reason(self) -> UnavailableReason | None:
        if sys.platform == "darwin":
            return None
        if sys.platform == "win32":
            return UnavailableReason(
                "Notifications are not built for Windows yet.", "Use the OpenClaw tray application there."
            )
        if self._bus_address() is None:
            return UnavailableReason("There is no desktop session bus.", "Start the node inside a desktop session.")
        if find_spec("dbus_fast") is None and which("notify-send") is None:
            return UnavailableReason(
                "Nothing here can talk to the desktop.", "Install openclaw-mcp[node], or notify-send."
            )
        return None

    async def notify(self, title: str, body: str, *, urgency: Urgency = "normal", sound: bool = True) -> None:
        """Show it. Raises ToolUnavailable when no daemon takes it."""
        if sys.platform == "darwin":
            script = f"display notification {_quote_applescript(body)} with title {_quote_applescript(title)}"
            await self._run_program("osascript", "-e", script)
        elif find_spec("dbus_fast") is None:
            await self._run_program("notify-send", "-u", urgency, "--", title, html.escape(body, quote=False))
        else:
            async with self._connect_bus() as bus:
                await _send_notification(bus, title, body, urgency=urgency, sound=sound)

    # ---- UserPrompter------------------------------------------------------------------------------------------------

    keeps_questions = False

    def is_available(self) -> bool:
        return self._ask_on_desktop() and self._bus_address() is not None and find_spec("dbus_fast") is not None

    async def ask(self, question: UserQuestion) -> PromptAnswer | None:
        if len(_question_text(question)) > MAX_BODY_LENGTH:
            return None  # the end of it would not be seen
        try:
            async with self._connect_bus() as bus:
                if "actions" not in (await _call_notifications(bus, "GetCapabilities"))[0]:
                    return None
                return await _ask_with_buttons(bus, question)
        except ToolUnavailable:
            return None

    # ---- the bus -----------------------------------------------------------------------------------------------------

    def _bus_address(self) -> str | None:
        given = self._environ.get("DBUS_SESSION_BUS_ADDRESS")
        if given:
            return given
        runtime = self._environ.get("XDG_RUNTIME_DIR")
        return f"unix:path={runtime}/bus" if runtime and Path(runtime, "bus").exists() else None

    @asynccontextmanager
    async def _connect_bus(self) -> AsyncIterator["MessageBus"]:
        # Here for start-up: D-Bus takes longer to load than the whole rest of a node.
        from dbus_fast.aio import MessageBus

        try:
            async with asyncio.timeout(ANSWER_WAIT):
                bus = await MessageBus(bus_address=self._bus_address()).connect()
        except Exception as exc:  # dbus-fast lets all errors of the socket and its own parser pass
            raise ToolUnavailable("The desktop session bus can't be reached") from exc
        try:
            yield bus
        finally:
            bus.disconnect()

    async def _run_program(self, name: str, *arguments: str) -> None:
        found = which(name)
        if found is None:
            raise ToolUnavailable(f"{name} is not installed")
        argv = [name, *arguments]
        ended = await process.run_process(
            argv, executable=found, cwd=None, env=child_environment(), seconds=ANSWER_WAIT
        )
        if ended.exit_code != 0:
            raise ToolUnavailable("No notification daemon took the notification")


async def _call_notifications(
    bus: "MessageBus", member: str, signature: str = "", body: Sequence[Any] = ()
) -> Sequence[Any]:
    return await _call_method(bus, NOTIFICATIONS_NAME, NOTIFICATIONS_PATH, member, signature, body)


async def _call_bus_daemon(bus: "MessageBus", member: str, name: str) -> Sequence[Any]:
    return await _call_method(bus, "org.freedesktop.DBus", "/org/freedesktop/DBus", member, "s", [name])


async def _call_method(
    bus: "MessageBus", name: str, path: str, member: str, signature: str, body: Sequence[Any]
) -> Sequence[Any]:
    from dbus_fast import Message, MessageType  # here for start-up, as above

    message = Message(destination=name, path=path, interface=name, member=member, signature=signature, body=list(body))
    try:
        async with asyncio.timeout(ANSWER_WAIT):
            reply = await bus.call(message)
    except (TimeoutError, OSError, EOFError) as exc:
        raise ToolUnavailable("The notification daemon does not answer") from exc
    if reply is None or reply.message_type is not MessageType.METHOD_RETURN:
        raise ToolUnavailable("There is no notification daemon on this desktop")
    answer: Sequence[Any] = reply.body
    return answer


async def _send_notification(
    bus: "MessageBus", title: str, body: str, *, urgency: Urgency, sound: bool, actions: Sequence[str] = ()
) -> int:
    from dbus_fast import Variant  # here for start-up, as above

    # Daemons read markup in the body; an agent's text is plain.
    text = html.escape(body[:MAX_BODY_LENGTH], quote=False)
    hints = {"urgency": Variant("y", _URGENCIES[urgency]), "suppress-sound": Variant("b", not sound)}
    expire = 0 if actions else -1  # a question stays until it is answered
    values = ["OpenClaw", 0, "", title[:MAX_BODY_LENGTH], text, list(actions), hints, expire]
    return int((await _call_notifications(bus, "Notify", "susssasa{sv}i", values))[0])


async def _ask_with_buttons(bus: "MessageBus", question: UserQuestion) -> PromptAnswer | None:
    from dbus_fast import Message, MessageType  # here for start-up, as above

    answers: dict[int, PromptAnswer | None] = {}
    """By notification: one may be answered before we know which is ours."""
    received = asyncio.Event()
    # Of this daemon only: any program on the bus may send a signal.
    (daemon,) = await _call_bus_daemon(bus, "GetNameOwner", NOTIFICATIONS_NAME)
    buttons: dict[PromptAnswer, str] = {"once": "Allow once", "always": "Always allow", "deny": "Deny"}
    if not question.always:
        del buttons["always"]

    def on_message(message: Message) -> None:
        origin = (message.message_type, message.interface, message.sender)
        if origin != (MessageType.SIGNAL, NOTIFICATIONS_NAME, daemon):
            return
        if message.member == "ActionInvoked":
            answers.setdefault(message.body[0], message.body[1] if message.body[1] in buttons else "deny")
        elif message.member == "NotificationClosed":
            answers.setdefault(message.body[0], "deny" if message.body[1] == CLOSED_BY_PERSON else None)
        received.set()

    await _call_bus_daemon(bus, "AddMatch", f"type='signal',sender='{daemon}',interface='{NOTIFICATIONS_NAME}'")
    bus.add_message_handler(on_message)
    actions = [word for button in buttons.items() for word in button]
    shown_as = await _send_notification(
        bus, question.title, _question_text(question), urgency="critical", sound=True, actions=actions
    )
    try:
        while shown_as not in answers:
            received.clear()
            await received.wait()
        return answers[shown_as]
    finally:
        with contextlib.suppress(ToolUnavailable):
            await finish(_call_notifications(bus, "CloseNotification", "u", [shown_as]))


def _question_text(question: UserQuestion) -> str:
    lasting = f"\nalways would hold {question.lasting}" if question.always and question.lasting else ""
    # Our own text first: what follows it may hold lines that read like ours.
    return f"{question.why}\nasked by {question.asker}{lasting}\n{question.detail}"


def _quote_applescript(text: str) -> str:
    escaped = text[:MAX_BODY_LENGTH].replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
