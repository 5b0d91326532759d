"""Parameters of `sessions.patch`: which fields a session has, which values they take, and which scope they need."""

from collections.abc import Mapping
from typing import Annotated, Final, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, structs, to_builtins

from ...core.agents import AgentRoster
from ...core.fields import NonEmptyStr
from ...core.model import Json
from ...core.model_name import check_model_name
from ...core.providers import MODEL_RUNTIMES, model_from_settings, split_model_name
from ...core.rpc import RpcError
from .params import ChangeParams, Label

MAX_ICON_LENGTH: Final = 16 << 10
MAX_PATH_LENGTH: Final = 4096
WRITE_SCOPE_FIELDS: Final = frozenset(
    {"label", "autoLabel", "icon", "color", "category", "boardFace", "boardPresentation", "statusNote", "attention"}
    | {"ttlMinutes", "archived", "pinned", "unread", "model", "agentRuntime"}
)
"""Fields that need write scope; all others need admin."""
COLUMNS: Final[Mapping[str, str]] = {
    "label": "label", "archived": "archived", "pinned": "pinned", "unread": "unread", "displayName": "display_name",
}  # fmt: skip
"""Fields that are columns of the store, by their names; the others are the session's entry."""
LEVELS: Final[Mapping[str, tuple[str, ...]]] = {
    "thinkingLevel": ("off", "minimal", "low", "medium", "high", "xhigh", "max", "ultra", "adaptive"),
    "verboseLevel": ("on", "off", "full"),
    "traceLevel": ("on", "off", "raw"),
    "reasoningLevel": ("on", "off", "stream"),
    "elevatedLevel": ("on", "off", "ask", "full"),
    "execHost": ("auto", "sandbox", "gateway", "node"),
    "color": ("red", "blue", "green", "yellow", "purple", "orange", "pink", "cyan"),
}
"""Fields whose values OpenClaw checks after its schema, with an error that lists them."""
NOT_ENFORCED: Final[Mapping[str, tuple[object, ...]]] = {
    "permissionMode": (None, "full"),
    "toolOverrides": (None, {}),
    "inheritedToolAllow": (None,),
    "inheritedToolDeny": (None,),
    "sendPolicy": (None, "allow"),
}
"""Fields that limit a session in OpenClaw and that no code here enforces, with the values that limit nothing."""

Text = NonEmptyStr | UnsetType | None
PermissionMode = Literal["read-only", "guarded", "workspace", "full"]


class ToolOverrides(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True):
    mcp_servers: dict[str, bool] | UnsetType = UNSET
    mcp_tools_deny: dict[str, list[NonEmptyStr]] | UnsetType = UNSET
    skills: dict[str, bool] | UnsetType = UNSET
    web_search: bool | UnsetType = UNSET


class PatchParams(ChangeParams, frozen=True, kw_only=True, omit_defaults=True):
    """Fields as OpenClaw has them; null clears one. The last three are of this gateway alone."""

    expected_permission_mode: PermissionMode | UnsetType | None = UNSET
    expected_sandbox_mode: Literal["off"] | UnsetType | None = UNSET
    expected_native_runtime_consent: Text = UNSET
    expected_tool_overrides: ToolOverrides | UnsetType | None = UNSET
    expected_marked_unread_at: Annotated[float, Meta(ge=0)] | UnsetType | None = UNSET
    label: Label | UnsetType | None = UNSET
    auto_label: Label | UnsetType | None = UNSET
    icon: Annotated[str, Meta(max_length=MAX_ICON_LENGTH)] | UnsetType | None = UNSET
    color: Text = UNSET
    category: Label | UnsetType | None = UNSET
    board_face: Literal["chat", "dashboard"] | UnsetType = UNSET
    board_presentation: Literal["split", "expanded"] | UnsetType | None = UNSET
    status_note: Annotated[str, Meta(max_length=120)] | UnsetType | None = UNSET
    attention: Literal["hand", "key", "alert", "flag", "lock", "hourglass"] | UnsetType | None = UNSET
    ttl_minutes: Annotated[int, Meta(ge=1, le=120)] | UnsetType = UNSET
    archived: bool | UnsetType = UNSET
    pinned: bool | UnsetType = UNSET
    unread: bool | UnsetType = UNSET
    context_window: Text = UNSET
    thinking_level: Text = UNSET
    fast_mode: bool | Literal["auto"] | UnsetType | None = UNSET
    tool_overrides: ToolOverrides | UnsetType | None = UNSET
    verbose_level: Text = UNSET
    trace_level: Text = UNSET
    reasoning_level: Text = UNSET
    response_usage: Literal["off", "tokens", "full", "on"] | UnsetType | None = UNSET
    elevated_level: Text = UNSET
    exec_host: Text = UNSET
    exec_security: Text = UNSET
    exec_ask: Text = UNSET
    exec_node: Text = UNSET
    permission_mode: PermissionMode | UnsetType | None = UNSET
    sandbox_mode: Literal["off"] | UnsetType | None = UNSET
    native_runtime_consent: Text = UNSET
    model: Text = UNSET
    agent_runtime: Text = UNSET
    completion_owner_session_key: Text = UNSET
    inherited_tool_policy_version: Literal[1] | UnsetType | None = UNSET
    inherited_tool_allow: list[NonEmptyStr] | UnsetType | None = UNSET
    inherited_tool_deny: list[NonEmptyStr] | UnsetType | None = UNSET
    send_policy: Literal["allow", "deny"] | UnsetType | None = UNSET
    group_activation: Literal["mention", "always"] | UnsetType | None = UNSET
    provider: Text = UNSET
    """Of the `model`, where that names none."""
    cwd: Annotated[str, Meta(min_length=1, max_length=MAX_PATH_LENGTH)] | UnsetType | None = UNSET
    """The folder the owner's runs of this session work in."""
    display_name: Annotated[str, Meta(max_length=500)] | UnsetType | None = UNSET

    @property
    def expected_fields(self) -> Json:
        """Fields of the session's entry that must be so for the change to be made; `expectedMarkedUnreadAt` is only
        checked, since no time is kept for it."""
        expected = {
            "permissionMode": self.expected_permission_mode, "sandboxMode": self.expected_sandbox_mode,
            "nativeRuntimeConsent": self.expected_native_runtime_consent, "toolOverrides": self.expected_tool_overrides,
        }  # fmt: skip
        return {name: to_builtins(value) for name, value in expected.items() if value is not UNSET}

    @property
    def changes(self) -> Json:
        """The fields to change, as the wire names them."""
        written: Json = to_builtins({name: value for name, value in _wire_values(self) if value is not UNSET})
        return {
            name: value
            for name, value in written.items()
            if name not in ("key", "agentId") and not name.startswith("expected")
        }


def _wire_values(asked: PatchParams) -> list[tuple[str, object]]:
    return [(each.encode_name, getattr(asked, each.name)) for each in structs.fields(asked)]


def check_values(changes: Json) -> None:
    """Raises RpcError for a value that OpenClaw refuses, or that would limit the session where nothing enforces it."""
    if "execSecurity" in changes or "execAsk" in changes:
        raise RpcError(
            "execSecurity/execAsk are retired; say what an agent may do with agents.list[].tools in the config"
        )
    for name, allowed in LEVELS.items():
        value = changes.get(name)
        if value is not None and value not in allowed:
            raise RpcError(f"invalid {name} (use {'|'.join(allowed)})")
    for name, harmless in NOT_ENFORCED.items():
        if changes.get(name) not in harmless:
            raise RpcError(
                f"this gateway does not enforce {name} of a session; "
                "limit the agent with agents.list[].tools in the config instead"
            )


def check_model_choice(settings: Json, agent_id: str, roster: AgentRoster) -> None:
    """Raises BadRequest or RpcError when these settings of a session name a model that no provider could answer for."""
    check_model_name(settings.get("model"))
    model = model_from_settings(settings)
    if model is None or roster.providers is None:
        return
    runtime = roster.get_agent(agent_id).runtime
    if runtime not in MODEL_RUNTIMES:
        return  # a CLI knows its own models
    provider, _ = split_model_name(model, roster.providers, namesake=runtime)
    if provider not in roster.providers:
        known = ", ".join(sorted(roster.providers))
        raise RpcError(f'Unknown provider "{provider}"; add models.providers.{provider} to the config, or use {known}')


def split_changes(changes: Json) -> tuple[Json, Json]:
    """The changes of columns, and those of the session's entry."""
    columns = {COLUMNS[name]: value for name, value in changes.items() if name in COLUMNS}
    return columns, {name: value for name, value in changes.items() if name not in COLUMNS}
