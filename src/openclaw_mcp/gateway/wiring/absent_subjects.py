"""Subjects that clients of OpenClaw ask about and this gateway does not have: each is answered, and answered empty.

A page that gets an error here shows it in place of the chat, or switches itself off.
"""

from collections.abc import Sequence
from typing import Any, Final, Literal

from msgspec import Struct

from ...core.fields import NonEmptyStr
from ...core.model import Json
from ...core.rpc import ADMIN, QUESTIONS, READ, RpcCall, RpcError, RpcMethod, make_method

NO_STABILITY: Final = (
    "this gateway keeps no record of stability events; `health` shows its event loop, and /metrics its memory"
)


class _NoParams(Struct, frozen=True):
    pass


class _SessionKeyParams(Struct, frozen=True, rename="camel"):
    session_key: NonEmptyStr
    agent_id: NonEmptyStr | None = None


class _VisibilityParams(Struct, frozen=True):
    visible: bool


class _UpdateParams(Struct, frozen=True, rename="camel"):
    refresh_checkout: bool = False


class _SkillParams(Struct, frozen=True, rename="camel"):
    agent_id: NonEmptyStr | None = None
    session_key: NonEmptyStr | None = None


class _EnvironmentParams(Struct, frozen=True, rename="camel"):
    runtime_id: NonEmptyStr | None = None
    projection: Literal["profiles"] | None = None
    include_desktop_setup: bool = False


class _TalkParams(Struct, frozen=True):
    provider: NonEmptyStr | None = None
    model: NonEmptyStr | None = None


NO_PROVIDERS: Final[Json] = {"ready": False, "providers": []}
EMPTY_ANSWERS: Final[Sequence[tuple[str, str, type[Struct], Json]]] = (
    # Questions of an agent to a person; approvals of commands are `exec.approval.*`.
    ("question.list", QUESTIONS, _NoParams, {"questions": []}),
    # It does not update itself, and asks nowhere whether there is a newer version.
    (
        "update.status",
        ADMIN,
        _UpdateParams,
        {
            "sentinel": None,
            "updateAvailable": None,
            "schedule": {"channel": "stable", "autoEnabled": False, "install": {"kind": "package"}},
        },
    ),
    # No second agent comments on a session, or answers questions about it.
    ("sessions.observer.visibility", READ, _VisibilityParams, {"ok": True}),
    ("sessions.companion.state", READ, _SessionKeyParams, {"exchanges": []}),
    # A transcript is one line of messages.
    ("sessions.branches.list", READ, _SessionKeyParams, {"branches": []}),
    ("progressCard.get", READ, _SessionKeyParams, {"card": None}),
    # Speech is a capability of nodes.
    (
        "talk.catalog",
        READ,
        _TalkParams,
        {
            "modes": [],
            "transports": [],
            "brains": [],
            "speech": NO_PROVIDERS,
            "transcription": NO_PROVIDERS,
            "realtime": NO_PROVIDERS,
        },
    ),
    # Agents work where the gateway is; nodes are listed by `node.list`.
    ("environments.list", READ, _EnvironmentParams, {"environments": []}),
    # Instructions are the agents' own; skills of nodes are `skills.bins`.
    ("skills.status", READ, _SkillParams, {"workspaceDir": "", "managedSkillsDir": "", "skills": []}),
    # Everyone who has the token is the same operator.
    ("users.list", READ, _NoParams, {"profiles": []}),
)
"""Method, scope, parameters, answer."""


class AbsentSubjects:
    """An `RpcModule`."""

    def methods(self) -> Sequence[RpcMethod]:
        empty = (
            make_method(name, scope, params, _make_answer(answer)) for name, scope, params, answer in EMPTY_ANSWERS
        )
        return (*empty, RpcMethod("diagnostics.stability", READ, _refuse_stability, advertised=False))


def _make_answer(answer: Json) -> Any:
    async def handle(call: RpcCall, params: object) -> Json:
        return answer

    return handle


async def _refuse_stability(call: RpcCall) -> Json:
    raise RpcError(NO_STABILITY, kind="UNAVAILABLE", retryable=False)
