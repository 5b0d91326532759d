"""Consent to look at or listen to the room: asked once, remembered, revocable. Unattended means no."""

import time
from pathlib import Path
from typing import Final, Literal

import msgspec
from msgspec import Struct

from ..core.errors import OpenClawError, ToolDenied
from ..core.model import ToolCall
from .private_files import read_private, write_private
from .questions import Asking, Question, question

FILE: Final = "consents.json"
LARGEST_FILE: Final = 1 << 16  # bytes

THINGS: Final = ("camera", "screen.record")
"""What a person may consent to."""


class BadConsents(OpenClawError):
    code = "bad_consents"


class Given(Struct, frozen=True, rename="camel"):
    decision: Literal["allow", "deny"]
    at: int
    """Unix milliseconds."""


class Consents:
    """The consents of one state directory. Callable: a capability is handed the object itself."""

    def __init__(self, *, state_dir: Path, asking: Asking) -> None:
        self.path = state_dir / FILE
        self._asking = asking

    def all(self) -> dict[str, Given]:
        """Raises BadConsents; then nothing counts as consented to."""
        try:
            return msgspec.json.decode(read_private(self.path, largest=LARGEST_FILE), type=dict[str, Given])
        except FileNotFoundError:
            return {}
        except (OSError, msgspec.DecodeError, UnicodeDecodeError) as exc:
            raise BadConsents(f"{self.path} can't be read, so nothing is consented to; mend or delete it") from exc

    def record(self, thing: str, decision: Literal["allow", "deny"]) -> None:
        self._save({**self.all(), thing: Given(decision, time.time_ns() // 1_000_000)})

    def revoke(self, thing: str) -> bool:
        """Forget the decision, so that it is asked for again; whether there was one."""
        kept = self.all()
        if kept.pop(thing, None) is None:
            return False
        self._save(kept)
        return True

    async def __call__(self, call: ToolCall, what: str) -> None:
        """Return if `call` may do `what`, such as "film screen 0 for 5 s". Raises ToolDenied."""
        thing = thing_of(call.name)
        given = self.all().get(thing)
        if given is not None and given.decision == "allow":
            return
        how = f"To allow it, run `openclaw approvals grant {thing}` on this machine."
        if given is not None:
            raise ToolDenied(f"Denied: the person at this machine does not consent to {thing}. {how}")
        answer = await self._asking.ask(call, _question(call, thing, what), how_to_allow=how)
        if answer == "always":
            self.record(thing, "allow")
        elif answer == "deny":
            raise ToolDenied(f"Denied: a person said no to {thing}.")

    def _save(self, consents: dict[str, Given]) -> None:
        write_private(self.path, msgspec.json.format(msgspec.json.encode(consents), indent=2) + b"\n")


def thing_of(command: str) -> str:
    """What a consent for this command is remembered under: one for all of the camera, one for filming the screen."""
    return next((thing for thing in THINGS if command == thing or command.startswith(f"{thing}.")), command)


def _question(call: ToolCall, thing: str, what: str) -> Question:
    return question(
        "consent",
        title=f"May {call.caller.name} use {call.name}?",
        detail=what,
        why=f"{thing} needs the consent of the person at this machine",
        asker=f"{call.caller.kind} {call.caller.name}",
        always=True,
    )
