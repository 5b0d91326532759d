"""Interfaces between packages: what one needs from another, without importing it."""

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol

from .errors import CannotAsk
from .model import (
    Caller,
    Completion,
    Contents,
    InputRequest,
    Json,
    Prompt,
    PromptCall,
    PromptSpec,
    ResourceRead,
    ResourceSpec,
    TemplateSpec,
    ToolCall,
    ToolResult,
    ToolSpec,
)
from .signal import Signal

if TYPE_CHECKING:
    # For the types alone: the stdio servers start without agents.
    from .agent import AgentEvent, Turn
    from .effects import RunEffects
    from .sessions import Run, RunAdmission, RunEvent, RunRequest

LogLevel = Literal["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"]


class CallContext(Protocol):
    """The way back to the caller's client, open while the call lasts."""

    async def progress(self, value: float, *, total: float | None = None, message: str | None = None) -> None:
        """Report how far the call is. `value` must grow; nothing is sent to a client that did not ask."""

    async def log(self, level: LogLevel, data: Any, *, logger: str | None = None) -> None: ...

    def can_ask(self, capability: str, mode: str = "") -> bool:
        """Whether this client answers `elicitation` (mode `form` or `url`), `sampling` or `roots`."""

    @property
    def asks_within_call(self) -> bool:
        """Whether `ask` waits for the answer: a tool may then ask in the middle of its work."""

    async def ask(self, questions: Mapping[str, InputRequest]) -> Mapping[str, Json]:
        """The client's answers by key. Raises CannotAsk when it declared no such capability.

        Ask before acting: a client of the stateless era answers by sending the call again, and the tool then
        runs from its beginning with the answers at hand. A key names one question per call.
        """

    async def detach(self) -> None:
        """From here on the call may be long: a client that can poll gets a task, others go on waiting."""


class NullCallContext:
    """The context of a caller that gets nothing before the result."""

    async def progress(self, value: float, *, total: float | None = None, message: str | None = None) -> None:
        return

    async def log(self, level: LogLevel, data: Any, *, logger: str | None = None) -> None:
        return

    def can_ask(self, capability: str, mode: str = "") -> bool:
        return False

    @property
    def asks_within_call(self) -> bool:
        return False

    async def ask(self, questions: Mapping[str, InputRequest]) -> Mapping[str, Json]:
        capability = next(iter(questions.values())).capability
        raise CannotAsk("no client can be asked on this connection", capability=capability)

    async def detach(self) -> None:
        return


NULL_CONTEXT: CallContext = NullCallContext()


class Toolbox(Protocol):
    """Lists tools and calls them: a dispatcher in this process, or one elsewhere."""

    @property
    def changed(self) -> Signal[None]: ...

    async def list(self, caller: Caller) -> Sequence[ToolSpec]:
        """The tools this caller may call, in a stable order. The same object while nothing has changed."""

    async def call(self, call: ToolCall) -> ToolResult: ...


class ToolSource(Protocol):
    """Something that owns tools: a module of the gateway, a paired node, a connected app."""

    @property
    def changed(self) -> Signal[None]: ...

    def specs(self) -> Sequence[ToolSpec]: ...

    async def call(self, call: ToolCall) -> ToolResult: ...


class ConnectedApp(ToolSource, Protocol):
    """A session of an app that lends its tools through the proxy."""

    @property
    def digest(self) -> str:
        """Its name in logs, audit and policy: its id is the key to it."""

    @property
    def chat_id(self) -> str | None:
        """The conversation its app belongs to, if the app named one."""


class AppDirectory(Protocol):
    """The apps whose bridges are open in this process."""

    @property
    def app_attached(self) -> Signal[Any]:
        """Emitted with the ConnectedApp whose bridge was opened. A signal has one type alone: the directory's own."""

    @property
    def session_ended(self) -> Signal[Any]:
        """Emitted with a ConnectedApp too."""

    def connected_apps(self) -> Sequence[ConnectedApp]: ...


class ResourceProvider(Protocol):
    """Resources a caller may read."""

    @property
    def changed(self) -> Signal[None]: ...

    @property
    def updated(self) -> Signal[str]:
        """Emits the URI whose contents are new."""

    async def list(self, caller: Caller) -> Sequence[ResourceSpec]: ...

    async def templates(self, caller: Caller) -> Sequence[TemplateSpec]: ...

    async def read(self, read: ResourceRead) -> Sequence[Contents]:
        """Raises ResourceNotFound."""


class PromptProvider(Protocol):
    @property
    def changed(self) -> Signal[None]: ...

    async def list(self, caller: Caller) -> Sequence[PromptSpec]: ...

    async def get(self, call: PromptCall) -> Prompt:
        """Raises PromptNotFound, PromptArguments."""


class Completer(Protocol):
    async def complete(self, caller: Caller, ref: Json, argument: Json, context: Json) -> Completion: ...


class AgentRuntime(Protocol):
    """Something that answers: a model behind an API, a CLI, the built-in demo."""

    @property
    def id(self) -> str: ...

    @property
    def media_types(self) -> tuple[str, ...]:
        """MIME prefixes of the attachments it can see."""

    def run(self, turn: "Turn") -> AsyncIterator["AgentEvent"]:
        """Answer, ending with `Final` or `Failed`. Closing the iterator or cancelling the wait aborts the turn:
        the runtime stops what it started before it lets go."""


class RunExecutor(Protocol):
    """Carries out runs."""

    @property
    def events(self) -> "Signal[RunEvent]": ...

    async def submit(self, request: "RunRequest") -> "RunAdmission":
        """Admit it, on disk when this returns; it is carried out now or when its turn comes."""

    async def record(self, request: "RunRequest", reply: str) -> "Run":
        """Store a message that the gateway itself has answered, and the reply: a run that is over. The one that has
        the id already, if there is one."""

    async def abort(
        self, key: str, *, run_id: str | None = None, include_queued: bool = True, reason: str = "rpc"
    ) -> Sequence[str]:
        """Stop what runs in a session, and drop what waits; the ids of those ended or about to be."""

    async def find(self, run_id: str) -> "Run | None": ...

    async def wait(self, run_id: str, *, seconds: float) -> "Run | None":
        """The run once it has ended, also when its session is deleted then; None when the time is up first."""


class GrantIssuer(Protocol):
    """Gives a run a credential of its own, for programs it starts that call back."""

    def issue(self, caller: Caller, *, seconds: float) -> str:
        """A token for this caller until it is revoked or the time is up. Never stored, never logged."""

    def revoke(self, token: str) -> None:
        """From now on it is refused, and connections it opened are closed."""

    async def settle(self, token: str) -> "RunEffects":
        """Revoke it, let what was begun under it end, and say what was done to others under it."""

    def find_caller(self, token: str) -> Caller | None: ...


class ProcessGuard(Protocol):
    """Ends process groups if this process dies without doing so."""

    def prepare(self) -> str:
        """To be called before a program is started, which gets the answer in its environment: it is found by it should
        this process die before `watch`."""

    def watch(self, group: int) -> None: ...

    def unwatch(self, group: int) -> None:
        """To be called once a group is gone: its number may soon be another's."""
