"""Subjects that clients of OpenClaw ask about and this gateway does not have: each is answered, and answered empty.

A page that gets an error here shows it in place of the chat, or switches itself off. Where an empty answer would say
something wrong, the refusal says in a sentence what there is.
"""

import sys
from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal

from msgspec import Meta, Struct

from ...core.clock import now_ms
from ...core.fields import NonEmptyStr
from ...core.model import Json
from ...core.rpc import ADMIN, QUESTIONS, READ, RpcCall, RpcError, RpcMethod, make_method

Filter = Annotated[str, Meta(min_length=1, max_length=256)]


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


class _LibraryParams(Struct, frozen=True, rename="camel"):
    session_key: NonEmptyStr | None = None
    scope: Literal["mine", "team", "all"] | None = None


class _AgentParams(Struct, frozen=True, rename="camel"):
    agent_id: NonEmptyStr | None = None


class _ArtifactParams(Struct, frozen=True, rename="camel"):
    session_key: NonEmptyStr | None = None
    run_id: NonEmptyStr | None = None
    task_id: NonEmptyStr | None = None
    agent_id: NonEmptyStr | None = None
    message_role: Literal["assistant"] | None = None
    type: Literal["image"] | None = None
    limit: Annotated[int, Meta(ge=1, le=4)] | None = None
    cursor: Filter | None = None


class _RecordingParams(Struct, frozen=True, rename="camel"):
    limit: Annotated[int, Meta(ge=1, le=200)] = 50
    cursor: NonEmptyStr | None = None
    provider_id: NonEmptyStr | None = None
    account_id: Filter | None = None
    agent_id: Filter | None = None
    started_after: NonEmptyStr | None = None
    started_before: NonEmptyStr | None = None


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
    # Instructions are the agents' own; skills of nodes are `skills.bins`.
    ("skills.status", READ, _SkillParams, {"workspaceDir": "", "managedSkillsDir": "", "skills": []}),
    (
        "skills.library.list",
        READ,
        _LibraryParams,
        {
            "entries": [],
            "profileId": None,
            "multipleProfiles": False,
            "defaultTarget": "unavailable",
            "canManageWorkspace": False,
            "defaultSelectionLimit": 0,
        },
    ),
    ("hooks.status", READ, _AgentParams, {"workspaceDir": "", "managedHooksDir": "", "hooks": []}),
    # Channels and agents are part of the program.
    ("plugins.list", READ, _NoParams, {"generation": 0, "plugins": [], "diagnostics": [], "mutationAllowed": False}),
    # Agents work in their workspaces as they are.
    ("worktrees.list", READ, _NoParams, {"worktrees": []}),
    # Of meetings; the transcripts of sessions are `chat.history`.
    ("transcripts.list", READ, _RecordingParams, {"sessions": [], "nextCursor": None}),
    # Everyone who has the token is the same operator.
    ("users.list", READ, _NoParams, {"profiles": []}),
)
"""Method, scope, parameters, answer."""

REFUSALS: Final[Sequence[tuple[str, str, str]]] = (
    (
        "diagnostics.stability",
        READ,
        "this gateway keeps no record of stability events; `health` shows its event loop, and /metrics its memory",
    ),
    (
        "sessions.usage",
        READ,
        "this gateway has no usage report by session; use `usage.cost` for days and agents, and `sessions.list` for "
        "the tokens of a session",
    ),
    ("set-heartbeats", ADMIN, "this gateway has no heartbeats to switch on or off; agents wake by `cron` and `wake`"),
    ("skills.search", READ, "this gateway searches no registry of skills and installs none"),
    ("themes.list", READ, "this gateway keeps no themes; a page has its own"),
)
"""Method, scope, sentence. `hello-ok` does not name them, so a client that looks there does not ask."""

HOST: Final[Json] = {
    "id": "gateway",
    "type": "local",
    "label": "Gateway local",
    "status": "available",
    "platform": sys.platform,
    "sessionHost": True,
    "trust": "persistent",
    "capabilities": ["agent.run", "sessions", "tools", "workspace"],
}
"""The environment in which agents work: where the gateway is. Nodes are listed by `node.list`."""


class AbsentSubjects:
    """An `RpcModule`."""

    def methods(self) -> Sequence[RpcMethod]:
        empty = (
            make_method(name, scope, params, _make_answer(answer)) for name, scope, params, answer in EMPTY_ANSWERS
        )
        refused = (RpcMethod(name, scope, _make_refusal(why), advertised=False) for name, scope, why in REFUSALS)
        return (
            *empty,
            *refused,
            make_method("environments.list", READ, _EnvironmentParams, _list_environments),
            make_method("artifacts.list", READ, _ArtifactParams, _list_artifacts),
            RpcMethod("diagnostics.lanes", READ, _list_lanes),
            RpcMethod("usage.status", READ, _get_quotas),
        )


def _make_answer(answer: Json) -> Any:
    async def handle(call: RpcCall, params: object) -> Json:
        return answer

    return handle


def _make_refusal(sentence: str) -> Any:
    async def refuse(call: RpcCall) -> Json:
        raise RpcError(sentence, kind="UNAVAILABLE", retryable=False)

    return refuse


async def _list_environments(call: RpcCall, asked: _EnvironmentParams) -> Json:
    return {"environments": [] if asked.projection == "profiles" else [HOST]}


async def _list_artifacts(call: RpcCall, asked: _ArtifactParams) -> Json:
    """Files are parts of messages: `chat.history` has them, and none is kept for itself."""
    if not (asked.session_key or asked.run_id or asked.task_id):
        raise RpcError("artifacts require one of sessionKey, runId, or taskId")
    return {"artifacts": []}


async def _list_lanes(call: RpcCall) -> Json:
    """Runs wait in their sessions, not in lanes that sessions share."""
    return {"ts": now_ms(), "lanes": [], "dynamic": None}


async def _get_quotas(call: RpcCall) -> Json:
    """No provider is asked what is left of a subscription."""
    return {"updatedAt": now_ms(), "providers": []}
