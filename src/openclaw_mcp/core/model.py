"""Nouns. Frozen, plain, no behaviour beyond their own invariants.

They are msgspec structs: light to import, fast to make, and content blocks encode themselves into MCP's shapes.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Literal

from msgspec import UNSET, Struct, UnsetType, field

if TYPE_CHECKING:
    from .ports import CallContext

Json = dict[str, Any]
ToolEffect = Literal["read", "write", "send", "run"]
TaskMode = Literal["inline", "offered", "required"]
EntryPoint = Literal["rpc", "http", "mcp", "agent", "cli"]
"""How a call came in. `http` is the gateway's `POST /tools/invoke`; MCP is `mcp` over every transport."""


class Sender(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The person whose message started a run, as the channel itself knows them; never as the message says."""

    id: str | None = None
    e164: str | None = None
    username: str | None = None
    name: str | None = None


class Grant(Struct, frozen=True, kw_only=True, cache_hash=True, omit_defaults=True):
    """What a run's credential fixes besides its session: for whom it runs, where, and how far it reaches."""

    agent: str | None = None
    models: tuple[str, ...] = ()
    """Every model that may answer, as `core.providers` names them: fixed when the run begins, so that nothing that is
    changed on the way frees it."""
    channel: str | None = None
    account: str | None = None
    to: str | None = None
    """The conversation, as its channel writes it."""
    group: str | None = None
    space: str | None = None
    """The guild or team the group belongs to."""
    thread: str | None = None
    sender: Sender | None = None
    owner: bool = False
    depth: int = 0
    """How many spawns are between this run and one a person started."""
    spawned_by: str | None = None
    """The session that spawned this one."""
    folder: str | None = None
    """Where the run works, when an operator with every right named it; else its agent's workspace."""
    handed_on: bool = False
    """Whether another run started this one: then the conversation is that run's, and binds this one too."""
    led_by: tuple[str, ...] = ()
    """The models of the runs that led to this one (`@agent` or `@agent:model`: whichever that is now): their rules hold
    too."""
    delivers_to: tuple[str, str, str] | None = None
    """Channel, account and conversation a job's result is delivered to: no person is behind the job, and that
    conversation counts as its own."""
    sends_anywhere: bool = False
    """Whether an operator planned it outside every conversation, to send where its orders say."""
    tools: frozenset[str] | None = None
    """The run's tools, as entries of an allow list; None = all that the rules leave, empty = none."""


class Caller(Struct, frozen=True, kw_only=True, cache_hash=True):
    """Who is calling. Made once, at the entry point, from a credential; never from an argument."""

    kind: Literal["local", "operator", "agent", "app", "node"]
    name: str
    scopes: frozenset[str] = frozenset()
    session: str | None = None
    entry_point: EntryPoint = "mcp"
    grant: Grant | None = None
    session_grant: Grant | None = None
    """Of an operator that acts in a session: the grant that session's own run would have. It decides about tools, and
    about what is started and changed; which methods and sessions the operator reaches stays its own."""

    @property
    def acts_in_session(self) -> bool:
        """Whether it is a session's agent: a run, or an operator's client that named the session it acts in. Then that
        session's rules hold for it, for what it starts and for what it may change."""
        return self.kind == "agent" or self.session_grant is not None

    @property
    def is_owner(self) -> bool:
        """Without a grant a caller speaks for itself: the owner if at this machine, or an operator with every right."""
        if self.grant is not None:
            return self.grant.owner
        return self.kind == "local" or (self.kind == "operator" and not self.scopes.isdisjoint(OWNER_SCOPES))


OWNER_SCOPES: Final = frozenset({"*", "operator.admin"})
"""Scopes that make an operator the owner."""
SOURCE_SCOPE_PREFIX: Final = "source:"
"""How a scope begins that opens one source of tools."""


LOCAL_CALLER = Caller(kind="local", name="local", scopes=frozenset({"*"}))
"""The person at this machine, who started the server as their own child process."""


# ---- content: what tools answer and resources hold ----


class _WithMeta(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """What most values of MCP may carry, and we pass on as it is."""

    meta: Json | None = field(default=None, name="_meta")


class _Annotated(_WithMeta, frozen=True, kw_only=True):
    annotations: Json | None = None


class _Listed(_Annotated, frozen=True, kw_only=True):
    """A resource as lists show it to people."""

    title: str | None = None
    description: str | None = None
    icons: list[Json] | None = None


class Contents(_WithMeta, frozen=True, kw_only=True):
    """A resource's text or bytes; exactly one of the two."""

    uri: str
    mime_type: str | None = None
    text: str | None = None
    blob: bytes | None = None


class Text(_Annotated, frozen=True, tag_field="type", tag="text"):
    text: str


class Image(_Annotated, frozen=True, tag_field="type", tag="image"):
    data: bytes
    mime_type: str


class Audio(_Annotated, frozen=True, tag_field="type", tag="audio"):
    data: bytes
    mime_type: str


class Embedded(_Annotated, frozen=True, tag_field="type", tag="resource"):
    resource: Contents


class Link(_Listed, frozen=True, tag_field="type", tag="resource_link"):
    uri: str
    name: str
    mime_type: str | None = None
    size: int | None = None


ContentBlock = Text | Image | Audio | Embedded | Link


# ---- tools ----


class ToolSpec(Struct, frozen=True, kw_only=True):
    """A tool as its owner describes it; `input_schema` is raw JSON Schema and is passed on verbatim."""

    name: str
    description: str = ""
    input_schema: Json = field(default_factory=lambda: {"type": "object"})
    title: str | None = None
    output_schema: Json | None = None
    annotations: Json | None = None
    icons: list[Json] | None = None
    meta: Json | None = None
    effect: ToolEffect = "read"
    owner_only: bool = False
    """For the owner alone, even if the rules allow it to others."""
    actions: Mapping[str, str] = {}
    """Of a tool with many actions: what its argument `action` may be, and the name such a call is judged by."""
    parameter_tools: Mapping[str, str] = {}
    """Parameters with which a call does what another tool is for: that tool's name, by which it is judged as well."""
    deadline: float | None = None
    """Seconds a call may take; None = the dispatcher's own limit."""
    task: TaskMode = "inline"
    """`offered`: a client that knows the Tasks extension gets a task to poll instead of waiting; `required`:
    other clients are refused. An `inline` tool may still turn into a task halfway: see `CallContext.detach`."""


class PolicyDecision(Struct, frozen=True):
    """Whether a caller may use a tool."""

    allowed: bool
    reason: str
    """The rule that decided, for the audit and for the refusal."""
    step: str = "scope"
    """Which step of the rules that was."""


class ToolCall(Struct, frozen=True, kw_only=True):
    caller: Caller
    name: str
    arguments: Json
    context: "CallContext"


class Traffic(Struct, frozen=True):
    """Bytes a far tool was sent and answered with, for the audit."""

    sent: int
    received: int


class ToolResult(Struct, frozen=True):
    content: tuple[ContentBlock, ...] = ()
    structured: Any | UnsetType = UNSET
    failed: bool = False
    meta: Json | None = None
    traffic: Traffic | None = None


class CallRecord(Struct, frozen=True, kw_only=True):
    """The audit record of one call made or refused. Never arguments, never results."""

    at: float
    """Seconds since the epoch, when the call came in."""
    caller: str
    """Kind and name: `agent run-7`."""
    entry_point: str
    session: str | None
    tool: str
    source: str | None
    digest: str | None
    """Of the arguments, keyed; None where no key is configured."""
    step: str
    """Which step of the policy decided."""
    rule: str
    """The reason it gave."""
    outcome: str
    """`ok`, `failed`, or the stable code of the error that ended the call."""
    milliseconds: float
    traffic: Traffic | None = None
    """Sizes, when the tool is far away and was asked."""


def text_result(text: str, *, failed: bool = False) -> ToolResult:
    """The result that is one text block."""
    return ToolResult((Text(text),), failed=failed)


# ---- questions to the person or model behind the client ----


class InputRequest(Struct, frozen=True):
    """One question for the client, in MCP's own terms."""

    method: Literal["elicitation/create", "sampling/createMessage", "roots/list"]
    params: Json = {}
    binding: str = ""
    """What else an answer holds for, not shown: with another one it is another question."""

    @property
    def capability(self) -> str:
        return self.method.partition("/")[0]


def form_request(message: str, schema: Json, *, binding: str = "") -> InputRequest:
    """Ask a person to fill in a flat form."""
    return InputRequest("elicitation/create", {"mode": "form", "message": message, "requestedSchema": schema}, binding)


# ---- resources and prompts ----


class ResourceSpec(_Listed, frozen=True, kw_only=True):
    uri: str
    name: str
    mime_type: str | None = None
    size: int | None = None


class TemplateSpec(_Listed, frozen=True, kw_only=True):
    uri_template: str
    name: str
    mime_type: str | None = None


class PromptArgument(Struct, frozen=True, omit_defaults=True):
    name: str
    required: bool = False
    title: str | None = None
    description: str | None = None


class PromptSpec(_WithMeta, frozen=True, kw_only=True):
    name: str
    title: str | None = None
    description: str | None = None
    icons: list[Json] | None = None
    arguments: list[PromptArgument] | None = None


class PromptMessage(Struct, frozen=True):
    role: Literal["user", "assistant"]
    content: ContentBlock


class Prompt(Struct, frozen=True, omit_defaults=True):
    messages: tuple[PromptMessage, ...]
    description: str | None = None


class PromptCall(Struct, frozen=True, kw_only=True):
    caller: Caller
    name: str
    arguments: Mapping[str, str]
    context: "CallContext"


class ResourceRead(Struct, frozen=True, kw_only=True):
    caller: Caller
    uri: str
    context: "CallContext"


class Completion(Struct, frozen=True, rename="camel"):
    values: tuple[str, ...] = ()
    total: int = 0
    has_more: bool = False
