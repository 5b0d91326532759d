"""Consent to use the camera or record the screen: asked once, remembered, revocable. Without a person it is refused."""

import time
from pathlib import Path
from typing import Final, Literal

import msgspec
from msgspec import Struct

from ..core.errors import OpenClawError, ToolDenied
from ..core.model import ToolCall
from .private_files import read_private, write_private
from .questions import PromptRouter, UserQuestion, make_question

CONSENTS_FILE: Final = "consents.json"
MAX_FILE_BYTES: Final = 1 << 16  # bytes

CONSENT_TOPICS: Final = ("camera", "screen.record")
"""What a person may consent to."""


class BadConsents(OpenClawError):
    code = "bad_consents"


class ConsentRecord(Struct, frozen=True, rename="camel"):
    decision: Literal["allow", "deny"]
    at: int
    """Unix milliseconds."""


class ConsentStore:
    """The consents of one state directory. Callable: it is a capability's `RequireConsent`."""

    def __init__(self, *, state_dir: Path, prompt_router: PromptRouter) -> None:
        self.path = state_dir / CONSENTS_FILE
        self._prompt_router = prompt_router

    def load(self) -> dict[str, ConsentRecord]:
        """Raises BadConsents; then nothing counts as consented to."""
        try:
            return msgspec.json.decode(read_private(self.path, largest=MAX_FILE_BYTES), type=dict[str, ConsentRecord])
        except FileNotFoundError:
            return {}
        except (OSError, msgspec.DecodeError, UnicodeDecodeError) as exc:
            raise BadConsents(f"{self.path} can't be read, so nothing is consented to; mend or delete it") from exc

    def record(self, topic: str, decision: Literal["allow", "deny"]) -> None:
        self._save({**self.load(), topic: ConsentRecord(decision, time.time_ns() // 1_000_000)})

    def revoke(self, topic: str) -> bool:
        """Forget the decision, so that it is asked for again; whether there was one."""
        kept = self.load()
        if kept.pop(topic, None) is None:
            return False
        self._save(kept)
        return True

    async def __call__(self, call: ToolCall, action: str) -> None:
        """Return if `call` may do `action`, such as "film screen 0 for 5 s". Raises ToolDenied."""
        topic = consent_topic(call.name)
        given = self.load().get(topic)
        if given is not None and given.decision == "allow":
            return
        how = f"To allow it, run `openclaw approvals grant {topic}` on this machine."
        if given is not None:
            raise ToolDenied(f"Denied: the person at this machine does not consent to {topic}. {how}")
        answer = await self._prompt_router.ask(call, _make_question(call, topic, action), how_to_allow=how)
        if answer == "always":
            self.record(topic, "allow")
        elif answer == "deny":
            raise ToolDenied(f"Denied: a person said no to {topic}.")

    def _save(self, consents: dict[str, ConsentRecord]) -> None:
        write_private(self.path, msgspec.json.format(msgspec.json.encode(consents), indent=2) + b"\n")


def consent_topic(command: str) -> str:
    """The topic under which a consent to this command is remembered: the whole camera, or recording the screen."""
    return next((topic for topic in CONSENT_TOPICS if command == topic or command.startswith(f"{topic}.")), command)


def _make_question(call: ToolCall, topic: str, action: str) -> UserQuestion:
    return make_question(
        "consent",
        title=f"May {call.caller.name} use {call.name}?",
        detail=action,
        why=f"{topic} needs the consent of the person at this machine",
        asker=f"{call.caller.kind} {call.caller.name}",
        always=True,
    )
